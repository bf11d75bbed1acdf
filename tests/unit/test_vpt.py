"""Actions of the VPT dataset: the short text form, raw recordings, named records, and what is wrong with a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagonal.media import video
from diagonal.worlds import vpt
from diagonal.worlds.vpt import NOOP, Action


def pressed(*names: str, pitch: float = 0.0, yaw: float = 0.0) -> Action:
    return Action(frozenset(names), pitch, yaw)


def raw(
    *keys: str,
    buttons: tuple[int, ...] = (),
    new: tuple[int, ...] = (),
    dx: float = 0.0,
    dy: float = 0.0,
    hotbar: int = 0,
) -> dict[str, Any]:
    """One line of a raw recording, with the fields the dataset has."""
    return {
        "mouse": {"x": 640.0, "y": 360.0, "dx": dx, "dy": dy, "buttons": list(buttons), "newButtons": list(new)},
        "keyboard": {"keys": [f"key.keyboard.{key}" for key in keys], "newKeys": [], "chars": ""},
        "hotbar": hotbar,
        "tick": 0,
        "isGuiOpen": False,
    }


@pytest.fixture
def recorded(tmp_path: Path):
    """Reads what a file with these lines gives."""

    def read(*records: Any) -> list[Action]:
        path = tmp_path / "actions.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return vpt.read(path)

    return read


@pytest.fixture
def written(tmp_path: Path):
    """A file with exactly this content."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "actions.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# The text form


def test_an_action_name_is_one_action():
    assert vpt.parse("forward") == [pressed("forward")]


def test_a_count_repeats_an_action_and_commas_keep_the_order():
    assert vpt.parse("forward*3,left*2,jump") == [pressed("forward")] * 3 + [pressed("left")] * 2 + [pressed("jump")]


def test_plus_holds_several_buttons_at_once():
    assert vpt.parse("forward+jump+sprint*2") == [pressed("forward", "jump", "sprint")] * 2


def test_pitch_and_yaw_are_degrees_and_may_be_negative_or_broken_numbers():
    assert vpt.parse("yaw=15*2,pitch=-7.5,forward+yaw=-3+pitch=2") == [
        pressed(yaw=15),
        pressed(yaw=15),
        pressed(pitch=-7.5),
        pressed("forward", yaw=-3, pitch=2),
    ]


def test_noop_does_nothing():
    assert vpt.parse("noop*4") == [NOOP] * 4
    assert not NOOP.buttons and NOOP.pitch == NOOP.yaw == 0


def test_spaces_around_words_do_not_matter():
    assert vpt.parse(" forward + jump * 2 , left ") == vpt.parse("forward+jump*2,left")


def test_every_button_can_be_written():
    assert vpt.parse(",".join(vpt.BUTTONS)) == [pressed(name) for name in vpt.BUTTONS]


@pytest.mark.parametrize("word", ["fly", "Forward", "camera", "yaw", "yaw=", "yaw=fast", "roll=3", "hotbar.0"])
def test_an_unknown_word_is_named_with_the_known_ones(word):
    with pytest.raises(ValueError, match="unknown action") as caught:
        vpt.parse(f"forward,{word}*2")
    assert repr(word) in str(caught.value)
    for known in ("noop", "forward", "hotbar.9", "pitch=DEGREES", "yaw=DEGREES"):
        assert known in str(caught.value)


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "", "x", "2*3", "00001"])
def test_a_bad_count_is_refused(count):
    with pytest.raises(ValueError, match="whole number from 1") as caught:
        vpt.parse(f"left,forward*{count}")
    assert f"'forward*{count}'" in str(caught.value)


@pytest.mark.parametrize("text", ["", " ", ",", "forward,", ",forward", "forward,,left", "forward+", "*3"])
def test_an_empty_item_is_refused(text):
    with pytest.raises(ValueError, match="unknown action ''"):
        vpt.parse(text)


def test_more_actions_than_a_recording_can_have_are_refused():
    with pytest.raises(ValueError, match="more than 1000000 actions"):
        vpt.parse("forward*1000001")
    with pytest.raises(ValueError, match="more than 1000000 actions"):
        vpt.parse("forward*999999,left*2")


def test_an_endless_turn_is_refused():
    with pytest.raises(ValueError, match="degrees"):
        vpt.parse("yaw=" + "9" * 400)


# Actions and their tokens


def test_an_action_with_an_unknown_button_is_refused():
    with pytest.raises(ValueError, match=r"unknown buttons \['fly'\]"):
        Action(frozenset({"fly", "jump"}))


@pytest.mark.parametrize("turn", [math.nan, math.inf, -math.inf])
def test_an_action_whose_turn_is_no_number_is_refused(turn):
    with pytest.raises(ValueError, match="not two numbers"):
        Action(pitch=turn)
    with pytest.raises(ValueError, match="not two numbers"):
        Action(yaw=turn)


def test_an_action_has_eleven_tokens_between_begin_and_end():
    (ids,) = vpt.tokens([NOOP], first_id=8192)
    centre = vpt.CAMERA_BINS // 2
    begin, end, empty = 8192 + vpt.BOS, 8192 + vpt.EOS, 8192 + vpt.NULL
    assert ids == [begin, 8192 + vpt.PITCH + centre, 8192 + vpt.YAW + centre] + [empty] * 7 + [end]


def test_each_pressed_button_fills_its_own_slot():
    (ids,) = vpt.tokens([pressed("hotbar.3", "back", "right", "sneak", "attack", "jump", "pickItem")], first_id=0)
    names = [vpt.BUTTONS[i] for i in ids[3:-1]]
    assert names == ["hotbar.3", "back", "right", "sneak", "attack", "jump", "pickItem"]


def test_both_buttons_of_a_pair_leave_its_slot_empty():
    (both,) = vpt.tokens([pressed("forward", "back", "jump")], first_id=0)
    (neither,) = vpt.tokens([pressed("jump")], first_id=0)
    assert both == neither


def test_camera_bins_are_symmetric_finer_near_the_centre_and_clipped():
    degrees = np.arange(-200, 201)
    bins = [vpt.camera_bin(float(turn)) for turn in degrees]
    assert bins == sorted(bins)
    assert bins[0] == 0 and bins[-1] == vpt.CAMERA_BINS - 1
    assert [20 - b for b in bins[::-1]] == bins
    assert vpt.camera_bin(90) == vpt.camera_bin(1000) == 20
    assert vpt.camera_bin(3) > vpt.camera_bin(0) and vpt.camera_bin(80) == vpt.camera_bin(83)


def test_all_ids_of_an_action_are_below_the_vocabulary():
    everything = [pressed(name, pitch=turn, yaw=-turn) for name in vpt.BUTTONS for turn in (-90.0, 0.0, 90.0)]
    ids = np.array(vpt.tokens(everything, first_id=0))
    assert ids.shape == (len(everything), 11)
    assert ids.min() >= 0 and ids.max() < vpt.VOCABULARY


# Raw recordings


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("w", "forward"),
        ("s", "back"),
        ("a", "left"),
        ("d", "right"),
        ("space", "jump"),
        ("left.shift", "sneak"),
        ("left.control", "sprint"),
        ("q", "drop"),
        ("f", "swapHands"),
        ("e", "inventory"),
        ("escape", "ESC"),
        ("4", "hotbar.4"),
    ],
)
def test_a_key_is_the_button_the_game_binds_it_to(recorded, key, name):
    assert recorded(raw(key)) == [pressed(name)]


def test_keys_the_game_does_not_bind_are_ignored(recorded):
    assert recorded(raw("w", "unknown", "f3", "tab")) == [pressed("forward")]


def test_mouse_buttons_are_attack_use_and_pick(recorded):
    assert recorded(raw(), raw(buttons=(0,)), raw(buttons=(1,)), raw(buttons=(2,)), raw(buttons=(7,))) == [
        NOOP,
        pressed("attack"),
        pressed("use"),
        pressed("pickItem"),
        NOOP,
    ]


def test_an_attack_stuck_from_before_the_recording_is_ignored_until_pressed_anew(recorded):
    stuck, anew, held = raw(buttons=(0,), new=(0,)), raw(buttons=(0,), new=(0,)), raw(buttons=(0,))
    assert recorded(stuck, held, held, anew, held) == [NOOP, NOOP, NOOP, pressed("attack"), pressed("attack")]


def test_a_stuck_attack_hides_no_other_button(recorded):
    assert recorded(raw("w", buttons=(0,), new=(0,)), raw(buttons=(0, 2))) == [pressed("forward"), pressed("pickItem")]


def test_an_attack_pressed_later_is_not_stuck(recorded):
    assert recorded(raw(), raw(buttons=(0,), new=(0,))) == [NOOP, pressed("attack")]


def test_a_changed_hotbar_slot_counts_as_its_key_once(recorded):
    slots = [raw(hotbar=slot) for slot in (0, 3, 3, 8, 0)]
    assert recorded(*slots) == [NOOP, pressed("hotbar.4"), NOOP, pressed("hotbar.9"), pressed("hotbar.1")]


@pytest.mark.parametrize("keys", [("w", "s"), ("a", "d"), ("left.control", "left.shift"), ("space", "left.shift")])
def test_opposite_keys_cancel_each_other_and_nothing_else(recorded, keys):
    assert recorded(raw(*keys, "q")) == [pressed("drop")]


def test_attack_and_use_cancel_each_other(recorded):
    assert recorded(raw("w", buttons=(0, 1)), raw(buttons=(0, 1))) == [pressed("forward"), NOOP]


def test_sneak_cancels_jump_and_sprint_together(recorded):
    assert recorded(raw("left.control", "left.shift", "space")) == [NOOP]


@pytest.mark.parametrize(
    ("pixels", "degrees"),
    [(0, 0), (6, 0), (-6, 0), (7, 1), (-7, -1), (100, 15), (-100, -15), (13.4, 2), (-13.4, -2), (1200, 180)],
)
def test_camera_turns_are_whole_degrees_toward_zero(recorded, pixels, degrees):
    assert recorded(raw(dx=pixels, dy=-pixels)) == [pressed(yaw=degrees, pitch=-degrees)]


@pytest.mark.parametrize("pixels", [1201, -1201, 5000])
def test_a_turn_of_more_than_half_a_circle_is_dropped(recorded, pixels):
    assert recorded(raw("w", dx=pixels, dy=20)) == [pressed("forward", pitch=3)]


def test_a_slot_beyond_the_hotbar_is_refused(recorded):
    with pytest.raises(ValueError, match="hotbar 9 is not a slot"):
        recorded(raw(hotbar=9))
    with pytest.raises(ValueError, match=r"actions\.jsonl"):
        recorded(raw(hotbar=-1))


# Named records


def test_a_named_record_gives_its_buttons_and_camera(recorded):
    held = dict.fromkeys(vpt.BUTTONS, 0) | {"forward": 1, "hotbar.2": 1, "camera": [-3.5, 12]}
    assert recorded(held) == [pressed("forward", "hotbar.2", pitch=-3.5, yaw=12.0)]


def test_a_named_record_without_a_camera_does_not_turn(recorded):
    assert recorded({"jump": True}, {"attack": False}) == [pressed("jump"), NOOP]


def test_named_opposites_are_kept_as_given(recorded):
    assert recorded({"forward": 1, "back": 1}) == [pressed("forward", "back")]


def test_blank_lines_are_not_actions(written):
    path = written('\n{"forward": 1}\n\n  \n{"back": 1}\n\n')
    assert vpt.read(path) == [pressed("forward"), pressed("back")]


def test_windows_line_ends_are_read(written):
    assert vpt.read(written('{"forward": 1}\r\n{"back": 1}\r\n')) == [pressed("forward"), pressed("back")]


def test_a_line_separator_inside_a_string_does_not_end_the_line(written):
    assert vpt.read(written('{"forward": 1, "chat": "a\u2028b"}\n')) == [pressed("forward")]


# Files that are wrong


def test_a_broken_line_is_named_by_its_number(written):
    path = written('{"forward": 1}\n\n{"forward": \n{"back": 1}\n')
    with pytest.raises(ValueError, match=r"actions\.jsonl, line 3: not JSON"):
        vpt.read(path)


def test_a_recording_cut_in_its_last_line_is_refused_with_the_line(written):
    whole = "".join(json.dumps(raw("w")) + "\n" for _ in range(5))
    with pytest.raises(ValueError, match="line 5: not JSON"):
        vpt.read(written(whole[:-20]))


def test_a_file_that_is_not_json_is_refused(written):
    with pytest.raises(ValueError, match="line 1: not JSON"):
        vpt.read(written("forward*8,left*4\n"))


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_an_empty_file_is_refused(written, content):
    with pytest.raises(ValueError, match=r"actions\.jsonl holds no actions"):
        vpt.read(written(content))


@pytest.mark.parametrize("record", ["3", "null", "[1, 2]", '"mouse"', '{"mouse": 3}', '{"camera": 5}'])
def test_json_that_is_no_action_is_refused(written, record):
    with pytest.raises(ValueError, match=r"actions\.jsonl.* neither a raw VPT record .* nor named actions"):
        vpt.read(written(record + "\n"))


def test_a_raw_recording_with_a_field_missing_is_refused(recorded):
    broken = raw()
    del broken["hotbar"]
    with pytest.raises(ValueError, match="hotbar"):
        recorded(raw(), broken)


def test_a_recording_that_changes_its_form_is_refused(recorded):
    with pytest.raises(ValueError, match="mouse"):
        recorded(raw(), {"forward": 1})


def test_a_record_with_no_known_name_is_refused(recorded):
    with pytest.raises(ValueError, match=r"actions\.jsonl"):
        recorded({"forwards": 1, "strafe": 0})


@pytest.mark.parametrize(
    "camera",
    ["[1, 2, 3]", "[1]", '["left", 0]', "[NaN, 0]", f"[1{'0' * 400}, 0]", f"[{'9' * 5000}, 0]"],
    ids=["three", "one", "words", "nan", "beyond floats", "beyond integers"],
)
def test_a_camera_that_is_not_two_numbers_is_refused_with_the_file(written, camera):
    path = written('{"forward": 1}\n{"camera": ' + camera + "}\n")
    with pytest.raises(ValueError, match=r"actions\.jsonl"):
        vpt.read(path)


@pytest.mark.parametrize("turn", ["NaN", "Infinity", "1" + "0" * 400, '"far"'], ids=["nan", "inf", "huge", "word"])
def test_a_mouse_turn_that_is_no_number_is_refused_with_the_file(written, turn):
    path = written(json.dumps(raw(dx=12345)).replace("12345", turn))
    with pytest.raises(ValueError, match=r"actions\.jsonl"):
        vpt.read(path)


def test_json_nested_without_end_is_refused(written):
    with pytest.raises(ValueError, match=r"actions\.jsonl"):
        vpt.read(written("[" * 100_000))


def test_a_file_that_is_not_text_is_refused_with_its_name(written):
    with pytest.raises(ValueError, match=r"actions\.jsonl"):
        vpt.read(written(b"\xff\xfe\x00\x01\n"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        vpt.read(tmp_path / "nowhere.jsonl")


def test_a_file_too_large_to_be_a_recording_is_refused_unread(tmp_path):
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.truncate(vpt.MAX_BYTES + 1)  # sparse: takes no room
    with pytest.raises(ValueError, match="larger than 512 MB"):
        vpt.read(path)


# Clips with their actions


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    with video.writer(path, 20) as file:
        file.write(np.full((4, 32, 48, 3), 90, dtype=np.uint8))
    return path


def test_a_clip_is_read_with_the_actions_of_the_same_name(clip):
    clip.with_suffix(".jsonl").write_text('{"forward": 1}\n' * 4)
    frames, actions = vpt.read_clip(clip)
    assert frames.shape == (4, 32, 48, 3)
    assert actions == [pressed("forward")] * 4


def test_a_clip_can_have_its_actions_elsewhere(clip, written):
    frames, actions = vpt.read_clip(clip, written('{"jump": 1}\n' * 4))
    assert (len(frames), actions) == (4, [pressed("jump")] * 4)


@pytest.mark.parametrize("count", [3, 5])
def test_a_clip_and_its_actions_must_be_of_one_length(clip, written, count):
    with pytest.raises(ValueError, match=f"4 frames but .* has {count} actions"):
        vpt.read_clip(clip, written('{"jump": 1}\n' * count))
