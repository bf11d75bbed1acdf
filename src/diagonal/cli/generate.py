"""`diagonal generate`: continues a clip, with token models; generate_video.py has the half of diffusion models."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from diagonal.cli import (
    Device,
    Dtype,
    Json,
    Quantize,
    Refeed,
    StandInOption,
    app,
    load_world,
    make_order,
    out,
    print_json,
    progress_bar,
    refuse,
)
from diagonal.cli.generate_video import generate_video
from diagonal.planning.plan import StandIn

if TYPE_CHECKING:
    from diagonal.generation.token_session import TokenSession
    from diagonal.generation.world import Free, World
    from diagonal.media.video import VideoArray
    from diagonal.planning.plan import Order


@dataclass(frozen=True)
class Run:
    """What one generation did and how long it took."""

    schedule: str
    steps: int
    frames: int
    seconds: float

    def numbers(self) -> dict[str, Any]:
        per_frame = self.seconds / self.frames
        return asdict(self) | {"ms_per_frame": 1000 * per_frame, "fps": 1 / per_frame}


PANEL = "Diffusion models"
# Options that only one kind of model knows.
TOKENS_ONLY = (
    *("tokenizer", "start", "prompt_frames", "size", "text", "actions", "compare", "stand_in", "refeed"),
    *("temperature", "top_p", "top_k", "mark"),
)
DIFFUSION_ONLY = (
    *("vae", "preview", "text_encoder", "lora", "lora_scale", "part", "prompt_at", "negative_prompt", "image", "video"),
    *("height", "width", "preset", "decoder", "guidance_scale", "num_inference_steps", "keep_sink", "capture"),
)


@app.command()
def generate(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A name from `diagonal models`.")] = "doom",
    weights: Annotated[str | None, typer.Option(help="Checkpoint file, folder or hub id; 'random' for none.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer, if it is apart.")] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Clip, picture or folder of pictures to continue; of a diffusion model: what is to be seen."),
    ] = None,
    start: Annotated[str | None, typer.Option(help="A bundled start view instead (doom: hall, lamps, ...).")] = None,
    prompt_frames: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Frames of the prompt that are used: its first ones, behind which recorded actions go on; of Cosmos, "
            "which takes no actions, its last ones. Default: the model's number.",
        ),
    ] = None,
    resize: Annotated[bool, typer.Option("--resize", help="Stretch the prompt to the model's frame size.")] = False,
    crop: Annotated[
        bool, typer.Option("--crop", help="Scale the prompt to the frame size and cut its middle.")
    ] = False,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH of the frames. Default: the model's.")] = None,
    text: Annotated[str | None, typer.Option(help="What is to happen, for models that read text.")] = None,
    text_embeds: Annotated[
        Path | None, typer.Option("--text-embeds", "--prompt-embeds", help="Embeddings of the text, from a file.")
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            help="'forward*8,left*4' for the new frames, or a file with one action per frame from the prompt's first "
            "on, or 'model': it chooses itself. Default: a short script; with --frames, standing still."
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option("--frames", "--num-frames", min=1, help="New frames; of a diffusion model all, 81 if left out."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="raster, diagonal:k=1,d=10 or window:s=8; of a diffusion model steps, such as 4322222."),
    ] = None,
    compare: Annotated[str | None, typer.Option(help="A second schedule, drawn beside the first.")] = None,
    stand_in: StandInOption = StandIn.PREVIOUS_FRAME,
    refeed: Refeed = True,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the model's.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Default: the model's.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling; the same seed gives the same clip.")] = 0,
    scale: Annotated[int | None, typer.Option(min=1, help="Enlarge pixels so many times. Default: to be seen.")] = None,
    mark: Annotated[
        bool, typer.Option(help="Write into the frames that they are generated, for models that ask.")
    ] = True,
    vae: Annotated[str | None, typer.Option(help="Its VAE, if it is apart.", rich_help_panel=PANEL)] = None,
    preview: Annotated[str | None, typer.Option(help="TAEHV, for --decoder preview.", rich_help_panel=PANEL)] = None,
    text_encoder: Annotated[
        str | None, typer.Option(help="Its text encoder, if it is apart.", rich_help_panel=PANEL)
    ] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="A LoRA to merge; may be repeated.", rich_help_panel=PANEL)
    ] = None,
    lora_scale: Annotated[float, typer.Option(help="How much of it.", rich_help_panel=PANEL)] = 1.0,
    part: Annotated[
        str | None, typer.Option(help="Of a .pt: generator, generator_ema, ...", rich_help_panel=PANEL)
    ] = None,
    prompt_at: Annotated[
        list[str] | None,
        typer.Option(help="'CHUNK:text': another prompt from a chunk on; may be repeated.", rich_help_panel=PANEL),
    ] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="For --preset wan.", rich_help_panel=PANEL)] = None,
    image: Annotated[Path | None, typer.Option(help="Picture to begin with.", rich_help_panel=PANEL)] = None,
    video: Annotated[Path | None, typer.Option(help="Clip to go on from.", rich_help_panel=PANEL)] = None,
    height: Annotated[
        int | None, typer.Option(min=1, help="Of the frames. Default: the model's.", rich_help_panel=PANEL)
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Likewise.", rich_help_panel=PANEL)] = None,
    preset: Annotated[
        str, typer.Option(help="How it is run: a name, or a YAML file of its family.", rich_help_panel=PANEL)
    ] = "diagonal-distillation",
    decoder: Annotated[str, typer.Option(help="vae, or preview: faster.", rich_help_panel=PANEL)] = "vae",
    guidance_scale: Annotated[float | None, typer.Option(help="For --preset wan.", rich_help_panel=PANEL)] = None,
    num_inference_steps: Annotated[int | None, typer.Option(help="For --preset wan.", rich_help_panel=PANEL)] = None,
    keep_sink: Annotated[
        bool, typer.Option(help="The first frames keep the prompt that they had.", rich_help_panel=PANEL)
    ] = True,
    capture: Annotated[
        bool, typer.Option(help="On a GPU, record the model's calls and replay them.", rich_help_panel=PANEL)
    ] = True,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    out_path: Annotated[str, typer.Option("--out", help="Video to write; '-' streams mp4 to stdout.")] = "out.mp4",
    as_json: Json = False,
) -> None:
    """Continue a clip, or make one from a prompt: frames are written as they complete."""
    if out_path == "-" and (as_json or compare is not None):
        raise ValueError("--out - streams the video to stdout; it goes neither with --json nor with --compare")
    if resize and crop:
        raise ValueError("--resize and --crop both fit the prompt into the frame; give one")
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.media.video import check_target, cover, to_be_seen
    from diagonal.media.video import resize as stretch

    # All that can be refused is refused before a large model is loaded.
    check_target(out_path)
    variant = find("models", model)
    if isinstance(variant, DiffusionVariant):
        refuse(context, TOKENS_ONLY, model)
        generate_video(context.params)
        return
    refuse(context, DIFFUSION_ONLY, f"{model}, which has tokens")
    orders = [make_order(spec, stand_in, refeed) for spec in (schedule or "diagonal:k=1", compare) if spec is not None]
    chosen: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    given = {key: value for key, value in chosen.items() if value is not None}
    sampling = replace(variant.sampling, **given)
    if prompt is not None and start is not None:
        raise ValueError("--prompt and --start both say where to begin; give one")
    if prompt is None and prompt_frames is not None:
        raise ValueError(f"--prompt-frames {prompt_frames} needs --prompt")
    if text is not None and text_embeds is not None:
        raise ValueError("--text and --text-embeds both say what is to happen; give one")
    if prompt is not None and not Path(prompt).exists():
        raise FileNotFoundError(f"--prompt {prompt} does not exist; give a video, a picture, or a folder of pictures")
    world = load_world(model, weights, tokenizer, device, dtype, quantize)
    if size is not None:
        world = world.at(*_size(size))
    if text is not None or text_embeds is not None:
        world = _guided(world, text, text_embeds)
    if prompt is not None:
        clip, between = _prompt(world, Path(prompt), prompt_frames)
        fitted = stretch(clip, *world.size) if resize else cover(clip, *world.size) if crop else clip
    else:
        fitted, between = _start(world, start)
    taken, frames = _actions(world, actions, between, frames)

    def stream(order: Order, frames: int | None) -> TokenSession:
        return world.stream(fitted, taken, frames=frames, schedule=order, sampling=sampling, seed=seed)

    look = Look(scale or to_be_seen(world.size[0]), world.variant.mark if mark else "", world.variant.fps)
    if compare is None:
        runs = [_write(stream(orders[0], frames), orders[0], look, out_path)]
    else:
        for _ in stream(orders[0], frames):  # warm-up: the first frame of a process pays for set-up
            break
        runs = _write_compared([(order, stream(order, frames)) for order in orders], look, out_path)
    shared = {"model": model, "weights": world.weights, "quantize": quantize, "seed": seed, "out": out_path}
    if as_json:
        both = {} if compare is None else {"compare": runs[1].numbers(), "speedup": runs[1].seconds / runs[0].seconds}
        print_json(shared | runs[0].numbers() | both)
    elif out_path != "-":
        _print_runs(runs, shared)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text.strip().lower())
    if match is None:
        raise ValueError(f"--size {text!r} is not HEIGHTxWIDTH; write for example 384x640")
    return int(match[1]), int(match[2])


def _guided(world: World, text: str | None, embeds: Path | None) -> World:
    from diagonal.text.encoders import read

    return world.guided(read(embeds) if embeds is not None else text or "")


def _prompt(world: World, path: Path, asked: int | None) -> tuple[VideoArray, list[Any]]:
    """The frames of a prompt that are used, and the actions between them: those of the file, or doing nothing."""
    from diagonal.media import video
    from diagonal.worlds import xbox

    most, last = asked or world.variant.prompt_frames, world.variant.prompt_last
    taken: list[Any]
    if path.suffix == ".npz":
        clip, taken = xbox.read_clip(path)
    else:
        clip = video.read(path, most=most, last=last)
        taken = [world.actions.NOOP] * len(clip)
    count = min(most, len(clip))
    if asked is not None and count < asked:
        raise ValueError(f"{path} has {count} frames; --prompt-frames asks for {asked}")
    if asked is None:  # of a clip that is shorter than usual, as many frames as the tokenizer takes
        count = 1 + (count - 1) // world.tokenizer.stride * world.tokenizer.stride
    first = len(clip) - count if last else 0
    return clip[first : first + count], taken[first : first + count - 1]


def _start(world: World, name: str | None) -> tuple[VideoArray, list[Any]]:
    """A bundled start view that fits the world; a drawn picture where there is none and nothing can be spoilt."""
    from diagonal.media import draw

    if name is not None or world.actions.STARTS:
        return world.actions.start(name or world.actions.STARTS[0])
    if world.weights != "random":
        raise ValueError("give --prompt: a clip, a picture or a folder of pictures to continue")
    return draw.test_card(*world.size), []


def _actions(
    world: World, given: str | None, between: list[Any], frames: int | None
) -> tuple[list[Any] | Free | None, int | None]:
    """Actions for every frame but the last, those `between` prompt frames included, and how many frames are new."""
    from diagonal.generation.world import Free

    known = len(between) + 1
    if given == "model":
        return Free(between), frames
    if given is None and frames is None:
        given = world.actions.SCRIPT or None
    if given is None:
        return (None, frames) if frames is None else (_idle(world, between, frames), frames)
    if Path(given).suffix in (".jsonl", ".json", ".npz"):
        recorded = world.actions.read(given)
        frames = frames or max(1, min(world.variant.config.frames, len(recorded) + 1) - known)
        needed = known - 1 + frames
        if len(recorded) < needed:
            raise ValueError(
                f"{given} has {len(recorded)} actions; {known} prompt and {frames} new frames need {needed}"
            )
        return recorded[:needed], frames
    new = world.actions.parse(given)
    if frames not in (None, len(new)):
        raise ValueError(f"--actions has {len(new)} actions and --frames asks for {frames}; give one action per frame")
    return between + new, len(new)


def _idle(world: World, between: list[Any], frames: int) -> list[Any] | None:
    """Doing nothing after the prompt."""
    return between + [world.actions.NOOP] * frames if world.variant.config.suffix else None


def _run(stream: TokenSession, order: Order, each: Any) -> Run:
    """Consume a stream with a progress bar. Seconds: model calls and frame decoding; loading and encoding apart."""
    with progress_bar("steps") as progress:
        task = progress.add_task(str(order), total=stream.calls, note="")
        stream.on_call = lambda: progress.advance(task)
        start = time.perf_counter()
        for piece in stream:
            each(piece.frames)
            progress.update(task, description=f"{order}  frame {piece.index + piece.new}")
        seconds = time.perf_counter() - start
    return Run(str(order), stream.calls, stream.frames, seconds)


@dataclass(frozen=True)
class Look:
    """How frames are shown in a video."""

    scale: int
    mark: str
    fps: int | Fraction

    def __call__(self, frames: VideoArray) -> VideoArray:
        from diagonal.media.draw import stamp
        from diagonal.media.video import enlarge

        return stamp(enlarge(frames, self.scale), self.mark) if self.mark else enlarge(frames, self.scale)


def _write(stream: TokenSession, order: Order, look: Look, path: str) -> Run:
    from diagonal.media.video import writer

    with writer(path, look.fps) as video:
        return _run(stream, order, lambda pixels: video.write(look(pixels)))


def _write_compared(streams: list[tuple[Order, TokenSession]], look: Look, path: str) -> list[Run]:
    import numpy as np

    from diagonal.media.draw import side_by_side
    from diagonal.media.video import writer

    runs, clips = [], []
    with writer(path, look.fps) as video:
        for order, stream in streams:
            pixels: list[VideoArray] = []
            runs.append(_run(stream, order, pixels.append))
            clips.append(look(np.concatenate(pixels)))
        labels = [f"{run.schedule}   {run.steps} steps   {run.seconds:.1f} s" for run in runs]
        video.write(side_by_side(clips[::-1], labels[::-1]))
    return runs


def _print_runs(runs: list[Run], shared: dict[str, Any]) -> None:
    table = Table("schedule", "steps", "seconds", "ms per frame", "FPS", "speed-up", box=None)
    slowest = max(run.seconds for run in runs)
    for run in reversed(runs):
        numbers = run.numbers()
        cells = [f"{run.seconds:.2f}", f"{numbers['ms_per_frame']:.0f}", f"{numbers['fps']:.2f}"]
        table.add_row(run.schedule, f"{run.steps}", *cells, f"{slowest / run.seconds:.2f}x")
    out.print(table)
    out.print(
        f"{runs[0].frames} frames of {shared['model']} ({shared['weights']} weights) in {shared['out']}", markup=False
    )
    out.print(
        "[dim]seconds: all model calls and the decoding of frames to pixels; loading and the prompt not counted[/]"
    )
