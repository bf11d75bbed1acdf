"""Fills models with the tensors of checkpoints, strictly: every key and every shape must fit the weight map."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.checkpoints.state import State, some


def load(module: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Put a checkpoint's tensors into `module` by its weight map; every key and shape must match."""
    weight_map = cast(WeightMap, module.weight_map)
    strip = len(prefix(state, weight_map))
    found = {key[strip:]: value for key, value in state.items() if key.startswith(prefix(state, weight_map))}
    found = {key: value for key, value in found.items() if not any(_form(one)(key) for one in weight_map.ignore)}
    found = rename(found, weight_map.aliases)
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    # Our own names or the published ones: whichever fits better.
    found = max(found, rename(found, weight_map.keys), key=lambda state: len(wanted.keys() & state.keys()))
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


def prefix(state: Mapping[str, Tensor], weight_map: WeightMap) -> str:
    """The first prefix of the map that any key has."""
    return next((one for one in weight_map.prefixes if any(key.startswith(one) for key in state)), "")


def rename(state: Mapping[str, Tensor], keys: Mapping[str, tuple[str, ...]]) -> State:
    """Apply a weight map's table; keys that it does not name stay as they are, to be reported."""
    left, renamed = dict(state), {}
    for ours, theirs in keys.items():
        for match in list(filter(None, map(_form(theirs[0]), left))):
            sources = [name.format(*match.groups()) for name in theirs]
            if all(name in left for name in sources):
                parts = [left.pop(name) for name in sources]
                renamed[ours.format(*match.groups())] = _join(parts, sources)
    return renamed | left


def _form(text: str) -> Callable[[str], re.Match[str] | None]:
    """Whether a whole key has the form of a weight map's entry, and what its '{}' stand for."""
    return re.compile(re.escape(text).replace(r"\{\}", "(.+)")).fullmatch


def _join(parts: list[Tensor], names: list[str]) -> Tensor:
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1 or (len(parts) > 1 and not parts[0].ndim):
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip(names, parts, strict=True))
        raise ValueError(f"the checkpoint does not fit: these cannot be joined: {shapes}")
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def randomise(model: nn.Module, device: torch.device, dtype: torch.dtype | None, seed: int) -> None:
    """Draw the weights of a model on the meta device where they are to be: norms are 1, biases 0, and the rows of a
    matrix have length 1 on average, so that activations keep their size."""
    model.to(dtype=dtype).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)


def _list(what: str, items: list[str]) -> list[str]:
    return [f"{len(items)} {what}: {some(items)}"] if items else []
