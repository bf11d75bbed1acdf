"""The recorded tiny MAGI-1, and its runs by the denoising loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.models.magi import Config
from tests.conftest import golden, golden_json

CASES = golden_json("magi/golden.json")["cases"]
RECORDED = Config(dim=128, ffn=128, layers=2, heads=8, kv_heads=4, head_dim=16, text_dim=16)
CHUNK = 6  # latent frames


def recorded_model() -> Any:
    """With the weights that all recordings were made with, read under their published names."""
    with torch.device("meta"):
        model = RECORDED.build()
    checkpoints.load(model, golden("magi/weights_tiny.safetensors"), "the recorded model")
    return model.eval().requires_grad_(False)


def chunks_of(recorded: Tensor) -> Tensor:
    """Latents (1, C, T, H, W) of a pass as chunks (B, F, C, H, W)."""
    chunks: Tensor = recorded[0].unflatten(1, (-1, CHUNK))
    return chunks.permute(1, 2, 0, 3, 4)
