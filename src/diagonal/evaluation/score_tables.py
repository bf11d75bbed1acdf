"""How scores of folders are shown: as JSON with all that they depend on, as one table, as a sheet of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from diagonal.evaluation import manifest, metrics
from diagonal.evaluation.clips import evenly
from diagonal.evaluation.folders import Folder
from diagonal.evaluation.metrics import Better
from diagonal.evaluation.report import as_json
from diagonal.evaluation.scores import Job, versions
from diagonal.evaluation.statistics import Interval
from diagonal.media.draw import Panel, Point, save_panels
from diagonal.media.files import atomic
from diagonal.media.video import resize, write_picture

ARROWS = {Better.HIGHER: "↑", Better.LOWER: "↓", Better.NEITHER: ""}
SHEET_FRAMES = 8
SHEET_HEIGHT = 240  # pixels of a frame, at most


def content(job: Job, extra: Mapping[str, Any]) -> dict[str, Any]:
    """All that was found, and all that it depends on."""
    return {
        **extra,
        "scores": [asdict(one) | _meaning(one.metric) for one in job.results],
        "refused": {one.metric: one.reason for one in job.refusals},
        "folders": {folder.name: _facts(folder) for folder in job.folders},
        "reference": job.reference and _facts(job.reference),
        "weights_sha256": job.weights,
        "device": str(job.setting.device),
        "versions": versions(),
    }


def _meaning(metric: str) -> dict[str, str]:
    about = metrics.find(metric)[0].about
    return {"better": about.better.value, "reference": about.reference.value, "citation": about.citation}


def _facts(folder: Folder) -> dict[str, Any]:
    first = next(iter(folder.videos.values()))
    return {
        "path": str(folder.path),
        "sha256": folder.sha256,
        "clips": len(folder.videos),
        "frames": first.length,
        "height": first.header.height,
        "width": first.header.width,
        "fps": float(first.header.fps),
        "codec": first.header.codec,
    } | ({"run": run} if (run := manifest.run_of(folder.path)) else {})


def rows(job: Job) -> list[tuple[str, list[str]]]:
    """A row for each metric, a cell for each folder."""
    order = dict.fromkeys(one.metric for one in job.results)
    found = {(one.metric, one.folder): short(one.value) for one in job.results}
    return [(_label(name), [found[name, folder.name] for folder in job.folders]) for name in order]


def _label(metric: str) -> str:
    return f"{metric} {ARROWS[metrics.find(metric)[0].about.better]}".strip()


def short(value: Interval) -> str:
    """A mean and its interval, with as many digits as the interval leaves certain."""
    wide = value.high - value.low
    digits = 3 if wide == 0 else int(np.clip(1 - np.floor(np.log10(wide)), 0, 5))
    return f"{value.mean:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def markdown(job: Job) -> str:
    """The table, and below it what could not be had."""
    names = [folder.name for folder in job.folders]
    lines = ["| metric | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {label} | " + " | ".join(cells) + " |" for label, cells in rows(job)]
    lines += ["", *(f"- {one.metric}: {one.reason}" for one in job.refusals)] if job.refusals else []
    return "\n".join(lines) + "\n"


def write(job: Job, folder: Path, extra: Mapping[str, Any]) -> None:
    """scores.json, scores.md, sheet.png and, where a metric has a curve over time, curves.png."""
    for name, text in (("scores.json", as_json(content(job, extra))), ("scores.md", markdown(job))):
        with atomic(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    panels = curves(job)
    if panels:
        save_panels(panels, folder / "curves.png", "over time, with 95 % intervals over clips")
    write_picture(folder / "sheet.png", sheet([*filter(None, [job.reference]), *job.folders]))


def curves(job: Job) -> list[Panel]:
    """A panel for each metric that has a curve, with a line for each folder."""
    names = dict.fromkeys(one.metric for one in job.results if len(one.over_time) > 1)
    panels = []
    for name in names:
        lines = {
            one.folder: [
                Point((span.first + span.last - 1) / 2, span.value.mean, span.value.low, span.value.high)
                for span in one.over_time
            ]
            for one in job.results
            if one.metric == name
        }
        better = metrics.find(name)[0].about.better
        panels.append(
            Panel("frame", name + ("" if better is Better.NEITHER else f" ({better.value} is better)"), lines)
        )
    return panels


def sheet(folders: Sequence[Folder]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Frames of the middle clip of each folder, one row a folder."""
    lines = []
    size: tuple[int, int] | None = None
    for folder in folders:
        videos = list(folder.videos.values())
        frames = videos[len(videos) // 2].load().frames_TCHW.permute(0, 2, 3, 1)
        some = frames[evenly(len(frames), SHEET_FRAMES)].numpy()
        height, width = some.shape[1:3]
        size = size or (min(height, SHEET_HEIGHT), round(width * min(height, SHEET_HEIGHT) / height))
        lines.append(np.concatenate(list(resize(some, *size)), axis=1))
    widest = max(line.shape[1] for line in lines)
    padded = [np.pad(line, ((0, 0), (0, widest - line.shape[1]), (0, 0))) for line in lines]
    return np.concatenate(padded)
