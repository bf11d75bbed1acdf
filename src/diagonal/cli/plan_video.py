"""The half of `diagonal plan` that is for diffusion models: the chunks of a video, and the memory it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import out, print_json
from diagonal.cli.options import chosen

if TYPE_CHECKING:
    from pathlib import Path

    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.generation.request import Request
    from diagonal.planning.presets import Preset
    from diagonal.planning.work import Call


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


@dataclass(frozen=True)
class VideoPlan:
    """The calls of a video, what its chunks go through, and the memory that it takes."""

    facts: dict[str, Any]
    chunks: list[dict[str, Any]]
    calls: list[Call]

    @classmethod
    def of(cls, name: str, variant: DiffusionVariant, request: Request, dtype: str) -> VideoPlan:
        """That of a request to a model."""
        from diagonal.catalog.names import find
        from diagonal.generation.devices import find_dtype
        from diagonal.generation.memory import GB, estimate_video
        from diagonal.generation.request import latent_frames, latent_size
        from diagonal.planning.denoising import spec
        from diagonal.planning.work import calls

        how, codec, side = request.how(), find("tokenizers", variant.vae), variant.config.patch
        rows, cols = latent_size(*request.size(variant.size), codec.patch, side)
        frames = latent_frames(request.num_frames or variant.frames, how, codec)
        tokens, worked, number = (rows // side) * (cols // side), list(calls(how, frames)), find_dtype(dtype, "cpu")
        needs = estimate_video(variant, _cached(how, frames) * tokens, number, _texts(how, worked))
        bytes_of = {"transformer": needs.transformer, "cache": needs.cache, "text": needs.text, "vae": needs.vae}
        facts = {
            "model": name,
            "preset": str(request.preset),
            "schedule": spec(how.schedule),
            "frames": request.num_frames,
            "calls": sum(how.calls(frames)),
            "guided": how.guided,
            "pipeline": how.pipeline or None,
            "most_chunks": max(len(call.parts) for call in worked),
            "dtype": str(number).removeprefix("torch."),
            **{f"{name}_gb": size / GB for name, size in bytes_of.items()},
            "total_gb": needs.total / GB,
        }
        return cls(facts, _chunks(how, frames, tokens), worked)

    def save(self, path: Path) -> None:
        """A PNG of the calls."""
        from diagonal.media import chunk_wave

        facts = self.facts
        chunk_wave.save(self.calls, path, f"{facts['schedule']}: {len(self.chunks)} chunks, {facts['calls']} calls")

    def show(self, as_json: bool, picture: Path | None) -> None:
        """Print it."""
        from diagonal.media import chunk_wave

        if as_json:
            drawn = {} if picture is None else {"picture": str(picture)}
            print_json(self.facts | {"chunks": self.chunks} | drawn)
            return
        out.print(chunk_wave.wave(self.calls, out.width))
        _print(self.facts, self.chunks)


def _cached(how: Preset, frames: int) -> int:
    """Latent frames whose keys are kept, of all caches: with guidance there are two."""
    from diagonal.engine.chunks.rollout import window_of
    from diagonal.planning.passes import most_kept

    if how.sees.whole:
        return 0
    if how.pipeline:
        return most_kept(how.schedule, how.sees, frames // (how.chunk_frames or 1)) * (how.chunk_frames or 1)
    window = window_of(how, frames)
    return (1 + how.guided) * (window.sink + window.ring)


def _texts(how: Preset, calls: list[Call]) -> int:
    """Prompts whose keys are kept: with guidance two; in a pipeline each live chunk may have one of its own."""
    live = max(sum(part.step is not None for part in call.parts) for call in calls)
    return live if how.pipeline else 1 + how.guided


def _chunks(how: Preset, frames: int, tokens: int) -> list[dict[str, Any]]:
    """What happens in each chunk of so many latent frames in all, of so many tokens each."""
    from diagonal.planning.work import calls

    whole, seen = how.for_frames(frames), dict[int, int]()
    for call in calls(how, frames):
        seen |= {part.chunk: max(part.seen, seen.get(part.chunk, 0)) for part in call.parts}
    size, rows = whole.chunk_frames or 1, []
    for index, count in enumerate(whole.calls(frames)):
        rows.append(
            {
                "chunk": index,
                "latents": [index * size, (index + 1) * size - 1],
                "levels": how.schedule.levels(index),
                "context": how.schedule.context_level(index),
                "calls": count,
                "keys": seen[index] * tokens,
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
    guided = ", two at each level: with the prompt and without" if result["guided"] else ""
    guided = ", three for each step but late ones" if result["pipeline"] == "guided" else guided
    together = f"; at most {result['most_chunks']} chunks in a call" if result["most_chunks"] > 1 else ""
    schedule = f"{result['schedule']}{together}"
    out.print(f"{result['frames']} frames, {result['calls']} model calls{guided}; {schedule}", markup=False)
    memory = Table("", "", box=None, show_header=False)
    names = {"transformer": "transformer", "cache": "key/value cache", "text": "keys of the prompt", "vae": "VAE"}
    for key, words in names.items():
        memory.add_row(words, f"{result[f'{key}_gb']:.2f} GB")
    memory.add_row("together", f"{result['total_gb']:.2f} GB in {result['dtype']}, and what a call needs for itself")
    out.print(memory)
