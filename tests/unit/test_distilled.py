"""Clips of students and of their teacher, and what is measured of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.catalog.names import find
from diagonal.engine.chunks.denoise import Gaussian
from diagonal.evaluation.distilled import (
    Asked,
    References,
    StudentPipeline,
    TeacherPipeline,
    TextToVideoJudges,
    alignment,
    compare,
    endless,
    look,
)
from diagonal.networks.caption_reader import Answers
from diagonal.networks.caption_reader import Config as ReaderConfig
from diagonal.networks.inverse_dynamics import Config as JudgeConfig
from diagonal.planning.presets import PRESETS
from diagonal.training.stages import build
from diagonal.worlds.captions import LEFT, PLACES, RIGHT, THINGS, Facts
from tests.unit.test_lpips import random_weights

SHAPE = (6, 8, 4, 4)  # two chunks of 3, of 32x32 pixels


@pytest.fixture(scope="module")
def model() -> Any:
    return build(find("models", "doom-t2v/tiny").config, 0, "cpu").eval().requires_grad_(False)


@pytest.fixture(scope="module")
def codec() -> Any:
    return build(find("tokenizers", "wan_vae/doom-tiny"), 0, "cpu").eval().requires_grad_(False)


@pytest.fixture(scope="module")
def judges() -> TextToVideoJudges:
    networks = (build(config, 0, "cpu").eval() for config in (JudgeConfig(8), ReaderConfig()))
    return TextToVideoJudges(*networks)


def asked(model: Any, count: int = 3, batch: int = 64) -> Asked:
    config = model.config
    text = torch.rand(count, config.text_length, config.text_dim, generator=torch.Generator().manual_seed(0))
    return Asked(text, range(count), SHAPE, batch)


def teacher(model: Any, codec: Any) -> TeacherPipeline:
    negative = torch.zeros(1, model.config.text_length, model.config.text_dim)
    return TeacherPipeline(model, codec, (1.0, 0.7, 0.4), 2.0, negative, chunk_frames=3)


@pytest.mark.parametrize(
    ("preset", "forwards"), [("diagonal-distillation", 17), ("self-forcing", 35), ("causvid", 28), ("infinity", 28)]
)
def test_forwards_are_the_steps_and_the_calls_for_the_cache(preset: str, forwards: int) -> None:
    assert StudentPipeline(None, None, PRESETS[preset]).calls(21) == forwards


@pytest.mark.parametrize("preset", ["diagonal-distillation", "self-forcing"])
def test_a_video_does_not_depend_on_those_made_beside_it(model: Any, codec: Any, preset: str) -> None:
    student = StudentPipeline(model, codec, PRESETS[preset])
    video = student.videos(asked(model))
    assert video.dtype == torch.uint8 and video.shape == (3, 11, 3, 32, 32)
    apart = student.videos(asked(model, batch=2))
    assert (video.int() - apart.int()).abs().max() <= 1  # sums of another order


def test_a_stream_begins_as_the_video_does_and_goes_on(model: Any, codec: Any) -> None:
    student = StudentPipeline(model, codec, endless(PRESETS["diagonal-distillation"], SHAPE[0]))
    stream, whole = student.stream(asked(model)), student.videos(asked(model))
    pieces = [next(stream) for _ in range(6)]  # past the window of 12 latent frames
    assert [piece.shape[1] for piece in pieces] == [5, 6, 6, 6, 6, 6]
    assert (torch.cat(pieces[:2], 1).int() - whole.int()).abs().max() <= 1


def test_what_sees_all_gets_the_window_that_it_was_trained_with_and_a_sink_moves_along() -> None:
    ours, theirs = (endless(PRESETS[name], 21) for name in ("diagonal-distillation", "self-forcing"))
    assert (ours.window_frames, ours.sink_frames, ours.relative_rope) == (12, 3, True)
    assert (theirs.window_frames, theirs.sink_frames, theirs.relative_rope) == (21, 0, False)


def test_a_teacher_starts_from_the_noise_of_its_students(model: Any, codec: Any, monkeypatch: Any) -> None:
    begun: list[Tensor] = []

    def note(model: Any, sigmas: Any, texts: Any, guidance: float, noise: Tensor) -> list[Tensor]:
        begun.append(noise)
        return [noise]

    monkeypatch.setattr("diagonal.evaluation.distilled.trajectory", note)
    made = teacher(model, codec)
    assert made.videos(asked(model, batch=2)).shape == (3, 11, 3, 32, 32) and made.calls == 6
    noise, draw = torch.cat(begun), Gaussian(range(3), torch.device("cpu"))
    for chunk in range(2):
        assert torch.equal(noise[:, 3 * chunk : 3 * chunk + 3], draw(chunk, 0, (3, 3, *SHAPE[1:])))


def test_numbers_that_need_a_teacher_or_weights_are_left_out_without_them(
    model: Any, codec: Any, judges: TextToVideoJudges
) -> None:
    wanted = asked(model)
    told = Answers.of([Facts(next(iter(PLACES)), (LEFT,), ())] * 3, "cpu")
    made = look(StudentPipeline(model, codec, PRESETS["self-forcing"]).videos(wanted), judges)
    guide = look(teacher(model, codec).videos(wanted), judges)
    alone = compare(made, told, References(guide), judges)
    beside = compare(made, told, References(guide, guide), judges)
    assert beside.keys() - alone.keys() == {"frechet_idm_teacher", "flow_distance_teacher"}
    assert beside["frechet_idm_teacher"] == alone["frechet_idm"]
    seen = replace(judges, lpips=random_weights())
    assert compare(made, told, References(guide, guide), seen)["lpips_teacher"].mean > 0
    same = compare(guide, told, References(guide, guide), seen)
    for name in ("frechet_idm", "flow_distance", "frechet_idm_teacher", "flow_distance_teacher", "lpips_teacher"):
        assert same[name].mean == pytest.approx(0, abs=1e-6)


def test_alignment_is_the_share_of_what_is_told() -> None:
    one, two = list(PLACES)[:2]
    told = Answers.of([Facts(one, (LEFT,), (THINGS[0],)), Facts(two, (LEFT, RIGHT), (THINGS[1],))], "cpu")
    seen = Answers.of([Facts(one, (LEFT,), (THINGS[0],)), Facts(one, (LEFT,), ())], "cpu")
    found = {name: value.mean for name, value in alignment(seen, told).items()}
    assert found == {"scenario": 0.5, "first_motion": 1.0, "motions": 0.5, "things_f1": pytest.approx(2 / 3)}
