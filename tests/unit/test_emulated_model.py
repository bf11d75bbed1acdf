"""A model whose GEMMs and attention are kernels in CUDA C++, on a CPU: prefill and decode steps, against float32."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import Causal
from diagonal.engine.heads import Heads
from diagonal.engine.kernels import reference, select
from diagonal.engine.kernels.cuda import hopper_attention, wgmma_gemm
from diagonal.engine.kernels.cuda.hopper_attention import Splits
from diagonal.engine.kernels.visibility import BLOCK, NOWHERE, Visibility
from diagonal.engine.linear import FusedLinear
from diagonal.engine.tokens.cache import CacheStep, KVCache
from diagonal.engine.tokens.graphs import DeviceStep
from diagonal.models import mcar, wham
from tests.cuda_on_cpu import Machine

MODELS: dict[str, Any] = {
    "mcar": mcar.Config(
        width=256, layers=2, heads=4, kv_heads=2, mlp=512, frames=8, reference_frames=1, codebook=64, vocab=80
    ),
    "wham": wham.Config(width=256, layers=2, heads=4, codebook=64, frames=2, reference_frames=1, rows=8, cols=8),
}
ORIENTATIONS = {"mcar": {False}, "wham": {False, True}}  # only one of them is large enough for both
PROMPT, FEW, MANY = 70, 5, 24  # inputs of the calls: each has other kernels


def _write_heads(heads: Heads, k: Tensor, v: Tensor, slots: Tensor, rows: Tensor | None, launch_next: bool) -> Tensor:
    """In place of Triton's kernel."""
    return reference.write_heads(heads, k, v, slots, rows).contiguous()


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Visibility) -> Tensor:
    out_BSHD = torch.full_like(q.transpose(1, 2), torch.nan, memory_format=torch.contiguous_format)
    work = hopper_attention.schedule(hopper_attention.row_tiles(q, k), thread_blocks=1, most=1)
    hopper_attention.run((q.contiguous(), k, v), seen, Splits(out_BSHD), work)
    return out_BSHD.transpose(1, 2)


@pytest.fixture
def orientations(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    """Kernels in CUDA C++ serve everything they can, references the rest; the wgmma GEMM's orientations are noted."""
    found: set[bool] = set()
    machine.processors = 32
    monkeypatch.setattr(select, "serves", lambda x: True)
    monkeypatch.setattr(select, "by_triton", lambda operation, x: False)
    triton = SimpleNamespace(write_heads=_write_heads)
    monkeypatch.setitem(sys.modules, "diagonal.engine.kernels.triton.decode_step", triton)
    run = wgmma_gemm.run

    def noted(x: Tensor, linear: FusedLinear, config: wgmma_gemm.KernelConfig) -> Tensor:
        found.add(config.WEIGHTS_M)
        return run(x, linear, config)

    monkeypatch.setattr(wgmma_gemm, "run", noted)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_model_by_kernels_gives_the_logits_that_it_should(name: str, orientations: set[bool]) -> None:
    torch.manual_seed(0)
    model = MODELS[name].build().eval()
    with torch.no_grad():
        model.load_state_dict({key: value.bfloat16().float() for key, value in model.state_dict().items()})
    length = PROMPT + FEW + MANY
    tokens = torch.randint(64, (1, length))
    slots = torch.arange(length)
    with torch.inference_mode(), pytest.MonkeyPatch.context() as usual:
        usual.setattr(select, "serves", lambda x: False)
        exact = model(tokens, slots, Causal())
    assert not orientations

    small = model.bfloat16()
    cache = KVCache(small.cache_spec, 1, length, torch.device("cpu"), torch.bfloat16)
    found = []
    with torch.inference_mode(), select.recorded() as chosen:
        keep = torch.arange(PROMPT - 9, PROMPT)
        found.append(
            small(tokens[:, :PROMPT], slots[:PROMPT], CacheStep(cache, slots[:PROMPT], PROMPT, raster=True), keep)
        )
        for start, stop in ((PROMPT, PROMPT + FEW), (PROMPT + FEW, length)):
            needed = torch.arange(cache.length, dtype=torch.int32)
            needed[stop:] = NOWHERE
            numbers = (torch.tensor([number]) for number in (start // BLOCK, -(-stop // BLOCK)))
            seen = Visibility(slots[start:stop], needed, *numbers)
            found.append(
                small(tokens[:, start:stop], slots[start:stop], DeviceStep(cache, seen.slots_S, seen, _attend, []))
            )
    logits = torch.cat(found, 1).float()
    wanted = exact[:, PROMPT - 9 :]
    assert (logits - wanted).norm() / wanted.norm() < 0.02
    assert orientations == ORIENTATIONS[name]
    assert chosen["prefill attention"] == "CUDA Hopper"
    assert chosen[f"RoPE and cache write, {FEW} tokens"] == "CUDA small-M GEMM"
    assert chosen[f"RoPE and cache write, {PROMPT} tokens"] == "Triton"
    layers = {one for what, one in chosen.items() if what.startswith("linear")}
    assert {"CUDA small-M GEMM", "CUDA wgmma GEMM"} <= layers
