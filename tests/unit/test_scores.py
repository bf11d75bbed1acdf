"""Folders of videos are checked before anything is computed, and what was seen of a video is kept."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diagonal.evaluation import score_tables
from diagonal.evaluation.folders import Folder, VideoFile
from diagonal.evaluation.metrics import Setting
from diagonal.evaluation.scores import Job, _over_time, check, score
from diagonal.evaluation.statistics import Interval, slope
from diagonal.media.video import writer
from tests import made_weights


def write(path: Path, frames: int = 4, height: int = 32, width: int = 48, fps: int = 8, noise: float = 0) -> None:
    """A video of moving blocks; that of the same name is the same but for the noise."""
    path.parent.mkdir(exist_ok=True)
    video = made_weights.clip(path.stem, frames, height, width).float()
    spoiled = video + noise * torch.randn(video.shape, generator=torch.Generator().manual_seed(0))
    with writer(path, fps) as file:
        file.write(spoiled.clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Real clips, and two sets of them that are spoiled, the second one more."""
    for name in ("one", "two", "three"):
        write(tmp_path / "real" / f"{name}.mp4")
        write(tmp_path / "near" / f"{name}.mp4", noise=5)
        write(tmp_path / "far" / f"{name}.mp4", noise=40)
    return tmp_path


def job(place: Path, metrics: Sequence[str], keep: bool = True, frames: int | None = None) -> Job:
    folders = [Folder.of(place / name, frames) for name in ("near", "far")]
    reference = Folder.of(place / "real", frames)
    return Job(folders, reference, metrics, Setting(), place / "kept" if keep else None)


def run(made: Job) -> Job:
    check(made)
    list(score(made))
    return made


def test_every_folder_has_a_score_of_every_metric(place: Path):
    made = run(job(place, ["psnr", "frozen"]))
    assert [(one.metric, one.folder, one.clips) for one in made.results] == [
        ("psnr", "near", 3),
        ("psnr", "far", 3),
        ("frozen", "near", 3),
        ("frozen", "far", 3),
    ]
    near, far, *_ = made.results
    assert near.value.mean > far.value.mean + 5
    assert len(near.by_frame) == 4 and np.mean([one for one in near.by_frame if one]) == pytest.approx(near.value.mean)
    assert near.minus_first is None and far.minus_first is not None
    assert far.minus_first.mean == pytest.approx(far.value.mean - near.value.mean)
    assert far.minus_first.high < 0


def test_curves_are_cut_into_parts_with_intervals(place: Path):
    near, far = run(job(place, ["psnr"])).results
    assert [(one.first, one.last) for one in near.over_time] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [one.value.mean for one in near.over_time] == pytest.approx(near.by_frame)
    assert all(one.value.low <= one.value.mean <= one.value.high for one in far.over_time)
    (panel,) = score_tables.curves(run(job(place, ["psnr", "vmaf"])))[:1]
    assert list(panel.curves) == ["near", "far"] and [point.x for point in panel.curves["far"]] == [0, 1, 2, 3]


def test_curves_with_gaps_are_means_of_what_is_there():
    """As turns lie anywhere in time: of some frames no clip has a number."""
    gaps = np.full((2, 20), np.nan)
    gaps[0, 3], gaps[0, 4], gaps[1, 4] = 1, 0, 1
    mean, spans = _over_time(gaps)
    assert mean == [None, None, None, 1, 0.5, *[None] * 15]
    assert [(one.first, one.last, one.value.mean) for one in spans] == [(3, 6, 0.75)]
    assert slope(gaps[0]) == pytest.approx(-100) and np.isnan(slope(gaps[1]))


def test_the_difference_of_drifts_is_one_of_slopes(place: Path):
    near, far = run(job(place, ["drift:saturation"])).results
    assert far.minus_first is not None
    assert far.minus_first.mean == pytest.approx(far.value.mean - near.value.mean)


def test_what_was_seen_is_not_looked_at_again(place: Path, monkeypatch: pytest.MonkeyPatch):
    before = run(job(place, ["psnr", "drift"]))
    monkeypatch.setattr(VideoFile, "load", lambda self: pytest.fail(f"{self.path} was decoded again"))
    assert run(job(place, ["drift", "psnr"])).results[2:] == before.results[:2]


def test_a_changed_video_is_looked_at_again(place: Path):
    before = run(job(place, ["psnr"])).results[0].value.mean
    shutil.copy(place / "far" / "one.mp4", place / "near" / "one.mp4")
    assert run(job(place, ["psnr"])).results[0].value.mean < before - 3


def test_a_damaged_score_is_made_again(place: Path):
    before = run(job(place, ["psnr"])).results
    for file in (place / "kept" / "psnr").iterdir():
        file.write_bytes(b"\x93NUMPY")
    assert run(job(place, ["psnr"])).results == before


def test_what_was_done_stays_when_a_later_video_is_damaged(place: Path):
    whole = (place / "far" / "two.mp4").read_bytes()
    # The header says what it said; the frames behind it are gone.
    start = whole.index(b"mdat") + 4
    (place / "far" / "two.mp4").write_bytes(
        whole[:start] + bytes(len(whole[start : start + 900])) + whole[start + 900 :]
    )
    made = job(place, ["psnr"])
    check(made)
    with pytest.raises(ValueError, match=r"far/two.mp4"):
        list(score(made))
    assert len(list((place / "kept" / "psnr").iterdir())) == 5


def test_a_missing_file_refuses_its_metric_alone(place: Path):
    made = run(job(place, ["lpips", "psnr"]))
    assert [one.metric for one in made.results] == ["psnr", "psnr"]
    assert [one.metric for one in made.refusals] == ["lpips:plain"]
    assert "needs lpips_alex_v0.1.safetensors" in made.refusals[0].reason


def test_one_clip_is_no_distribution(place: Path):
    for name in ("one", "two"):
        (place / "far" / f"{name}.mp4").unlink()
    made = run(job(place, ["frechet_idm"]))
    assert not made.results
    assert made.refusals[0].reason == "needs at least 2 clips; a folder has 1"


def test_short_and_small_videos_refuse_the_metrics_that_need_more(place: Path):
    made = run(job(place, ["temporal_flickering", "psnr"], frames=1))
    assert [one.metric for one in made.results] == ["psnr", "psnr"]
    assert "temporal_flickering:all needs at least 2 frames; the video has 1" in made.refusals[0].reason


def test_only_the_first_frames_are_used_where_that_is_asked(place: Path):
    assert len(run(job(place, ["psnr"], frames=2)).results[0].by_frame) == 2
    with pytest.raises(ValueError, match=r"one\.mp4 has 4 frames; 9 are asked for"):
        job(place, ["psnr"], frames=9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 3}, r"has frames 3, .* has 4; --first takes the first ones"),
        ({"height": 64}, r"has size 64x48, .* has 32x48"),
        ({"fps": 24}, r"has frame rate 24, .* has 8"),
    ],
)
def test_sets_and_pairs_of_other_videos_are_refused(place: Path, options: dict[str, int], message: str):
    for name in ("one", "two", "three"):
        write(place / "near" / f"{name}.mp4", **options)
    with pytest.raises(ValueError, match=message):
        check(job(place, ["psnr"]))
    with pytest.raises(ValueError, match=r"near"):
        check(job(place, ["frechet_idm"]))
    check(replace(job(place, ["frozen"]), reference=None))
    write(place / "near" / "four.mp4")
    with pytest.raises(ValueError, match=r"near: .*mp4 has "):
        check(replace(job(place, ["frozen"]), reference=None))


def test_a_video_without_a_partner_is_named(place: Path):
    write(place / "near" / "stranger.mp4")
    with pytest.raises(ValueError, match=r"1 videos of .*near have no partner .*real: stranger; there are: one, three"):
        check(job(place, ["psnr"]))
    check(job(place, ["frechet_idm"]))  # a set needs no partners


def test_metrics_that_compare_need_something_to_compare_with(place: Path):
    with pytest.raises(ValueError, match="psnr, frechet_idm compare with real videos; name their folder: --reference"):
        check(replace(job(place, ["psnr", "frozen", "frechet_idm"]), reference=None))


def test_folders_without_videos_are_refused(tmp_path: Path):
    with pytest.raises(NotADirectoryError, match="nowhere is no folder of videos"):
        Folder.of(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no videos"):
        Folder.of(tmp_path)
    (tmp_path / "broken.mp4").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"broken\.mp4 cannot be read as video"):
        Folder.of(tmp_path)


def test_two_videos_of_one_name_are_refused(place: Path):
    shutil.copy(place / "near" / "one.mp4", place / "near" / "one.mkv")
    with pytest.raises(ValueError, match="two videos called one"):
        Folder.of(place / "near")


def test_the_result_says_all_that_it_depends_on(place: Path):
    made = run(job(place, ["psnr", "lpips"]))
    score_tables.write(made, place, {"speed": 3})
    found = json.loads((place / "scores.json").read_text())
    assert (
        found["folders"]["near"].items() >= {"clips": 3, "frames": 4, "height": 32, "fps": 8.0, "codec": "h264"}.items()
    )
    assert found["speed"] == 3
    assert found["reference"]["sha256"] == Folder.of(place / "real").sha256 != found["folders"]["near"]["sha256"]
    assert found["scores"][0]["better"] == "higher" and "lpips:plain" in found["refused"]
    assert set(found["versions"]) == {"diagonal", "decoder", "torch", "numpy"}
    lines = (place / "scores.md").read_text().splitlines()
    assert lines[0] == "| metric | near | far |" and lines[2].startswith("| psnr ↑ | ")
    assert lines[-1].startswith("- lpips:plain: needs ")
    assert (place / "sheet.png").stat().st_size > 1000


def test_the_sheet_has_a_row_for_each_folder(place: Path):
    folders = [Folder.of(place / name) for name in ("real", "far")]
    assert score_tables.sheet(folders).shape == (64, 4 * 48, 3)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.51234, 0.50, 0.53), "0.512 [0.500, 0.530]"),
        ((123.4, 100.0, 150.0), "123 [100, 150]"),
        ((1, 1, 1), "1.000 [1.000, 1.000]"),
    ],
)
def test_numbers_have_the_digits_that_are_certain(numbers: tuple[float, float, float], text: str):
    assert score_tables.short(Interval(*numbers)) == text


def test_a_file_of_another_network_refuses_its_metric_alone(place: Path):
    torch.save({"conv.weight": torch.zeros(3)}, place / "dino.pth")
    (place / "raft.pth").write_bytes(b"no archive")
    files = {"dino_vitbase16_pretrain.pth": place / "dino.pth", "lpips_alex_v0.1.safetensors": place / "raft.pth"}
    made = run(replace(job(place, ["subject_consistency", "lpips", "psnr"]), setting=Setting(files=files)))
    assert [one.metric for one in made.results] == ["psnr", "psnr"]
    reasons = {one.metric: one.reason for one in made.refusals}
    assert "dino.pth: the checkpoint does not fit Dino" in reasons["subject_consistency:one-process"]
    assert "raft.pth holds no LPIPS weights" in reasons["lpips:plain"]


def test_a_full_disk_leaves_what_was_done_and_nothing_half_written(place: Path, monkeypatch: pytest.MonkeyPatch):
    save, left = np.save, [3]

    def full(path: Path, content: np.ndarray, allow_pickle: bool) -> None:
        save(path, content, allow_pickle=allow_pickle)
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(np, "save", full)
    made = job(place, ["psnr"])
    with pytest.raises(OSError, match=r"No space left on device: .*kept/psnr/\w+\.npy"):
        list(score(made))
    kept = sorted((place / "kept" / "psnr").iterdir())
    assert len(kept) == 3 and all(path.suffix == ".npy" and not path.name.startswith(".") for path in kept)
    monkeypatch.setattr(np, "save", save)
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert len(run(job(place, ["psnr"])).results) == 2
    assert {path: path.stat().st_mtime_ns for path in kept} == times


def test_results_that_cannot_be_written_leave_the_old_ones(place: Path, monkeypatch: pytest.MonkeyPatch):
    made = run(job(place, ["psnr"]))
    score_tables.write(made, place, {"run": 1})
    before = (place / "scores.json").read_text()

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        score_tables.write(made, place, {"run": 2})
    monkeypatch.undo()
    assert (place / "scores.json").read_text() == before
    assert not [path for path in place.iterdir() if path.name.startswith(".")]
