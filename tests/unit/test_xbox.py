"""The gamepad: its short form, its files, its tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from diagonal.worlds import xbox
from diagonal.worlds.xbox import NOOP, Action, parse, read, read_clip, stick_bin, tokens

ROW = [1, *[0] * 11, 6, 10, 5, 5]  # as the published clips hold it
HELD = Action(frozenset({0}), (6, 10, 5, 5))


def rows(count: int) -> np.ndarray:
    return np.tile(np.array(ROW), (count, 1))


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


# The short form


def test_the_short_form_is_buttons_and_axes():
    assert parse("b3*2, b0+x1=0.6+x0=-1, noop") == [
        Action(frozenset({3})),
        Action(frozenset({3})),
        Action(frozenset({0}), (0, 8, 5, 5)),
        NOOP,
    ]


def test_the_script_is_written_in_it():
    assert len(parse(xbox.SCRIPT)) == 10 and len(set(parse(xbox.SCRIPT))) > 2


def test_an_action_prints_as_its_short_form():
    actions = [NOOP, HELD, *(Action(frozenset({11, 2}), (place, 5, 10 - place, 5)) for place in range(11))]
    assert str(NOOP) == "noop" and str(HELD) == "b0+x0=0.15+x1=1"
    assert parse(",".join(map(str, actions))) == actions


@pytest.mark.parametrize("word", ["jump", "b12", "b", "b-1", "B3", "x4=0", "x0", "x0=", "x0=fast", "x=1", "x0=1e9"])
def test_an_unknown_word_is_named_with_the_known_ones(word):
    with pytest.raises(ValueError, match=r"unknown action .*known: noop, b0 to b11, x0=VALUE to x3=VALUE") as caught:
        parse(f"b1,{word}*2")
    assert repr(word) in str(caught.value)


@pytest.mark.parametrize("text", ["x0=1.01", "x3=-2", "x1=" + "9" * 400])
def test_an_axis_beyond_its_end_is_refused(text):
    with pytest.raises(ValueError, match="from -1 to 1"):
        parse(text)


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "", "x"])
def test_a_bad_count_is_refused(count):
    with pytest.raises(ValueError, match="whole number from 1"):
        parse(f"b1*{count}")


# Actions and tokens


@pytest.mark.parametrize(
    ("buttons", "sticks"), [({12}, (5,) * 4), ({-1}, (5,) * 4), (set(), (5,) * 3), (set(), (5, 5, 5, 11))]
)
def test_an_action_that_no_gamepad_has_is_refused(buttons, sticks):
    with pytest.raises(ValueError, match="given"):
        Action(frozenset(buttons), sticks)


def test_every_slot_has_ids_of_its_own():
    (ids,) = tokens([NOOP], first_id=100)
    assert ids == [*range(100, 124, 2), 129, 140, 151, 162]
    (held,) = tokens([Action(frozenset({3}), (0, 10, 5, 5))], first_id=0)
    assert held[3] == 7 and held[12:] == [24, 45, 51, 62]
    assert max(tokens([Action(frozenset(range(12)), (10,) * 4)], 0)[0]) == xbox.VOCABULARY - 1


def test_a_bins_centre_lies_in_it():
    assert [stick_bin(centre) for centre in xbox.CENTRES] == list(range(11))


@pytest.mark.parametrize("value", [math.nan, 1.001, -1.04, math.inf])
def test_a_stick_that_cannot_be_is_refused(value):
    with pytest.raises(ValueError, match="from -1 to 1"):
        stick_bin(value)


def test_there_is_no_start_view():
    assert xbox.STARTS == ()
    with pytest.raises(ValueError, match="--prompt"):
        xbox.start("arena")


# Files


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_a_published_clip_holds_bins(tmp_path, dtype):
    assert read(save(tmp_path / "clip.npz", actions=rows(3).astype(dtype))) == [HELD] * 3


@pytest.mark.parametrize(
    "record", [[1, *[0] * 11, 0.2, 1, 0, 0.04], {"buttons": [True, *[0] * 11], "sticks": [0.2, 1.0, 0, 0]}]
)
def test_json_holds_axes_from_minus_one_to_one(tmp_path, record):
    (tmp_path / "a.json").write_text(json.dumps([record] * 2))
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n\n" + json.dumps(record) + "\n")
    assert read(tmp_path / "a.json") == read(tmp_path / "a.jsonl") == [HELD] * 2


@pytest.mark.parametrize(
    "content",
    [
        *[
            "",
            "x",
            "[" * 100_000,
            "{}",
            "3",
            "[]",
            "[3]",
            "[[1, 2]]",
            '[{"buttons": []}]',
            '[{"sticks": [0, 0, 0, 0]}]',
        ],
        *[f"[[{', '.join(['0'] * 12)}, 0, 0, 0, {bad}]]" for bad in ("1.5", "NaN", '"a"', "null", "[]")],
        f"[[2, {', '.join(['0'] * 15)}]]",
    ],
)
def test_json_that_is_no_list_of_actions_is_refused_with_the_file(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ValueError, match=r"bad\.json"):
        read(tmp_path / "bad.json")


def test_an_action_that_is_wrong_is_counted(tmp_path):
    (tmp_path / "bad.json").write_text(json.dumps([[0] * 16, [0] * 15]))
    with pytest.raises(ValueError, match=r"bad\.json, action 2: .*15 numbers; 12 buttons and 4 axes"):
        read(tmp_path / "bad.json")
    broken = rows(3)
    broken[2, 13] = 11
    with pytest.raises(ValueError, match=r"clip\.npz, action 3: stick bin 11 given; bins are 0 to 10"):
        read(save(tmp_path / "clip.npz", actions=broken))


@pytest.mark.parametrize("value", [2, -1, 0.5, math.nan])
@pytest.mark.parametrize("column", [0, 13])
def test_bins_that_are_none_are_refused(tmp_path, column, value):
    broken = rows(1).astype(float)
    broken[0, column] = value if column == 0 or value != 2 else 12
    with pytest.raises(ValueError, match=r"clip\.npz, action 1: "):
        read(save(tmp_path / "clip.npz", actions=broken))


@pytest.mark.parametrize("actions", [np.zeros((0, 16)), np.zeros((3, 15)), np.zeros(16), np.full((2, 16), "a")])
def test_arrays_of_another_shape_are_refused(tmp_path, actions):
    with pytest.raises(ValueError, match=r"clip\.npz: actions are .*numbers \(T, 16\) are needed"):
        read(save(tmp_path / "clip.npz", actions=actions))


def test_a_clip_is_its_frames_and_actions(tmp_path):
    images = np.arange(2 * 3 * 4 * 6, dtype=np.uint8).reshape(2, 3, 4, 6)
    frames, actions = read_clip(save(tmp_path / "clip.npz", images=images, actions=rows(2), states=np.zeros(3)))
    assert frames.shape == (2, 4, 6, 3) and actions == [HELD] * 2
    assert frames[1, 2, 3].tolist() == images[1, :, 2, 3].tolist()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 4, 6, 3), np.uint8), r"images are uint8 of shape \(2, 4, 6, 3\)"),
        (np.zeros((2, 3, 4, 6)), "images are float64"),
        (np.zeros((3, 3, 4, 6), np.uint8), "3 images but 2 actions"),
    ],
)
def test_a_clip_that_does_not_fit_is_refused(tmp_path, images, message):
    with pytest.raises(ValueError, match=message):
        read_clip(save(tmp_path / "clip.npz", images=images, actions=rows(2)))


def test_objects_in_an_npz_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.mkdir, (tmp_path / "sprung",))

    save(tmp_path / "evil.npz", actions=np.array([[Trap()] * 16], dtype=object))
    with pytest.raises(ValueError, match=r"evil\.npz is no readable npz file with actions"):
        read(tmp_path / "evil.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("part", [0.0, 0.5, 0.95])
def test_a_truncated_npz_is_refused(tmp_path, part):
    data = save(tmp_path / "cut.npz", actions=rows(50)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ValueError, match=r"cut\.npz is no readable npz file"):
        read(tmp_path / "cut.npz")


def test_an_npz_without_actions_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no readable npz file with actions \(KeyError\)"):
        read(save(tmp_path / "clip.npz", images=rows(2)))


def test_an_npz_larger_than_memory_is_refused_unread(tmp_path, monkeypatch):
    path = save(tmp_path / "clip.npz", actions=rows(50))
    monkeypatch.setattr(xbox, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="too large to hold in memory"):
        read(path)


def test_a_file_of_another_kind_or_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.npz, \.json or \.jsonl"):
        read(tmp_path / "actions.txt")
    for name in ("nowhere.npz", "nowhere.json"):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            read(tmp_path / name)
