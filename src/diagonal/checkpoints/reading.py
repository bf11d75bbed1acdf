"""Reads checkpoints without ever running code from a file.

Accepted: safetensors (a file, or a folder with one or several shards), PyTorch `.ckpt/.bin/.pt/.pth/.pth.tar` through
`torch.load(weights_only=True)`; a Lightning `.ckpt` that this refuses, and TorchScript (`.jit`, or `.pt` by what is in
it), through `pickles`.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from diagonal.checkpoints import pickles
from diagonal.checkpoints.int8 import SCALE, restore
from diagonal.checkpoints.sources import PICKLED, files, locate
from diagonal.checkpoints.state import InFile, State, Stored, some, whole

DIGITS = re.compile("[0-9]{1,18}")

# Under these names trainers put the weights: those of Self-Forcing's family the generator, averaged where they have it.
PARTS = ("state_dict", "generator_ema", "generator", "model", "generator_lora")
# What trainers put around modules, at any depth.
WRAPPERS = re.compile(r"\b(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")


def read(source: str | Path, part: str | None = None) -> State:
    """All tensors of a checkpoint: a file, a folder of shards, or a hub id such as 'org/name'.

    A trainer's file may hold several models: `part` names one, such as 'generator'; else the first of PARTS is read.
    """
    state: State = {}
    for path in files(locate(source)):
        found = _read_file(path, part)
        twice = state.keys() & found.keys()
        if twice:
            raise ValueError(f"{path} repeats keys of another shard: {some(sorted(twice))}")
        state |= found
    return restore(state)


def read_stored(source: str | Path) -> dict[str, Stored]:
    """The tensors of a checkpoint where they lie: those of safetensors, and of PyTorch's zip files, are read when they
    are asked for, and no more of them than that."""
    found: dict[str, Stored] = {}
    for path in files(locate(source)):
        held = _stored_in(path) if path.suffix == ".safetensors" else _read_file(path, None)
        twice = found.keys() & held.keys()
        if twice:
            raise ValueError(f"{path} repeats keys of another shard: {some(sorted(twice))}")
        found |= held
    if any(key.endswith(SCALE) for key in found):  # rows of int8, which are small
        return {**restore({key: whole(value) for key, value in found.items()})}
    return found


def _stored_in(path: Path) -> dict[str, InFile]:
    """What a safetensors file holds. It stays open as long as any of it is kept."""
    with _valid_safetensors(path):
        file: Any = safe_open(path, "pt")  # untyped
        parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  # not a dict
        known = {
            key: file.get_tensor(key).dtype for key in {part.get_dtype(): key for key, part in parts.items()}.values()
        }
    dtypes = {parts[key].get_dtype(): dtype for key, dtype in known.items()}
    return {
        key: InFile(file, key, torch.Size(part.get_shape()), dtypes[part.get_dtype()]) for key, part in parts.items()
    }


def settings(source: str | Path) -> dict[str, pickles.Scalar]:
    """What a checkpoint says beside its tensors, by path: a Lightning file's hyper-parameters, or the metadata of
    safetensors (of the first shard; they hold texts, of which those of digits are numbers). Other files say nothing."""
    first = files(locate(source))[0]
    if _lightning(first):
        return pickles.read(first).settings
    if first.suffix != ".safetensors":
        return {}
    with _valid_safetensors(first), safe_open(first, "pt") as file:
        return {key: int(text) if DIGITS.fullmatch(text) else text for key, text in (file.metadata() or {}).items()}


def _lightning(path: Path) -> bool:
    return path.suffix == ".ckpt" and zipfile.is_zipfile(path)


def _read_file(path: Path, part: str | None) -> State:
    if path.name.endswith(PICKLED) and not _scripted(path):
        return _read_pickled(path, part)
    if part is not None:
        raise ValueError(f"{path} has no part {part!r}: only {', '.join(PICKLED)} files have parts")
    return _read_safetensors(path) if path.suffix == ".safetensors" else pickles.read_module(path)


def _scripted(path: Path) -> bool:
    """Whether a file is a TorchScript archive, whatever its name ends in: beside its tensors it has code."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _read_safetensors(path: Path) -> State:
    with _valid_safetensors(path):
        return load_file(path)


@contextmanager
def _valid_safetensors(path: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from error


def _read_pickled(path: Path, part: str | None) -> State:
    """Tensors of a PyTorch file; anything but plain tensors and containers is refused before it can run."""
    try:
        # Only the zip format can be mapped; files of PyTorch before 1.6 are read whole.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if _lightning(path) and part is None:
            return pickles.read(path).state
        raise ValueError(
            f"{path} was refused: it is damaged, or it holds code or objects besides tensors, which are never run"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(
            f"{path} was refused: it is damaged or no PyTorch file ({type(error).__name__}); code in it is never run"
        ) from error
    state = _choose(content, part, path)
    unwrapped = {WRAPPERS.sub("", str(key)): value for key, value in state.items()}
    if len(unwrapped) < len(state):
        raise ValueError(f"{path} holds keys that differ only in the wrappers of a trainer: which to read is unclear")
    return unwrapped


def _choose(content: object, part: str | None, path: Path) -> State:
    """The state dict among what a PyTorch file holds, however deep trainers put it."""
    state = content
    while isinstance(state, dict) and not _is_state(state):
        holds = [str(key) for key, value in state.items() if isinstance(value, dict) and value]
        chosen = next((name for name in ((part,) if part else PARTS) if name in holds), None)
        if chosen is None:
            wanted = repr(part) if part else f"any of {', '.join(PARTS)}"
            held = some(sorted(map(str, state)), 12) or "nothing"
            raise ValueError(f"{path} holds no state dict of tensors: {wanted} was looked for, and it has {held}")
        state, part = state[chosen], None
    if not isinstance(state, dict) or part is not None:
        missing = f" called {part!r}" if part else ""
        raise ValueError(f"{path} holds no state dict of tensors{missing}")
    return state


def _is_state(content: dict[object, object]) -> bool:
    return bool(content) and all(isinstance(value, Tensor) for value in content.values())
