"""Drift of videos without end."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from diagonal.evaluation.drift import WINDOW, drift
from diagonal.networks.inverse_dynamics import Config, judge
from diagonal.training.stages import build

FPS = Fraction(35, 4)


def fading(taken: list[int]) -> Iterator[Tensor]:
    """Two videos, a piece of 6 frames at a time, that lose their colour: frame t has a chroma of 1 / (1 + t)."""
    time = 0
    while True:
        taken.append(1)
        chroma = torch.tensor([255 / (1 + one) for one in range(time, time + 6)]).round().byte()
        piece = torch.zeros(2, 6, 3, 24, 24, dtype=torch.uint8)
        piece[:, :, 0] = chroma[:, None, None]
        yield piece
        time += 6


def test_every_second_has_its_frames_and_nothing_is_made_that_is_not_needed() -> None:
    network, taken = build(Config(8), 0, "cpu").eval(), list[int]()
    _, real = judge(network, next(fading([])))
    curves = drift(fading(taken), 20, FPS, network, real)
    assert set(curves) == {"sharpness", "saturation", "change", "flow", "frechet_idm"}
    assert len(curves["frechet_idm"]) == 20 // WINDOW and len(curves["flow"]) == 20
    # Second 12 begins with frame 105 and ends before frame 114 (8.75 frames a second).
    true = [round(255 / (1 + one)) / 255 for one in range(105, 114)]
    assert curves["saturation"][12].mean == pytest.approx(sum(true) / 9, rel=1e-5)
    assert curves["saturation"][0].mean > curves["saturation"][5].mean > curves["saturation"][19].mean
    assert len(taken) == -(-(175 + 1) // 6)  # frame 175 closes the last pair


def test_the_features_of_ten_seconds_are_those_of_their_pairs() -> None:
    network = build(Config(8), 0, "cpu").eval()
    pieces = [next(fading([])) for _ in range(4)]
    whole = torch.cat(pieces, 1)[:, :21]
    _, real = judge(network, whole)
    found = drift(iter(pieces), 10, 2, network, real)
    assert found["frechet_idm"][0].mean == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("seconds", [0, 5, 61])
def test_other_lengths_are_refused(seconds: int) -> None:
    network = build(Config(8), 0, "cpu")
    with pytest.raises(ValueError, match=f"{seconds} seconds given; drift is measured in tens"):
        drift(fading([]), seconds, FPS, network, torch.zeros(1, 4, 128))
