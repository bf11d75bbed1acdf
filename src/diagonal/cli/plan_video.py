"""The half of `diagonal plan` that is for diffusion models: the chunks of a video, and the memory it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import out, print_json
from diagonal.cli.options import chosen

if TYPE_CHECKING:
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.generation.request import Request
    from diagonal.planning.presets import Preset


@dataclass(frozen=True, kw_only=True)
class VideoPlanned:
    """How a diffusion model is run, and how large its frames are."""

    panel: ClassVar[str] = "Diffusion models"

    preset: Annotated[str | None, typer.Option(help="How it is run, as for video.")] = None
    height: Annotated[int | None, typer.Option(min=1, help="Of the frames. Default: the model's.")] = None
    width: Annotated[int | None, typer.Option(min=1, help="Likewise.")] = None

    def request(self, frames: int, schedule: str | None) -> Request:
        """A video of so many frames, whatever its prompt."""
        from diagonal.generation.request import Request

        how = chosen(self, "preset", "height", "width")
        return Request(prompt="any", num_frames=frames, schedule=schedule, **how)


def plan_video(name: str, variant: DiffusionVariant, request: Request, dtype: str | None, as_json: bool) -> None:
    """Show the chunks of a video, and the memory it takes."""
    from diagonal.catalog.names import find
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.memory import GB, estimate_video
    from diagonal.generation.request import latent_frames, latent_size
    from diagonal.planning.denoising import spec

    how, codec, side = request.how(), find("tokenizers", variant.vae), variant.config.patch
    rows, cols = latent_size(*request.size(variant.size), codec.patch, side)
    frames = latent_frames(request.num_frames or variant.frames, how, codec)
    tokens = (rows // side) * (cols // side)
    chunks = _chunks(how, frames, tokens)
    cached = 0 if how.chunk_frames is None else max(chunk["keys"] for chunk in chunks)
    number = find_dtype(dtype or "bfloat16", "cpu")
    needs = estimate_video(variant, cached, number)
    bytes_of = {"transformer": needs.transformer, "cache": needs.cache, "text": needs.text, "vae": needs.vae}
    result = {
        "model": name,
        "preset": str(request.preset),
        "schedule": spec(how.schedule),
        "frames": request.num_frames,
        "calls": sum(chunk["calls"] for chunk in chunks),
        "dtype": str(number).removeprefix("torch."),
        **{f"{name}_gb": size / GB for name, size in bytes_of.items()},
        "total_gb": needs.total / GB,
    }
    if as_json:
        print_json(result | {"chunks": chunks})
    else:
        _print(result, chunks)


def _chunks(how: Preset, frames: int, tokens: int) -> list[dict[str, Any]]:
    """What happens in each chunk of so many latent frames in all, of so many tokens each."""
    if how.chunk_frames is None:
        levels = how.schedule.levels(0)
        whole = {"latents": [0, frames - 1], "levels": levels, "context": None, "keys": frames * tokens}
        return [{"chunk": 0, **whole, "calls": 2 * len(levels)}]  # with the prompt and without
    from diagonal.planning.denoising import calls

    rows = []
    for index in range(frames // how.chunk_frames):
        end = (index + 1) * how.chunk_frames
        levels, context = how.schedule.levels(index), how.schedule.context_level(index)
        rows.append(
            {
                "chunk": index,
                "latents": [end - how.chunk_frames, end - 1],
                "levels": levels,
                "context": context,
                "calls": calls(how.schedule, index),
                "keys": min(end, how.window_frames or end) * tokens,
            }
        )
    return rows


def _print(result: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    table = Table("chunk", "latent frames", "noise levels", "cache", "model calls", "keys seen", box=None)
    for chunk in chunks:
        first, last = chunk["latents"]
        levels = [f"{level:g}" for level in chunk["levels"]]
        shown = ", ".join(levels if len(levels) < 12 else [*levels[:3], "...", levels[-1]])
        context = "last call" if chunk["context"] is None else f"at {chunk['context']:g}"
        context = context if result["cache_gb"] else "none"
        counts = f"{chunk['calls']}", f"{chunk['keys']:,}"
        table.add_row(f"{chunk['chunk']}", f"{first}-{last}", shown, context, *counts)
    out.print(table)
    out.print(f"{result['frames']} frames, {result['calls']} model calls; {result['schedule']}", markup=False)
    memory = Table("", "", box=None, show_header=False)
    names = {"transformer": "transformer", "cache": "key/value cache", "text": "keys of the prompt", "vae": "VAE"}
    for key, words in names.items():
        memory.add_row(words, f"{result[f'{key}_gb']:.2f} GB")
    memory.add_row("together", f"{result['total_gb']:.2f} GB in {result['dtype']}, and what a call needs for itself")
    out.print(memory)
