"""Opens networks that only look: built without memory, then filled from a file, in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from diagonal import checkpoints

Network = TypeVar("Network", bound=nn.Module)


def opened(
    build: Callable[[], Network], path: Path, device: torch.device | str = "cpu", part: str | None = None
) -> Network:
    """The network with the weights of a file, of which every key must fit. `part`: of a file that holds several."""
    return filled(build, checkpoints.read(path, part), str(path)).to(device)


def filled(build: Callable[[], Network], state: Mapping[str, Tensor], name: str) -> Network:
    """The network with the weights of a state dict."""
    with torch.device("meta"):
        network = build()
    try:
        checkpoints.load(network, state, type(network).__name__)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return network.float().eval().requires_grad_(False)
