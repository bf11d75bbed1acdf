"""What every metric says of itself, and how it is found and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diagonal.evaluation import metrics
from diagonal.evaluation.metrics import Metric, MissingWeightsError, Setting, Video
from diagonal.evaluation.statistics import slope
from tests import made_weights


@pytest.mark.parametrize("name", metrics.names())
def test_every_metric_says_what_it_is(name: str):
    kind, variant = metrics.find(name)
    assert issubclass(kind, Metric) and kind.about.citation
    assert (variant == kind.about.variants[0]) if kind.about.variants else variant == ""
    assert all(metrics.find(f"{name}:{one}") == (kind, one) for one in kind.about.variants)


SPECS = [f"{name}:{one}" for name in metrics.names() for one in metrics.find(name)[0].about.variants or ("",)]


@pytest.mark.parametrize("spec", [spec for spec in SPECS if (found := metrics.find(spec))[0].about.needs(found[1])])
def test_a_missing_file_is_named_with_the_place_where_it_is_published(spec: str):
    kind, variant = metrics.find(spec)
    with pytest.raises(MissingWeightsError) as caught:
        kind(Setting(variant))
    needed = kind.about.needs(variant)
    assert any(file.name in str(caught.value) and file.where in str(caught.value) for file in needed)


def test_files_are_found_in_a_folder_or_one_by_one(tmp_path: Path):
    file = metrics.find("lpips")[0].about.files[0]
    (tmp_path / file.name).touch()
    assert Setting(folder=tmp_path).path(file) == tmp_path / file.name
    assert Setting(files={file.name: tmp_path / "mine"}, folder=tmp_path).path(file) == tmp_path / "mine"


def test_unknown_metrics_and_variants_are_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"unknown metric 'vmf'; known: .*psnr"):
        metrics.find("vmf")
    with pytest.raises(ValueError, match="lpips has no variant 'vgg'; its variants: plain, spatial"):
        metrics.find("lpips:vgg")


@pytest.mark.parametrize("name", [name for name in metrics.names() if metrics.find(name)[0].about.frames > 1])
def test_too_short_videos_are_refused(name: str):
    about = metrics.find(name)[0].about
    with pytest.raises(ValueError, match=f"{name} needs at least {about.frames} frames; the video has 1"):
        metrics.check(name, about, Video(made_weights.clip("short", 1, 160, 160)))


def test_too_small_videos_are_refused():
    with pytest.raises(ValueError, match="ssim needs sides of at least 11 pixels; the video has 10x40"):
        metrics.check("ssim", metrics.find("ssim")[0].about, Video(made_weights.clip("small", 3, 10, 40)))


def test_drift_is_the_slope_of_what_fades():
    frames = made_weights.clip("drift", 1, 24, 32).expand(11, -1, -1, -1).float()
    fading = torch.linspace(1, 0.5, 11)[:, None, None, None]
    kind, _ = metrics.find("drift")
    metric = kind(Setting("sharpness"))
    still, faded = (metric.look(Video(one.byte()), None) for one in (frames, frames * fading))
    assert metric.total([still], []).mean == pytest.approx(0, abs=1e-9)
    # Half of the sharpness is lost in ten frames.
    assert metric.total([faded], []).mean == pytest.approx(-100 / 10 * still[0] / 2, rel=0.02)


def test_the_slope_of_a_line_is_its_rise():
    assert slope(np.linspace(3, 6.5, 8)) == pytest.approx(50)


def test_a_frame_that_repeats_is_frozen():
    frames = made_weights.clip("frozen", 4, 24, 32)
    frames[2] = frames[1]
    kind, _ = metrics.find("frozen")
    assert kind(Setting()).look(Video(frames), None).tolist() == [0, 1, 0]


def test_information_of_stripes_is_known():
    """Vertical stripes of 100, four pixels wide: the Sobel gradient is 400 at both sides of an edge, else 0."""
    frames = torch.zeros(2, 3, 10, 34, dtype=torch.uint8)
    frames[..., 4::8], frames[..., 5::8], frames[..., 6::8], frames[..., 7::8] = 100, 100, 100, 100
    kind, _ = metrics.find("spatial_information")
    assert kind(Setting()).look(Video(frames), None) == pytest.approx([200, 200], rel=1e-3)
    frames[1] = frames[1].flip(-1)
    kind, _ = metrics.find("temporal_information")
    assert kind(Setting()).look(Video(frames[[0, 0]]), None) == pytest.approx([0])
