"""Benchmarks of diffusion models: what is counted, and what the numbers mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import diagonal
from diagonal import Request
from diagonal.evaluation.speed import video as video_speed
from diagonal.evaluation.speed.video import (
    VideoSettings,
    _denoised,
    _operations,
    _text_rows,
    _work,
    check,
    measure,
)

SMALL = {"height": 64, "width": 96}


@pytest.fixture(scope="module")
def model() -> Any:
    return diagonal.load("wan/tiny")


def request(**given: Any) -> Request:
    usual: dict[str, Any] = {"prompt_embeds": torch.ones(2, 48), "num_frames": 33}
    return Request(**(usual | SMALL | given))


def test_the_numbers_of_a_video(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    taken: dict[str, float] = {}
    for name in ("_streamed", "_first_decode_ms"):
        timed = getattr(video_speed, name)
        monkeypatch.setattr(video_speed, name, lambda *given, n=name, f=timed: taken.setdefault(n, f(*given)))
    made = measure(model, VideoSettings(request(schedule="432"), repeat=2), lambda: seen.append(1))
    assert len(seen) == 6  # twice: latents alone, and with pixels
    assert (made["steps"], made["frames"], made["decoder"]) == (4 + 3 + 2, 33, "vae")
    assert len(made["by_chunk_ms"]) == 3 and made["text_rows"] == 2
    assert made["fps"] == pytest.approx(1e3 * 33 / (9 * made["mean_ms"]))
    assert made["floor_ratio"] == pytest.approx(made["mean_ms"] / made["floor_ms"]) and made["floor_ms"] > 0
    assert min(taken.values()) > 0 and made["fps_with_tokenizer"] == pytest.approx(33 / taken["_streamed"])
    assert made["first_frame_ms"] == pytest.approx(4 * made["by_chunk_ms"][0] + taken["_first_decode_ms"])
    assert made["weights"] == "random" and made["peak_gb"] is None and made["commit"]


def test_all_frames_at_once_take_two_calls_a_step_and_are_one_chunk(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    hook = model.model.register_forward_hook(lambda *_: calls.append(1))
    monkeypatch.setattr(model, "encoder", None)  # no text is encoded
    asked = request(preset="wan", num_inference_steps=3)
    check(asked.how(), asked)
    made = measure(model, VideoSettings(asked, repeat=2))
    hook.remove()
    assert len(calls) == 2 * (1 + 2) * 6  # latents alone, and with pixels
    assert (made["preset"], made["steps"], made["frames"], len(made["by_chunk_ms"])) == ("wan", 6, 33, 1)
    assert made["schedule"].startswith("teacher:steps=3")
    assert made["fps"] == pytest.approx(1e3 * 33 / (6 * made["mean_ms"]))
    assert made["first_frame_ms"] > 6 * made["by_chunk_ms"][0] and made["fps_with_tokenizer"] > 0


def test_all_frames_at_once_that_follow_in_pieces_take_the_time_of_all(model: Any) -> None:
    """All is denoised before the first of the pieces comes."""
    asked = request(preset="wan", num_inference_steps=2, decoder="none")
    pieces = [(piece.model_seconds, piece.calls) for piece in model.stream(asked)]
    assert [calls for _, calls in pieces] == [4, 0, 0]
    ((seconds, calls),) = _denoised(model, asked)
    assert calls == 4 and seconds > 0


def test_the_floor_of_all_frames_at_once_counts_both_prompts(model: Any) -> None:
    first, second = torch.eye(5, 48), torch.eye(2, 48)
    both = request(prompt_embeds=first, preset="wan", num_inference_steps=3, negative_prompt=second)
    tokens, work = 9 * 4 * 6, [_work(model, rows) for rows in (5, 2)]
    assert _operations(model, both, 5) == 3 * sum(one(tokens, tokens) for one in work)
    twice = request(prompt_embeds=first, preset="wan", num_inference_steps=6, negative_prompt=first)
    assert _operations(model, twice, 5) == 12 * work[0](tokens, tokens)


def test_without_a_decoder_there_are_no_pixels(model: Any) -> None:
    made = measure(model, VideoSettings(request(schedule="2", decoder="none"), repeat=1))
    assert made["fps_with_tokenizer"] is None


def test_operations_are_those_of_products_and_attention(model: Any) -> None:
    """At true size: the arithmetic of one call over 4,680 tokens that see as many."""
    big: Any = diagonal.VideoModel.__new__(diagonal.VideoModel)
    from diagonal.catalog.names import find

    big.variant = find("models", "wan/1.3b")
    with torch.device("meta"):
        big.model = big.variant.config.build()
    one = Request(prompt_embeds=torch.zeros(1, 4096), num_frames=9, schedule="1", preset="diagonal-distillation")
    clean = 2  # a chunk of one step has a second call, for the cache
    products = 2 * 4680 * 30 * 1536 * (4 * 1536 + 2 * 1536 + 2 * 8960)  # of each layer: qkv and o, q and o, two of ffn
    assert _operations(big, one, 128) / clean == products + 4 * 4680 * 30 * 1536 * (4680 + 128 + 1)
    assert _operations(big, one, 512) / clean == pytest.approx(11.7e12 + 4.48e12, rel=0.01)  # there is no padding
    official = Request(prompt_embeds=torch.zeros(1, 4096), num_frames=81, schedule="4322222")
    assert _operations(big, official, 512) == pytest.approx(400e12, rel=0.01)


def test_rows_of_a_prompt_are_counted_without_padding(model: Any) -> None:
    assert _text_rows(model, request()) == 2
    assert _text_rows(model, request(prompt_embeds=torch.eye(5, 48)[None])) == 5
    assert _text_rows(model, request(prompt_embeds=torch.eye(16, 48) * (torch.arange(16) < 7)[:, None])) == 7
    assert _text_rows(model, request(prompt_embeds=None, prompt="a red cat")) == 3


def test_what_cannot_be_measured_is_refused() -> None:
    endless = request(num_frames=None)
    with pytest.raises(ValueError, match="without end"):
        check(endless.how(), endless)
