"""The `.pt` files of Self-Forcing's family: which of their models is read, and what trainers left in the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diagonal import checkpoints

NAMES = ("patch_embedding.weight", "blocks.0.self_attn.q.weight", "head.modulation")


def _state(value: float, prefix: str = "model.", infix: str = "") -> dict[str, Tensor]:
    return {prefix + name.replace(".self_attn", f"{infix}.self_attn"): torch.full((2,), value) for name in NAMES}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def _read(path: Path, content: Any, part: str | None = None) -> dict[str, Tensor]:
    torch.save(content, path)
    return checkpoints.read(path, part)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({"generator": _state(1), "critic": _state(2), "step": 3}, 1),
        ({"generator": _state(1), "generator_ema": _state(2)}, 2),
        ({"generator_ema": {}, "generator": _state(1)}, 1),
        ({"model": _state(4)}, 4),
        ({"generator": {"state_dict": _state(5)}}, 5),
        (_state(6), 6),
    ],
)
def test_the_averaged_generator_is_read_where_there_is_one(path: Path, content: Any, value: float) -> None:
    state = _read(path, content)
    assert list(state) == list(_state(0)) and all(one.eq(value).all() for one in state.values())


@pytest.mark.parametrize(("part", "value"), [("generator", 1), ("generator_ema", 2), ("critic", 3)])
def test_another_model_of_the_file_can_be_chosen(path: Path, part: str, value: float) -> None:
    content = {"generator": _state(1), "generator_ema": _state(2), "critic": _state(3)}
    assert all(one.eq(value).all() for one in _read(path, content, part).values())


@pytest.mark.parametrize("prefix", ["model._fsdp_wrapped_module.", "_fsdp_wrapped_module.model.", "_orig_mod.model."])
def test_wrappers_of_trainers_leave_the_names(path: Path, prefix: str) -> None:
    wrapped = _state(1, prefix, "._fsdp_wrapped_module._checkpoint_wrapped_module")
    assert list(_read(path, {"generator_ema": wrapped})) == list(_state(1))


def test_names_that_only_wrappers_tell_apart_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="differ only in the wrappers"):
        _read(path, _state(1) | _state(2, "model._fsdp_wrapped_module."))


@pytest.mark.parametrize(
    ("content", "part", "why"),
    [
        ({"critic": _state(1), "step": 7}, None, "generator_ema, generator, .* it has critic, step"),
        ({"generator": _state(1)}, "generator_ema", "'generator_ema' was looked for, and it has generator"),
        ({"generator": {}}, None, "it has generator"),
        ({"generator": {"step": 3}}, None, "it has step"),
        ({}, None, "it has nothing"),
        (_state(1), "generator", "no state dict of tensors called 'generator'"),
        ([torch.ones(2)], None, "no state dict"),
        (torch.ones(2), None, "no state dict"),
    ],
)
def test_a_file_without_the_model_says_what_it_has(path: Path, content: Any, part: str | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _read(path, content, part)


def test_safetensors_have_no_parts(tmp_path: Path) -> None:
    save_file(_state(1), tmp_path / "model.safetensors")
    assert list(checkpoints.read(tmp_path / "model.safetensors")) == sorted(_state(1))
    with pytest.raises(ValueError, match=r"only \.ckpt.* files have parts"):
        checkpoints.read(tmp_path / "model.safetensors", "generator")
