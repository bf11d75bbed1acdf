"""The processes that compute one model together, and what they say to each other while they do.

They are started by torchrun, or by `scale.launch`: one for each GPU, each with a rank. `Ranks.reduce` is the one hook
of tensor parallelism: the sum over all ranks after attention's output projection, and after that of the MLP.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from diagonal.engine.kernels.cpu import calls


def found() -> tuple[int, int]:
    """Rank and world size as torchrun says them; without it, those of one process alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def shares(count: int, world: int) -> tuple[int, ...]:
    """So many rows for each rank; the first ones may have one more."""
    return tuple(count // world + (rank < count % world) for rank in range(world))


@contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, or be a group of one; gives the device of this process."""
    rank, world = found()
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend, rank=rank, world_size=world)
    else:
        dist.init_process_group(backend, rank=rank, world_size=world, store=dist.HashStore())  # type: ignore[attr-defined]
    try:
        yield device
    finally:
        dist.destroy_process_group()


@contextmanager
def mesh_of(device: torch.device, shape: tuple[int, ...], names: tuple[str, ...]) -> Iterator[DeviceMesh]:
    """The processes of the group as a mesh."""
    with ExitStack() as end:
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        end.callback(_let_go, mesh)
        yield mesh


def _let_go(mesh: DeviceMesh) -> None:
    """End the threads of the mesh's groups before Python ends. PyTorch's caches keep the mesh, and the mesh its groups;
    a thread of Gloo that lets go of its last tensor while Python ends aborts the process."""
    vars(mesh).get("_pg_registry", {}).clear()
    atexit.register(gc.collect)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that compute one model."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.rank == 0

    def reduce(self, x: Tensor) -> Tensor:
        """The sum of what all ranks have, the same bits on each. It replaces x, whose memory is used again. With NCCL
        it can be part of a captured graph; then every rank captures and replays the same steps in the same order."""
        calls.not_alone()
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def gather(self, x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
        """What all ranks have, one behind the other along a dimension; of each so much as `sizes` says."""
        most = max(sizes)
        if x.shape[dim] < most:  # all send as much
            x = torch.cat([x, x.new_zeros([*x.shape[:dim], most - x.shape[dim], *x.shape[dim + 1 :]])], dim)
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in sizes]
        dist.all_gather(parts, x)
        return torch.cat([part.narrow(dim, 0, size) for part, size in zip(parts, sizes, strict=True)], dim)

    def exchange(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Send part r to rank r, and receive from rank r a tensor of shape r (all-to-all)."""
        sent = torch.cat([part.flatten() for part in parts])
        counts = [torch.Size(shape).numel() for shape in shapes]
        received = sent.new_empty(sum(counts))
        dist.all_to_all_single(received, sent, counts, [part.numel() for part in parts])
        return [one.view(shape) for one, shape in zip(received.split(counts), shapes, strict=True)]

    def told(self, text: str) -> str:
        """What the first rank has here, in all of them: a key that was pressed, or the like."""
        given = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        size = torch.tensor([len(given)], device=self.device)
        dist.broadcast(size, 0)
        heard = given if self.first else given.new_empty(int(size))
        dist.broadcast(heard, 0)
        return bytes(heard.tolist()).decode()

    def agree(self, x: Tensor, what: str) -> None:
        """Refuse to go on where ranks have different numbers: of tokens they drew themselves they must all be alike."""
        x = x.to(self.device)
        other = x.clone()
        dist.broadcast(other, 0)
        differs = torch.tensor([float(not torch.equal(other, x))], device=x.device)
        dist.all_reduce(differs)
        if float(differs):
            raise ValueError(
                f"{what} differ on {int(differs)} of {self.world} ranks: their GPUs or their libraries are not the same"
            )


@contextmanager
def ranks_of(device: torch.device) -> Iterator[Ranks]:
    """The processes of torchrun, as they compute one model."""
    with process_group(device) as own:
        yield Ranks(dist.get_rank(), dist.get_world_size(), own)
