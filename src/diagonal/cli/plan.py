"""`diagonal plan`: what a schedule does and what memory a model takes, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from diagonal.cli import Json, Refeed, StandInOption, app, make_order, out, print_json, refuse
from diagonal.cli.plan_video import plan_video
from diagonal.planning.plan import StandIn

if TYPE_CHECKING:
    from diagonal.catalog.variants import Variant
    from diagonal.planning.plan import Order, Plan


# Options that only one kind of model knows.
TOKENS_ONLY = ("prefix", "suffix", "known_frames", "batch", "card", "stand_in", "refeed", "picture")
DIFFUSION_ONLY = ("preset", "height", "width")


@app.command()
def plan(
    context: typer.Context,
    grid: Annotated[str | None, typer.Option(help="FRAMESxROWSxCOLS of all token frames, known ones included.")] = None,
    model: Annotated[str | None, typer.Option(help="Instead: a name from `diagonal models`, with its memory.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="raster, diagonal:k=1,d=10 or window:s=8; of a diffusion model steps, such as 4322222."),
    ] = None,
    prefix: Annotated[
        int | None, typer.Option(help="Tokens before the first frame. Default: 1 if no frame is known.")
    ] = None,
    suffix: Annotated[int | None, typer.Option(help="Given tokens after each frame (actions). Default: 0.")] = None,
    known_frames: Annotated[
        int | None, typer.Option(help="Token frames that are a prompt. Default: 0, or the model's reference frames.")
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", "--num-frames", min=1, help="New frames of the model. Default: a window.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Of a diffusion model: how it is run.")] = "diagonal-distillation",
    height: Annotated[int | None, typer.Option(min=1, help="Of a diffusion model's frames.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Of a diffusion model's frames.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the model: bfloat16 (default) or float32.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Clips at once. Default: 1.")] = None,
    card: Annotated[
        float | None, typer.Option(min=1, help="Memory of your GPU in GB. Default: well-known ones.")
    ] = None,
    stand_in: StandInOption = StandIn.PREVIOUS_FRAME,
    refeed: Refeed = True,
    picture: Annotated[Path | None, typer.Option(help="Also draw the wave into this PNG.")] = None,
    as_json: Json = False,
) -> None:
    """Show a schedule: its steps and the wave, or a diffusion model's chunks; for a model, also the memory it takes."""
    from diagonal.media.draw import save_plan, wave
    from diagonal.planning.grid import Grid, Layout
    from diagonal.planning.plan import make_plan

    if (grid is None) == (model is None):
        raise ValueError("give --grid, for a plan without a model, or --model: one of the two")
    if model is not None and plan_video(context, TOKENS_ONLY):
        return
    refuse(context, DIFFUSION_ONLY, "tokens")
    order = make_order(schedule or "diagonal:k=1", stand_in, refeed)
    memory: dict[str, Any] = {}
    if grid is not None:
        _refuse("--grid", {"--frames": frames, "--dtype": dtype, "--batch": batch, "--card": card})
        known = known_frames or 0
        start = (known == 0) if prefix is None else prefix
        plans = [make_plan(Layout(Grid.parse(grid), int(start), suffix or 0), order, known)]
    else:
        from diagonal.catalog.names import find

        _refuse("--model", {"--prefix": prefix, "--suffix": suffix})
        variant = find("models", str(model))
        plans = _plans(variant, order, known_frames, frames)
        memory = {"model": model} | _memory(variant, plans, batch or 1, dtype or "bfloat16", card)
    made = plans[0]
    numbers = {
        "grid": str(made.layout.grid),
        "schedule": str(order),
        "steps": len(made.steps),
        "tokens": made.tokens,
        "max_width": int(made.decoded.max()),
        "mean_width": made.tokens / len(made.steps),
        "max_inputs": int(made.widths[1:].max(initial=0)),
        "prompt_inputs": int(made.widths[0]),
        "speedup": made.speedup,
    }
    if picture is not None:
        title = f"{order} on {numbers['grid']}: {len(made.steps)} steps, {made.speedup:.1f}x fewer than raster"
        save_plan(made, picture, title)
    if as_json:
        print_json(numbers | memory | ({} if picture is None else {"picture": str(picture)}))
        return
    out.print(wave(made, out.width))
    table = Table("", "", box=None, show_header=False)
    table.add_row("steps", f"{len(made.steps)}")
    table.add_row("tokens decoded", f"{made.tokens}")
    table.add_row("widest step", f"{numbers['max_width']} tokens decoded, {numbers['max_inputs']} fed")
    table.add_row("mean width", f"{numbers['mean_width']:.2f} tokens per step")
    table.add_row("speed-up over raster", f"{made.speedup:.2f}x fewer steps")
    if memory:
        _add_memory(table, memory, made)
    out.print(table)


def _refuse(instead: str, given: dict[str, Any]) -> None:
    """Options that would have no effect are not taken silently."""
    idle = [name for name, value in given.items() if value is not None]
    if idle:
        raise ValueError(f"{', '.join(idle)} cannot go with {instead}; leave it out")


def _plans(variant: Variant, order: Order, known: int | None, frames: int | None) -> list[Plan]:
    """The plans of a model's windows that make so many new frames, as `generate` would."""
    import torch

    from diagonal.catalog.names import find
    from diagonal.engine.tokens.decode import plans, spans

    config = variant.config
    known = config.reference_frames if known is None else known
    new = max(config.frames - known, 1)
    if frames is not None:
        with torch.device("meta"):
            stride = find("tokenizers", variant.tokenizer).build().stride
        single = known == 0  # a video's first token frame holds one frame, each later one `stride`
        new, odd = divmod(frames - single, stride)
        new += single
        if odd:
            raise ValueError(
                f"--frames {frames} given; new frames come {stride} at a time: write {frames - odd + stride}"
            )
    return plans(variant.layout(known + new), spans(new, known, config.frames, config.reference_frames), order)


def _memory(variant: Variant, plans: list[Plan], batch: int, dtype: str, card: float | None) -> dict[str, Any]:
    """The numbers of `diagonal.memory` over all windows, in GB, and which cards they fit."""
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.memory import CARDS, GB, estimate

    chosen = find_dtype(dtype, "cpu")
    needs = estimate(variant, plans, batch, chosen)
    return {
        "windows": len(plans),
        "all_steps": sum(len(plan.steps) for plan in plans),
        "dtype": str(chosen).removeprefix("torch."),
        "batch": batch,
        "slots": max(plan.layout.length for plan in plans),
        "weights_gb": needs.weights / GB,
        "tokenizer_gb": needs.tokenizer / GB,
        "cache_gb": needs.cache / GB,
        "activations_gb": needs.activations / GB,
        "peak_gb": needs.peak / GB,
        "fits": {f"{one:g}": needs.peak <= one * GB for one in (CARDS if card is None else [card])},
    }


def _add_memory(table: Table, memory: dict[str, Any], made: Plan) -> None:
    if memory["windows"] > 1:
        table.add_row("windows", f"{memory['windows']} one after the other, {memory['all_steps']} steps in all")
    clips = f" of {memory['batch']} clips" if memory["batch"] > 1 else ""
    table.add_row("weights", f"{memory['weights_gb']:.2f} GB in {memory['dtype']}")
    table.add_row("tokenizer", f"{memory['tokenizer_gb']:.2f} GB")
    table.add_row("key/value cache", f"{memory['cache_gb']:.2f} GB for {memory['slots']} tokens{clips}")
    table.add_row("activations", f"{memory['activations_gb']:.2f} GB for {made.widths.max()} inputs at once{clips}")
    table.add_row("peak memory", f"{memory['peak_gb']:.2f} GB")
    if len(memory["fits"]) == 1:
        ((card, fits),) = memory["fits"].items()
        apart = abs(float(card) - memory["peak_gb"])
        table.add_row(
            f"on {card} GB", f"fits, {apart:.2f} GB to spare" if fits else f"does not fit: {apart:.2f} GB too much"
        )
        return
    for words, wanted in (("fits GPUs of", True), ("does not fit", False)):
        cards = [card for card, fits in memory["fits"].items() if fits is wanted]
        if cards:
            table.add_row(words, f"{', '.join(cards)} GB")
