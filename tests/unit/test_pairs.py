"""Blind pairs and their votes, where the answer is known beforehand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagonal.evaluation import manifest
from diagonal.evaluation.pairs import QUESTIONS, plan_study, write
from diagonal.evaluation.statistics import wilson
from diagonal.evaluation.votes import merge, read_key, read_votes
from diagonal.media import draw
from diagonal.media.video import header, read, writer

NAMES = [f"clip{number}" for number in range(10)]


def film(path: Path, shade: int, size: tuple[int, int] = (16, 24), frames: int = 2) -> None:
    card = np.clip(draw.test_card(*size)[0].astype(int) + shade, 0, 255).astype(np.uint8)
    with writer(path, 8, lossless=True) as file:
        for shift in range(frames):
            file.write(np.roll(card, shift, axis=1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for number, run in enumerate(("one", "two")):
        (folder / run).mkdir()
        for index, name in enumerate(NAMES):
            film(folder / run / f"{name}.mp4", 10 * index - 100 * number, (15, 21))
    return folder


def study(runs: Path, count: int | None = None, twice: int | None = None, seed: int = 0) -> Any:
    return plan_study(runs / "one", runs / "two", ["overall"], (count, twice), seed)


def test_every_pair_comes_once_and_a_fifth_again_later(runs: Path) -> None:
    for seed in range(20):
        trials = study(runs, seed=seed).trials
        counts = Counter(trial.pair for trial in trials)
        assert set(counts) == set(NAMES) and sorted(counts.values()) == [1] * 8 + [2] * 2
        order = [trial.pair for trial in trials]
        for index, trial in enumerate(trials):
            assert trial.again == (trial.pair in order[:index])


def test_the_same_seed_gives_the_same_study_and_sides_are_those_of_a_fair_coin(runs: Path) -> None:
    assert study(runs, seed=5).trials == study(runs, seed=5).trials != study(runs, seed=6).trials
    assert study(runs, seed=5).name == study(runs, seed=5).name != study(runs, seed=6).name
    left = Counter(trial.left for seed in range(50) for trial in study(runs, seed=seed).trials)
    assert 250 < left["a"] < 350 and left.total() == 600
    assert len(study(runs, count=4, twice=0).trials) == 4


def test_what_was_asked_for_is_shown_where_both_runs_say_the_same(tmp_path: Path) -> None:
    for number, run in enumerate(("one", "two")):
        (tmp_path / run).mkdir()
        for name in ("same", "other", "text"):
            film(tmp_path / run / f"{name}.mp4", 40 * number)
        manifest.add(tmp_path / run, "same", {"actions": ["left", "left", "noop"]})
        manifest.add(tmp_path / run, "other", {"actions": ["left", "right"][: number + 1]})
        manifest.add(tmp_path / run, "text", {"prompt": "a cat"})
    made = plan_study(tmp_path / "one", tmp_path / "two", ["overall"], (None, 0), 0)
    assert {name: made.asked(name) for name in ("same", "other", "text")} == {
        "same": "left 2, noop 1",
        "other": "",
        "text": "a cat",
    }
    with pytest.raises(ValueError, match="says the prompt or the actions of other, or they differ"):
        plan_study(tmp_path / "one", tmp_path / "two", ["control"], (None, 0), 0)


def test_what_is_shown_is_what_the_key_says_in_a_form_that_browsers_play(runs: Path, tmp_path: Path) -> None:
    made = study(runs, count=3, twice=1, seed=1)
    assert list(write(made, tmp_path / "out")) == [trial.pair for trial in made.trials]
    key = json.loads((tmp_path / "out" / "key.json").read_text())
    for index, trial in enumerate(key["trials"]):
        for side in ("left", "right"):
            run = "one" if (trial["left"] == "a") == (side == "left") else "two"
            path = tmp_path / "out" / "page" / "videos" / f"{index + 1:04}-{side}.mp4"
            said, shown, true = header(path), read(path), read(runs / run / f"{trial['pair']}.mp4")
            assert (said.codec, said.frames, said.height % 2, said.width % 2) == ("h264", 2, 0, 0)
            factor = said.height // true.shape[1]
            assert factor > 1 and np.abs(shown[:, ::factor, ::factor].mean() - true.mean()) < 5
    import av

    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p" and not container.streams.audio
    with pytest.raises(ValueError, match="votes may belong to it; name another --out"):
        list(write(made, tmp_path / "out"))


def test_a_page_that_could_not_be_made_leaves_nothing(runs: Path, tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        film(tmp_path / run / "good.mp4", 0 if run == "one" else 40)
        film(tmp_path / run / "bad.mp4", 0 if run == "one" else 40)
    broken = tmp_path / "two" / "bad.mp4"
    made = plan_study(tmp_path / "one", tmp_path / "two", ["overall"], (None, 0), 0)
    data = bytearray(broken.read_bytes())
    start = data.index(b"mdat") + 4
    data[start : start + 400] = bytes(400)
    broken.write_bytes(data)
    with pytest.raises(ValueError, match="bad"):
        list(write(made, tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "1 videos of .*one have no partner of the same name in .*two: extra"),
        ("longer", "has frames 2, .* has 3"),
        ("larger", "has size 16x24, .* has 16x32"),
        ("same", "hold the same videos"),
        ("count", "3 pairs asked for; the folders have 1"),
        ("twice", "1 pairs asked for twice; of 1 pairs 0 to 0 can come twice"),
        ("question", f"questions overall, mood given; some of {', '.join(QUESTIONS)}"),
        ("empty", "holds no videos"),
    ],
)
def test_folders_that_cannot_be_compared_are_refused(tmp_path: Path, change: str, message: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    film(one / "a.mp4", 0)
    if change != "empty":
        film(
            two / "a.mp4",
            0 if change == "same" else 50,
            (16, 32) if change == "larger" else (16, 24),
            3 if change == "longer" else 2,
        )
    if change == "missing":
        film(one / "extra.mp4", 0)
    pairs = {"count": (3, 0), "twice": (None, 1)}.get(change, (None, 0))
    questions = ["overall", "mood"] if change == "question" else ["overall"]
    with pytest.raises(ValueError, match=message):
        plan_study(one, two, questions, pairs, 0)


KEY = {
    "study": "s",
    "a": {"name": "raster"},
    "b": {"name": "diagonal"},
    "questions": ["overall", "motion"],
    "trials": [
        {"pair": "p", "left": "a", "again": False},
        {"pair": "q", "left": "b", "again": False},
        {"pair": "p", "left": "b", "again": True},
    ],
}


def voted(folder: Path, voter: str, choices: dict[tuple[int, str], str], **changes: Any) -> Path:
    votes = [{"trial": trial, "question": asked, "choice": choice} for (trial, asked), choice in choices.items()]
    path = folder / f"{voter}.json"
    path.write_text(json.dumps({"study": "s", "voter": voter, "votes": votes} | changes))
    return path


def test_votes_are_turned_back_to_runs_and_counted_once_a_pair(tmp_path: Path) -> None:
    ada = voted(tmp_path, "ada", {(0, "overall"): "left", (1, "overall"): "left", (2, "overall"): "right"})
    bob = voted(tmp_path, "bob", {(0, "overall"): "tie", (1, "overall"): "left", (2, "overall"): "left"})
    found = merge(read_votes([ada, bob], KEY), KEY)
    overall = found["questions"]["overall"]
    assert (overall["votes"], overall["a"], overall["b"], overall["tie"]) == (4, 1, 2, 1)
    assert overall["win_rate"]["mean"] == pytest.approx(1 / 3) and overall["win_rate"]["of"] == 3
    assert overall["score"]["mean"] == pytest.approx((0.75 + 0) / 2)
    assert "motion" not in found["questions"]
    assert (found["same_again"]["mean"], found["same_again"]["of"]) == (0.5, 2)  # ada yes, bob no
    assert found["between_voters"]["rate"] == 0.5 and found["between_voters"]["of"] == 2
    chance = (1 + 1 + 4) / 16
    assert found["between_voters"]["kappa"] == pytest.approx((0.5 - chance) / (1 - chance))
    assert (found["left"]["mean"], found["left"]["of"]) == (0.8, 5)
    assert found["voters"]["ada"] == {"votes": 3, "asked": 6}


def test_one_voter_has_nobody_to_agree_with(tmp_path: Path) -> None:
    found = merge(read_votes([voted(tmp_path, "ada", {(0, "motion"): "tie"})], KEY), KEY)
    assert found["between_voters"] is None and found["same_again"] is None and found["left"] is None
    assert found["questions"]["motion"]["win_rate"] is None


@pytest.mark.parametrize(
    ("choices", "changes", "message"),
    [
        ({(3, "overall"): "left"}, {}, "no vote of this study: trials 0 to 2"),
        ({(0, "mood"): "left"}, {}, "no vote of this study"),
        ({(0, "overall"): "up"}, {}, "no vote of this study"),
        ({(0, "overall"): "left"}, {"study": "other"}, "votes of study other, and the key is that of s"),
        ({(0, "overall"): "left"}, {"votes": 3}, "no file of votes"),
        ({(0, "overall"): "left"}, {"votes": [{"trial": 0}]}, "is no vote"),
        ({}, {}, "no votes in"),
    ],
)
def test_votes_that_are_none_are_refused(
    tmp_path: Path, choices: dict[tuple[int, str], str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_votes([voted(tmp_path, "ada", choices, **changes)], KEY)


def test_nobody_votes_twice(tmp_path: Path) -> None:
    one = voted(tmp_path, "ada", {(0, "overall"): "left"})
    with pytest.raises(ValueError, match="both by 'ada'; a voter counts once"):
        read_votes([one, one], KEY)
    vote = {"trial": 0, "question": "overall", "choice": "left"}
    with pytest.raises(ValueError, match="trial 0 has two votes on overall"):
        read_votes([voted(tmp_path, "bob", {}, votes=[vote, vote])], KEY)


@pytest.mark.parametrize("content", ["[]", "{", '{"study": "s"}', json.dumps(KEY | {"trials": [{"pair": "p"}]})])
def test_a_key_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(FileNotFoundError, match="the folder that compare wrote"):
        read_key(tmp_path)
    (tmp_path / "key.json").write_text(content)
    with pytest.raises(ValueError, match="no key of a study"):
        read_key(tmp_path)


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    """Newcombe (1998), table I: 81 of 263 and 0 of 20; and it stays within 0 and 1."""
    some, none, every = wilson(81, 263), wilson(0, 20), wilson(20, 20)
    assert (round(some.low, 4), round(some.high, 4)) == (0.2553, 0.3662)
    assert none.low == pytest.approx(0, abs=1e-12) and round(none.high, 4) == 0.1611
    assert every.high == pytest.approx(1) and every.low == pytest.approx(1 - none.high)
