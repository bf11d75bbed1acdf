"""Doom: the text form of actions, the player who records, and recordings that depend on their seed alone."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from diagonal.worlds import vizdoom
from diagonal.worlds.player import PATIENT, RESTLESS, Policy
from diagonal.worlds.vizdoom import ACTIONS, NOOP, Shard, halve, parse, play, read, record, shards, tokens

plays = pytest.mark.skipif(find_spec("vizdoom") is None, reason="ViZDoom is not installed")

FAR, NEAR = np.full((192, 256), 40, np.uint8), np.full((192, 256), 2, np.uint8)


# The text form


def test_every_action_can_be_written():
    assert parse(",".join(ACTIONS)) == list(ACTIONS)


def test_a_count_repeats_an_action_and_commas_keep_the_order():
    assert parse("forward*3,left*2,noop") == ["forward"] * 3 + ["left"] * 2 + [NOOP]


def test_what_is_held_together_may_come_in_any_order_and_with_spaces():
    assert parse(" left + forward * 2 , right+forward ") == ["forward+left"] * 2 + ["forward+right"]


@pytest.mark.parametrize("text", ["fly", "Forward", "left+right", "forward+back", "", "forward,", "*3", "noop+left"])
def test_an_unknown_action_is_named_with_the_known_ones(text):
    with pytest.raises(ValueError, match="unknown action") as caught:
        parse(text)
    assert all(name in str(caught.value) for name in ACTIONS)


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "", "x", "2*3", "007"])
def test_a_bad_count_is_refused(count):
    with pytest.raises(ValueError, match="whole number from 1"):
        parse(f"left,forward*{count}")


def test_an_action_is_one_id_after_the_first():
    assert tokens(list(ACTIONS), 1000) == [[1000 + index] for index in range(8)]
    assert tokens([], 5) == []


def test_every_action_has_its_buttons_and_its_share_of_play():
    assert list(vizdoom.BUTTONS) == list(RESTLESS) == list(PATIENT) == list(ACTIONS)
    for shares in (RESTLESS, PATIENT):
        assert sum(share for share, _ in shares.values()) == pytest.approx(1)
    assert len(set(vizdoom.BUTTONS.values())) == len(ACTIONS)


# Files of actions


@pytest.fixture
def written(tmp_path: Path):
    """A file with this content."""

    def write(content: str) -> Path:
        path = tmp_path / "actions.jsonl"
        path.write_text(content)
        return path

    return write


def test_a_file_has_one_action_per_line_and_blank_lines_are_skipped(written):
    path = written('{"action": "forward"}\n\n{"action": "left+forward", "more": 1}\n')
    assert read(path) == ["forward", "forward+left"]
    assert read(str(path)) == read(path)


@pytest.mark.parametrize("line", ["forward", "[]", "3", '{"act": "left"}', '{"action": 3}', '{"action": null}', "{"])
def test_a_line_that_is_no_action_is_named(written, line):
    with pytest.raises(ValueError, match=r"actions.jsonl, line 2: a line must be"):
        read(written(json.dumps({"action": "left"}) + "\n" + line + "\n"))


def test_an_unknown_action_in_a_file_is_named_with_its_line(written):
    with pytest.raises(ValueError, match=r"actions.jsonl, line 2: .*unknown action 'fly'"):
        read(written('{"action": "left"}\n{"action": "fly"}\n'))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_actions_is_refused(written, content):
    with pytest.raises(ValueError, match="holds no actions"):
        read(written(content))


# Pixels


def test_a_halved_picture_is_the_mean_of_two_by_two():
    picture = np.random.default_rng(0).integers(256, size=(12, 20, 3), dtype=np.uint8)
    mean = picture.reshape(6, 2, 10, 2, 3).astype(float).mean((1, 3))
    assert halve(picture).dtype == np.uint8
    np.testing.assert_array_equal(halve(picture), np.floor(mean + 0.5))


def test_halving_neither_darkens_nor_overflows():
    for value in (0, 1, 254, 255):
        assert (halve(np.full((4, 4, 3), value, np.uint8)) == value).all()


# The player


def choices(policy: Policy, depth: np.ndarray, moved: float, count: int) -> list[str]:
    return [policy.next(depth, moved) for _ in range(count)]


def test_actions_are_held_for_a_while():
    made = choices(Policy(np.random.default_rng(0)), FAR, 100.0, 5000)
    lengths: dict[str, list[int]] = {}
    for action, group in itertools.groupby(made):
        lengths.setdefault(action, []).append(len(list(group)))
    for action, (_, (low, _)) in RESTLESS.items():
        assert min(lengths[action][:-1]) >= low, action


def test_with_room_ahead_every_action_comes_as_often_as_it_should():
    made = Counter(choices(Policy(np.random.default_rng(0)), FAR, 100.0, 20_000))
    held = {name: share * (low + high) / 2 for name, (share, (low, high)) in RESTLESS.items()}
    for name, expected in held.items():
        assert made[name] / 20_000 == pytest.approx(expected / sum(held.values()), abs=0.03)


def test_a_player_at_a_wall_turns_away_towards_more_room():
    """Depth is larger on the left: most escapes turn left."""
    depth = NEAR.copy()
    depth[:, :100] = 60
    turned: Counter[str] = Counter()
    for seed in range(300):
        policy = Policy(np.random.default_rng(seed), action="forward", left=9)
        turned[policy.next(depth, 100.0)] += 1
    assert turned["left"] > 3 * turned["right"]
    assert turned["back"] > 10
    assert 60 < turned["forward"] < 240  # some have not noticed yet


def test_a_player_who_does_not_move_frees_himself():
    policy = Policy(np.random.default_rng(0), action="forward", left=9)
    assert set(choices(policy, FAR, 0.0, 12)) & {"left", "right", "back"}


def test_a_turn_away_from_a_wall_ends_where_there_is_room():
    policy = Policy(np.random.default_rng(1), action="left", left=9, escape="left")
    assert policy.next(NEAR, 100.0) == "left"
    policy.next(FAR, 100.0)
    assert policy.escape == ""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The game writes into the working directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def played(elsewhere: None) -> Iterator[list[tuple[np.ndarray, str, int]]]:
    source = play("my_way_home", 1)
    yield list(itertools.islice(source, 3000))
    source.close()  # type: ignore[attr-defined]


@plays
def test_real_play_uses_every_action_and_stands_still_and_backs_off_often_enough(played):
    frames, taken, episodes = zip(*played, strict=True)
    shares = {name: count / 3000 for name, count in Counter(taken).items()}
    assert shares.keys() == set(ACTIONS)
    assert shares["noop"] >= 0.03
    assert shares["back"] >= 0.03
    assert all(frame.shape == (vizdoom.HEIGHT, vizdoom.WIDTH, 3) and frame.dtype == np.uint8 for frame in frames)
    # Episodes are as long as they should be unless the goal was found, and are counted from 0 without gaps.
    lengths = [len(list(group)) for _, group in itertools.groupby(episodes)]
    assert sorted(set(episodes)) == list(range(len(lengths)))
    assert max(lengths) == vizdoom.EPISODE
    # Frames change while the player moves, and walking is not stuck at walls for most of the time.
    walked = [i for i in range(2999) if taken[i].startswith("forward") and episodes[i] == episodes[i + 1]]
    changed = [np.abs(frames[i + 1].astype(int) - frames[i]).mean() > 1 for i in walked]
    assert np.mean(changed) > 0.7


def test_an_unknown_scenario_is_refused():
    with pytest.raises(ValueError, match="unknown scenario 'spiral'; known: my_way_home"):
        next(play("spiral", 0))


# Recordings


def test_a_recording_is_cut_into_numbered_files(tmp_path):
    planned = shards("basic", 2 * vizdoom.SHARD_FRAMES + 100, 7, tmp_path, 50)
    assert [shard.frames for shard in planned] == [2048, 2048, 100]
    assert [shard.path.name for shard in planned] == [f"shard-0000{number}.safetensors" for number in range(3)]
    assert all(shard.path.parent == tmp_path for shard in planned)
    assert {(shard.scenario, shard.seed, shard.episode_frames) for shard in planned} == {("basic", 7, 50)}


@pytest.mark.parametrize("frames", [2, 2047, 2048, 2049, 5000])
def test_the_files_hold_as_many_frames_as_asked_for(frames):
    assert sum(shard.frames for shard in shards("basic", frames, 0, "x")) == frames


@pytest.mark.parametrize("frames", [1, 0, -5])
def test_a_recording_of_no_transition_is_refused(frames):
    with pytest.raises(ValueError, match=f"{frames} frames asked for"):
        shards("basic", frames, 0, "x")


def files(folder: Path, count: int = 1, seed: int = 0) -> list[Shard]:
    """Files of 20 frames in episodes of 8."""
    return [Shard("my_way_home", seed, number, 20, str(folder), 8) for number in range(count)]


def recorded(planned: list[Shard], workers: int = 1) -> list[dict[str, np.ndarray]]:
    assert list(record(planned, workers)) == [20] * len(planned)
    return [load_file(shard.path) for shard in planned]


def same(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> bool:
    return all(
        np.array_equal(first[key], second[key])
        for first, second in zip(one, other, strict=True)
        for key in ("frames", "actions", "episodes")
    )


@plays
def test_a_recording_depends_on_its_seed_alone(tmp_path):
    before = os.getcwd()
    first, again = recorded(files(tmp_path / "first", 2)), recorded(files(tmp_path / "again", 1))
    (other,) = recorded(files(tmp_path / "other", seed=1))
    assert os.getcwd() == before
    assert same(first[:1], again)
    assert not np.array_equal(first[0]["frames"], other["frames"])
    assert not np.array_equal(first[0]["frames"], first[1]["frames"])  # files of one recording differ too


@plays
def test_a_recording_is_the_same_whatever_number_of_processes_makes_it(tmp_path):
    assert same(recorded(files(tmp_path / "one", 2)), recorded(files(tmp_path / "two", 2), workers=2))


@plays
def test_a_shard_has_the_documented_tensors_and_says_where_it_comes_from(tmp_path):
    (content,) = recorded(files(tmp_path))
    assert content["frames"].shape == (20, 96, 128, 3) and content["frames"].dtype == np.uint8
    assert content["actions"].shape == (20,) and content["actions"].dtype == np.uint8
    assert content["actions"].max() < len(ACTIONS)
    assert content["episodes"].dtype == np.int32
    assert content["episodes"].tolist() == [0] * 8 + [1] * 8 + [2] * 4
    with safe_open(tmp_path / "shard-00000.safetensors", "np") as file:
        assert {"world": "vizdoom", "scenario": "my_way_home", "seed": "0"}.items() <= file.metadata().items()
    assert os.listdir(tmp_path) == ["shard-00000.safetensors"]


@plays
def test_files_that_are_there_already_are_kept_and_missing_ones_made(tmp_path):
    whole = recorded(files(tmp_path, 2))
    first, second = sorted(tmp_path.iterdir())
    second.unlink()
    kept = (first.stat().st_mtime_ns, first.stat().st_ino)
    assert same(recorded(files(tmp_path, 2)), whole)
    assert (first.stat().st_mtime_ns, first.stat().st_ino) == kept
    assert vizdoom.summary(files(tmp_path, 2))[0] == 6


def finished(shard: Shard) -> None:
    """A file of that recording, without the game."""
    shard.path.parent.mkdir(exist_ok=True)
    content = {"frames": np.zeros((shard.frames, 2, 2, 3), np.uint8), "actions": np.zeros(shard.frames, np.uint8)}
    save_file(content | {"episodes": np.zeros(shard.frames, np.int32)}, shard.path, shard.metadata)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"scenario": "basic"}, {"episode_frames": 9}, {"frames": 19}],
    ids=lambda change: next(iter(change)),
)
def test_files_of_another_recording_are_neither_kept_nor_overwritten(tmp_path, change):
    (planned,) = files(tmp_path)
    other = replace(planned, **change)
    finished(other)
    before = other.path.read_bytes()
    with pytest.raises(ValueError, match=f"of another recording .*{next(iter(change))}"):
        list(record([planned]))
    assert other.path.read_bytes() == before


def test_a_folder_with_more_files_than_planned_is_refused(tmp_path):
    for shard in files(tmp_path, 3):
        finished(shard)
    with pytest.raises(ValueError, match=r"shard-00002.* is not part of a recording of 40 frames"):
        list(record(files(tmp_path, 2)))


def test_a_damaged_file_is_refused_and_what_a_killed_process_left_is_ignored(tmp_path):
    (planned,) = files(tmp_path)
    finished(planned)
    (tmp_path / ".shard-00000-x.safetensors").write_bytes(b"half")
    assert list(record([planned])) == [20]
    planned.path.write_bytes(b"half")
    with pytest.raises(ValueError, match=r"shard-00000.* is no shard of a recording"):
        list(record([planned]))


def test_the_summary_of_a_recording_counts_episodes_and_actions(tmp_path):
    for shard in files(tmp_path, 2):
        finished(shard)
    assert vizdoom.summary(files(tmp_path, 2)) == (2, {name: float(name == NOOP) for name in ACTIONS})
