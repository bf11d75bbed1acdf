"""The half of `diagonal bench` that is for diffusion models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import out, progress_bar, remark_random
from diagonal.cli.options import Computing, WorldSource, chosen
from diagonal.cli.prompts import check_computing

if TYPE_CHECKING:
    from diagonal.generation.components import Weights
    from diagonal.generation.request import Request

COLUMNS = {  # of the printed table, after the schedule: a field and its format
    "calls": ("steps", "{}"),
    "ms\na call": ("mean_ms", "{:.2f}"),
    "floor": ("floor_ms", "{:.2f}"),
    "times\nfloor": ("floor_ratio", "{:.2f}"),
    "tokens\na second": ("tokens_per_second", "{:,.0f}"),
    "FPS": ("fps", "{:.1f}"),
    "with\npixels": ("fps_with_tokenizer", "{:.1f}"),
    "first\nframe ms": ("first_frame_ms", "{:.0f}"),
}


@dataclass(frozen=True, kw_only=True)
class VideosMeasured:
    """What is asked of diffusion models alone."""

    panel: ClassVar[str] = "Diffusion models"

    preset: Annotated[str | None, typer.Option(help="How it is run, as for video.")] = None
    decoder: Annotated[str | None, typer.Option(help="vae (default), preview or none.")] = None
    height: Annotated[int | None, typer.Option(min=16, help="Of the frames. Default: the model's.")] = None
    width: Annotated[int | None, typer.Option(min=16, help="Likewise.")] = None

    def requests(self, source: WorldSource, schedules: list[str] | None, frames: int | None) -> list[Request]:
        """A video of so many frames under each schedule, the preset's own where none is given. What can be refused of
        them without the model is refused."""
        from diagonal.catalog.names import find
        from diagonal.catalog.variants import diffusion_variant
        from diagonal.evaluation.speed.video import check
        from diagonal.generation.checks import check_decoder, check_request
        from diagonal.generation.request import Request

        variant = diffusion_variant(find("models", source.model), source.model)
        how, count = chosen(self, "preset", "decoder", "height", "width"), frames or variant.frames
        named: Sequence[str | None] = schedules or (None,)
        found = [Request(prompt="any", num_frames=count, schedule=one, **how).named(variant.preset) for one in named]
        for request in found:
            check(request.how(), request)
            check_request(source.model, variant, request)
            check_decoder(source.model, variant, _weights(source), request.decoder)
        return found


def _weights(source: WorldSource) -> Weights:
    from diagonal.generation.components import Weights

    return Weights(source.weights or "random", vae=source.tokenizer)


def bench_video(
    source: WorldSource, computing: Computing, requests: Sequence[Request], often: dict[str, int]
) -> dict[str, Any]:
    """Measure these videos; `often` are the `VideoSettings` that say how often."""
    from diagonal.checkpoints.quantize import VIDEO_KINDS
    from diagonal.evaluation.speed.video import DEFINITION, VideoSettings, measure, prompt
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load_video_model

    # All that can be refused is refused before a large model is loaded.
    check_computing(computing, VIDEO_KINDS)
    name, device = source.model, computing.device
    model = load_video_model(name, _weights(source), device=device, dtype=find_dtype(computing.dtype, device))
    remark_random(name, model.weights)
    if computing.kind is not None:
        model.quantize(computing.kind)
    embeds, cases = prompt(model), []
    with progress_bar("videos") as progress:
        task = progress.add_task(name, total=None, note="")
        for request in requests:
            progress.update(task, note=request.schedule or str(request.preset))
            made = VideoSettings(replace(request, prompt=None, prompt_embeds=embeds), **often)
            cases.append(measure(model, made, lambda: progress.advance(task)))
    return {"cases": cases, "definition": DEFINITION}


def columns(forms: dict[str, tuple[str, str]], cases: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """The columns of a table for which these cases have values."""
    return {head: (field, form) for head, (field, form) in forms.items() if any(field in case for case in cases)}


def print_kernels(cases: Sequence[Mapping[str, Any]]) -> None:
    """Which implementations computed which operation in any of the cases (see engine/kernels/README.md), and for calls
    of how many tokens."""
    found: dict[str, dict[str, set[int]]] = {}
    for case in cases:
        for operation, implementations in case["kernels"].items():
            name, _, tokens = operation.removesuffix(" tokens").partition(", ")
            for one in implementations.split("; "):
                found.setdefault(name, {}).setdefault(one, set()).update([int(tokens)] if tokens.isdigit() else [])
    table = Table("operation", "computed by", box=None)
    for name in sorted(found):
        table.add_row(name, "; ".join(one + _span(tokens) for one, tokens in found[name].items()))
    out.print(table)


def _span(tokens: set[int]) -> str:
    """From how many tokens to how many."""
    if not tokens:
        return ""
    return f" ({min(tokens)})" if len(tokens) == 1 else f" ({min(tokens)} to {max(tokens)})"


def print_cases(result: Mapping[str, Any]) -> None:
    """The table of the cases, and where they were measured."""
    known = columns(COLUMNS, result["cases"])
    table = Table("schedule", *known, box=None, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    for case in result["cases"]:
        fields = [(case[field], form) for field, form in known.values()]
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
    print_kernels(result["cases"])
    out.print(f"\n{result['definition']}", markup=False, style="dim")
