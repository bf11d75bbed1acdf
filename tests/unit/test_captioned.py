"""Captioned clips as latents: cut within episodes, facts kept, several captions each, nothing stale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from diagonal.catalog.names import find
from diagonal.text.encoders import ENCODERS, embed
from diagonal.training.data import captioned
from diagonal.training.data.captioned import ClipSpec
from diagonal.worlds.captions import THINGS, Facts, caption
from tests.tiny import build

SPEC = ClipSpec(frames=5, hop=5, codec="one")


def shard(folder: Path, **changes: Any) -> None:
    """Two episodes, of 12 and 8 frames: walking with an imp in sight, then turning left with nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    seen = np.zeros((20, len(THINGS)), np.float32)
    seen[:12, THINGS.index("imp")] = 0.1
    content: dict[str, Any] = {
        "frames": np.random.default_rng(0).integers(256, size=(20, 16, 32, 3), dtype=np.uint8),
        "actions": np.array([1] * 12 + [3] * 8, np.uint8),
        "episodes": np.array([0] * 12 + [1] * 8, np.int32),
        "moved": np.array([30.0] * 12 + [0.0] * 8, np.float32),
        "seen": seen,
    }
    content = {name: value for name, value in (content | changes).items() if value is not None}
    save_file(content, folder / "shard-00000.safetensors", {"scenario": "defend_the_line"})


@pytest.fixture
def codec() -> Any:
    return build(find("tokenizers", "wan_vae/doom-tiny"))


def test_clips_stay_within_episodes_and_keep_their_facts(tmp_path: Path, codec: Any) -> None:
    shard(tmp_path / "data")
    target = tmp_path / "latents" / "hall.safetensors"
    assert list(captioned.encode(tmp_path / "data", codec, SPEC, target)) == [20]  # frames
    clips = captioned.read(target.parent, ways=3, seed=0, device="cpu")
    walking, turning = Facts("defend_the_line", (1,), ("imp",)), Facts("defend_the_line", (3,), ())
    assert clips.facts == [walking, walking, turning] and len(clips) == 9  # clips at 0, 5 and 15
    frames = load_file(tmp_path / "data" / "shard-00000.safetensors")["frames"][15:20]
    alone = codec.encode(torch.from_numpy(frames)[None].permute(0, 1, 4, 2, 3))
    batch = clips.take([7])
    torch.testing.assert_close(batch.video_BFCHW, alone, atol=2e-3, rtol=2e-3)  # kept as float16
    assert torch.equal(batch.text_BLC, embed([caption(turning, 7)], ENCODERS["doom"], device="cpu"))
    drawn = clips.prompts(9, seed=1).text_NLC
    assert {tuple(row.flatten().tolist()) for row in drawn} == {
        tuple(row.flatten().tolist()) for row in clips.text_MLC.float()
    }


def test_files_without_a_whole_clip_are_left_out(tmp_path: Path, codec: Any) -> None:
    """The last one of a recording may hold the ends of episodes alone, in all more frames than a clip has."""
    shard(tmp_path / "data")
    shard(tmp_path / "rest", episodes=np.arange(20, dtype=np.int32) // 4)
    (tmp_path / "rest" / "shard-00000.safetensors").rename(tmp_path / "data" / "shard-00001.safetensors")
    target = tmp_path / "latents" / "hall.safetensors"
    list(captioned.encode(tmp_path / "data", codec, SPEC, target))
    assert len(captioned.read(target.parent, ways=1, seed=0, device="cpu").facts) == 3


def test_what_is_there_is_kept_unless_it_was_made_otherwise(tmp_path: Path, codec: Any) -> None:
    shard(tmp_path / "data")
    target = tmp_path / "latents" / "hall.safetensors"
    list(captioned.encode(tmp_path / "data", codec, SPEC, target))
    before = target.stat().st_mtime_ns
    assert list(captioned.encode(tmp_path / "data", codec, SPEC, target)) == []
    assert target.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="made by another codec or of other clips"):
        list(captioned.encode(tmp_path / "data", codec, replace(SPEC, codec="two"), target))


def test_recordings_without_what_captions_need_are_refused(tmp_path: Path, codec: Any) -> None:
    shard(tmp_path / "old", moved=None, seen=None)
    target = tmp_path / "latents" / "hall.safetensors"
    with pytest.raises(ValueError, match="lacks moved, seen; record it with captions"):
        list(captioned.encode(tmp_path / "old", codec, SPEC, target))
    with pytest.raises(ValueError, match="holds no latents"):
        captioned.read(tmp_path / "latents", 1, 0, "cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no clip of 5 frames"):
        list(captioned.encode(tmp_path / "empty", codec, SPEC, target))
    assert not target.exists()
