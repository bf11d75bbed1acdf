"""Training by several processes, started by torchrun: weights, gradients and optimizer state are sharded (FSDP2).

    with processes(torch.device("cuda")) as group:          # one process alone is a group too
        for model in (generator, critic, teacher):
            shard(model, group.mesh)                        # before the optimizers are made
        task = DistillTask(..., shard=group.batch_shard(micro_batch=1))
        for line in fit(task, config, folder, group): ...

Samples are numbered over all processes and draw their own random numbers, so that a run does not depend on how many
processes there are, but for the order of sums. Checkpoints are written by all of them (torch.distributed.checkpoint)
and can be taken up by any number.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from diagonal.engine.ranks import found, mesh_of, process_group
from diagonal.media.files import atomic
from diagonal.training.latents.diffusion import BatchShard
from diagonal.training.loop import EMA, POINTER, Task, unwritten


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of a run, and what they do together: a `training.loop.Store`."""

    mesh: DeviceMesh
    device: torch.device

    @property
    def writes(self) -> bool:
        return dist.get_rank() == 0

    def batch_shard(self, micro_batch: int | None = None) -> BatchShard:
        """This process's shard of a batch, `micro_batch` samples at a time."""
        return BatchShard(dist.get_rank(), dist.get_world_size(), micro_batch)

    def number(self, value: Tensor) -> float:
        """What is sharded is one number already; of what each process has its own, the mean."""
        if isinstance(value, DTensor):
            return float(value.full_tensor())
        mean = value.detach().double().to(self.device).clone()
        dist.all_reduce(mean)
        return float(mean / dist.get_world_size())

    def save(self, task: Task, ema: EMA, folder: Path, step: int) -> None:
        target = folder / f"checkpoint-{step:08d}"
        try:
            save(_state(task, ema), checkpoint_id=str(target))
        except CheckpointException as error:  # of all processes, whichever of them could not write
            if self.writes:
                shutil.rmtree(target, ignore_errors=True)
            raise unwritten(folder, step, next(iter(error.failures.values()))[0]) from error
        if self.writes:
            with atomic(folder / POINTER) as temporary:
                temporary.write_text(json.dumps({"step": step, "folder": target.name}) + "\n")
            for old in folder.glob("checkpoint-*"):
                if old != target:
                    shutil.rmtree(old)
        dist.barrier()

    def load(self, task: Task, ema: EMA, folder: Path) -> int:
        if not (folder / POINTER).exists():
            return 0
        newest = json.loads((folder / POINTER).read_text())
        state = _state(task, ema)
        load(state, checkpoint_id=str(folder / newest["folder"]))
        set_state_dict(
            task.module,
            task.optimizers,
            model_state_dict=state["module"],
            optim_state_dict=state["optimizers"],
        )
        return int(newest["step"])


def _state(task: Task, ema: EMA) -> dict[str, Any]:
    """Everything that a run goes on from, by names that do not depend on how it is sharded. Loading is in place."""
    module, optimizers = get_state_dict(task.module, task.optimizers)
    names = [name for name, _ in task.module.named_parameters()]
    means = dict(zip(names, ema.weights, strict=True)) if ema.weights else {}
    return {"module": module, "optimizers": optimizers, "average": means}


@contextmanager
def processes(device: torch.device, replicas: int = 1) -> Iterator[Group]:
    """The processes that torchrun started, or this one alone. Weights are sharded over all of them, or within each of
    `replicas` groups that hold them all (hybrid: of several machines, only gradients cross between them)."""
    _, world = found()
    if world % replicas:
        raise ValueError(f"{replicas} replicas given for {world} processes; they must divide them")
    shape, names = ((replicas, world // replicas), ("replica", "shard")) if replicas > 1 else ((world,), ("shard",))
    with ExitStack() as end:
        own = end.enter_context(process_group(device))
        mesh = end.enter_context(mesh_of(own, shape, names))
        end.enter_context(warnings.catch_warnings())
        # Outputs that are views are fine: nothing here is changed in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        yield Group(mesh, own)


def shard(module: Any, mesh: DeviceMesh) -> None:
    """Shard a diffusion transformer's weights. A block's large matrices are gathered while it runs; the rest (the
    embeddings, and of the blocks what the noise level and the prompt ask for beforehand) while the model does."""
    for block in module.blocks:
        own, cross = block.self_attn, block.cross_attn
        fully_shard([own.qkv, own.o, cross.q, cross.o, block.ffn], mesh=mesh)
    # Also the rest is given back after every call: those without gradient have no backward pass to do it.
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(module, "embed_text")


def gathered(module: nn.Module) -> dict[str, Tensor]:
    """All weights of a sharded model, on the CPU of the first process: what is shipped."""
    state = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
