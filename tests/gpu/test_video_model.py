"""On a GPU a chunk is decoded while the next is denoised, and calls are replayed: neither changes the video."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import diagonal
from diagonal import Request, VideoModel
from diagonal.catalog.names import find
from diagonal.engine.attention import Full
from diagonal.engine.chunks.bidirectional import velocity
from diagonal.engine.kernels.device import SWITCH
from diagonal.generation import chunk_session
from diagonal.text.encoders import embed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
SHORT, LONG = "turning left", "walking through a brick corridor with a soldier then turning left then turning right"
PLAIN = Request(prompt="a red cat", num_frames=81, height=64, width=96, capture=False)


@pytest.fixture(scope="module")
def model() -> VideoModel:
    return diagonal.load("wan/tiny", device="cuda")


def test_decoding_beside_denoising_is_decoding_after_it(model: VideoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = model.generate(PLAIN)
    monkeypatch.setattr(chunk_session.PixelDecoder, "apart", property(lambda decoder: False))
    after = model.generate(PLAIN)
    assert torch.equal(beside.latents, after.latents)
    np.testing.assert_array_equal(beside.frames, after.frames)
    whole: Any = model.vae.decode(after.latents[None].cuda(), {})[0].permute(0, 2, 3, 1).cpu().numpy()
    # Convolutions of float32 round to TF32 here, each shape in its own way.
    assert np.abs(np.asarray(beside.frames).astype(int) - whole).max() <= 8


def test_an_update_is_a_run_whose_prompts_switch_where_the_receipt_says(model: VideoModel) -> None:
    stream = model.stream(PLAIN)
    made = [next(stream)]
    receipt = stream.update("a blue dog")
    made += list(stream)
    assert receipt.applied_at in (1, 2)
    planned = model.generate(replace(PLAIN, prompt_at={receipt.applied_at: "a blue dog"}))
    assert torch.equal(torch.cat([chunk.latents for chunk in made]), planned.latents)


def test_a_stream_that_is_left_early_can_be_begun_again(model: VideoModel) -> None:
    stream = model.stream(replace(PLAIN, num_frames=None))
    first = next(stream)
    stream.close()
    assert torch.equal(next(model.stream(PLAIN)).latents, first.latents)


def test_replayed_calls_give_the_same_video(model: VideoModel) -> None:
    """The first video records, the second one, of another prompt, and the third one replay."""
    made = []
    for on, prompt in ((False, "a red cat"), (True, "a red cat"), (True, "a blue dog"), (True, "a red cat")):
        made.append(model.generate(replace(PLAIN, capture=on, prompt=prompt), output_type="latent").latents)
    assert torch.equal(made[1], made[0]) and torch.equal(made[3], made[0])
    assert not torch.equal(made[2], made[0])


def test_the_kernels_make_the_video_of_their_plain_forms(model: VideoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = model.generate(PLAIN, output_type="latent").latents
    monkeypatch.setenv("DIAGONAL_KERNELS", "0")
    plain = model.generate(PLAIN, output_type="latent").latents
    torch.testing.assert_close(fast, plain, atol=1e-3, rtol=1e-3)


@pytest.fixture(scope="module")
def world() -> VideoModel:
    """Heads of 64 in bfloat16: these attend to a text without its padding."""
    return diagonal.load("doom-t2v", device="cuda", dtype=torch.bfloat16)


def test_replayed_calls_serve_prompts_of_any_length(world: VideoModel) -> None:
    made = []
    for capture in (False, True):
        for prompt in (LONG, SHORT, LONG):
            request = Request(prompt=prompt, num_frames=41, capture=capture)
            made.append(world.generate(request, output_type="latent").latents)
    assert all(torch.equal(one, other) for one, other in zip(made[:3], made[3:], strict=True))
    assert not torch.equal(made[0], made[1])


def test_a_text_without_its_padding_is_attended_to_as_with_it(
    world: VideoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from diagonal.engine.kernels.triton import text_attention

    calls: list[list[int]] = []

    def whole(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        calls.append(rows.tolist())
        return F.scaled_dot_product_attention(q, k, v)

    x = torch.randn(2, 3, world.variant.config.channels, 12, 16, device="cuda")
    level = torch.full((1, 1), 500.0, device="cuda")
    with torch.inference_mode():
        words = world.model.embed_text(embed([SHORT, LONG], world.encoder, device="cuda"))
        few = velocity(world.model, x, level, words, Full())
        monkeypatch.setattr(text_attention, "attend_text", whole)
        wanted = velocity(world.model, x, level, words, Full())
    assert calls == world.variant.config.layers * [[len(SHORT.split()), len(LONG.split())]]  # type: ignore[attr-defined]
    assert 0 < (few - wanted).norm() <= 0.04 * wanted.norm()


def test_convolutions_of_the_preview_with_their_ends_are_those_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = find("tokenizers", "taehv/wan").build().to("cuda", torch.bfloat16).requires_grad_(False)
    latents = torch.randn(1, 3, 16, 8, 12, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    with torch.inference_mode():
        together = codec.pixels(latents, {}).float()
        monkeypatch.setenv(SWITCH, "0")
        apart = codec.pixels(latents, {}).float()
    assert 0 < (together - apart).norm() <= 0.02 * apart.norm()


@pytest.mark.parametrize("capture", [False, True])
def test_a_batch_of_prompts_is_each_prompt_alone(model: VideoModel, capture: bool) -> None:
    prompts = ["a red cat", "a blue dog"]
    request = replace(PLAIN, prompt=prompts, capture=capture, decoder="none")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        together = [model.generate(request, output_type="latent").latents for _ in range(2)]
        alone = [
            model.generate(replace(request, prompt=one, seed=index), output_type="latent").latents
            for index, one in enumerate(prompts)
        ]
    assert torch.equal(together[0], together[1])  # captured calls of a batch are replayed too
    for index in range(2):
        torch.testing.assert_close(together[0][index], alone[index], atol=2e-3, rtol=2e-3)
