"""Recordings as parts, frames on a device, and windows of tokens that stay within one episode."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from diagonal import worlds
from diagonal.catalog.names import find
from diagonal.media import video
from diagonal.training.data.recordings import CHUNK, TokenData, frames, join, read, tokenize
from diagonal.worlds import vpt, xbox
from diagonal.worlds.recordings import Part, readers

SIZE = (16, 24)


def shard(path: Path, count: int, episodes: list[int], size: tuple[int, int] = SIZE, seed: int = 0) -> dict[str, Any]:
    """A recording's file as worlds/vizdoom.py writes it."""
    rng = np.random.default_rng(seed)
    content: dict[str, Any] = {
        "frames": rng.integers(256, size=(count, *size, 3), dtype=np.uint8),
        "actions": rng.integers(8, size=count, dtype=np.uint8),
        "episodes": np.array(episodes, dtype=np.int32),
    }
    path.parent.mkdir(exist_ok=True)
    save_file(content, path, {"world": "vizdoom", "scenario": "basic", "seed": "0"})
    return content


def clip(path: Path, count: int, size: tuple[int, int] = SIZE, actions: int | None = None) -> None:
    """A video that becomes brighter, with the actions beside it."""
    path.parent.mkdir(exist_ok=True)
    with video.writer(path, fps=20) as output:
        for index in range(count):
            output.write(np.full((*size, 3), 40 + 20 * index, dtype=np.uint8))
    lines = [{"forward": 1, "camera": [0, index]} for index in range(count if actions is None else actions)]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def token_data(lengths: list[int], unit: int = 3) -> TokenData:
    """Episodes of these lengths; every id is unique."""
    episodes = torch.cat([torch.full((length,), index) for index, length in enumerate(lengths)])
    units = torch.arange(len(episodes) * unit, dtype=torch.int32).reshape(-1, unit)
    return TokenData(units, episodes)


# Files


def test_a_shard_is_one_part_with_its_frames_actions_and_episodes(tmp_path):
    first = shard(tmp_path / "shard-00000.safetensors", 5, [0, 0, 0, 1, 1])
    second = shard(tmp_path / "shard-00001.safetensors", 3, [0, 0, 1], seed=1)
    parts = list(read(tmp_path, SIZE))
    assert len(parts) == 2
    for part, content in zip(parts, (first, second), strict=True):
        np.testing.assert_array_equal(part.frames_NHWC.numpy(), content["frames"])
        assert part.frames_NHWC.dtype == torch.uint8
        assert part.actions_NA.tolist() == content["actions"][:, None].tolist()
        assert part.episodes_N.tolist() == content["episodes"].tolist()
        assert part.episodes_N.dtype == torch.int64


def test_shards_are_read_in_the_order_of_their_names(tmp_path):
    for number in (10, 2, 0):
        shard(tmp_path / f"shard-{number:05d}.safetensors", 2, [number, number], seed=number)
    assert [int(part.episodes_N[0]) for part in read(str(tmp_path), SIZE)] == [0, 2, 10]


def test_a_vpt_clip_is_one_part_and_one_episode(tmp_path):
    clip(tmp_path / "a.mp4", 4)
    clip(tmp_path / "b.mp4", 3)
    first, second = read(tmp_path, SIZE)
    assert first.frames_NHWC.shape == (4, *SIZE, 3)
    means = first.frames_NHWC.float().mean((1, 2, 3))
    assert (means.diff() > 10).all()
    assert first.actions_NA.tolist() == vpt.tokens(vpt.read(tmp_path / "a.jsonl"), 0)
    assert first.actions_NA.shape == (4, 11)
    assert first.episodes_N.tolist() == [0] * 4
    assert second.episodes_N.tolist() == [1] * 3


def test_a_vpt_clip_of_another_size_is_resized(tmp_path):
    clip(tmp_path / "a.mp4", 2, size=(32, 40))
    (part,) = read(tmp_path, SIZE)
    assert part.frames_NHWC.shape == (2, *SIZE, 3)
    assert (part.frames_NHWC[0].float() - 40).abs().max() < 8


def test_a_shard_of_another_size_is_refused(tmp_path):
    shard(tmp_path / "shard-00000.safetensors", 2, [0, 0], size=(8, 8))
    with pytest.raises(ValueError, match=r"shard-00000.* has frames of \(8, 8\), the tokenizer takes \(16, 24\)"):
        list(read(tmp_path, SIZE))


@pytest.mark.parametrize("gone", ["frames", "actions", "episodes"])
def test_a_file_that_is_no_shard_is_refused(tmp_path, gone):
    content = shard(tmp_path / "shard-00000.safetensors", 2, [0, 0])
    del content[gone]
    save_file(content, tmp_path / "shard-00000.safetensors")
    with pytest.raises(ValueError, match=f"shard-00000.* is no shard of a recording: it lacks {gone}"):
        list(read(tmp_path, SIZE))


def test_a_damaged_shard_is_refused_and_what_a_killed_process_left_is_ignored(tmp_path):
    shard(tmp_path / "shard-00000.safetensors", 2, [0, 0])
    (tmp_path / ".shard-00001-x.safetensors").write_bytes(b"half")
    (tmp_path / ".a-x.mp4").write_bytes(b"half")
    assert len(list(read(tmp_path, SIZE))) == 1
    (tmp_path / "shard-00001.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"shard-00001.* is no shard of a recording"):
        list(read(tmp_path, SIZE))


def test_a_shard_with_an_action_that_does_not_exist_is_refused(tmp_path):
    content = shard(tmp_path / "shard-00000.safetensors", 2, [0, 0])
    content["actions"][1] = 8
    save_file(content, tmp_path / "shard-00000.safetensors")
    with pytest.raises(ValueError, match=r"shard-00000.*8"):
        list(read(tmp_path, SIZE))


@pytest.mark.parametrize("name", ["empty", "nowhere"])
def test_a_folder_without_a_recording_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=f"{name} holds no recording"):
        list(read(tmp_path / name, SIZE))


def test_a_clip_with_too_few_actions_is_refused(tmp_path):
    clip(tmp_path / "a.mp4", 4, actions=3)
    with pytest.raises(ValueError, match=r"4 frames but .* has 3 actions"):
        list(read(tmp_path, SIZE))


def test_a_clip_without_its_actions_is_refused(tmp_path):
    clip(tmp_path / "a.mp4", 4)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=r"a\.jsonl"):
        list(read(tmp_path, SIZE))


def test_a_clip_of_whams_release_is_one_part_and_one_episode(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(5, 3, *SIZE), dtype=np.uint8)
    actions = np.concatenate([rng.integers(2, size=(5, 12)), rng.integers(11, size=(5, 4))], axis=1)
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", images=images, actions=actions)
    first, second = read(tmp_path, SIZE)
    np.testing.assert_array_equal(first.frames_NHWC.numpy(), images.transpose(0, 2, 3, 1))
    assert first.actions_NA.tolist() == xbox.tokens(xbox.read(tmp_path / "a.npz"), 0)
    assert first.actions_NA.shape == (5, 16) and first.actions_NA.max() < xbox.VOCABULARY
    assert (first.episodes_N.tolist(), second.episodes_N.tolist()) == ([0] * 5, [1] * 5)
    (small,) = {part.frames_NHWC.shape for part in read(tmp_path, (8, 8))}
    assert small == (5, 8, 8, 3)


READER = """
import numpy as np
from diagonal.worlds.recordings import Recorded

RECORDINGS = (".npy", "frames of a board")

def read_recording(path, size):
    frames = np.load(path)
    return Recorded(frames, [[3, 4]] * (len(frames) - LESS), None)
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """A world that is one new file, and a recording of it."""

    def write(content: str) -> Path:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "board.py").write_text(content)
        (tmp_path / "data").mkdir()
        np.save(tmp_path / "data" / "first.npy", np.full((2, *SIZE, 3), 7, dtype=np.uint8))
        data: Path = tmp_path / "data"
        return data

    monkeypatch.setattr(worlds, "__path__", [*worlds.__path__, str(tmp_path / "new")])
    yield write
    sys.modules.pop("diagonal.worlds.board", None)


def test_a_new_reader_is_one_file(board):
    (part,) = read(board(READER.replace("LESS", "0")), SIZE)
    assert part.frames_NHWC.unique().tolist() == [7] and part.actions_NA.tolist() == [[3, 4]] * 2
    assert part.episodes_N.tolist() == [0, 0]


def test_a_reader_that_loses_actions_is_found_out(board):
    with pytest.raises(ValueError, match=r"first\.npy: 2 frames, 1 actions"):
        list(read(board(READER.replace("LESS", "1")), SIZE))


def test_a_reader_that_cannot_be_imported_breaks_no_other(tmp_path, board):
    folder = board("import nothing_of_this_name")
    assert {"vizdoom", "vpt", "xbox"} == set(readers())
    shard(tmp_path / "shards" / "shard-00000.safetensors", 2, [0, 0])
    assert len(list(read(tmp_path / "shards", SIZE))) == 1
    with pytest.raises(ValueError, match=r"no recording: there are 1 \.npy"):
        list(read(folder, SIZE))


def test_files_of_several_recordings_are_refused(tmp_path):
    shard(tmp_path / "shard-00000.safetensors", 2, [0, 0])
    clip(tmp_path / "a.mp4", 2)
    with pytest.raises(
        ValueError, match=r"files of several recordings: there are 1 \.jsonl, 1 \.mp4, 1 \.safetensors"
    ) as said:
        list(read(tmp_path, SIZE))
    assert all(f"({one.RECORDINGS[0]})" in str(said.value) for one in readers().values())


def test_what_is_no_recording_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "train").mkdir()
    with pytest.raises(
        ValueError, match=r"no recording: there are 1 \.txt, the folder train\. It must be one of these"
    ):
        list(read(tmp_path, SIZE))


# Frames on a device


def test_frames_of_several_files_follow_each_other_and_episodes_stay_apart(tmp_path):
    contents = [
        shard(tmp_path / f"shard-{number:05d}.safetensors", 4, [0, 0, 1, 1], seed=number) for number in range(3)
    ]
    part = frames(tmp_path, SIZE, "cpu")
    np.testing.assert_array_equal(part.frames_NHWC.numpy(), np.concatenate([one["frames"] for one in contents]))
    assert part.actions_NA.flatten().tolist() == [int(a) for one in contents for a in one["actions"]]
    assert part.episodes_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_clips_stay_apart_too(tmp_path):
    for name in ("a", "b", "c"):
        clip(tmp_path / f"{name}.mp4", 2)
    episodes = frames(tmp_path, SIZE, "cpu").episodes_N
    assert (episodes[::2] == episodes[1::2]).all()
    assert len(episodes.unique()) == 3


@pytest.mark.parametrize(("most", "count"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, 12), (100, 12), (None, 12)])
def test_a_limit_takes_the_first_files_that_reach_it(tmp_path, most, count):
    for number in range(3):
        shard(tmp_path / f"shard-{number:05d}.safetensors", 4, [0, 0, 0, 0], seed=number)
    whole, part = frames(tmp_path, SIZE, "cpu"), frames(tmp_path, SIZE, "cpu", most)
    assert len(part.frames_NHWC) == len(part.actions_NA) == len(part.episodes_N) == count
    assert torch.equal(part.frames_NHWC, whole.frames_NHWC[:count])


# Windows


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 9))
def test_windows_begin_wherever_they_stay_within_an_episode_and_nowhere_else(lengths, length):
    assume(max(lengths) >= length)
    data = token_data(lengths)
    starts = data.starts(length)
    inside = [
        start
        for start in range(sum(lengths))
        if (data.episodes_N[start : start + length] == data.episodes_N[start]).all()
    ]
    assert starts.tolist() == [start for start in inside if start + length <= sum(lengths)]
    windows = data.windows(starts, length)
    assert windows.shape == (len(starts), length * 3)
    assert windows.dtype == torch.int64
    for start, window in zip(starts.tolist(), windows, strict=True):
        assert window.tolist() == list(range(3 * start, 3 * (start + length)))


def test_a_recording_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="has 4 frames; windows of 5 need more"):
        token_data([4]).starts(5)


def test_a_recording_whose_episodes_are_all_too_short_is_refused():
    with pytest.raises(ValueError, match="no episode of the recording has 5 frames"):
        token_data([4, 3, 4]).starts(5)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4))
def test_joined_files_keep_their_tokens_and_their_episodes_apart(files):
    parts = [token_data(lengths) for lengths in files]
    whole = join(parts)
    assert torch.equal(whole.units_NU, torch.cat([part.units_NU for part in parts]))
    flat = [length for lengths in files for length in lengths]
    assert whole.episodes_N.unique_consecutive(return_counts=True)[1].tolist() == flat
    assert len(whole.episodes_N.unique()) == len(flat)
    ends = np.cumsum(flat).tolist()
    for start in whole.starts(1).tolist():
        assert 0 <= start < ends[-1]
    if max(flat) >= 2:
        crossing = {end - 1 for end in ends}
        assert not crossing & set(whole.starts(2).tolist())


def test_episodes_that_skip_numbers_stay_apart_when_joined():
    first = TokenData(torch.zeros(3, 1), torch.tensor([4, 4, 7]))
    second = TokenData(torch.zeros(3, 1), torch.tensor([0, 0, 8]))
    episodes = join([first, second]).episodes_N.tolist()
    assert len(set(episodes)) == 4
    assert [a == b for a, b in pairwise(episodes)] == [True, False, False, True, False]


# Tokens


def test_every_frame_becomes_its_ids_and_then_its_action(monkeypatch):
    monkeypatch.setattr("diagonal.training.data.recordings.CHUNK", 4)
    torch.manual_seed(0)
    tokenizer = find("tokenizers", "fsq/tiny").build().eval()
    pixels = torch.randint(256, (10, *SIZE, 3), dtype=torch.uint8)
    part = Part(pixels, torch.randint(8, (10, 1)), torch.arange(10) // 5)
    seen: list[int] = []
    data = tokenize(part, tokenizer, codebook=64, on_frames=seen.append)
    assert seen == [4, 4, 2]
    assert CHUNK > 4
    expected = tokenizer.encode(pixels.permute(0, 3, 1, 2)[None])[0].flatten(1)
    assert torch.equal(data.units_NU[:, :6].long(), expected)
    assert torch.equal(data.units_NU[:, 6:].long(), part.actions_NA + 64)
    assert torch.equal(data.episodes_N, part.episodes_N)
