"""Measured results as Markdown tables, on stdout or into a page:

    python benchmarks/table.py [FOLDER] [--into docs/performance.md]
    python benchmarks/table.py --summary [--into README.md]

FOLDER (default: results, beside this file) is searched for JSON files of kind "bench". The page must have the lines
`<!-- bench -->` and `<!-- /bench -->`; what is between them is replaced. `--summary` makes the README's narrow table
instead, between `<!-- summary -->` and `<!-- /summary -->`: speed and quality of every model in one row.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diagonal.generation.components import NONE
from diagonal.media.draw import numbers
from diagonal.media.files import atomic

HEADINGS = (
    "model",
    "schedule",
    "device",
    "dtype",
    "weights",
    "frames",
    "steps",
    "ms a step",
    "floor ms",
    "times floor",
    "FPS",
    "FPS with tokenizer",
    "speed-up",
    "peak GB",
    "commit",
)
VIDEO_HEADINGS = (
    *("model", "schedule", "device", "dtype", "weights", "frames", "prompt", "calls", "ms a call", "floor ms"),
    *("times floor", "FPS", "FPS with pixels", "first frame ms", "peak GB", "commit"),
)
SUMMARY_HEADINGS = ("model", "raster FPS", "diagonal FPS", "speed-up", "what quality costs")
# Of the summary: the demo, the quality of its schedules, and students of two methods with their quality.
DEMO, DEMO_QUALITY = "2026-11-19-cpu-demo.json", "2026-11-15-h200-doom/diagonal.json"
STUDENTS = "2026-11-16-h200-distillation/table-1.json"
NOT_MEASURED = {"mcar": "not measured: weights not public"}  # by family; the others:
NOT_RUN = "not measured: published weights not run yet"
STAR = "\\*"
NOTE = f"{STAR} derived: only the first steps were measured, and the frame rate takes the others to be like them."


def read(folder: Path) -> list[dict[str, Any]]:
    """All cases of the bench results in a folder, file by file: the names begin with dates."""
    files = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return [case for file in files if file.get("kind") == "bench" for case in file["cases"]]


def markdown(cases: Sequence[dict[str, Any]]) -> str:
    """The table, ordered by device, model and dtype, most steps first."""
    if not cases:
        raise ValueError("there are no results of kind 'bench'; make some: diagonal bench --out benchmarks/results/...")
    videos = [case for case in cases if "decoder" in case]
    tokens = [case for case in cases if "decoder" not in case]
    return "\n\n".join(part for part in (_tokens(tokens), _videos(videos)) if part)


def _tokens(cases: Sequence[dict[str, Any]]) -> str:
    """The table of token models. Of a case that several files have, with pixels or without, the newest counts."""
    if not cases:
        return ""
    same = ("device", "model", "schedule", "weights", "frames", "known")
    newest = {}
    for one in cases:
        newest[numbers(one), one["fps_with_tokenizer"] is None, _batch(one), *(one[key] for key in same)] = one
    cases = list(newest.values())
    ordered = sorted(cases, key=lambda case: (*_setting(case), -case["steps"]))
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    lines += ["| " + " | ".join(_cells(case, cases)) + " |" for case in ordered]
    return "\n".join([*lines, *(["", NOTE] if any(case["derived"] for case in cases) else [])])


def _videos(cases: Sequence[dict[str, Any]]) -> str:
    """The table of diffusion models. Of a case that several files have, the newest counts; one that decodes nothing
    is left out where a newer one does: that has the same number."""
    if not cases:
        return ""
    same = ("device", "model", "preset", "schedule", "weights", "frames", "width", "height")
    newest: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for case in cases:
        decoders = newest.setdefault((numbers(case), *(case[key] for key in same)), {})
        decoders.pop(NONE, None)
        decoders[case["decoder"]] = case
    cases = [case for decoders in newest.values() for case in decoders.values()]
    lines = ["| " + " | ".join(VIDEO_HEADINGS) + " |", "|---" * len(VIDEO_HEADINGS) + "|"]
    for case in sorted(cases, key=lambda case: (case["device"], case["model"], case["preset"], case["decoder"])):
        pixels = case["fps_with_tokenizer"]
        cells = [
            case["model"],
            f"`{case['schedule'].removeprefix('diagonal:steps=').split(',')[0]}` ({case['preset']})",
            *(case["device"], case["dtype"], case["weights"]),
            f"{case['frames']} of {case['width']}x{case['height']}",
            f"{case['text_rows']} rows" if "text_rows" in case else "",
            *(f"{case['steps']}", f"{case['mean_ms']:.1f}", f"{case['floor_ms']:.1f}", f"{case['floor_ratio']:.2f}"),
            f"{case['fps']:.1f}",
            "" if pixels is None else f"{pixels:.1f} ({case['decoder']})",
            *(f"{case['first_frame_ms']:.0f}", f"{case['peak_gb'] or 0:.2f}", case["commit"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _setting(case: dict[str, Any]) -> tuple[Any, ...]:
    """Only cases that agree in this can be compared."""
    rest = (case[key] for key in ("weights", "frames", "known", "commit"))
    return (case["device"], case["model"], numbers(case), _batch(case), *rest)


def _batch(case: dict[str, Any]) -> int:
    """Prompts that were decoded together: one, in results from before there could be more."""
    return int(case.get("batch", 1))


def _cells(case: dict[str, Any], cases: Sequence[dict[str, Any]]) -> list[str]:
    star = STAR if case["derived"] else ""
    # Where raster was measured more than once, the last one counts.
    rasters = [one for one in cases if one["schedule"] == "raster" and _setting(one) == _setting(case)][-1:]
    speedups = [
        f"{case['fps'] / raster['fps']:.2f}x{star or (STAR if raster['derived'] else '')}" for raster in rasters
    ]
    return [
        case["model"],
        f"`{case['schedule']}`",
        case["device"],
        numbers(case),
        case["weights"],
        f"{case['frames']}" if _batch(case) == 1 else f"{_batch(case)} x {case['frames']}",
        f"{case['steps']}",
        f"{case['ms_per_step']:.3f}",
        f"{case['floor_ms']:.3f}",
        f"{case['floor_ratio']:.2f}",
        f"{case['fps']:.2f}{star}",
        "" if case["fps_with_tokenizer"] is None else f"{case['fps_with_tokenizer']:.2f}{star}",
        "".join(speedups),
        "" if case["peak_gb"] is None else f"{case['peak_gb']:.2f}",
        case["commit"],
    ]


def summary(folder: Path) -> str:
    """The narrow table: each model's baseline, its fastest diagonal schedule, and what that costs."""
    cases = read(folder)
    rows = [_demo_row(folder), *_token_rows(cases), _students_row(folder), _video_row(cases)]
    lines = ["| " + " | ".join(row) + " |" for row in (SUMMARY_HEADINGS, *rows)]
    return "\n".join([lines[0], "|---" * len(SUMMARY_HEADINGS) + "|", *lines[1:]])


def _load(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _demo_row(folder: Path) -> list[str]:
    demo = _load(folder / DEMO)
    raster, diagonal = ({**row, "fps": demo["frames"] / row["seconds"]} for row in demo["rows"])
    quality = {row["schedule"]: row for row in _load(folder / DEMO_QUALITY)["rows"]}
    costs = [
        f"{name} {quality['raster'][key]['mean']:.3f} to {quality[diagonal['schedule']][key]['mean']:.3f}"
        for name, key in (("LPIPS", "lpips"), ("turns obeyed", "turns_obeyed"))
    ]
    cells = [f"{raster['fps']:.2f}", f"{diagonal['fps']:.2f} (`{diagonal['schedule']}`)"]
    return [f"`doom`, {demo['device']}", *cells, f"{diagonal['fps'] / raster['fps']:.3g}x", ", ".join(costs)]


def _token_rows(cases: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Of each model the newest results; of several diagonal schedules the fastest."""
    newest = {(case["model"], case["schedule"]): case for case in cases if "decoder" not in case and not _bits(case)}
    rasters = [one for (_, schedule), one in newest.items() if schedule == "raster"]
    rows = []
    for raster in sorted(rasters, key=lambda one: (_family(one["model"]), -one["fps"])):
        model = raster["model"]
        others = [one for (name, schedule), one in newest.items() if name == model and schedule != "raster"]
        best = max((one for one in others if _setting(one) == _setting(raster)), key=lambda one: float(one["fps"]))
        star = STAR if raster["derived"] else ""
        speed = [f"{raster['fps']:.2f}{star}", f"{best['fps']:.1f} (`{best['schedule']}`)"]
        ratio = f"{best['fps'] / raster['fps']:.3g}x{star}"
        rows.append([f"`{model}`, {_device(raster)}", *speed, ratio, NOT_MEASURED.get(_family(model), NOT_RUN)])
    return rows


def _students_row(folder: Path) -> list[str]:
    """Students of our small text-to-video world: one of Self Forcing, and one of the method that is shipped."""
    made = _load(folder / STUDENTS)
    rows = {row.get("spec"): row for row in made["rows"]}
    base, ours = rows["self-forcing"], rows["diagonal-distillation-prompts"]
    cells = [f"{base['fps']:.0f} (Self Forcing)", f"{ours['fps']:.0f} (`4322222`)"]
    distances = " to ".join(_interval(row["frechet_idm"]) for row in (base, ours))
    return [f"`doom-t2v`, {_device(made)}", *cells, f"{ours['fps'] / base['fps']:.3g}x", f"`frechet_idm` {distances}"]


def _video_row(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Causal Wan by both presets, from the newest commit that measured both."""
    pairs: dict[str, dict[str, dict[str, Any]]] = {}
    for case in cases:
        if "decoder" in case:
            pairs.setdefault(case["commit"], {})[case["preset"]] = case
    both = [pair for pair in pairs.values() if {"self-forcing", "diagonal-distillation"} <= pair.keys()][-1]
    base, ours = both["self-forcing"], both["diagonal-distillation"]
    cells = [f"{base['fps']:.1f} (Self Forcing)", f"{ours['fps']:.1f} (`4322222`)"]
    return [f"`{ours['model']}`, {_device(ours)}", *cells, f"{ours['fps'] / base['fps']:.3g}x", NOT_RUN]


def _bits(case: dict[str, Any]) -> bool:
    """Whether its weights are quantised."""
    return "quantize" in case and case["quantize"] != "none"


def _family(model: str) -> str:
    return model.partition("/")[0]


def _device(case: dict[str, Any]) -> str:
    return str(case["device"]).removeprefix("NVIDIA ")


def _interval(value: dict[str, float]) -> str:
    return f"{value['mean']:.1f} ±{(value['high'] - value['low']) / 2:.1f}"


def insert(page: Path, table: str, name: str = "bench") -> None:
    """Put the table between the marks of that name in a page."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    text = page.read_text(encoding="utf-8")
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(
            f"{page} must have one line {start} and, after it, one line {end}; the table goes between them"
        )
    before, _, rest = text.partition(start)
    after = rest.partition(end)[2]
    with atomic(page) as temporary:
        temporary.write_text(f"{before}{start}\n{table}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--summary", action="store_true", help="the README's narrow table")
    parser.add_argument("--into", type=Path, help="a page with the two marks; left out: stdout")
    given = parser.parse_args()
    try:
        table = summary(given.folder) if given.summary else markdown(read(given.folder))
        if given.into is None:
            sys.stdout.write(table + "\n")
        else:
            insert(given.into, table, "summary" if given.summary else "bench")
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
