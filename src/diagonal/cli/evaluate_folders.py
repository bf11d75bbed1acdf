"""`diagonal evaluate A B --reference REAL`: scores of videos from any program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.console import Console
from rich.table import Table

from diagonal.cli import out, print_json, progress_bar

if TYPE_CHECKING:
    from diagonal.evaluation.metrics import Setting
    from diagonal.evaluation.scores import Job
    from diagonal.evaluation.vbench_itself import Environment

ALONE = "temporal_flickering,spatial_information,temporal_information,drift"
WITH_TRUTH = "psnr,ssim"
WIDTH = 1000  # letters of a line of a table: a narrow terminal wraps it, and hides nothing


@dataclass(frozen=True, kw_only=True)
class Folders:
    """What is scored instead of a world."""

    panel: ClassVar[str] = "Folders"

    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of videos to score, from any program; no world is run then.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Videos:
    """How folders of videos are scored."""

    panel: ClassVar[str] = "Folders of videos"

    reference: Annotated[Path | None, typer.Option(help="Folder of real videos; partners have the same name.")] = None
    metrics: Annotated[
        str | None, typer.Option(help="'psnr,fvd:cd-fvd,...'; 'all' for all. Default: what needs no weights.")
    ] = None
    metric_weights: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder (or hub id) with files of weights, or NAME=PATH of one, by published names; may be repeated."
        ),
    ] = None
    first: Annotated[int | None, typer.Option(min=1, help="Only so many frames of each video.")] = None
    vbench: Annotated[
        Path | None, typer.Option(help="Python of an environment with VBench, which scores the folders too.")
    ] = None
    vbench_info: Annotated[
        Path | None,
        typer.Option(help="Its VBench_full_info.json: all sixteen dimensions, of videos with its prompts as names."),
    ] = None

    def __post_init__(self) -> None:
        if self.vbench_info is not None and self.vbench is None:
            raise ValueError(f"--vbench-info {self.vbench_info} needs --vbench: the Python of VBench's environment")
        if self.vbench is not None and self.first is not None:
            raise ValueError(f"--first {self.first} cannot go with --vbench, which looks at whole files")


@dataclass(frozen=True, slots=True)
class Run:
    """Where it computes, and where the result goes."""

    device: str
    lpips: Path | None
    out: Path | None
    as_json: bool
    vbench: Path | None = None
    vbench_info: Path | None = None

    def environment(self) -> Environment | None:
        """VBench's own, where it is asked for."""
        from diagonal.evaluation.vbench_itself import Environment

        if self.vbench is None:
            return None
        if self.out is None:
            raise ValueError("--vbench needs --out, a folder for what it writes")
        return Environment(self.vbench, self.out, self.vbench_info, self.device)


def evaluate_folders(paths: Sequence[Path], videos: Videos, run: Run) -> None:
    """Score the folders, and show what came out."""
    job = as_job(paths, videos, run)
    content = work(job, run, {})
    if run.as_json:
        print_json(content)
        return
    show(job, run.out)
    show_vbench(content.get("vbench", {}))


def as_job(paths: Sequence[Path], videos: Videos, run: Run) -> Job:
    """What these options ask for, checked."""
    from diagonal.evaluation.folders import Folder
    from diagonal.evaluation.scores import Job, check

    if run.out is not None:
        run.out.mkdir(parents=True, exist_ok=True)
    folders = [Folder.of(path, videos.first) for path in paths]
    reference = None if videos.reference is None else Folder.of(videos.reference, videos.first)
    setting = _setting(videos.metric_weights or (), run)
    keep = None if run.out is None else run.out / "kept"
    job = Job(folders, reference, chosen(videos.metrics, reference is not None), setting, keep)
    check(job)
    return job


def work(job: Job, run: Run, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Score with a progress bar, write where that is asked for, and give the result as JSON takes it; `extra` is what
    else is known of the videos."""
    from diagonal.evaluation.score_tables import content, write
    from diagonal.evaluation.scores import score

    environment = run.environment()
    if environment is not None:
        environment.check(job.folders)
        extra = {**extra, "vbench": _vbench(job, environment)}
    with progress_bar("videos") as progress:
        task = progress.add_task("scoring", total=job.looks, note="")
        for note in score(job):
            progress.update(task, advance=1, note=note)
    if run.out is not None:
        write(job, run.out, extra)
    return content(job, extra)


def _vbench(job: Job, environment: Environment) -> dict[str, Any]:
    """What VBench says of each folder, with a progress bar."""
    from diagonal.evaluation.vbench_itself import Scored, run

    found = {}
    with progress_bar("dimensions") as progress:
        total = len(job.folders) * len(environment.dimensions)
        task = progress.add_task("VBench", total=total, note=environment.dimensions[0])
        for done in run(environment, job.folders):
            if isinstance(done, Scored):
                found[done.folder] = done.content()
            else:
                progress.update(task, advance=1, note=f"{done[0]} {done[1]}")
    return found


def chosen(text: str | None, truth: bool) -> list[str]:
    """Names of metrics, each known; without a word those that need no files."""
    from diagonal.evaluation import metrics

    if text == "all":
        every = [(name, metrics.find(name)[0].about) for name in metrics.names()]
        return [name for name, about in every if truth or about.reference is metrics.Reference.NONE]
    names = (text or (f"{WITH_TRUTH},{ALONE}" if truth else ALONE)).split(",")
    for name in names:
        metrics.find(name)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"--metrics names {', '.join(sorted(twice))} twice")
    return names


def _setting(given: Sequence[str], run: Run) -> Setting:
    """Where files of weights are: by name, in a folder, or in a repository of the hub."""
    from diagonal.checkpoints import locate
    from diagonal.evaluation.metrics import Setting
    from diagonal.evaluation.metrics.lpips import WEIGHTS

    folder: Path | None = None
    files = {} if run.lpips is None else {WEIGHTS.name: run.lpips}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals or Path(text).exists():
            name, equals, source = "", "", text
        try:
            path = locate(source)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"--metric-weights {text}: {error}") from error
        if equals:
            if not path.is_file():
                raise IsADirectoryError(f"--metric-weights {text}: {source} is a folder; {name} is one file")
            files[name] = path
        elif not path.is_dir():
            raise NotADirectoryError(f"--metric-weights {text} is one file; say which: NAME={text}")
        elif folder is not None:
            raise ValueError(f"--metric-weights names two folders, {folder} and {text}; put the files into one")
        else:
            folder = path
    _check_names(files)
    return Setting(folder=folder, files=files, device=run.device)


def _check_names(files: Mapping[str, Path]) -> None:
    """Refuse names that no metric asks for: they would have no effect."""
    from diagonal.evaluation import metrics

    abouts = [metrics.find(name)[0].about for name in metrics.names()]
    known = sorted(
        {file.name for about in abouts for variant in about.variants or ("",) for file in about.needs(variant)}
    )
    for name in files.keys() - set(known):
        raise ValueError(f"--metric-weights {name}=...: no metric asks for {name}; they ask for {', '.join(known)}")


def show(job: Job, folder: Path | None) -> None:
    """The table, differences, and what could not be had."""
    from diagonal.evaluation.score_tables import rows, short

    table = Table("metric", *(one.name for one in job.folders), box=None, padding=(0, 2, 0, 0))
    for label, cells in rows(job):
        table.add_row(label, *cells)
    for column in table.columns:
        column.no_wrap = True
    Console(width=WIDTH, highlight=False).print(table)
    for score in job.results:
        if score.minus_first is not None:
            apart = short(score.minus_first)
            out.print(f"{score.metric} of {score.folder} minus {job.folders[0].name}: {apart}", markup=False)
    for refusal in job.refusals:
        out.print(f"not had: {refusal.metric} {refusal.reason}", markup=False)
    real = f", {len(job.reference.videos)} real ones" if job.reference else ""
    out.print(f"{len(job.folders[0].videos)} videos{real}; intervals are 95 %, over clips", markup=False)
    if folder is not None:
        drawn = "curves.png and sheet.png" if any(len(one.over_time) > 1 for one in job.results) else "sheet.png"
        out.print(f"scores.json, scores.md, {drawn} in {folder}", markup=False)


def show_vbench(found: Mapping[str, Any]) -> None:
    """VBench's own table: a row for each dimension, and the totals where all sixteen are there."""
    if not found:
        return
    table = Table("VBench", *found, box=None, padding=(0, 2, 0, 0))
    for dimension in next(iter(found.values()))["scores"]:
        table.add_row(dimension, *(f"{one['scores'][dimension]:.4f}" for one in found.values()))
    for total in ("quality", "semantic", "total"):
        if all(one["totals"] for one in found.values()):
            table.add_row(total, *(f"{one['totals'][total]:.4f}" for one in found.values()))
    out.print(table)
    missing = next(iter(found.values()))["missing"]
    if missing:
        out.print(f"no totals: {', '.join(missing)} were not scored", markup=False)
