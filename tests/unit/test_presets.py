"""Presets by name, and those that YAML files of the Self-Forcing family describe."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagonal.planning.denoising.diagonal import Diagonal
from diagonal.planning.denoising.even import Even
from diagonal.planning.denoising.explicit import Explicit
from diagonal.planning.denoising.teacher import Teacher
from diagonal.planning.presets import PRESETS, Preset, find, read_yaml

SELF_FORCING = """
generator_ckpt: checkpoints/start.pt
denoising_step_list:
- 1000
- 750
- 500
- 250
warp_denoising_step: true  # as steps before the shift
timestep_shift: 5.0
guidance_scale: 3.0
lr: 2.0e-06
image_or_video_shape: [1, 21, 16, 60, 104]
num_frame_per_block: 3
context_noise: 0
model_kwargs:
  timestep_shift: 5.0
"""
LONG = """
denoising_step_list: [1000, 750, 500, 250]
warp_denoising_step: true
num_frame_per_block: 3
model_name: Wan2.1-T2V-1.3B
model_kwargs: {local_attn_size: 12, timestep_shift: 5.0, sink_size: 3}
num_output_frames: 120
global_sink: true
context_noise: 0
adapter: {type: lora, rank: 256, alpha: 256}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(text: str) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def _same(one: Preset, other: Preset) -> bool:
    """Equal in everything that is run, however the schedule is written."""
    chunks = range(9)
    levels = all(one.schedule.levels(c) == other.schedule.levels(c) for c in chunks)
    context = all(one.schedule.context_level(c) == other.schedule.context_level(c) for c in chunks)
    return levels and context and one.shift == other.shift and replace(one, schedule=other.schedule) == other


# By name


def test_the_presets_are_what_was_released() -> None:
    diagonal = find("diagonal-distillation")
    assert (diagonal.chunk_frames, diagonal.window_frames, diagonal.sink_frames, diagonal.shift) == (3, 12, 3, 5)
    assert [len(diagonal.schedule.levels(chunk)) for chunk in range(7)] == [4, 3, 2, 2, 2, 2, 2]
    assert find("self-forcing").schedule.context_level(3) == 0 and find("self-forcing").window_frames is None
    assert find("infinity").relative_rope and find("infinity").schedule.context_level(0) is None
    assert find("infinity").schedule.levels(0)[-1] == 625
    assert find("causvid").schedule.levels(4) == (1000, 757, 522) and find("causvid").shift == 8
    assert find("frame-wise").chunk_frames == 1
    assert [len(find("frame-wise").schedule.levels(chunk)) for chunk in range(3)] == [4, 2, 2]
    assert find("wan").chunk_frames is None and len(find("wan").schedule.levels(0)) == 50
    assert [name for name, preset in PRESETS.items() if preset.guided] == [
        "wan",
        "skyreels",
        "skyreels-full",
        "skyreels-sync",
    ]


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no preset is called 'sora'; known: diagonal-distillation, "):
        find("sora")


def test_digits_are_steps_of_the_presets_own_spacing() -> None:
    assert find("self-forcing").with_schedule("4444444").schedule == Even("4444444")
    assert find("diagonal-distillation").with_schedule(" 5432222 ").schedule == Diagonal("5432222")
    assert find("infinity").with_schedule("2").schedule == Even("2", "last")
    assert find("causvid").with_schedule("4").schedule == Even("4", shift=8.0)
    assert find("wan").with_schedule("30").schedule == Teacher(30)
    assert find("frame-wise").with_schedule("41").chunk_frames == 1


def test_another_schedule_keeps_the_models_shift_unless_it_gives_one() -> None:
    assert find("causvid").with_schedule("diagonal:steps=42").schedule == Diagonal("42", shift=8.0)
    assert find("causvid").with_schedule("diagonal:steps=42,shift=5").schedule == Diagonal("42", shift=5.0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"chunk_frames": 0}, "at least 1"),
        ({"sink_frames": -1}, "0 or more"),
        ({"window_frames": 5, "sink_frames": 3}, "at least 6"),
        ({"window_frames": 2}, "at least 3"),
        ({"sink_frames": 3}, "without a window"),
        ({"relative_rope": True}, "without a window"),
    ],
)
def test_windows_that_cannot_be_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(find("self-forcing"), **changes)


# From YAML


def test_a_self_forcing_file_is_its_preset(write: Any) -> None:
    preset, elsewhere = read_yaml(write(SELF_FORCING))
    assert _same(preset, find("self-forcing"))
    assert elsewhere == ("generator_ckpt", "guidance_scale", "image_or_video_shape")


def test_a_long_video_file_has_its_window_and_sink(write: Any) -> None:
    preset, elsewhere = read_yaml(write(LONG))
    assert _same(preset, replace(find("self-forcing"), window_frames=12, sink_frames=3))
    assert elsewhere == ("model_name", "adapter", "num_output_frames", "global_sink")


def test_an_infinity_file_counts_positions_in_the_window(write: Any) -> None:
    text = LONG.replace("sink_size: 3}", "sink_size: 3, use_infinite_attention: true}")
    assert _same(read_yaml(write(text + "use_diagonal_denoising: false\n"))[0], find("infinity"))
    assert read_yaml(write(text))[0].schedule.context_level(0) == 0  # LongLive's own code does run the clean pass


def test_a_diagonal_file_is_its_preset(write: Any) -> None:
    text = LONG.replace("[1000, 750, 500, 250]", "[1000, 100]") + "use_diagonal_denoising: true\n"
    preset, _ = read_yaml(write(text))
    assert preset == find("diagonal-distillation")


def test_a_causvid_file_has_timesteps_and_a_zero_that_is_no_step(write: Any) -> None:
    text = "{denoising_step_list: [1000, 757, 522, 0], warp_denoising_step: false, num_frame_per_block: 3, "
    assert read_yaml(write(text + "timestep_shift: 8.0}"))[0] == find("causvid")


def test_a_frame_wise_file_has_a_first_chunk_of_its_own(write: Any) -> None:
    text = LONG.replace("num_frame_per_block: 3", "num_frame_per_block: 1").replace("750, 500, 250", "500")
    text = text.replace("local_attn_size: 12", "local_attn_size: -1")
    preset, _ = read_yaml(write(text + "denoising_step_list_first_chunk: [1000, 750, 500, 250]\n"))
    assert _same(preset, find("frame-wise"))


def test_context_noise_is_a_timestep(write: Any) -> None:
    preset, _ = read_yaml(write(LONG.replace("context_noise: 0", "context_noise: 100")))
    assert preset.schedule == Explicit("1000-750-500-250", "t100") and preset.schedule.context_level(0) == 100


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("local_attn_size: 12", "local_attend: 12", "local_attend, which nothing here knows; known: denoising_step"),
        ("local_attn_size: 12", "local_attn_size: 0", "must be -1"),
        ("local_attn_size: 12", "local_attn_size: -2", "of -1 or more"),
        ("local_attn_size: 12", "local_attn_size: 5", "at least 6"),
        ("local_attn_size: 12", "local_attn_size: 12.5", "whole number"),
        ("timestep_shift: 5.0", "timestep_shift: 0", "number above 0"),
        ("timestep_shift: 5.0", "timestep_shift: five", "must be a number"),
        ("timestep_shift: 5.0, ", "", "lacks timestep_shift"),
        ("num_frame_per_block: 3", "num_frame_per_block: 0", "of 1 or more"),
        ("num_frame_per_block: 3", "num_frame_per_block: true", "whole number"),
        ("num_frame_per_block: 3", "sink_size: 4\nnum_frame_per_block: 3", "sink_size is 4, but 3 in model_kwargs"),
        ("num_frame_per_block: 3", "num_frame_per_block: 3\nindependent_first_frame: true", "not supported"),
        ("[1000, 750, 500, 250]", "[]", "list of whole numbers"),
        ("[1000, 750, 500, 250]", "[1000, high]", "list of whole numbers"),
        ("[1000, 750, 500, 250]", "[1000, 2000]", "must be 0"),
        ("[1000, 750, 500, 250]", "[250, 500]", "must fall"),
        ("[1000, 750, 500, 250]", "[1000, -5]", "'-5'|not understood"),
        ("warp_denoising_step: true", "warp_denoising_step: maybe", "true or false"),
        ("context_noise: 0", "context_noise: -1", "of 0 or more"),
        ("context_noise: 0", "use_diagonal_denoising: true", "must be 1000, end"),
        ("context_noise: 0", "use_diagonal_denoising: true\ndenoising_step_list_first_chunk: [1000]", "only one of"),
        ("model_kwargs: {", "model_kwargs: [1]\nother: {", "must be a table"),
        ("model_kwargs: {", "model_kwargs: !!python/object/apply:os.getcwd []\nother: {", "never run"),
        ("model_kwargs: {", "model_kwargs: {{", "no YAML file"),
    ],
)
def test_what_a_file_may_not_say_is_refused(write: Any, old: str, new: str, why: str) -> None:
    path = write(LONG.replace(old, new))
    with pytest.raises(ValueError, match=why) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)


def test_other_files_are_refused(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="holds a list"):
        read_yaml(write("[1, 2]"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_yaml(tmp_path / "none.yaml")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match="pip install pyyaml"):
        read_yaml(write(LONG))


def test_the_context_of_a_preset_can_be_another() -> None:
    diagonal = find("diagonal-distillation")
    assert diagonal.with_context("t100").schedule.levels(2) == (1000.0, 100.0)
    assert diagonal.with_context("clean").schedule.context_level(3) == 0.0
    assert find("self-forcing").with_context("last").schedule.context_level(0) is None
    with pytest.raises(ValueError, match="has no other than its own"):
        find("wan").with_context("clean")
    with pytest.raises(ValueError, match="'loud' is not understood"):
        diagonal.with_context("loud")
