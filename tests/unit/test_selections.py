"""Clips of a data set are chosen by a seed, written down, and found again only where nothing changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diagonal.evaluation.selections import choose, load, read_list, sources, write
from diagonal.media.video import read, writer
from diagonal.worlds.vpt import Action
from tests import made_weights


def video(path: Path, frames: int) -> np.ndarray:
    """A video whose pixels are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = made_weights.clip(path.name, frames, 16, 24).permute(0, 2, 3, 1).numpy()
    with writer(path, 8, lossless=True) as file:
        file.write(made)
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As UCF101 has it: a folder for each class; one video is too short."""
    for name, frames in (("archery/one", 12), ("archery/two", 5), ("bowling/three", 12), ("bowling/short", 3)):
        video(tmp_path / "data" / f"{name}.mp4", frames)
    return tmp_path / "data"


def test_a_seed_makes_one_choice(data: Path):
    first = choose(data, 3, 4, seed=0)
    assert choose(data, 3, 4, seed=0) == first
    assert any(choose(data, 3, 4, seed=seed) != first for seed in range(1, 6))
    assert len({entry.source for entry in first}) == 3
    assert {entry.frames for entry in first} == {4} and all(entry.first % 4 == 0 for entry in first)


def test_clips_of_one_source_do_not_overlap(data: Path):
    found = choose(data, 7, 4, seed=0)
    places = [(entry.source, entry.first) for entry in found]
    assert len(set(places)) == 7 and len({entry.name for entry in found}) == 7


def test_more_clips_than_there_is_room_for_are_refused(data: Path):
    with pytest.raises(ValueError, match=r"4 sources, and room for 2 clips of 12 frames in them; 3 are asked for"):
        choose(data, 3, 12, seed=0)
    with pytest.raises(ValueError, match="holds no clips"):
        (data.parent / "empty").mkdir()
        choose(data.parent / "empty", 1, 4)


def test_the_frames_are_those_of_the_place(data: Path):
    for entry in choose(data, 5, 4, seed=1):
        footage = load(data, entry)
        whole = read(data / entry.source)
        assert footage.actions is None
        np.testing.assert_array_equal(footage.frames, whole[entry.first : entry.first + 4])


def test_a_written_list_is_read_again(data: Path):
    entries = choose(data, 3, 4)
    write(entries, data.parent / "list.json")
    assert read_list(data.parent / "list.json", data) == entries


def test_a_list_whose_sources_changed_is_refused(data: Path):
    entries = choose(data, 3, 4)
    write(entries, data.parent / "list.json")
    changed = json.loads((data.parent / "list.json").read_text())
    changed[1]["sha256"] = "0" * 64
    (data.parent / "list.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="its hash differs"):
        read_list(data.parent / "list.json", data)
    changed[1]["source"] = "../list.json"
    (data.parent / "list.json").write_text(json.dumps(changed))
    with pytest.raises(FileNotFoundError, match=r"names \.\./list\.json, which is not in"):
        read_list(data.parent / "list.json", data)
    (data.parent / "list.json").write_text('[{"name": 3}]')
    with pytest.raises(ValueError, match="is no list of clips"):
        read_list(data.parent / "list.json", data)


def test_pictures_of_a_folder_are_a_clip_in_the_order_of_their_numbers(tmp_path: Path):
    """As BridgeData V2 has it: im_10 comes behind im_9."""
    folder = tmp_path / "traj0" / "images0"
    folder.mkdir(parents=True)
    for number in range(12):
        Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8)).save(folder / f"im_{number}.png")
    assert list(sources(tmp_path)) == [folder]
    (entry,) = choose(tmp_path, 1, 12)
    assert load(tmp_path, entry).frames[:, 0, 0, 0].tolist() == [20 * number for number in range(12)]


def test_actions_beside_a_video_belong_to_its_frames(tmp_path: Path):
    """As VPT has it: a line for each frame."""
    video(tmp_path / "clip.mp4", 8)
    lines = [{"forward": number % 2, "camera": [0, number]} for number in range(8)]
    (tmp_path / "clip.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    second = next(entry for entry in choose(tmp_path, 2, 4) if entry.first == 4)
    actions = load(tmp_path, second).actions
    assert actions is not None
    assert [action.yaw for action in actions] == [4.0, 5.0, 6.0, 7.0]
    assert actions[1] == Action(frozenset({"forward"}), 0.0, 5.0)


def test_gamepad_clips_bring_their_actions(tmp_path: Path):
    """As WHAM's evaluation set has it: npz with images and binned actions."""
    images = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 8, 8), np.uint8)
    actions = np.concatenate([np.zeros((6, 12)), np.full((6, 4), 5)], axis=1)
    actions[4, 2] = 1
    np.savez(tmp_path / "clip.npz", images=images, actions=actions)
    second = next(entry for entry in choose(tmp_path, 2, 3) if entry.first == 3)
    footage = load(tmp_path, second)
    assert footage.frames[:, 0, 0, 0].tolist() == [3, 4, 5]
    assert footage.actions is not None and [sorted(action.buttons) for action in footage.actions] == [[], [2], []]
