"""Tokens from rows of few ids. The kernel in CUDA C++ runs here on a CPU, compiled by g++, its threads taking turns."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.kernels import few_ids
from diagonal.engine.sampler import sample as twin
from tests.rule import KINDS, SAMPLINGS, possible, rows

SOURCE = Path(few_ids.__file__).parent
SHIM = Path(__file__).parents[1] / "cuda_on_cpu.cpp"
GCC = ("g++", "-O1", "-w", "-std=c++17", "-shared", "-fPIC")
THREADS, IDS = 64, 8  # fewer than on a GPU: a CPU runs them one after the other
MADE_FOR = [one for one in SAMPLINGS if few_ids.cut(200, torch.bfloat16, one) is not None]
compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

Draw = Callable[[Tensor, Tensor, Tensor, Tensor, Sampling], Tensor]


def _code() -> str:
    """The kernel without what only a GPU's assembler knows."""
    header = (SOURCE / "numbers.cuh").read_text()
    header = header[: header.index("__device__ __forceinline__ pair_t pack")]  # no rounding is asked for
    kernel = (SOURCE / "few_ids.cu").read_text().replace('#include "numbers.cuh"', header)
    return re.sub(r"asm volatile.*?;\n", "\n", kernel).replace('extern "C"', "")


@pytest.fixture(scope="session")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Draw:
    folder = tmp_path_factory.mktemp("few_ids")
    (folder / "kernel.h").write_text(_code())
    pointers = ["bf16_t*", "long long*", "long long*", "float*", "long long*", "long long*"]
    kinds = [*pointers, *["int"] * 5, "float", "float"]
    call = "draw(" + ", ".join(f"argument<{kind}>({number})" for number, kind in enumerate(kinds)) + ")"

    @cache
    def library(found: few_ids.Cut) -> ctypes.CDLL:
        target = folder / f"{found.TOP_P}{found.KEEP}.so"
        constants = {"THREADS": THREADS, "IDS": IDS, "TOP_P": int(found.TOP_P), "KEEP": int(found.KEEP)}
        options = [f"-D{name}={value}" for name, value in constants.items()]
        subprocess.run(
            [*GCC, *options, f"-DCALL={call}", '-DKERNEL="kernel.h"', f"-I{folder}", str(SHIM), "-o", str(target)],
            check=True,
        )
        return ctypes.CDLL(str(target))

    def drawn(logits_RV: Tensor, low_R: Tensor, high_R: Tensor, uniform_R: Tensor, sampling: Sampling) -> Tensor:
        found = few_ids.cut(logits_RV.shape[1], logits_RV.dtype, sampling)
        assert found is not None and logits_RV.shape[1] <= THREADS * IDS
        count, out = len(logits_RV), torch.full((len(logits_RV),), -7)
        tensors = (logits_RV, low_R.long(), high_R.long(), uniform_R.float(), None, out)
        whole = (count, logits_RV.shape[1], logits_RV.stride(0), count, count)
        real = (math.log2(math.e) / sampling.temperature, sampling.top_p or 1.0)
        values = [
            *(ctypes.c_void_p(None if one is None else one.data_ptr()) for one in tensors),
            *map(ctypes.c_int, whole),
            *map(ctypes.c_float, real),
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        library(found).run(count, THREADS, addresses)
        return out

    return drawn


@compiled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", MADE_FOR, ids=str)
def test_the_kernel_draws_by_the_rule(kind: str, sampling: Sampling, draw: Draw) -> None:
    logits, low, high, uniform = rows(kind, 6, 333, seed=SAMPLINGS.index(sampling))
    given = torch.full((6, 340), torch.nan, dtype=torch.bfloat16)[:, :333].copy_(
        logits
    )  # a row is part of a longer one
    drawn = draw(given, low, high, uniform, sampling)
    for row, (start, end, number) in enumerate(zip(low, high, uniform, strict=True)):
        ids, found = possible(given[row, start:end], float(number), sampling), int(drawn[row] - start)
        # Where a trifle decides among many ids, any of those between is as good.
        assert min(ids) <= found <= max(ids), (row, found, ids)
        alone = twin(
            given[row : row + 1], start[None], end[None], torch.tensor([0.5]), replace(sampling, temperature=1.0)
        )
        assert (found == -1 - int(start)) == (int(alone) == -1)


@compiled
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("sampling", MADE_FOR[::3], ids=str)
def test_a_row_without_a_finite_logit_gives_no_id(sampling: Sampling, value: float, draw: Draw) -> None:
    given = (
        torch.full((2, 50), value).bfloat16(),
        torch.tensor([0, 3]),
        torch.tensor([50, 40]),
        torch.tensor([0.0, 0.5]),
    )
    assert draw(*given, sampling).tolist() == [-1, -1]


@compiled
def test_it_draws_what_its_twin_draws(draw: Draw) -> None:
    sampling = Sampling(top_p=0.8)
    logits, low, high, uniform = rows("float32", 64, 500, seed=3)
    given = logits.bfloat16(), low, high, uniform
    assert int((draw(*given, sampling) != twin(*given, sampling)).sum()) <= 1  # a number next to a boundary


def test_what_it_is_not_made_for_is_left_to_others() -> None:
    usual = Sampling(top_p=0.8)
    assert few_ids.cut(8262, torch.bfloat16, usual) == few_ids.Cut(544, 16, TOP_P=True, KEEP=True)
    assert few_ids.cut(4096, torch.bfloat16, replace(usual, keep_crossing=False)) == few_ids.Cut(
        256, 16, True, KEEP=False
    )
    assert few_ids.cut(100, torch.bfloat16, Sampling()) == few_ids.Cut(128, 16, TOP_P=False, KEEP=True)
    assert few_ids.cut(12_000, torch.bfloat16, usual) == few_ids.Cut(384, 32, TOP_P=True, KEEP=True)
    assert few_ids.cut(64_000, torch.bfloat16, usual) is None
    assert few_ids.cut(4096, torch.float32, usual) is None
    assert few_ids.cut(4096, torch.bfloat16, Sampling(temperature=0)) is None
    assert few_ids.cut(4096, torch.bfloat16, Sampling(top_k=10)) is None
    ends = torch.zeros(2, dtype=torch.long)
    tables = (ends, ends, torch.zeros(1, 2), None, ends[None])
    assert few_ids.fitting(torch.zeros(2, 100).bfloat16(), tables, usual) is None  # no GPU
