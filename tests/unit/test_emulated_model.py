"""A model whose products and attention are made by kernels in CUDA C++, on a CPU: prompt and steps, against float32."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import Causal
from diagonal.engine.heads import Heads
from diagonal.engine.kernels import hopper_attention, narrow, plain, products, wide
from diagonal.engine.kernels.visibility import BLOCK, NOWHERE, Visibility
from diagonal.engine.tokens import cache as caches
from diagonal.engine.tokens import graphs
from diagonal.engine.tokens.cache import CacheStep, KVCache
from diagonal.engine.tokens.graphs import DeviceStep
from diagonal.models import layers, mcar, wham
from tests.cuda_on_cpu import Machine

MODELS: dict[str, Any] = {
    "mcar": mcar.Config(
        width=256, layers=2, heads=4, kv_heads=2, mlp=512, frames=8, reference_frames=1, codebook=64, vocab=80
    ),
    "wham": wham.Config(width=256, layers=2, heads=4, codebook=64, frames=2, reference_frames=1, rows=8, cols=8),
}
LARGE = {"mcar": set(), "wham": {"wider.cu"}}  # kernels that only one of them is large enough for
PROMPT, FEW, MANY = 70, 5, 24  # inputs of the calls: each has other kernels


def _remember(heads: Heads, k: Tensor, v: Tensor, slots: Tensor) -> Tensor:
    found = narrow.fitting_heads(heads, k, v, slots)
    return plain.remember(heads, k, v, slots) if found is None else narrow.remember(heads, k, v, slots, found)


def _prompt(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return hopper_attention.prompt(q.contiguous(), k, v)


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Visibility) -> Tensor:
    out_BSHD = torch.full_like(q.transpose(1, 2), torch.nan, memory_format=torch.contiguous_format)
    share = hopper_attention.share(hopper_attention.blocks_of(q, k), programs=1, most=1)
    hopper_attention.run((q.contiguous(), k, v), seen, (out_BSHD, None, None), share)
    return out_BSHD.transpose(1, 2)


@pytest.fixture
def asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels are able to do everything, and their names are noted."""
    names: list[str] = []
    machine.processors = 32
    kernels = {name: getattr(plain, name) for name in plain.__all__}
    ops = SimpleNamespace(**kernels | {"remember": _remember, "prompt": _prompt})
    for module in (products, layers):
        monkeypatch.setattr(module, "able", lambda x: True)
    for module in (products, layers, caches, graphs):
        monkeypatch.setattr(module, "ops", lambda x: ops)

    def note(module: Any, function: str, name: Callable[..., str]) -> None:
        run = getattr(module, function)

        def noted(*given: Any, **named: Any) -> Any:
            names.append(name(*given, **named))
            return run(*given, **named)

        monkeypatch.setattr(module, function, noted)

    note(narrow, "run", lambda *given: "narrow")
    note(narrow, "remember", lambda *given: "heads")
    note(wide, "run", lambda x, product, found: found.file)
    note(hopper_attention, "run", lambda *given: "attention")
    note(hopper_attention, "prompt", lambda *given: "prompt")
    return names


@pytest.mark.parametrize("name", MODELS)
def test_a_model_by_kernels_gives_the_logits_that_it_should(name: str, asked: list[str]) -> None:
    torch.manual_seed(0)
    model = MODELS[name].build().eval()
    with torch.no_grad():
        model.load_state_dict({key: value.bfloat16().float() for key, value in model.state_dict().items()})
    length = PROMPT + FEW + MANY
    tokens = torch.randint(64, (1, length))
    slots = torch.arange(length)
    with torch.inference_mode(), pytest.MonkeyPatch.context() as usual:
        for module in (products, layers):
            usual.setattr(module, "able", lambda x: False)
        exact = model(tokens, slots, Causal())
    assert not asked

    small = model.bfloat16()
    cache = KVCache(small.cache_spec, 1, length, torch.device("cpu"), torch.bfloat16)
    found = []
    with torch.inference_mode():
        keep = torch.arange(PROMPT - 9, PROMPT)
        found.append(
            small(tokens[:, :PROMPT], slots[:PROMPT], CacheStep(cache, slots[:PROMPT], PROMPT, raster=True), keep)
        )
        for start, stop in ((PROMPT, PROMPT + FEW), (PROMPT + FEW, length)):
            needed = torch.arange(cache.length, dtype=torch.int32)
            needed[stop:] = NOWHERE
            numbers = (torch.tensor([number]) for number in (start // BLOCK, -(-stop // BLOCK)))
            seen = Visibility(slots[start:stop], needed, *numbers)
            found.append(small(tokens[:, start:stop], slots[start:stop], DeviceStep(cache, seen, _attend, [])))
    logits = torch.cat(found, 1).float()
    wanted = exact[:, PROMPT - 9 :]
    assert (logits - wanted).norm() / wanted.norm() < 0.02
    assert set(asked) == {"narrow", "heads", "wide.cu", "attention", "prompt"} | LARGE[name]
