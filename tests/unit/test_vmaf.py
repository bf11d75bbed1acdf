"""VMAF, where the answer is known or must agree with itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from diagonal.evaluation.folders import VideoFile
from diagonal.evaluation.metrics import Setting, Video
from diagonal.evaluation.metrics.vmaf import FEW, Vmaf, luma
from diagonal.media.video import header, read, writer
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


@pytest.fixture(scope="module")
def ffmpeg() -> str:
    """An FFmpeg that was built with libvmaf; DIAGONAL_FFMPEG names another than that of the system."""
    found = os.environ.get("DIAGONAL_FFMPEG") or shutil.which("ffmpeg")
    if found is None:
        pytest.skip("there is no ffmpeg")
    listed = subprocess.run([found, "-hide_banner", "-filters"], capture_output=True, text=True).stdout
    if " libvmaf " not in listed:
        pytest.skip(f"{found} was built without libvmaf; DIAGONAL_FFMPEG may name one that was not")
    return found


def test_scores_are_those_of_libvmaf(ffmpeg: str, tmp_path: Path) -> None:
    true = made_weights.clip("vmaf", 10, 128, 192).float()
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(0))
    for name, strength in (("true", 0), ("made", 60)):
        with writer(tmp_path / f"{name}.mp4", 24) as file:
            file.write((true + strength * noise).clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())
    log = "libvmaf=log_fmt=json:log_path=vmaf.json"
    videos = ("-i", "made.mp4", "-i", "true.mp4")
    command = [ffmpeg, "-hide_banner", "-loglevel", "error", *videos, "-lavfi", log, "-f", "null", "-"]
    subprocess.run(command, cwd=tmp_path, check=True)
    theirs = [one["metrics"]["vmaf"] for one in json.loads((tmp_path / "vmaf.json").read_text())["frames"]]
    files = [VideoFile(tmp_path / f"{name}.mp4", header(tmp_path / f"{name}.mp4")) for name in ("made", "true")]
    ours = Vmaf(Setting("v0.6.1")).look(*(file.load() for file in files))
    assert len(ours) == len(theirs) == 10
    assert ours.mean() == pytest.approx(np.mean(theirs), abs=0.1)
    assert np.abs(ours - theirs).max() < 0.3
