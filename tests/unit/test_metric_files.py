"""What every metric says of itself, and how it is found and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diagonal import checkpoints
from diagonal.cli.evaluate_folders import Run, _setting
from diagonal.evaluation import metrics
from diagonal.evaluation.distances import frechet
from diagonal.evaluation.metrics import Metric, MissingWeightsError, Setting, Video, fvd
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


def test_variants_of_fvd_differ_in_picture_and_divisor(monkeypatch: pytest.MonkeyPatch):
    frames = made_weights.clip("fvd", 2, 40, 64)
    pictures = {variant: fvd.shown(frames, variant) for variant in fvd.FILES}
    assert torch.equal(pictures["tats"], pictures["cd-fvd"])
    assert torch.equal(pictures["videogpt"], pictures["common-metrics"])
    assert not torch.equal(pictures["videogpt"], pictures["tats"])
    monkeypatch.setattr(fvd, "Features", lambda setting: None)
    draws = np.random.default_rng(0)
    made, real = ([draws.normal(shift, 1, (1, 4)) for _ in range(20)] for shift in (0, 1))
    found = {variant: fvd.Fvd(Setting(variant)).total(made, real).mean for variant in fvd.FILES}
    assert found["tats"] == found["videogpt"] == found["common-metrics"] != found["cd-fvd"]
    ours, theirs = (torch.from_numpy(np.concatenate(one)) for one in (made, real))
    assert found["tats"] == pytest.approx(frechet(ours, theirs))
    assert found["cd-fvd"] == pytest.approx(frechet(ours, theirs, 0))


def weights(given: list[str]) -> Setting:
    return _setting(given, Run("cpu", None, None, False))


def test_weights_are_a_folder_a_file_or_in_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "a=b.pth").touch()
    found = weights([str(tmp_path / "mine"), f"amt-s.pth={tmp_path / 'a=b.pth'}"])
    assert found.folder == tmp_path / "mine" and found.files == {"amt-s.pth": tmp_path / "a=b.pth"}
    monkeypatch.setattr(checkpoints, "locate", {"org/name/raft.pth": tmp_path / "a=b.pth", "org/all": tmp_path}.get)
    found = weights(["raft-things.pth=org/name/raft.pth", "org/all"])
    assert found.folder == tmp_path and found.files == {"raft-things.pth": tmp_path / "a=b.pth"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nowhere"], "--metric-weights nowhere: weights 'nowhere' do not exist"),
        (["amt-s.pth=nowhere.pth"], "amt-s.pth=nowhere.pth: weights 'nowhere.pth' do not exist"),
        (["file.pth"], "file.pth is one file; say which: NAME=file.pth"),
        (["amt-s.pth=one"], "one is a folder; amt-s.pth is one file"),
        (["one", "two"], "names two folders, one and two"),
        (["amt.pth=file.pth"], "no metric asks for amt.pth; they ask for ViT-B-32.pt"),
    ],
)
def test_weights_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], message: str
):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.pth").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError), match=message):
        weights(given)
