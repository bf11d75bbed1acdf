"""`--tensor-parallel` and `--sequence-parallel`: one model on several GPUs. The command runs in a process for each,
and the first one is heard."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from diagonal.cli import err, out

if TYPE_CHECKING:
    from diagonal.engine.ranks import Ranks
    from diagonal.media.video import VideoArray


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How many GPUs have a world together."""

    panel: ClassVar[str] = "Model"

    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            min=1, help="GPUs of this machine that share the model. Default: 1, or the processes of torchrun."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FramesShared:
    """How many GPUs have a diffusion model together."""

    panel: ClassVar[str] = "Model"

    sequence_parallel: Annotated[
        int | None,
        typer.Option(
            min=1, help="GPUs of this machine that share each frame. Default: 1, or the processes of torchrun."
        ),
    ] = None


class Unwritten:
    """Where frames go that another process writes."""

    watermark = None

    def write(self, frames: VideoArray) -> None:
        """They are let go."""


def follows() -> bool:
    """Whether this is one of several processes of a command, and not the one that is heard."""
    return os.environ.get("RANK", "0") != "0"


@contextmanager
def shared(parallel: Parallel, model: str, device: str) -> Iterator[Ranks | None]:
    """The processes that compute a world, this one among them; None: this one alone. Where torchrun did not start them
    they are started here, and this one ends with them."""
    from diagonal.scale.parallel import check_tensor_parallel

    with _ranks("--tensor-parallel", parallel.tensor_parallel, device, partial(check_tensor_parallel, model)) as ranks:
        yield ranks


@contextmanager
def shared_frames(parallel: FramesShared, model: str, device: str) -> Iterator[Ranks | None]:
    """The same for a diffusion model."""
    from diagonal.scale.parallel import check_sequence_parallel

    with _ranks(
        "--sequence-parallel", parallel.sequence_parallel, device, partial(check_sequence_parallel, model)
    ) as ranks:
        yield ranks


@contextmanager
def _ranks(option: str, asked: int | None, device: str, check: Callable[[int], None]) -> Iterator[Ranks | None]:
    from diagonal.engine.ranks import found, ranks_of
    from diagonal.generation.devices import check_device

    rank, world = found()
    count = world if asked is None else asked
    if world > 1 and count != world:
        raise ValueError(f"{option} {count} given to one of {world} processes; leave it out, or start {count}")
    if count == 1:
        yield None
        return
    check(count)
    where = check_device(device)
    if where.index is not None:
        raise ValueError(f"--device {device} given; {count} processes have a GPU each: write --device {where.type}")
    if world == 1:
        raise typer.Exit(_launched(option, count, where.type))
    out.quiet = err.quiet = rank > 0
    with ranks_of(where) as ranks:
        yield ranks


def _launched(option: str, count: int, kind: str) -> int:
    """This command once more, in so many processes."""
    import torch

    from diagonal.scale.launch import launch

    if kind == "cuda" and torch.cuda.device_count() < count:
        raise ValueError(f"{option} {count} given; this machine has {torch.cuda.device_count()} GPUs")
    return launch([sys.executable, "-m", "diagonal", *sys.argv[1:]], count)
