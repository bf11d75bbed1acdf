"""`diagonal video --prompts FILE --out DIR`: names as VBench wants them, a seed each, nothing made twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagonal.evaluation import manifest
from diagonal.evaluation.folders import Folder
from diagonal.evaluation.prompted import LONGEST, planned
from diagonal.media import video
from tests.e2e.conftest import numbers_of

SMALL = ("--height", "32", "--width", "48", "--dtype", "float32", "--num-frames", "9")
MODEL = ("video", "--model", "wan/tiny", *SMALL, "--no-watermark")  # whose run is another number in each
DOOM = ("--model", "doom-t2v", "--height", "96", "--width", "128", "--num-frames", "11")


def test_names_seeds_and_prompts() -> None:
    found = planned(["a cat, front view", "a/b", "x" * (LONGEST + 1), ".hidden"], 2, seed=10)
    assert [one.name for one in found[:2]] == ["a cat, front view-0", "a cat, front view-1"]
    assert [one.seed for one in found] == list(range(10, 18))
    assert [one.name for one in found[2::2]] == ["00001 a b-0", f"00002 {'x' * 40}-0", "00003 hidden-0"]
    assert all("/" not in one.name and len(f"{one.name}.mp4".encode()) < 255 for one in found)
    with pytest.raises(ValueError, match=r"two prompts would give the file 00001 a b-0\.mp4"):
        planned(["00001 a b", "a/b"], 1, 0)
    assert [one.name for one in planned(["A fantasy landscape", "a fantasy landscape"], 1, 0)] == [
        "A fantasy landscape-0",  # VBench has both
        "a fantasy landscape-0",
    ]
    assert len({one.name for one in planned([f"{'y' * 300}{number}" for number in range(50)], 3, 0)}) == 150


def test_videos_are_made_once_and_as_they_are_made_alone(tmp_path: Path, forked) -> None:
    info = [{"prompt_en": "a cat", "dimension": ["color"]}, {"prompt_en": "a dog", "dimension": ["scene"]}]
    (tmp_path / "info.json").write_text(json.dumps(info[:1]))
    options = (*MODEL, "--prompts", "info.json", "--each", "2", "--seed", "3", "--out", "made", "--json")
    first = numbers_of(forked(tmp_path, *options))
    assert (first["videos"], first["made"], first["there"], first["weights"]) == (2, 2, 0, "random")
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "made").glob("*.mp4")}
    (tmp_path / "made" / "a cat-1.mp4").unlink()
    (tmp_path / "info.json").write_text(json.dumps(info))
    second = numbers_of(forked(tmp_path, *options))
    assert (second["videos"], second["made"], second["there"]) == (4, 3, 1)
    assert (tmp_path / "made" / "a cat-0.mp4").stat().st_mtime_ns == times["a cat-0.mp4"]
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        *(f"a {what}-{index}.mp4" for what in ("cat", "dog") for index in (0, 1)),
        "manifest.json",
        "run.json",
    }
    entries = manifest.entries(tmp_path / "made")
    assert {name: (one["prompt"], one["seed"]) for name, one in entries.items()} == {
        "a cat-0": ("a cat", 3),
        "a cat-1": ("a cat", 4),
        "a dog-0": ("a dog", 5),
        "a dog-1": ("a dog", 6),
    }
    assert Folder.of(tmp_path / "made").videos["a dog-1"].note.prompt == "a dog"
    alone = ("--prompt", "a dog", "--seed", "6", "--scale", "1", "--out", "alone.mp4")
    numbers_of(forked(tmp_path, *MODEL, "--json", *alone))
    made, expected = (video.read(tmp_path / name) for name in ("made/a dog-1.mp4", "alone.mp4"))
    assert (made == expected).all() and made.shape == (9, 32, 48, 3)
    for changed, message in (
        (("--seed", "4"), "a cat-0.mp4 was made with seed 3, not 4"),
        (("--num-frames", "21"), "holds videos of another run, where num_frames was 9, not 21"),
    ):
        done = forked(tmp_path, *options, *changed)
        assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompts", "p.txt"), "--out out.mp4 given; --prompts makes many videos: name a folder"),
        (("--prompts", "p.txt", "--out", "p.txt"), "--out p.txt is a file; name a folder"),
        (("--prompts", "nowhere.txt", "--out", "made"), "prompts 'nowhere.txt' do not exist"),
        (("--prompts", "p.txt", "--prompt", "a cat", "--out", "made"), "--prompt cannot go with --prompts"),
        (("--prompt", "a cat", "--each", "5"), "--each 5 needs --prompts"),
        ((*DOOM, "--prompts", "p.txt", "--out", "made"), "cat"),
    ],
)
def test_what_cannot_be_made_is_refused_before_the_model_is_loaded(
    tmp_path: Path, forked, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "p.txt").write_text("a cat\n")
    done = forked(tmp_path, *MODEL, *options)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "made").exists()
