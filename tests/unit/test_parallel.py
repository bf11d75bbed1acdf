"""Several processes train as one: the same losses, and checkpoints that any number of them takes up."""

from __future__ import annotations

import atexit
import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diagonal.training import parallel
from diagonal.training.batch import BatchShard
from diagonal.training.data.latents import EmbeddedPrompts
from diagonal.training.latents.distill import DistillTask
from diagonal.training.loop import POINTER, RunConfig, fit
from diagonal.training.parallel import gathered, processes, shard
from tests import processes as processes_of_tests
from tests.small_diffusion import CPU, NEGATIVE, PROMPTS_ONLY, SIZE, method, student, texts


def task(batch: int = 4, own: BatchShard | None = None, mesh: Any = None) -> DistillTask:
    models: list[Any] = [student(seed) for seed in (1, 2, 2)]
    if mesh is not None:
        for model in models:
            shard(model, mesh)
    how = method(weights=PROMPTS_ONLY, scored=3, longest=3, critic_steps=2, lr=1e-3, critic_lr=1e-3)
    how = replace(how, recompute=mesh is not None)
    prompts = EmbeddedPrompts(texts(5))
    return DistillTask(
        models[0], models[1], models[2], prompts, NEGATIVE, how, SIZE, batch, 3, shard=own or BatchShard()
    )


def config(steps: int) -> RunConfig:
    return RunConfig(steps, warmup=0, decay_from=1.0, clip=10.0, ema=0.9, log_every=1, save_every=3)


def sharded(folder: Path, steps: int, replicas: int = 1) -> None:
    """A run by the processes that torchrun started; also what this file does as a program."""
    torch.set_num_threads(1)
    with processes(CPU, replicas) as group:
        one = task(own=group.batch_shard(micro_batch=1), mesh=group.mesh)
        for _ in fit(one, config(steps), folder, group):
            pass
        whole = gathered(one.module)
        if group.writes:
            torch.save(whole, folder / "weights.pt")


def launch(count: int, folder: Path, steps: int, replicas: int = 1) -> None:
    processes_of_tests.launch("tests.unit.test_parallel", count, folder, steps, replicas)


def curve(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=2e-4, rtol=1e-3, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """The same run by one process that knows nothing of groups."""
    folder, one = tmp_path_factory.mktemp("alone"), task()
    for _ in fit(one, config(7), folder):
        pass
    return folder, {name: value.detach() for name, value in one.module.named_parameters()}


def test_two_processes_have_the_losses_of_one_and_one_goes_on_with_their_run(
    alone: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    single, weights = alone
    launch(2, tmp_path, 4)
    assert json.loads((tmp_path / POINTER).read_text())["step"] == 4
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000004"]
    sharded(tmp_path, 7)
    ours, theirs = curve(tmp_path), curve(single)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == [*range(1, 8)]
    for one, other in zip(ours, theirs, strict=True):
        for key in {"loss", "grad_norm", "dmd", "flow_dmd", "critic"} & other.keys() & one.keys():
            assert one[key] == pytest.approx(other[key], rel=2e-4), (one["step"], key)
    same(torch.load(tmp_path / "weights.pt", weights_only=True), weights)


def test_replicas_have_the_losses_of_one_process(alone: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    launch(2, tmp_path, 2, replicas=2)
    for one, other in zip(curve(tmp_path), curve(alone[0]), strict=False):
        assert one["loss"] == pytest.approx(other["loss"], rel=2e-4)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-4)


def test_a_full_disk_leaves_the_older_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = vars(parallel)["save"]

    def full(state: Any, checkpoint_id: str) -> None:
        if checkpoint_id.endswith("6"):
            Path(checkpoint_id).mkdir()
            raise OSError(errno.ENOSPC, "No space left on device")
        ordinary(state, checkpoint_id=checkpoint_id)

    with monkeypatch.context() as patched:
        patched.setattr(parallel, "save", full)
        with pytest.raises(OSError, match="No space left"):
            sharded(tmp_path, 7)
    assert json.loads((tmp_path / POINTER).read_text())["step"] == 3
    sharded(tmp_path, 7)
    sharded(tmp_path / "whole", 7)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000007"]
    ours, whole = (torch.load(one / "weights.pt", weights_only=True) for one in (tmp_path, tmp_path / "whole"))
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


def test_groups_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="2 replicas given for 1 processes"), processes(CPU, 2):
        pass


def no_thread_is_left() -> None:
    """Runs when Python ends. A thread that still holds a tensor then may abort the process, at any time or never."""
    left = [name for path in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := path.read_text())]
    if left:
        sys.stderr.write(f"threads are left: {left}\n")
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    atexit.register(no_thread_is_left)  # the first to be registered is the last to run
    sharded(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
