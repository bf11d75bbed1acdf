"""`diagonal plan`: what a schedule does and what memory a model takes, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, out, print_json
from diagonal.cli.options import Json, RowStarts, flat, given, refuse
from diagonal.cli.plan_parallel import add_predicted, predict
from diagonal.cli.plan_video import VideoPlan, VideoPlanned
from diagonal.planning.decoding import DEFAULT

if TYPE_CHECKING:
    from diagonal.catalog.variants import Variant
    from diagonal.planning.plan import Order, Plan


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What is planned: a grid of tokens, or a model."""

    panel: ClassVar[str] = "What to plan"

    grid: Annotated[str | None, typer.Option(help="FRAMESxROWSxCOLS of all token frames, known ones included.")] = None
    model: Annotated[str | None, typer.Option(help="Instead: a name from `diagonal models`, with its memory.")] = None
    frames: Annotated[
        int | None, typer.Option("--frames", "--num-frames", min=1, help="New frames of the model. Default: a window.")
    ] = None
    dtype: Annotated[str | None, typer.Option(help="Of the model: bfloat16 (default) or float32.")] = None
    schedule: Annotated[
        str | None,
        typer.Option(help=f"As for generate ({DEFAULT}); of a diffusion model steps, such as 4322222."),
    ] = None
    picture: Annotated[Path | None, typer.Option(help="Also draw the wave into this PNG.")] = None
    as_json: Json = False

    def __post_init__(self) -> None:
        if (self.grid is None) == (self.model is None):
            raise ValueError("give --grid, for a plan without a model, or --model: one of the two")


@dataclass(frozen=True, kw_only=True)
class TokensPlanned:
    """What is known of tokens, and how their plan is shown."""

    panel: ClassVar[str] = "Grids and token worlds"

    prefix: Annotated[
        int | None, typer.Option(help="Tokens before the first frame. Default: 1 if no frame is known.")
    ] = None
    suffix: Annotated[int | None, typer.Option(help="Given tokens after each frame (actions). Default: 0.")] = None
    known_frames: Annotated[
        int | None, typer.Option(help="Token frames that are a prompt. Default: 0, or the model's reference frames.")
    ] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Clips at once. Default: 1.")] = None
    card: Annotated[float | None, typer.Option(min=1, help="Memory of your GPU in GB. Default: well-known ones.")] = (
        None
    )
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="GPUs that share the model. Default: 1.")] = None
    measured: Annotated[
        Path | None, typer.Option(help="What bench --out wrote on one GPU: also predict the step on several.")
    ] = None
    mask: Annotated[Path | None, typer.Option(help="Also draw the attention mask of training into this PNG.")] = None


@app.command()
@flat
def plan(planned: Planned, tokens: TokensPlanned, row_starts: RowStarts, video: VideoPlanned) -> None:
    """Show a schedule: its steps and the wave, or a diffusion model's chunks; for a model, also the memory it takes."""
    if planned.model is None:
        refuse(given(video), "tokens")
        _plan_grid(planned, tokens, row_starts.order(planned.schedule))
        return
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.scale.parallel import check_tensor_parallel

    variant = find("models", planned.model)
    if isinstance(variant, DiffusionVariant):
        refuse(given(tokens, row_starts), planned.model)
        request = video.request(planned.frames or variant.frames, planned.schedule).named(variant.preset)
        made = VideoPlan.of(planned.model, variant, request, planned.dtype or "bfloat16")
        if planned.picture is not None:
            made.save(planned.picture)
        made.show(planned.as_json, planned.picture)
        return
    refuse(given(video), "tokens")
    _refuse(given(tokens), ("prefix", "suffix"), "--model")
    order = row_starts.order(planned.schedule)
    plans = _plans(variant, order, tokens.known_frames, planned.frames)
    gpus = tokens.tensor_parallel or 1
    check_tensor_parallel(planned.model, gpus)
    how = (tokens.batch or 1, planned.dtype or "bfloat16", tokens.card, gpus)
    memory = _memory(variant, plans, how) | predict(planned.model, variant, plans, how, tokens.measured)
    _show(plans[0], order, {"model": planned.model} | memory, tokens, planned)


def _plan_grid(planned: Planned, tokens: TokensPlanned, order: Order) -> None:
    from diagonal.planning.grid import Grid, Layout
    from diagonal.planning.plan import make_plan

    _refuse(given(planned, tokens), ("frames", "dtype", "batch", "card", "tensor_parallel", "measured"), "--grid")
    known = tokens.known_frames or 0
    start = int(known == 0) if tokens.prefix is None else tokens.prefix
    layout = Layout(Grid.parse(str(planned.grid)), start, tokens.suffix or 0)
    _show(make_plan(layout, order, known), order, {}, tokens, planned)


def _refuse(options: dict[str, str], names: tuple[str, ...], instead: str) -> None:
    refuse({name: options[name] for name in names if name in options}, instead)


def _show(made: Plan, order: Order, memory: dict[str, Any], tokens: TokensPlanned, planned: Planned) -> None:
    from diagonal.media.attention import save_mask
    from diagonal.media.draw import save_plan, wave

    result = {
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
    pictures = {"picture": planned.picture, "mask": tokens.mask}
    if tokens.mask is not None:
        save_mask(made, tokens.mask, f"{order} on {result['grid']}: who sees whom in training")
    if planned.picture is not None:
        title = f"{order} on {result['grid']}: {len(made.steps)} steps, {made.speedup:.1f}x fewer than raster"
        save_plan(made, planned.picture, title)
    if planned.as_json:
        print_json(result | memory | {name: str(path) for name, path in pictures.items() if path is not None})
        return
    out.print(wave(made, out.width))
    table = Table("", "", box=None, show_header=False)
    table.add_row("steps", f"{len(made.steps)}")
    table.add_row("tokens decoded", f"{made.tokens}")
    table.add_row("widest step", f"{result['max_width']} tokens decoded, {result['max_inputs']} fed")
    table.add_row("mean width", f"{result['mean_width']:.2f} tokens per step")
    table.add_row("speed-up over raster", f"{made.speedup:.2f}x fewer steps")
    if memory:
        _add_memory(table, memory, made)
    out.print(table)


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
            tokenizer = find("tokenizers", variant.tokenizer).build()
        stride = tokenizer.stride
        single = (
            known == 0 and not tokenizer.whole
        )  # a video's first token frame holds one frame, each later one `stride`
        new, odd = divmod(frames - single, stride)
        new += single
        if odd:
            raise ValueError(
                f"--frames {frames} given; new frames come {stride} at a time: write {frames - odd + stride}"
            )
    return plans(variant.layout(known + new), spans(new, known, config.frames, config.reference_frames), order)


def _memory(variant: Variant, plans: list[Plan], how: tuple[int, str, float | None, int]) -> dict[str, Any]:
    """The estimate of `generation.memory` over all windows, in GB, of each GPU, and which cards they fit."""
    batch, dtype, card, gpus = how
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.memory import CARDS, GB, estimate

    chosen = find_dtype(dtype, "cpu")
    needs = estimate(variant, plans, batch, chosen, gpus)
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
    table.add_row("peak memory", f"{memory['peak_gb']:.2f} GB" + (" of each GPU" if "gpus" in memory else ""))
    add_predicted(table, memory)
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
