"""The floor of MAGI-1's pipeline is what its passes compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import diagonal
from diagonal.engine.pipeline.texts import SpecialTokens
from diagonal.evaluation.speed.pipelined import operations
from diagonal.evaluation.speed.video import VideoSettings, measure
from diagonal.generation.request import Request


@pytest.fixture
def model() -> Any:
    return diagonal.load("magi/tiny")


def counted(model: Any, request: Request, monkeypatch: pytest.MonkeyPatch) -> float:
    """Operations of products and attention in the blocks while a video is made."""
    total = [0]

    def product(layer: torch.nn.Linear, inputs: tuple[Tensor], out: Tensor) -> None:
        total[0] += 2 * layer.weight.numel() * inputs[0].shape[:-1].numel()

    attention = torch.nn.functional.scaled_dot_product_attention

    def counting(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        total[0] += 4 * math.prod(q.shape) * k.shape[-2]
        return attention(q, k, v, **given)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counting)
    hooks = [
        layer.register_forward_hook(product)
        for name, layer in model.model.blocks.named_modules()
        if isinstance(layer, torch.nn.Linear) and not name.endswith(("text_kv", "gates"))
    ]
    model.generate(request, output_type="latent")
    for hook in hooks:
        hook.remove()
    monkeypatch.undo()
    return total[0]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("schedule", ["8", "12", "quadratic:steps=8,lag=8"])
@pytest.mark.parametrize("preset", ["magi", "magi-distilled"])
def test_operations_are_those_that_are_made(
    model: Any, preset: str, schedule: str, special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if special:
        model.special = SpecialTokens(torch.ones(8, 48), torch.ones(48))
    request = Request(prompt_embeds=torch.ones(5, 48), num_frames=144, preset=preset, schedule=schedule)
    assert operations(model, request, 5) == counted(model, request, monkeypatch)


def test_the_numbers_of_a_video(model: Any) -> None:
    request = Request(prompt_embeds=torch.ones(5, 48), num_frames=48, schedule="4")
    made = measure(model, VideoSettings(request, repeat=1, warmup=0))
    assert made["steps"] == 5 and len(made["by_chunk_ms"]) == 2 and made["text_rows"] == 5
    assert made["preset"] == "magi-distilled" and made["fps_with_tokenizer"] > 0
    assert np.isfinite(made["floor_ratio"])
