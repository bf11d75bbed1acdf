"""VMAF, where the answer is known or must agree with itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diagonal.evaluation.metrics import Setting, Video
from diagonal.evaluation.metrics.vmaf import FEW, Vmaf, luma
from diagonal.media.video import read, writer
from tests import made_weights


def test_luma_is_that_of_the_file_and_nearly_that_of_its_frames(tmp_path: Path):
    path = tmp_path / "clip.mp4"
    with writer(path, 8) as file:
        file.write(made_weights.clip("luma", 3, 48, 64).permute(0, 2, 3, 1).numpy())
    frames = torch.from_numpy(read(path)).permute(0, 3, 1, 2)
    coded, converted = luma(Video(frames, path=path)), luma(Video(frames))
    assert coded.shape == converted.shape == (3, 1, 48, 64)
    assert (coded - converted).abs().mean() < 2
    assert coded.min() >= 0 and coded.max() <= 255


def test_scores_a_few_frames_at_a_time_are_those_of_the_whole():
    true = Video(made_weights.clip("vmaf", 2 * FEW + 3, 64, 96))
    noise = torch.randn(true.frames_TCHW.shape, generator=torch.Generator().manual_seed(0))
    made = Video((true.frames_TCHW + 80 * noise).clamp(0, 255).byte())
    metric = Vmaf(Setting("v0.6.1"))
    parts = metric.look(made, true)
    whole = metric.network(luma(true), luma(made))[:, 0].numpy()
    assert len(parts) == 2 * FEW + 3
    np.testing.assert_allclose(parts, whole, atol=1e-3)
    assert 5 < parts.mean() < 95


def test_the_true_video_scores_highest():
    true = Video(made_weights.clip("vmaf", 4, 64, 96))
    assert Vmaf(Setting("v0.6.1")).look(true, true).mean() == pytest.approx(100, abs=3)
