"""Fills models with the tensors of checkpoints, strictly: every key and every shape must fit the weight map."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.checkpoints.state import State, Stored, some, whole
from diagonal.models.sharding import Shard


def load(module: nn.Module, state: Mapping[str, Stored], name: str, shard: Shard | None = None) -> None:
    """Put a checkpoint's tensors into `module` by its weight map; every key and shape must match. Of a module that is
    one rank's shard, no more is read than that."""
    weight_map = cast(WeightMap, module.weight_map)
    start = prefix(state, weight_map)
    keys = [key.removeprefix(start) for key in state if key.startswith(start)]
    names = {key: [key] for key in keys if not any(_form(one)(key) for one in weight_map.ignore)}
    names = _renamed(names, weight_map.aliases)
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    # Our own names or the published ones: whichever fits better.
    names = max(names, _renamed(names, weight_map.keys), key=lambda named: len(wanted.keys() & named.keys()))
    found = {}
    for key, sources in names.items():
        parts = [state[start + one] for one in sources]
        found[key] = _join(parts, sources) if shard is None else shard.cut(key, _joinable(parts, sources))
    shapes = {key: tuple(value.shape) for key, value in found.items()}
    other = [key for key in wanted.keys() & shapes.keys() if shapes[key] != wanted[key]]
    problems = [
        *_list("missing", sorted(wanted.keys() - shapes.keys())),
        *_list("unexpected", sorted(shapes.keys() - wanted.keys())),
        *_list("of another shape", [f"{key} is {shapes[key]}, not {wanted[key]}" for key in sorted(other)]),
        *_list("not of floating point", sorted(key for key, value in found.items() if not value.is_floating_point())),
    ]
    if problems:
        raise ValueError(f"the checkpoint does not fit {name}: keys " + "; ".join(problems))
    module.load_state_dict(found, strict=True, assign=True)


def prefix(state: Mapping[str, object], weight_map: WeightMap) -> str:
    """The first prefix of the map that any key has."""
    return next((one for one in weight_map.prefixes if any(key.startswith(one) for key in state)), "")


def rename(state: Mapping[str, Tensor], keys: Mapping[str, tuple[str, ...]]) -> State:
    """Apply a weight map's table; keys that it does not name stay as they are, to be reported."""
    names = _renamed({key: [key] for key in state}, keys)
    return {ours: _join([state[one] for one in theirs], theirs) for ours, theirs in names.items()}


def _renamed(names: Mapping[str, list[str]], keys: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The same for names alone: which ones in the file, one below the other, make each of ours."""
    left, renamed = dict(names), dict[str, list[str]]()
    for ours, theirs in keys.items():
        for match in list(filter(None, map(_form(theirs[0]), left))):
            sources = [name.format(*match.groups()) for name in theirs]
            if all(name in left for name in sources):
                renamed[ours.format(*match.groups())] = [file for name in sources for file in left.pop(name)]
    return renamed | left


def _form(text: str) -> Callable[[str], re.Match[str] | None]:
    """Whether a whole key has the form of a weight map's entry, and what its '{}' stand for."""
    return re.compile(re.escape(text).replace(r"\{\}", "(.+)")).fullmatch


def _join(parts: Sequence[Stored], names: list[str]) -> Tensor:
    tensors = [whole(part) for part in _joinable(parts, names)]
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def _joinable(parts: Sequence[Stored], names: list[str]) -> Sequence[Stored]:
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1 or (len(parts) > 1 and not len(parts[0].shape)):
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip(names, parts, strict=True))
        raise ValueError(f"the checkpoint does not fit: these cannot be joined: {shapes}")
    return parts


def randomise(
    model: nn.Module, device: torch.device, dtype: torch.dtype | None, seed: int, shard: Shard | None = None
) -> None:
    """Draw the weights of a model on the meta device where they are to be: norms are 1, biases 0, and the rows of a
    matrix have length 1 on average, so that activations keep their size. A shard's are cut from those of the whole."""
    model.to(dtype=dtype).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            full = parameter if shard is None else parameter.new_empty(shard.whole_shape(name, parameter))
            full.normal_(std=full[0].numel() ** -0.5, generator=generator)
            if shard is not None:
                parameter.copy_(shard.cut(name, [full]))


def _list(what: str, items: list[str]) -> list[str]:
    return [f"{len(items)} {what}: {some(items)}"] if items else []
