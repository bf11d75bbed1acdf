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
from dataclasses import dataclass, replace
from datetime import timedelta
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

from diagonal import checkpoints
from diagonal.engine.ranks import found, mesh_of, process_group
from diagonal.media.files import atomic
from diagonal.training.batch import BatchShard, at_once
from diagonal.training.loop import CHECKPOINT, EMA, POINTER, Task, unwritten
from diagonal.training.stages import Line, Stage

PATIENCE = timedelta(days=7)  # that processes wait for one which records or writes alone


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of a run, and what they do together: a `training.loop.Store`."""

    mesh: DeviceMesh
    device: torch.device
    waiting: Any = None  # the group of `wait`

    @property
    def world(self) -> int:
        """How many there are."""
        return dist.get_world_size()

    def wait(self) -> None:
        """Go on when all are here, however long one of them works alone."""
        if self.world > 1:
            dist.barrier(self.waiting)

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
            if (folder / CHECKPOINT).exists():
                raise ValueError(f"{folder} was begun by one process without torchrun; go on with one, or begin anew")
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
        yield Group(mesh, own, dist.new_group(backend="gloo", timeout=PATIENCE) if world > 1 else None)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a stage's work is shared: by which processes (None: one alone, without a group), in how many parts."""

    group: Group | None = None
    accumulate: int = 1

    @property
    def world(self) -> int:
        """How many processes share it."""
        return 1 if self.group is None else self.group.world

    def batch_shard(self, batch: int) -> BatchShard:
        """This process's samples of a batch, and how many of them at a time."""
        size = at_once(batch, self.world, self.accumulate)
        return BatchShard(micro_batch=size) if self.group is None else self.group.batch_shard(size)

    def by_first(self, stage: Stage) -> Stage:
        """A stage that one process does, while the others wait."""
        group = self.group
        if group is None or group.world == 1:
            return stage

        def lines(inputs: Any) -> Iterator[Line]:
            group.wait()  # until all have seen that it is not done
            if group.writes:
                yield from stage.run(inputs)
            group.wait()

        return replace(stage, run=lines, inputs=stage.inputs if group.writes else lambda: None)

    def save(self, part: str, module: nn.Module, path: Path, metadata: dict[str, str]) -> None:
        """Write a trained module as safetensors: gathered, where it is sharded."""
        if self.group is None:
            checkpoints.save({part: module}, path, metadata)
        else:
            save_whole(part, module, path, metadata, self.group)


def shard(module: Any, mesh: DeviceMesh) -> None:
    """Shard a diffusion transformer's weights. A block's large matrices are gathered while it runs; the rest (the
    embeddings, and of the blocks what the noise level and the prompt ask for beforehand) while the model does."""
    for block in module.blocks:
        own, cross = block.self_attn, block.cross_attn
        fully_shard([own.qkv, own.o, cross.q, cross.o, block.ffn], mesh=mesh)
    # Also the rest is given back after every call: those without gradient have no backward pass to do it.
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(module, "embed_text")


def shard_world(module: Any, mesh: DeviceMesh) -> None:
    """Shard a token world's weights: a block's are gathered while it runs, the rest while the model does. On a GPU
    blocks are compiled, inside of what gathers them."""
    for block in module.blocks:
        if mesh.device_type == "cuda":
            block.forward = torch.compile(block.forward, dynamic=False)
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)


def shard_tokenizer(module: Any, mesh: DeviceMesh) -> None:
    """Shard a tokenizer's weights, which are gathered as one."""
    if mesh.device_type == "cuda":
        module.forward = torch.compile(module.forward, dynamic=False)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for method in ("encode", "decode"):
        register_fsdp_forward_method(module, method)


def gathered(module: nn.Module) -> dict[str, Tensor]:
    """All weights of a sharded model, on the CPU of the first process: what is shipped."""
    state = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def save_whole(part: str, module: nn.Module, path: Path, metadata: dict[str, str], group: Group) -> None:
    """Write a trained module as safetensors, gathered from all processes, by the first of them."""
    whole = gathered(module)
    if group.writes:
        checkpoints.save({part: _Held(whole)}, path, metadata)
    dist.barrier()


class _Held(nn.Module):
    """Weights without a network."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        self._held = state

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:  # type: ignore[override]
        return self._held
