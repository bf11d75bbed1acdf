"""The half of `diagonal sweep` that is for diffusion models: step strings and context levels, on videos of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from diagonal.cli import progress_bar
from diagonal.cli.evaluate_folders import Run, Videos, as_job, work
from diagonal.cli.options import Computing, WorldSource, chosen, given, refuse
from diagonal.cli.spread import Spread
from diagonal.cli.video import load_video, read_preset

if TYPE_CHECKING:
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.evaluation.prompted import Planned
    from diagonal.generation.components import Weights
    from diagonal.generation.request import Request
    from diagonal.planning.denoising import ChunkSchedule


@dataclass(frozen=True, kw_only=True)
class StepGrid:
    """Which denoising schedules are measured, on what."""

    panel: ClassVar[str] = "Diffusion models"

    prompts: Annotated[Path | None, typer.Option(help="File of prompts, as for video.")] = None
    each: Annotated[int | None, typer.Option(min=1, help="Videos of each prompt. Default: 1.")] = None
    steps: Annotated[str | None, typer.Option(help="Step strings, by commas: 4322222,2222222.")] = None
    context_levels: Annotated[
        str | None, typer.Option(help="Each with every step string, by commas: 100,t250,clean. Default: 100.")
    ] = None
    preset: Annotated[str | None, typer.Option(help="How else it is run, as for video.")] = None
    reference: Annotated[Path | None, typer.Option(help="Folder of real videos, for metrics that ask for them.")] = None
    height: Annotated[int | None, typer.Option(min=1, help="Of the frames. Default: the model's.")] = None
    width: Annotated[int | None, typer.Option(min=1, help="Likewise.")] = None
    vae: Annotated[str | None, typer.Option(help="Its VAE, if it is apart.")] = None
    text_encoder: Annotated[str | None, typer.Option(help="Its text encoder, if it is apart.")] = None

    def schedules(self, others: list[str] | None) -> list[str]:
        """Every step string at every context level, behind the others."""
        from diagonal.planning.denoising import parse

        if self.context_levels is not None and self.steps is None:
            raise ValueError(f"--context-levels {self.context_levels} needs --steps, the step strings that have them")
        found = [*(others or []), *(_scheduled(*one) for one in product(_values(self.steps), self._contexts()))]
        if not found:
            raise ValueError("--steps, such as 4322222,2222222, or --schedule say what a diffusion model is swept over")
        once: dict[ChunkSchedule, str] = {}
        for text in found:
            once.setdefault(parse(text), text)
        return list(once.values())

    def _contexts(self) -> list[str]:
        return _values(self.context_levels) or [""]


def _values(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _scheduled(steps: str, context: str) -> str:
    return f"diagonal:steps={steps},context={context}" if context else steps


@dataclass(frozen=True)
class Requests:
    """All that is made: a request for each schedule, the same videos of each."""

    name: str
    source: Weights
    by_schedule: Mapping[str, Request]
    videos: list[Planned]


@dataclass(frozen=True)
class Sweeping:
    """All that a process needs to make videos under several schedules: called, it loads the model."""

    asked: Requests
    device: str
    folders: Mapping[str, Path]

    def __call__(self) -> Callable[[tuple[str, Planned]], float]:
        """What makes a video under a schedule, in a folder that has no videos of other models."""
        from diagonal.evaluation.manifest import check_run
        from diagonal.evaluation.prompted import Asked, make

        model = load_video(self.asked.name, self.asked.source, Computing(device=self.device))
        ways = {text: Asked(model, request) for text, request in self.asked.by_schedule.items()}
        for text, folder in self.folders.items():
            check_run(folder, ways[text].facts())
        return lambda item: make(ways[item[0]], item[1], self.folders[item[0]])


def swept_video(asked: Requests, reference: Path | None, videos: Videos, run: Run, spread: Spread) -> dict[str, Any]:
    """Scores and speed of every schedule; videos that are there are not made again."""
    from diagonal.catalog.names import find
    from diagonal.generation.load import label_of

    assert run.out is not None
    folders = {text: _folder(run.out.resolve(), text) for text in asked.by_schedule}
    _check_folders(asked, folders)
    _make(Sweeping(asked, run.device, folders), spread)
    job = as_job(list(folders.values()), replace(videos, reference=reference), run)
    speed = {folder.name: _speed(text, folder) for text, folder in folders.items()}
    weights = label_of(asked.name, find("models", asked.name), asked.source.transformer)
    return work(job, run, {"run": {"model": asked.name, "weights": weights}, "speed": speed})


def requests_of(source: WorldSource, grid: StepGrid, schedules: list[str], frames: int | None) -> Requests:
    """What is asked for, or why it cannot be had: known before a model is loaded."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import diffusion_variant
    from diagonal.evaluation.prompted import planned
    from diagonal.generation import checks
    from diagonal.generation.components import Weights
    from diagonal.generation.request import Request
    from diagonal.text.prompt_files import prompts

    name, variant = source.model, diffusion_variant(find("models", source.model), source.model)
    options = given(source)
    refuse({key: options[key] for key in ("tokenizer", "lora") if key in options}, name)
    if grid.prompts is None:
        raise ValueError(f"--prompts, a file of prompts, is needed: {name} makes videos of texts")
    weights = Weights(source.weights, **chosen(grid, "vae", "text_encoder"))
    texts = prompts(grid.prompts)
    how = chosen(grid, "height", "width") | read_preset(grid.preset)
    by_schedule = {
        text: Request(prompt=texts[0], num_frames=frames or variant.frames, schedule=text, **how) for text in schedules
    }
    checks.check_weights(name, variant, weights.transformer)
    for request in by_schedule.values():
        checks.check_request(name, variant, request)
    _check_texts(variant, weights, texts)
    return Requests(name, weights, by_schedule, planned(texts, grid.each or 1, 0))


def _check_texts(variant: DiffusionVariant, weights: Weights, texts: list[str]) -> None:
    from diagonal.generation import checks

    if weights.text_encoder is None:
        checks.check_texts(variant, texts)


def _folder(out: Path, schedule: str) -> Path:
    from diagonal.evaluation.generated import named

    return out / "videos" / named(schedule)


def _check_folders(asked: Requests, folders: Mapping[str, Path]) -> None:
    """Refuse folders with videos of other prompts: they would be scored as well."""
    wanted = {f"{one.name}.mp4" for one in asked.videos}
    for folder in folders.values():
        others = sorted({file.name for file in folder.glob("[!.]*.mp4")} - wanted)
        if others:
            raise ValueError(f"{folder} holds {len(others)} videos of other prompts, {others[0]!r} ...; another --out")


def _make(sweeping: Sweeping, spread: Spread) -> None:
    from diagonal.evaluation.prompted import made

    videos, new = sweeping.asked.videos, []
    for text, folder in sweeping.folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        there = made(folder, videos)
        new += [(text, one) for one in videos if one.name not in there]
    count = len(sweeping.folders) * len(videos)
    with progress_bar("videos") as progress:
        task = progress.add_task(sweeping.asked.name, total=count, completed=count - len(new), note="")
        for (text, video), fps in spread.each(
            sweeping, new, lambda item: f"{item[1].name} under {item[0]}", sweeping.device
        ):
            note = f"{sweeping.folders[text].name} {fps:.1f} FPS, {video.name[:30]}"
            progress.update(task, advance=1, note=note)


def _speed(schedule: str, folder: Path) -> dict[str, Any]:
    """What the videos of a schedule took."""
    from diagonal.evaluation.frontier import calls, frame_rate
    from diagonal.evaluation.manifest import entries

    taken = entries(folder)
    return {"schedule": schedule, "calls": asdict(calls(taken)), "fps": asdict(frame_rate(taken))}
