"""Clips that are continued stay when the disk fills up, and what is missing is made by the next run."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagonal.evaluation import generated, pairs
from diagonal.evaluation.folders import Folder
from diagonal.evaluation.generated import Continuation, make, missing, times
from diagonal.evaluation.selections import choose, load
from diagonal.generation.load import load as load_world
from diagonal.media.video import read, writer
from diagonal.planning.plan import Order
from tests import made_weights

ORDERS = [Order.of("diagonal:k=2,d=3")]
NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Continuation:
    data = tmp_path_factory.mktemp("data")
    for name in NAMES:
        with writer(data / f"{name}.mp4", 8) as file:
            file.write(made_weights.clip(name, 9, 64, 96).permute(0, 2, 3, 1).numpy())
    world = load_world("cosmos/tiny", "random")
    return Continuation(world, data, choose(data, 3, 9), context=1, seed=0)


def make_missing(asked: Continuation, out: Path) -> None:
    for video in missing(asked.entries, ORDERS, out):
        make(asked, video, out)


def full_after(left: int, monkeypatch: pytest.MonkeyPatch, module: Any = generated) -> None:
    """A disk on which so many videos have room."""
    own, room = module.writer, [left]

    @contextmanager
    def limited(path: Path, *options: Any, **more: Any) -> Iterator[Any]:
        with own(path, *options, **more) as file:
            yield file
            room[0] -= 1
            if room[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(module, "writer", limited)


def videos(out: Path) -> dict[str, int]:
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in sorted((out / "videos").rglob("*.mp4"))}


def test_a_full_disk_leaves_whole_videos_and_the_next_run_makes_the_others(
    asked: Continuation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_after(4, monkeypatch)
    with pytest.raises(OSError, match=r"No space left on device: .*diagonal-k=2-d=3/0001-\w+\.mp4"):
        make_missing(asked, tmp_path)
    monkeypatch.undo()
    before = videos(tmp_path)
    assert len(before) == 4 and all(len(read(tmp_path / name)) == 8 for name in before)
    assert not list(tmp_path.rglob(".*"))
    make_missing(asked, tmp_path)
    after = videos(tmp_path)
    assert len(after) == 6 and before.items() <= after.items()
    assert len(times(tmp_path / "videos" / "diagonal-k=2-d=3")) == 3


def test_a_video_whose_time_could_not_be_noted_is_made_again(
    asked: Continuation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(generated, "note_times", full)
    with pytest.raises(OSError, match="No space left"):
        make_missing(asked, tmp_path)
    monkeypatch.undo()
    before = videos(tmp_path)
    first = read(tmp_path / next(iter(before)))
    make_missing(asked, tmp_path)
    after = videos(tmp_path)
    assert sum(after[name] != time for name, time in before.items()) == 1
    np.testing.assert_array_equal(read(tmp_path / next(iter(before))), first)  # the seed is that of the clip


def test_a_study_that_does_not_fit_on_the_disk_is_not_there(
    asked: Continuation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_missing(asked, tmp_path)
    runs = [tmp_path / "videos" / name for name in ("real", "diagonal-k=2-d=3")]
    study = pairs.plan_study(runs[0], runs[1], ("overall",), (3, 0), 1)
    full_after(3, monkeypatch, pairs)
    with pytest.raises(OSError, match="No space left on device"):
        list(pairs.write(study, tmp_path / "study"))
    assert not list((tmp_path / "study").iterdir())
    monkeypatch.undo()
    list(pairs.write(study, tmp_path / "study"))
    assert {path.name for path in (tmp_path / "study").iterdir()} == {"page", "key.json"}


def test_a_damaged_or_a_shorter_source_is_told_before_anything_is_made_of_it(
    asked: Continuation, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    whole = (asked.data / "one.mp4").read_bytes()
    (data / "one.mp4").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"one\.mp4 cannot be read as video|one\.mp4 .*truncated"):
        choose(data, 1, 9)
    with writer(data / "one.mp4", 8) as file:
        file.write(made_weights.clip("one", 5, 64, 96).permute(0, 2, 3, 1).numpy())
    with pytest.raises(ValueError, match=r"1 sources, and room for 0 clips of 9 frames in them; 1 are asked for"):
        choose(data, 1, 9)
    (entry,) = choose(data, 1, 5)
    assert len(load(data, entry).frames) == 5 and len(Folder.of(data).videos) == 1
