"""Products in fp8 against their plain form: any number of rows, and token models that decode with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagonal import Grid, Layout, make_plan
from diagonal.catalog.names import find
from diagonal.checkpoints.quantize import quantize
from diagonal.engine.attention import Causal
from diagonal.engine.kernels import reference
from diagonal.engine.kernels.device import SWITCH
from diagonal.engine.tokens.cache import KVCache
from diagonal.engine.tokens.decode import decode
from tests.gpu import DEVICE, RUNNABLE, poisoned
from tests.tiny import GREEDY, TINY, build, random_prompt, tiny_config

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs graphs, or true size")

# The interpreter cuts numbers off where a GPU takes the nearest: of 4 bits that is much.
ALIKE, NEAR = (0.999, 0.01) if DEVICE == "cuda" else (0.3, 0.1)


def _kernels() -> Any:
    from diagonal.engine.kernels.triton import fp8_gemm

    return fp8_gemm


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).bfloat16()


def test_rows_are_those_of_the_plain_form_and_then_zeros() -> None:
    torch.manual_seed(3)
    x = _random(20, 200)
    with poisoned():
        rows, scale = _kernels().fp8_rows(x, 16)
    wanted, exact = reference.fp8_rows(x)
    assert rows.shape == (32, 200) and scale.shape == (32, 1)
    torch.testing.assert_close(scale[:20], exact)
    assert (rows[:20].float() == wanted.float()).float().mean() > ALIKE
    assert not rows[20:].float().any() and (scale > 0).all()


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 50, 100])
@pytest.mark.parametrize("more", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_products_of_any_number_of_rows_are_those_of_the_plain_form(rows: int, more: tuple[bool, bool]) -> None:
    torch.manual_seed(rows)
    x, (numbers, scale) = _random(1, rows, 80), reference.fp8_rows(_random(48, 80))
    bias, residual = _random(48), _random(1, rows, 48)
    added = [part if given else None for part, given in zip((bias, residual), more, strict=True)]
    kept = residual.clone()
    with poisoned():
        found = _kernels().linear(x, numbers, scale.flatten(), *added)
    twin = reference.fp8_linear(x, numbers, scale.flatten(), *added).float()
    assert found.shape == (1, rows, 48) and found.dtype == torch.bfloat16 and found.is_contiguous()
    assert (found.float() - twin).norm() < NEAR * twin.norm()
    assert torch.equal(residual, kept)


@on_gpu
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1", "diagonal:k=1,d=2"])
def test_captured_steps_decode_the_tokens_of_eager_ones(name: str, spec: str) -> None:
    from diagonal.engine.kernels.select import decode_attention
    from diagonal.engine.sampler import Sampler
    from diagonal.engine.tokens.graphs import Graphs

    config, device = tiny_config(name), torch.device(DEVICE)
    model = build(config).bfloat16().to(device)
    quantize(model, "fp8")
    plan = make_plan(Layout(Grid(4, config.rows, config.cols), len(config.prefix_ids), config.suffix), spec, 1)
    results = []
    for capture in (False, True):
        cache = KVCache(model.cache_spec, 1, plan.layout.length, device, torch.bfloat16)
        seeds = torch.tensor([1], device=device)
        chosen = Sampler(GREEDY, torch.tensor(config.valid_ids(), device=device), plan.layout.prefix, seeds)
        runner = Graphs(model, cache, chosen, decode_attention, capture)
        for _ in range(2):  # the second time every graph is replayed
            tokens = random_prompt(config, plan).to(device)
            frames = [frame.tokens.cpu() for frame in decode(runner, plan, tokens)]
            results.append(torch.stack(frames))
    assert all(torch.equal(results[0], one) for one in results[1:])


@on_gpu
@pytest.mark.parametrize("name", ["mcar/300m", "wham/200m"])
def test_logits_of_a_quantised_model_are_those_of_its_plain_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device(DEVICE):
        torch.manual_seed(0)
        model = find("models", name).config.build().eval().bfloat16()
    tokens, slots = torch.randint(model.config.codebook, (1, 100), device=DEVICE), torch.arange(100, device=DEVICE)
    with torch.inference_mode():
        exact = model(tokens, slots, Causal()).double()
        quantize(model, "fp8")
        found = model(tokens, slots, Causal()).double()
        monkeypatch.setenv(SWITCH, "0")
        twin = model(tokens, slots, Causal()).double()
    error = [float((one - exact).norm() / exact.norm()) for one in (twin, found)]
    assert 0 < error[1] < 1.1 * error[0] and error[1] < 0.2
