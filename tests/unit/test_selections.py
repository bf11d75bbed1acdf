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


def test_of_a_trajectory_one_camera_is_taken(tmp_path: Path):
    """As BridgeData V2 has it: cameras and depth lie side by side."""
    for name in ("traj0/images0", "traj0/images1", "traj0/depth_images0", "traj1/images0", "clip"):
        folder = tmp_path / "bridge" / name
        folder.mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / f"im_{number}.jpg")
    found = [path.relative_to(tmp_path / "bridge").as_posix() for path in sources(tmp_path / "bridge")]
    assert found == ["clip", "traj0/images0", "traj1/images0"]


def test_the_clips_of_a_test_list_are_taken(data: Path):
    """As UCF101 has it."""
    (data / "ucfTrainTestlist").mkdir()
    (data / "ucfTrainTestlist" / "testlist01.txt").write_text("archery/two.mp4\r\nbowling/three.mp4\n")
    assert [path.name for path in sources(data)] == ["two.mp4", "three.mp4"]
    (data / "ucfTrainTestlist" / "testlist01.txt").write_text("other/one.mp4\n")
    with pytest.raises(ValueError, match="holds no clips"):
        choose(data, 1, 4)


def test_frames_named_by_their_time_are_in_its_order(tmp_path: Path):
    """As RealEstate10K is cut: a folder for each clip, pictures named by microseconds."""
    for stamp, value in ((9_975_000, 10), (10_008_333, 20), (100_041_667, 30)):
        (tmp_path / "train" / "0a1b").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(tmp_path / "train" / "0a1b" / f"{stamp}.png")
    (entry,) = choose(tmp_path, 1, 3)
    assert load(tmp_path, entry).frames[:, 0, 0, 0].tolist() == [10, 20, 30]


def test_movies_of_a_car_are_found_in_their_container(tmp_path: Path):
    """As BDD100K has it: videos/val with .mov files."""
    made = video(tmp_path / "videos" / "val" / "b1c66a42-6f7d68ca.mov", 5)
    (entry,) = choose(tmp_path, 1, 5)
    np.testing.assert_array_equal(load(tmp_path, entry).frames, made)


def test_a_hundred_clips_of_sixteen_frames_with_their_actions(tmp_path: Path):
    """As Diagonal Decoding's VPT set: each clip has the sixteen actions of its own frames."""
    for number in range(10):
        video(tmp_path / f"{number}.mp4", 170)
        lines = [json.dumps({"camera": [0, 1000 * number + frame]}) for frame in range(170)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    chosen = choose(tmp_path, 100, 16, seed=7)
    assert len({(entry.source, entry.first) for entry in chosen}) == 100
    assert all(sum(entry.source == f"{number}.mp4" for entry in chosen) == 10 for number in range(10))
    footage = load(tmp_path, chosen[42])
    first = 1000 * int(chosen[42].source.removesuffix(".mp4")) + chosen[42].first
    assert footage.actions is not None and [one.yaw for one in footage.actions] == [first + n for n in range(16)]
