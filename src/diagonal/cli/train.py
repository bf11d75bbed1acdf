"""`diagonal train` and `diagonal finetune`: the stages of a recipe, all of them or one at a time.

A run is its folder: started again, it goes on from its checkpoint. Under torchrun all processes train together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from diagonal.cli import app, err, out, print_json, progress_bar
from diagonal.cli.options import Device, Json, Lpips

if TYPE_CHECKING:
    import torch

    from diagonal.training.parallel import Sharing
    from diagonal.training.recipe import Mixture, Recipe, WorldRecipe
    from diagonal.training.stages import Stage

train = typer.Typer(no_args_is_help=True, help="Train a world by a recipe: all stages, or one of them.")
app.add_typer(train, name="train")

RecipeName = Annotated[str, typer.Option("--recipe", help="smoke (a minute on a laptop), doom, mcar:700m.")]
Data = Annotated[Path, typer.Option(help="Folder with the recordings train/ and held-out/.")]
Tokenizer = Annotated[Path, typer.Option(help="Folder of the trained tokenizer.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the run; one that was begun goes on.")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also write scalars for TensorBoard.")]

Accumulate = Annotated[int, typer.Option(min=1, help="Micro-batches of each process, one after the other.")]

Schedules = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        help="What it learns to decode by; several get as many steps as each other. Default: the recipe's.",
    ),
]

Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of weights and batches. Default: the recipe's.")]

Line = dict[str, Any]


@train.command("all")
def train_all(
    recipe: RecipeName,
    out_path: Out,
    data: Annotated[Path | None, typer.Option(help="Recordings train/ and held-out/, for mcar: of VPT.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Weights that the tokenizer starts from, for mcar.")] = None,
    lpips: Lpips = None,
    device: Device = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Processes that record.")] = 1,
    accumulate: Accumulate = 1,
    tensorboard: Tensorboard = False,
    as_json: Json = False,
) -> None:
    """Record, then train tokenizer, judge, base, finetune and diagonal, each in its folder below --out."""
    found, where = _begin(recipe, device)
    from diagonal.training.stages import MODEL
    from diagonal.training.tokens.stages import Beside, stages

    start = time.perf_counter()
    with _sharing(where, out_path, accumulate) as sharing:
        made = stages(found, out_path, _own(where, sharing), Beside(data, tokenizer, lpips, workers, sharing))
        if not _followed(made, sharing, tensorboard):
            return
    trained = [stage for stage in made if stage.leaves == MODEL]
    shared = {"recipe": recipe, "stage": "all", "seconds": time.perf_counter() - start, "out": str(out_path)}
    if as_json:
        print_json(shared | {"stages": [stage.result() for stage in trained]})
    else:
        _print(trained, shared)


@train.command()
def tokenizer(
    recipe: RecipeName,
    data: Data,
    out_path: Out,
    weights: Annotated[Path | None, typer.Option(help="Weights to start from, for mcar.")] = None,
    lpips: Lpips = None,
    device: Device = "cpu",
    accumulate: Accumulate = 1,
    tensorboard: Tensorboard = False,
    as_json: Json = False,
) -> None:
    """Train the tokenizer on recorded frames."""
    found, where = _begin(recipe, device)
    from diagonal.training.tokens.stages import RecipeData, tokenizer_stage

    with _sharing(where, out_path, accumulate) as sharing:
        stage = tokenizer_stage(RecipeData(found, data, _own(where, sharing), sharing), out_path, lpips, weights)
        _run(stage, {"recipe": recipe}, sharing, tensorboard, as_json)


@train.command()
def judge(
    recipe: RecipeName,
    data: Data,
    out_path: Out,
    device: Device = "cpu",
    tensorboard: Tensorboard = False,
    as_json: Json = False,
) -> None:
    """Train the network that judges whether frames obey their actions."""
    found, where = _begin(recipe, device)
    from diagonal.training.tokens.stages import RecipeData, judge_stage

    with _sharing(where, out_path, 1) as sharing:
        stage = judge_stage(RecipeData(found, data, _own(where, sharing), sharing), out_path)
        _run(stage, {"recipe": recipe}, sharing, tensorboard, as_json)


@train.command()
def world(
    recipe: RecipeName,
    data: Data,
    tokenizer: Tokenizer,
    out_path: Out,
    schedule: Schedules = None,
    seed: Seed = None,
    device: Device = "cpu",
    accumulate: Accumulate = 1,
    tensorboard: Tensorboard = False,
    as_json: Json = False,
) -> None:
    """Train the world from scratch: the recipe's base stage."""
    found, where = _begin(recipe, device)
    how = replace(found.base, mixture=_mixture(schedule) or found.base.mixture)
    how = how if seed is None else replace(how, run=replace(how.run, seed=seed))
    shared = {"recipe": recipe, "schedules": [spec for spec, _ in how.mixture]}
    with _sharing(where, out_path, accumulate) as sharing:
        stage = _world("base", how, (found, data, where, sharing), (tokenizer, None), out_path)
        _run(stage, shared, sharing, tensorboard, as_json)


@app.command()
def finetune(
    recipe: RecipeName,
    data: Data,
    tokenizer: Tokenizer,
    weights: Annotated[Path, typer.Option(help="Folder of the trained world to start from.")],
    out_path: Out,
    schedule: Schedules = None,
    then: Annotated[
        list[str] | None,
        typer.Option(help="What it learns after that; several divide the run evenly, as in k=4, then k=2, then k=1."),
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option(min=1, help="Learn adapters of this rank alone; `generate --lora` takes them."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Learn these parts alone: norms, embeddings, head; several with commas.")
    ] = None,
    rolled: Annotated[
        int | None, typer.Option(min=1, help="Frames beyond the window, which roll as in live sessions (context=roll).")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Default: the recipe's.")] = None,
    seed: Seed = None,
    device: Device = "cpu",
    accumulate: Accumulate = 1,
    tensorboard: Tensorboard = False,
    as_json: Json = False,
) -> None:
    """Teach a trained world other schedules: a short run under the visibility they decode with."""
    found, where = _begin(recipe, device)
    run = found.finetune.run if steps is None else replace(found.finetune.run, steps=steps)
    run = run if seed is None else replace(run, seed=seed)
    how = replace(found.finetune, mixture=_mixture(schedule) or found.finetune.mixture, run=run, later=_later(then))
    how = replace(how, lora=lora, only=None if only is None else _parts(only), rolled=rolled)
    shared = {"recipe": recipe, "schedules": [spec for spec, _ in how.mixture]}
    with _sharing(where, out_path, accumulate) as sharing:
        stage = _world("finetune", how, (found, data, where, sharing), (tokenizer, weights), out_path)
        _run(stage, shared, sharing, tensorboard, as_json)
    if lora is not None and not as_json:
        from diagonal.training.tokens.stages import LORA

        out.print(f"adapters in {out_path / LORA}", markup=False)


def _mixture(schedules: Sequence[str] | None) -> Mixture:
    """The schedules that are asked for, as often as each other."""
    from diagonal.planning.plan import Order

    return tuple((str(Order.of(spec)), 1.0) for spec in schedules or ())


def _later(then: Sequence[str] | None) -> tuple[tuple[float, Mixture], ...] | None:
    """Each of these from its part of the run on; what comes first has one as long."""
    count = 1 + len(then or ())
    return tuple((number / count, _mixture([spec])) for number, spec in enumerate(then or (), 1)) or None


def _parts(named: str) -> tuple[str, ...]:
    """The parts of a model, or why they are none."""
    from diagonal.training.tokens.adapters import check_parts

    return check_parts([name.strip() for name in named.split(",")])


def _begin(recipe: str, device: str) -> tuple[Recipe, torch.device]:
    from diagonal.generation.devices import check_device
    from diagonal.recipes import find

    return find(recipe), check_device(device)


def _world(
    name: str,
    how: WorldRecipe,
    recorded: tuple[Recipe, Path, torch.device, Sharing],
    folders: tuple[Path, Path | None],
    out_path: Path,
) -> Stage:
    """The stage that trains a world; `folders` are those of the tokenizer and, perhaps, of weights to start from."""
    from diagonal.training.stages import MODEL
    from diagonal.training.tokens.stages import RecipeData, world_stage

    tokenizer, start = folders
    for option, path in (("--tokenizer", tokenizer), ("--weights", start)):
        if path is not None and not (path / MODEL).is_file():
            raise ValueError(f"{option} {path} holds no {MODEL}; give the folder of a finished stage")
    recipe, data, device, sharing = recorded
    return world_stage(name, how, RecipeData(recipe, data, _own(device, sharing), sharing), tokenizer, out_path, start)


@contextmanager
def _sharing(device: torch.device, folder: Path, accumulate: int) -> Iterator[Sharing]:
    """This process among those that torchrun started. One alone is a group too where it goes on with a run of several:
    their state is in another form."""
    from diagonal.engine.ranks import found
    from diagonal.training.loop import POINTER
    from diagonal.training.parallel import Sharing, processes

    several = found()[1] > 1 or any(path.exists() for path in (folder / POINTER, *folder.glob(f"*/{POINTER}")))
    if not several:
        yield Sharing(accumulate=accumulate)
        return
    out.quiet = err.quiet = found()[0] > 0
    with processes(device) as group:
        yield Sharing(group, accumulate)


def _own(device: torch.device, sharing: Sharing) -> torch.device:
    """The device of this process."""
    return device if sharing.group is None else sharing.group.device


def _followed(stages: Sequence[Stage], sharing: Sharing, tensorboard: bool) -> bool:
    """Run stages to the end; whether this process is the one that says so."""
    from diagonal.training.stages import run

    first = sharing.group is None or sharing.group.writes
    follow(stages, run(stages), tensorboard and first)
    return first


def _run(stage: Stage, shared: Line, sharing: Sharing, tensorboard: bool, as_json: bool) -> None:
    """Train one stage and say what came out."""
    start = time.perf_counter()
    if not _followed([stage], sharing, tensorboard):
        return
    shared |= {"seconds": time.perf_counter() - start}
    if as_json:
        print_json(shared | stage.result())
    else:
        _print([stage], shared)


def follow(stages: Sequence[Stage], lines: Iterator[tuple[str, Line]], tensorboard: bool) -> None:
    """Consume the lines of a run, with one bar per stage."""
    from diagonal.training.loop import begun

    boards = {stage.name: _board(stage.folder) for stage in stages} if tensorboard else {}
    for stage in stages:
        if begun(stage.folder):
            err.print(f"{stage.folder} was begun before: going on from its checkpoint", markup=False)
    with progress_bar("steps") as progress, ExitStack() as stack:
        tasks = {stage.name: progress.add_task(stage.name, total=stage.steps, note="") for stage in stages}
        validation: dict[str, Line] = {}
        for name, line in lines:
            validation[name] = _validation(line) or validation.get(name, {})
            numbers = {key: line[key] for key in ("loss",) if key in line} | validation[name]
            progress.update(tasks[name], completed=line["step"], note=_text(numbers))
            if name in boards and "loss" in line:
                boards[name](stack, line)


def _board(folder: Path) -> Callable[[ExitStack, Line], None]:
    """Writes lines as TensorBoard's scalars beside the curve."""
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs TensorBoard: pip install tensorboard. curve.jsonl is written without it")
    writers: list[Any] = []

    def write(stack: ExitStack, line: Line) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if not writers:
            writers.append(SummaryWriter(str(folder)))
            stack.callback(writers[0].close)
        for key, value in line.items():
            if key != "step":
                writers[0].add_scalar(key, value, line["step"])

    return write


def _validation(line: Line) -> Line:
    return {key: value for key, value in line.items() if key.startswith("val_")}


def _text(numbers: Line) -> str:
    return "  ".join(f"{key.removeprefix('val_')} {value:.3f}" for key, value in numbers.items())


def _print(stages: Sequence[Stage], shared: Line) -> None:
    table = Table("stage", "steps", "loss", "held out", box=None)
    for stage in stages:
        last = stage.result()
        table.add_row(stage.name, f"{stage.steps}", f"{last['loss']:.3f}", _text(_validation(last)))
    out.print(table)
    for stage in stages:
        out.print(f"{stage.name}: weights in {stage.folder / 'model.safetensors'}", markup=False)
    out.print(f"recipe {shared['recipe']}, {shared['seconds']:.1f} s", markup=False)
