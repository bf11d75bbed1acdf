"""The half of `diagonal generate` that is for diffusion models: a video from a prompt."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from diagonal.cli import err, out, print_json, progress_bar, remark_random

if TYPE_CHECKING:
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.generation.chunk_session import ChunkSession
    from diagonal.generation.request import Request
    from diagonal.media.video import VideoArray
    from diagonal.planning.presets import Preset


@dataclass(frozen=True)
class Run:
    """What one video took: model calls, and seconds from the first one to the last frame, loading not counted."""

    forwards: int
    frames: int
    seconds: float
    first_chunk_ms: float

    def numbers(self) -> dict[str, Any]:
        return asdict(self) | {"fps": self.frames / self.seconds}


def generate_video(options: Mapping[str, Any]) -> None:
    """Make a video as the options of `generate`, by their names, say; it is written while it is made."""
    from diagonal.catalog.names import find
    from diagonal.generation.components import Weights
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load_video_model
    from diagonal.media.video import enlarge, to_be_seen, writer
    from diagonal.planning.denoising import spec

    if options["decoder"] == "none":
        raise ValueError("--decoder none makes no frames to write; take vae or preview")
    variant = find("models", options["model"])
    request = _request(options, variant)
    how = request.how()
    parts = {name: options[name] for name in ("vae", "preview", "text_encoder", "lora_scale", "part")}
    source = Weights(options["weights"], lora=options["lora"] or (), **parts)
    device, name = options["device"], options["model"]
    model = load_video_model(name, source, device=device, dtype=find_dtype(options["dtype"], device))
    remark_random(name, model.weights)
    if options["quantize"] != "none":
        model.quantize(options["quantize"])
    session = model.stream(request)
    chosen = options["height"] or options["width"]  # who says how large it is gets just that
    scale = options["scale"] or (1 if chosen else to_be_seen(variant.size[0]))
    with writer(options["out_path"], model.variant.fps) as file:
        run = _run(session, lambda frames: file.write(enlarge(frames, scale)))
    shared = {name: options[name] for name in ("model", "preset", "seed", "decoder")}
    shared |= dict(zip(("height", "width"), request.size(variant.size), strict=True))
    shared |= {"scale": scale, "weights": model.weights, "schedule": spec(how.schedule), "out": options["out_path"]}
    if options["as_json"]:
        print_json(shared | run.numbers() | {"changes": [asdict(change) for change in session.changes]})
    elif options["out_path"] != "-":
        _print(run, shared, session)


def _request(options: Mapping[str, Any], variant: DiffusionVariant) -> Request:
    from diagonal.generation.request import Request
    from diagonal.text.encoders import read

    if options["image"] is not None and options["video"] is not None:
        raise ValueError("--image and --video both say what to begin with; give one")
    if options["prompt"] is None and options["text_embeds"] is None:
        raise ValueError("--prompt is needed: what is to be seen; or --prompt-embeds, a file")
    same = ("prompt", "height", "width", "schedule", "seed", "decoder", "keep_sink", "capture")
    own = ("negative_prompt", "guidance_scale", "num_inference_steps")
    image, clip = (_frames(options, name, variant.size) for name in ("image", "video"))
    return Request(
        prompt_embeds=None if options["text_embeds"] is None else read(options["text_embeds"]),
        prompt_at=_prompts(options["prompt_at"] or ()),
        num_frames=options["frames"] or variant.frames,
        preset=_preset(options["preset"]),
        image=None if image is None else image[0],
        video=clip,
        **{name: options[name] for name in (*same, *own)},
    )


def _preset(name: str) -> Preset:
    """The preset by its name, or from its file, with a remark on what else the file says."""
    from diagonal.planning.presets import find, read_yaml

    if not name.endswith((".yaml", ".yml")):
        return find(name)
    preset, elsewhere = read_yaml(name)
    if elsewhere:
        err.print(f"[yellow]{name} also gives {', '.join(elsewhere)}: no part of a preset, give them too.[/]")
    return preset


def _prompts(given: Sequence[str]) -> dict[int, str]:
    """Prompts by the chunk that they begin with."""
    found: dict[int, str] = {}
    for text in given:
        match = re.fullmatch(r"\s*([0-9]{1,9}):(.*)", text, flags=re.DOTALL)
        if match is None:
            raise ValueError(f"--prompt-at {text!r} is not CHUNK:text; write for example '3:a dog runs by'")
        if int(match[1]) in found:
            raise ValueError(f"--prompt-at names chunk {match[1]} twice")
        found[int(match[1])] = match[2]
    return found


def _frames(options: Mapping[str, Any], name: str, usual: tuple[int, int]) -> VideoArray | None:
    """What a video begins with, fitted where the options say how, into frames that are usually of the last size."""
    from diagonal.media import video

    path: Path | None = options[name]
    if path is None:
        return None
    clip = video.read(path, most=1 if name == "image" else None)
    size = options["height"] or usual[0], options["width"] or usual[1]
    return video.resize(clip, *size) if options["resize"] else video.cover(clip, *size) if options["crop"] else clip


def _run(session: ChunkSession, write: Any) -> Run:
    forwards, frames, first = 0, 0, 0.0
    start = time.perf_counter()
    with progress_bar("frames") as progress:
        task = progress.add_task("chunk 0", total=session.num_frames, note="")
        for number, piece in enumerate(session, 1):
            write(piece.frames)
            seconds = time.perf_counter() - start
            forwards, frames, first = forwards + piece.calls, frames + len(piece.frames), first or seconds
            note = f"{frames / seconds:.1f} FPS"
            progress.update(task, description=f"chunk {number}", completed=frames, note=note)
    return Run(forwards, frames, time.perf_counter() - start, 1000 * first)


def _print(run: Run, shared: Mapping[str, Any], session: ChunkSession) -> None:
    table = Table("model calls", "frames", "seconds", "FPS", "first chunk", box=None)
    numbers = f"{run.forwards}", f"{run.frames}", f"{run.seconds:.2f}", f"{run.frames / run.seconds:.2f}"
    table.add_row(*numbers, f"{run.first_chunk_ms:.0f} ms")
    out.print(table)
    for change in session.changes:
        out.print(f"from chunk {change.applied_at} on: {change.prompt}", markup=False)
    made = f"{run.frames} frames of {shared['model']} ({shared['weights']} weights) in {shared['out']}"
    out.print(f"{made}; {shared['preset']}, {shared['schedule']}", markup=False)
    out.print("[dim]seconds: all model calls and the decoding of frames to pixels; loading and the text not counted[/]")
