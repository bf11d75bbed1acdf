"""Training in stages: each one is data, and one function runs them all.

    for name, line in run([recording, tokenizer, world]): ...

Every stage has a folder that later stages read. A run that was killed is started again in the same way: what is made
is kept, training goes on from its checkpoint, and a stage that is done is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from diagonal.media.files import atomic
from diagonal.training.loop import CURVE, Store, Task, claim, fit, refuse_other

Line = dict[str, Any]
MODEL = "model.safetensors"  # what a stage that trains leaves


@dataclass(frozen=True, slots=True)
class Gate:
    """What a stage must reach before the next one begins: a number of the last line of its curve, and its bounds."""

    number: str
    least: float | None = None
    most: float | None = None


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Stage:
    """A stage: what it needs, what it does, and what must hold before later ones go on.

    `inputs` is called when it is the stage's turn, before anything is written; `run` takes what it returns and yields
    lines with the `step` they are at. A stage with `settings` claims its folder, which then goes on with the same
    settings only.
    """

    name: str
    steps: int  # that its last line is at
    folder: Path
    run: Callable[[Any], Iterator[Line]]
    inputs: Callable[[], Any] = _nothing
    settings: Mapping[str, Any] | None = None
    leaves: str | None = None  # its last file: with it and a whole curve, it is done; None: `run` looks for itself
    gate: Gate | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to run."""
        if self.leaves is None or not all((self.folder / name).is_file() for name in (self.leaves, CURVE)):
            return False
        return bool(last_line(self.folder)["step"] == self.steps)

    def result(self) -> Line:
        """Where it is, and the last line of its curve, which has the numbers on held-out data."""
        return {"stage": self.name, "steps": self.steps, "out": str(self.folder)} | last_line(self.folder)


def run(stages: Sequence[Stage]) -> Iterator[tuple[str, Line]]:
    """Run stages one after the other; yields the stage's name with each line of its progress."""
    for stage in stages:  # folders of other runs are known before the long work
        if stage.settings is not None:
            refuse_other(stage.folder, stage.settings)
    for stage in stages:
        yield from ((stage.name, line) for line in _lines(stage))


def _lines(stage: Stage) -> Iterator[Line]:
    if not stage.done:
        inputs = stage.inputs()
        if stage.settings is not None:
            claim(stage.folder, stage.settings)
        yield from stage.run(inputs)
    if stage.gate is not None:
        check_gate(stage.folder, stage.gate)


def training(
    name: str,
    how: Any,
    folder: Path,
    task: Callable[[], Task],
    keep: Callable[[Any], None],
    store: Store | None = None,
) -> Stage:
    """A stage that trains by a part of a recipe: `task` makes what is trained, `keep` writes its weights to MODEL. Of
    several processes that train together `store` keeps the state."""

    def lines(made: Task) -> Iterator[Line]:
        yield from fit(made, how.run, folder, store)
        keep(made)

    return Stage(name, how.run.steps, folder, lines, inputs=task, settings=settings(how), leaves=MODEL)


def settings(recipe: Any) -> Line:
    """What makes the run of a part of a recipe another run. Its gate judges the run, and changes nothing in it."""
    given: Line = asdict(recipe)
    given.pop("gate", None)
    run: Line = given.pop("run")
    return run | given


def build(config: Any, seed: int, device: torch.device | str) -> Any:
    """A module with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return config.build().to(device)


def last_line(folder: Path) -> Line:
    """The end of a curve."""
    whole = [line for line in (folder / CURVE).read_text().splitlines() if line.endswith("}")]
    line: Line = json.loads(whole[-1]) if whole else {"step": 0}
    return line


def check_gate(folder: Path, gate: Gate) -> None:
    """Refuse to go on from a curve that ends out of bounds, or with no number; gate.json says what was found."""
    value = last_line(folder)[gate.number]
    low = gate.least is not None and not value >= gate.least
    high = gate.most is not None and not value <= gate.most
    with atomic(folder / "gate.json") as temporary:
        temporary.write_text(json.dumps(asdict(gate) | {"value": value, "passed": not (low or high)}) + "\n")
    if low or high:
        bound = f"at least {gate.least}" if low else f"at most {gate.most}"
        raise ValueError(
            f"{folder}: {gate.number} is {value:.4g}; the recipe asks for {bound} before the next stage. Look at its "
            "curve and samples, and train longer or change the recipe"
        )
