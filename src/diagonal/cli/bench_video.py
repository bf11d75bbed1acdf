"""The half of `diagonal bench` that is for diffusion models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from diagonal.cli import out, progress_bar, remark_random

COLUMNS = {  # of the printed table, after the schedule: a field and its format
    "calls": ("steps", "{}"),
    "ms\na call": ("mean_ms", "{:.2f}"),
    "floor": ("floor_ms", "{:.2f}"),
    "times\nfloor": ("floor_ratio", "{:.2f}"),
    "FPS": ("fps", "{:.1f}"),
    "with\npixels": ("fps_with_tokenizer", "{:.1f}"),
    "first\nframe ms": ("first_frame_ms", "{:.0f}"),
}


def bench_video(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the schedules that the options of `bench`, by their names, say."""
    from dataclasses import replace

    import torch

    from diagonal.catalog.names import find
    from diagonal.evaluation.speed.video import DEFINITION, VideoSettings, check, measure, prompt
    from diagonal.generation.components import Weights
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load_video_model
    from diagonal.generation.request import Request

    device, name = options["device"], options["model"]
    frames = options["frames"] or find("models", name).frames
    sizes = {name: options[name] for name in ("preset", "height", "width", "decoder")}
    # All that can be refused is refused before a large model is loaded; its prompt comes then.
    requests = [
        Request(prompt_embeds=torch.zeros(1, 1), num_frames=frames, schedule=schedule, **sizes)
        for schedule in options["schedule"] or [None]
    ]
    for request in requests:
        check(request.how(), request)
    source = Weights(options["weights"] or "random", vae=options["tokenizer"])
    model = load_video_model(name, source, device=device, dtype=find_dtype(options["dtype"], device))
    remark_random(name, model.weights)
    if options["quantize"] != "none":
        model.quantize(options["quantize"])
    embeds, cases = prompt(model), []
    with progress_bar("videos") as progress:
        task = progress.add_task(name, total=None, note="")
        for request in requests:
            progress.update(task, note=request.schedule or str(request.preset))
            made = VideoSettings(replace(request, prompt_embeds=embeds), options["repeat"], options["warmup"])
            cases.append(measure(model, made, lambda: progress.advance(task)))
    return {"cases": cases, "definition": DEFINITION}


def print_cases(result: Mapping[str, Any]) -> None:
    """The table of the cases, and where they were measured."""
    table = Table("schedule", *COLUMNS, box=None, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    for case in result["cases"]:
        fields = [(case[field], form) for field, form in COLUMNS.values()]
        steps = case["schedule"].removeprefix("diagonal:steps=").split(",")[0]
        table.add_row(steps, *("" if value is None else form.format(value) for value, form in fields))
    out.print(table)
    one = result["cases"][0]
    out.print(
        f"{one['model']}, {one['parameters']:,} parameters, {one['weights']} weights, {one['dtype']}; {one['frames']} "
        f"frames of {one['width']}x{one['height']}, decoder {one['decoder']}; a prompt of {one['text_rows']} rows; "
        f"{one['device']}, {one['tflops']:.0f} TFLOP/s, PyTorch {one['torch']}, diagonal {one['commit']}"
        + ("" if one["peak_gb"] is None else f"; peak {max(case['peak_gb'] for case in result['cases']):.2f} GB"),
        markup=False,
    )
    out.print(f"\n{result['definition']}", markup=False, style="dim")
