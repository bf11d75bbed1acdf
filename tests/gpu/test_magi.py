"""MAGI-1 on a GPU: the numbers of a CPU, in float32 and in bfloat16, and decoding beside denoising."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Request
from diagonal.generation import chunk_session

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
START = torch.randn(18, 16, 4, 6, generator=torch.Generator().manual_seed(0))
REQUEST = Request(prompt="a red cat", num_frames=72, schedule="8", latents=START)


@pytest.mark.parametrize("preset", ["magi", "magi-distilled"])
def test_latents_are_those_of_the_cpu(preset: str) -> None:
    request = replace(REQUEST, preset=preset)
    expected = diagonal.load("magi/tiny").generate(request, output_type="latent").latents
    model = diagonal.load("magi/tiny", device="cuda")
    found = model.generate(request, output_type="latent").latents
    # Products of float32 round to TF32 here, and guidance multiplies that.
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.05)
    model.model.to(torch.bfloat16)
    rough = model.generate(request, output_type="latent").latents
    assert (rough - expected).abs().mean() < 0.1 * expected.abs().mean()


def test_decoding_beside_denoising_is_decoding_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = diagonal.load("magi/tiny", device="cuda")
    beside = model.generate(REQUEST)
    monkeypatch.setattr(chunk_session.PixelDecoder, "apart", property(lambda decoder: False))
    after = model.generate(REQUEST)
    assert torch.equal(beside.latents, after.latents)
    np.testing.assert_array_equal(beside.frames, after.frames)


def test_weights_of_bfloat16_are_drawn_where_they_are() -> None:
    model = diagonal.load("magi/tiny", device="cuda", dtype=torch.bfloat16)
    assert model.model.embed.weight.dtype == torch.float32
    assert model.model.blocks[0].qqkv.weight.dtype == torch.bfloat16
    assert model.generate(replace(REQUEST, latents=None)).frames.shape == (72, 32, 48, 3)
