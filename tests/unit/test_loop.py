"""The training loop: a run that is killed anywhere and started again is the run that was never killed."""

from __future__ import annotations

import errno
import json
import math
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diagonal.media.video import VideoArray
from diagonal.media.video import read as read_picture
from diagonal.training.loop import RunConfig, fit
from diagonal.training.optim import Muon, rate


class Killed(BaseException):
    """As sudden as a signal."""


@dataclass
class Regression:
    """A line through noise; batches depend on the seed and the step alone, as every task's must."""

    muon: bool = False
    killed_at: int | None = None  # the step whose batch never comes
    bad_at: int | None = None  # the step from which on the loss is no number
    huge: float = 1.0  # scale of the loss
    optimizers: list[torch.optim.Optimizer] = field(init=False)
    evaluated: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module: nn.Module = nn.Linear(6, 3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        weight, bias = self.module.parameters()
        adam: dict[str, Any] = {"lr": 0.05, "betas": (0.9, 0.95)}
        if self.muon:
            self.optimizers = [Muon([weight], lr=0.05), torch.optim.AdamW([bias], **adam)]
        else:
            self.optimizers = [torch.optim.AdamW([weight, bias], **adam)]

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        if step == self.killed_at:
            raise Killed
        rng = np.random.default_rng([7, step])
        x = torch.from_numpy(rng.normal(size=(8, 6))).float()
        y = x[:, :3] * 2 + 1
        loss = (self.module(x) - y).square().mean() * self.huge
        if self.bad_at is not None and step >= self.bad_at:
            loss = loss * math.nan
        return loss, {"extra": loss.detach() * 2}

    def evaluate(self) -> dict[str, float]:
        assert not self.module.training
        self.evaluated.append(flat(self))
        return {"val": 1.5}

    def sheet(self) -> VideoArray | None:
        return None


def flat(task: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in task.module.parameters()])


def config(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {"steps": 23, "warmup": 3, "log_every": 5, "save_every": 7, "evaluate_every": 10}
    return RunConfig(**(settings | changes))


def run(folder: Path, how: RunConfig, **task: Any) -> Tensor:
    regression = Regression(**task)
    for _ in fit(regression, how, folder):
        pass
    return flat(regression)


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in curve(folder)}


def checkpoint(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return state


# An ordinary run


def test_the_curve_has_one_line_for_each_logged_step(tmp_path):
    task = Regression()
    yielded = list(fit(task, config(), tmp_path / "new" / "run"))
    assert curve(tmp_path / "new" / "run") == yielded
    assert [line["step"] for line in yielded] == [5, 10, 15, 20, 23]
    for line in yielded:
        assert line["extra"] == pytest.approx(2 * line["loss"])
        assert line["grad_norm"] > 0
        assert line["steps_per_second"] > 0


def test_the_loss_falls(tmp_path):
    list(fit(Regression(), config(steps=150), tmp_path))
    by_step = losses(tmp_path)
    assert by_step[150] < by_step[5] / 10


def test_numbers_on_held_out_data_come_as_often_as_asked_and_at_the_end(tmp_path):
    lines = list(fit(Regression(), config(), tmp_path))
    assert [line["step"] for line in lines if "val" in line] == [10, 20, 23]


def test_a_finished_run_leaves_its_last_step_in_the_checkpoint(tmp_path):
    final = run(tmp_path, config())
    state = checkpoint(tmp_path)
    assert state["step"] == 23
    torch.testing.assert_close(torch.cat([value.flatten() for value in state["module"].values()]), final)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "curve.jsonl"]


def test_a_finished_run_started_again_does_nothing_more(tmp_path):
    final = run(tmp_path, config(ema=0.8))
    before = (tmp_path / "curve.jsonl").read_text()
    again = Regression()
    assert list(fit(again, config(ema=0.8), tmp_path)) == []
    assert torch.equal(flat(again), final)
    assert (tmp_path / "curve.jsonl").read_text() == before


def test_samples_are_shown_in_a_picture(tmp_path, monkeypatch):
    picture = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    monkeypatch.setattr(Regression, "sheet", lambda self: picture)
    run(tmp_path, config())
    np.testing.assert_array_equal(read_picture(tmp_path / "sheet.png")[0], picture)


def test_the_learning_rate_of_every_optimizer_follows_the_schedule(tmp_path, monkeypatch):
    seen: list[tuple[float, ...]] = []
    task = Regression(muon=True)
    before = task.loss

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(tuple(optimizer.param_groups[0]["lr"] for optimizer in task.optimizers))
        return before(step)

    monkeypatch.setattr(task, "loss", loss)
    list(fit(task, config(), tmp_path))
    assert seen == [(0.05 * rate(step, 23, 3, 0.3),) * 2 for step in range(23)]


def test_training_by_hand_gives_the_same_weights(tmp_path):
    final = run(tmp_path, config(clip=0.5))
    task = Regression()
    (optimizer,) = task.optimizers
    for step in range(23):
        optimizer.param_groups[0]["lr"] = 0.05 * rate(step, 23, 3, 0.3)
        optimizer.zero_grad()
        task.loss(step)[0].backward()
        nn.utils.clip_grad_norm_(task.module.parameters(), 0.5)
        optimizer.step()
    assert torch.equal(flat(task), final)


@pytest.mark.parametrize(("huge", "expected"), [(1e4, 0.25), (1e-6, None)])
def test_only_gradients_longer_than_the_clip_are_shortened(tmp_path, huge, expected):
    """Plain descent moves by the gradient itself: one step shows how long it was."""
    task = Regression(huge=huge)
    task.optimizers = [torch.optim.SGD(task.module.parameters(), lr=1.0)]
    start = flat(task)
    (line,) = fit(task, config(steps=1, warmup=0, clip=0.25, decay_from=1.0), tmp_path)
    moved = float((flat(task) - start).double().norm())
    assert moved == pytest.approx(line["grad_norm"] if expected is None else expected, rel=0.1)
    assert (line["grad_norm"] > 0.25) == (expected is not None)  # the curve shows the length before


# Averages


def test_the_average_is_the_one_computed_by_hand(tmp_path):
    decay = 0.7
    made = run(tmp_path, config(ema=decay))
    task = Regression()
    average, history = flat(task), []

    original = task.optimizers[0].step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        history.append(flat(task))
        return result

    task.optimizers[0].step = step  # type: ignore[method-assign]
    for _ in fit(task, config(), tmp_path / "plain"):
        pass
    assert len(history) == 23
    for weights in history:
        average = decay * average + (1 - decay) * weights
    torch.testing.assert_close(made, average, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(made, history[-1], atol=1e-3)


def test_the_average_is_what_is_evaluated_and_training_goes_on_from_the_weights(tmp_path):
    averaged, plain = Regression(), Regression()
    list(fit(averaged, config(ema=0.9), tmp_path / "averaged"))
    list(fit(plain, config(), tmp_path / "plain"))
    assert losses(tmp_path / "averaged") == losses(tmp_path / "plain")
    assert len(averaged.evaluated) == 3
    assert not torch.allclose(averaged.evaluated[0], plain.evaluated[0], atol=1e-3)
    assert torch.equal(averaged.evaluated[-1], flat(averaged))  # the last evaluation is of the result


# Killed and started again


@pytest.mark.parametrize("muon", [False, True], ids=["adamw", "muon"])
@pytest.mark.parametrize("ema", [None, 0.8])
@pytest.mark.parametrize("steps", [[0], [3], [7], [8], [9], [14], [22], [4, 9, 9, 16], [8, 15, 22]])
def test_a_run_killed_while_a_step_is_made_ends_as_if_it_never_was(tmp_path, muon, ema, steps):
    whole = run(tmp_path / "whole", config(ema=ema), muon=muon)
    for step in steps:
        with pytest.raises(Killed):
            run(tmp_path / "killed", config(ema=ema), muon=muon, killed_at=step)
    assert torch.equal(run(tmp_path / "killed", config(ema=ema), muon=muon), whole)
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert [line["step"] for line in curve(tmp_path / "killed")] == [5, 10, 15, 20, 23]


@pytest.mark.parametrize("muon", [False, True], ids=["adamw", "muon"])
@pytest.mark.parametrize("ema", [None, 0.8])
@pytest.mark.parametrize("lines", [1, 2, 3, 5])
def test_a_run_left_at_a_line_of_its_curve_ends_as_if_it_never_was(tmp_path, muon, ema, lines):
    whole = run(tmp_path / "whole", config(ema=ema), muon=muon)
    training = fit(Regression(muon=muon), config(ema=ema), tmp_path / "left")
    for _ in range(lines):
        next(training)
    training.close()  # type: ignore[attr-defined]
    assert torch.equal(run(tmp_path / "left", config(ema=ema), muon=muon), whole)
    assert losses(tmp_path / "left") == losses(tmp_path / "whole")
    assert [line["step"] for line in curve(tmp_path / "left")] == [5, 10, 15, 20, 23]


def test_a_resumed_run_does_not_repeat_the_steps_before_its_checkpoint(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, config(), killed_at=16)
    assert checkpoint(tmp_path)["step"] == 14
    assert [line["step"] for line in curve(tmp_path)] == [5, 10, 15]
    task = Regression()
    assert [line["step"] for line in fit(task, config(), tmp_path)] == [15, 20, 23]


def test_a_run_without_a_checkpoint_begins_a_new_curve(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, config(), killed_at=6)
    assert not (tmp_path / "checkpoint.pt").exists()
    run(tmp_path, config())
    assert [line["step"] for line in curve(tmp_path)] == [5, 10, 15, 20, 23]


def test_a_line_that_was_half_written_is_dropped(tmp_path):
    """A kill or a full disk can cut the last line of the curve; the run still goes on."""
    whole = run(tmp_path / "whole", config())
    with pytest.raises(Killed):
        run(tmp_path / "cut", config(), killed_at=16)
    path = tmp_path / "cut" / "curve.jsonl"
    path.write_text(path.read_text()[:-30])
    assert torch.equal(run(tmp_path / "cut", config()), whole)
    assert [line["step"] for line in curve(tmp_path / "cut")] == [5, 10, 15, 20, 23]


# What goes wrong


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_state(tmp_path):
    with pytest.raises(ValueError, match=r"the loss is nan at step 10; .* keeps the last good state"):
        run(tmp_path, config(), bad_at=8)
    state = checkpoint(tmp_path)
    assert state["step"] == 7
    assert all(value.isfinite().all() for value in state["module"].values())
    assert [line["step"] for line in curve(tmp_path)] == [5]


def test_a_loss_that_is_no_number_is_never_saved_even_between_two_lines(tmp_path):
    """The step that saves (14) comes before the one that logs (15)."""
    with pytest.raises(ValueError, match="the loss is nan"):
        run(tmp_path, config(), bad_at=12)
    state = checkpoint(tmp_path)
    assert all(value.isfinite().all() for value in state["module"].values())
    assert state["step"] == 7


def test_gradients_that_are_no_numbers_are_never_saved(tmp_path, monkeypatch):
    """A finite loss can have a gradient of nan: the weights are spoilt one step before the loss shows it."""
    task = Regression()
    ordinary = task.loss

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        value, extras = ordinary(step)
        if step == 13:  # the step that saves
            value = value + (next(task.module.parameters()).sum() * 0).sqrt()
        return value, extras

    monkeypatch.setattr(task, "loss", loss)
    with pytest.raises(ValueError, match=r"nan at step"):
        list(fit(task, config(), tmp_path))
    state = checkpoint(tmp_path)
    assert all(value.isfinite().all() for value in state["module"].values())
    assert state["step"] == 7


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(Killed):
        run(tmp_path, config(), killed_at=8)
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(state: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path, config())
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "curve.jsonl"]
    assert torch.equal(run(tmp_path, config()), run(tmp_path / "whole", config()))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": -3},
        {"ema_from": -1},
        {"decay_from": -0.1},
        {"decay_from": 1.1},
        {"decay_from": math.nan},
        {"ema": 0.0},
        {"ema": 1.0},
        {"ema": -0.5},
        {"ema": math.nan},
        {"log_every": 0},
        {"save_every": 0},
        {"evaluate_every": 0},
        {"warmup": -1},
        {"clip": 0.0},
        {"clip": -1.0},
    ],
)
def test_an_impossible_run_is_refused(change):
    with pytest.raises(ValueError, match="impossible run"):
        config(**change)


@pytest.mark.parametrize("change", [{"steps": 1}, {"decay_from": 0.0}, {"decay_from": 1.0}, {"ema": 0.999}])
def test_an_unusual_run_is_taken(change):
    assert config(**change)


def test_averaging_begins_where_it_is_told_to(tmp_path, monkeypatch):
    seen: list[Tensor] = []
    loss = Regression.loss

    def watched(self: Regression, step: int) -> Any:
        seen.append(flat(self))
        return loss(self, step)

    monkeypatch.setattr(Regression, "loss", watched)
    task = Regression()
    list(fit(task, config(ema=0.8, ema_from=20), tmp_path))
    after = [*seen[1:], torch.cat([value.flatten() for value in checkpoint(tmp_path)["module"].values()])]
    average = after[19]  # the weights themselves, after step 20
    for weights in after[20:]:
        average = 0.8 * average + 0.2 * weights
    torch.testing.assert_close(flat(task), average)
    never = run(tmp_path / "never", config(ema=0.8, ema_from=100))
    assert torch.equal(never, run(tmp_path / "without", config()))


def test_a_disk_that_takes_no_more_is_named(tmp_path):
    """For real: files of this process may not grow beyond a few bytes."""
    with pytest.raises(Killed):
        run(tmp_path, config(), killed_at=8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        with pytest.raises(OSError, match="the state of step 14 could not be written to"):
            run(tmp_path, config())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoint(tmp_path)["step"] == 7
    assert torch.equal(run(tmp_path, config()), run(tmp_path / "whole", config()))
