"""The training loop, the same for everything that is trained.

A run is its folder: `curve.jsonl` (one line per logged step), `checkpoint.pt` (everything needed to go on, written
atomically), `sheet.png` (samples). Batches depend on the seed and the step alone, so a run that is killed anywhere
and started again gives the same weights.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diagonal.media.files import atomic
from diagonal.media.video import VideoArray, write_picture
from diagonal.training.optim import rate

CURVE, SETTINGS = "curve.jsonl", "settings.json"
CHECKPOINT = "checkpoint.pt"  # the state of a run of one process
POINTER = "checkpoint.json"  # names the folder that holds the newest whole state of several


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How long and how carefully; what is trained is the task's business."""

    steps: int
    seed: int = 0
    warmup: int = 50
    decay_from: float = 0.3  # the learning rate falls from this part of the run on
    clip: float = 1.0
    ema: float | None = None  # decay of an EMA of the weights, which then is the result
    ema_from: int = 0  # the step from which on it lags behind; until then it is the weights themselves
    log_every: int = 50
    evaluate_every: int = 1000
    save_every: int = 500

    def __post_init__(self) -> None:
        counts = (self.steps, self.log_every, self.evaluate_every, self.save_every)
        sound = (
            min(counts) >= 1 and min(self.warmup, self.ema_from) >= 0 and self.clip > 0 and 0 <= self.decay_from <= 1
        )
        if not sound or (self.ema is not None and not 0 < self.ema < 1):
            raise ValueError(f"impossible run: {self}")


class Task(Protocol):
    """What is trained."""

    module: nn.Module
    optimizers: list[torch.optim.Optimizer]

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the step's batch, and what else is worth a curve."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Numbers on held-out data."""
        ...

    def sheet(self) -> VideoArray | None:
        """A picture of samples, (H, W, 3)."""
        ...


class Store(Protocol):
    """Where a run's numbers and state go: to one process, or to many that train together (training/parallel.py)."""

    @property
    def writes(self) -> bool:
        """Whether this process keeps the curve and the samples."""
        ...

    def number(self, value: Tensor) -> float:
        """A loss, a norm or the like, for all processes."""
        ...

    def save(self, task: Task, ema: EMA, folder: Path, step: int) -> None:
        """Keep all that the run needs to go on from this step; until it is written, the state before it stays."""
        ...

    def load(self, task: Task, ema: EMA, folder: Path) -> int:
        """Take up the newest state of the folder, and say its step; 0 where there is none."""
        ...


def fit(task: Task, config: RunConfig, folder: str | Path, store: Store | None = None) -> Iterator[dict[str, Any]]:
    """Train to the end, going on from the folder's checkpoint if there is one; yields each line of the curve."""
    folder, store = Path(folder), store or Alone()
    folder.mkdir(parents=True, exist_ok=True)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in task.optimizers]
    ema = EMA(task.module, config.ema, config.ema_from)
    first = store.load(task, ema, folder)
    if store.writes:
        _cut(folder / CURVE, first)
    parameters = [parameter for parameter in task.module.parameters() if parameter.requires_grad]
    began, done = time.perf_counter(), first
    for step in range(first, config.steps):
        for optimizer, lrs in zip(task.optimizers, peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, lrs, strict=True):
                group["lr"] = peak * rate(step, config.steps, config.warmup, config.decay_from)
        loss, extras = task.loss(step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, config.clip)
        for optimizer in task.optimizers:
            optimizer.step()
        ema.update(task.module, step)
        task.module.zero_grad(set_to_none=True)
        last = step + 1 == config.steps
        logs, saves = (last or (step + 1) % every == 0 for every in (config.log_every, config.save_every))
        if logs or saves:
            numbers = {"loss": store.number(loss.detach()), "grad_norm": store.number(norm)}
            _check(numbers, step + 1, folder)
        if logs:
            line = {"step": step + 1, **numbers} | {key: store.number(value) for key, value in extras.items()}
            line["steps_per_second"] = (step + 1 - done) / (time.perf_counter() - began)
            if last or (step + 1) % config.evaluate_every == 0:
                line |= _evaluate(task, ema, folder if store.writes else None)
            began, done = time.perf_counter(), step + 1
            if store.writes:
                _append(folder / CURVE, line)
            yield line
        if saves:
            store.save(task, ema, folder, step + 1)
    ema.copy_to(task.module)


def unwritten(folder: Path, step: int, error: BaseException) -> OSError:
    """What to say where a state could not be kept."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return OSError(
        f"the state of step {step} could not be written to {folder}, which keeps the one before it: {reason}"
    )


def begun(folder: Path) -> bool:
    """Whether a run was begun here, and left a state to go on from."""
    return (folder / CHECKPOINT).exists() or (folder / POINTER).exists()


def refuse_other(folder: Path, settings: Mapping[str, Any]) -> None:
    """A folder is one run: refuse to go on with other settings than it was begun with."""
    now, path = json.loads(json.dumps(settings)), folder / SETTINGS
    if path.exists() and begun(folder):
        before = json.loads(path.read_text())
        changed = [f"{key} {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key]]
        if changed:
            raise ValueError(f"{folder} was begun with {'; '.join(changed)}. Remove it or choose another folder")


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note the settings of a run in its folder, which is no other run's."""
    refuse_other(folder, settings)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / SETTINGS) as temporary:
        temporary.write_text(json.dumps(settings) + "\n")


def _check(numbers: dict[str, float], step: int, folder: Path) -> None:
    """A state that is no number is never saved."""
    for name, value in zip(("loss", "norm of the gradient"), numbers.values(), strict=True):
        if not math.isfinite(value):
            raise ValueError(f"the {name} is {value} at step {step}; {folder} keeps the last good state")


class EMA:
    """An exponential moving average of the weights from a step on; without a decay it does nothing."""

    def __init__(self, module: nn.Module, decay: float | None, begin: int = 0) -> None:
        self.decay, self.begin = decay, begin
        self.weights = [] if decay is None else [p.detach().clone() for p in module.parameters()]

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """After a step: weights that had no gradient took no part in it, and their EMA stays."""
        if self.decay is None:
            return
        pairs = zip(self.weights, module.parameters(), strict=True)
        moved = [(mean, parameter.detach()) for mean, parameter in pairs if parameter.grad is not None]
        if moved:
            alpha = 1 - self.decay if step >= self.begin else 1.0
            torch._foreach_lerp_([mean for mean, _ in moved], [weight for _, weight in moved], alpha)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        if self.decay is not None:
            _copy(self.weights, module)


def _evaluate(task: Task, ema: EMA, folder: Path | None) -> dict[str, float]:
    """Numbers and samples of the weights that the run would give now."""
    kept = [parameter.detach().clone() for parameter in task.module.parameters()]
    ema.copy_to(task.module)
    task.module.eval()
    numbers, sheet = task.evaluate(), task.sheet()
    task.module.train()
    _copy(kept, task.module)
    if sheet is not None and folder is not None:
        write_picture(folder / "sheet.png", sheet)
    return numbers


@torch.no_grad()
def _copy(weights: Sequence[Tensor], module: nn.Module) -> None:
    for parameter, weight in zip(module.parameters(), weights, strict=True):  # one by one: they may be sharded
        parameter.copy_(weight)


class Alone:
    """A run of one process: its state is one file."""

    writes = True

    def number(self, value: Tensor) -> float:
        return float(value)

    def save(self, task: Task, ema: EMA, folder: Path, step: int) -> None:
        state = {
            "step": step,
            "module": task.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in task.optimizers],
            "average": ema.weights,
        }
        with atomic(folder / CHECKPOINT) as temporary:
            try:
                torch.save(state, temporary)
            except RuntimeError as error:  # PyTorch's word for a disk that takes no more
                raise unwritten(folder, step, error) from error

    def load(self, task: Task, ema: EMA, folder: Path) -> int:
        path = folder / CHECKPOINT
        if not path.exists():
            return 0
        device = next(task.module.parameters()).device
        state = torch.load(path, map_location=device, weights_only=True)
        task.module.load_state_dict(state["module"])
        for optimizer, saved in zip(task.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        ema.weights = state["average"]
        return int(state["step"])


def _cut(curve: Path, step: int) -> None:
    """Drop the lines that came after the step that is gone on from."""
    if not step:
        curve.unlink(missing_ok=True)
    elif curve.exists():
        # A kill may leave half of the last line.
        whole = [line for line in curve.read_text().splitlines() if line.endswith("}")]
        lines = [line for line in whole if json.loads(line)["step"] <= step]
        with atomic(curve) as temporary:
            temporary.write_text("".join(line + "\n" for line in lines))


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
