"""`diagonal video`: a diffusion model makes a video from a prompt. Token worlds: generate.py."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, err, out, print_json, progress_bar, remark_random
from diagonal.cli.options import Computing, Fitting, Json, chosen, flat, given, refuse
from diagonal.cli.parallel import FramesShared, Unwritten, follows, shared_frames
from diagonal.cli.prompts import check_computing, check_is_text
from diagonal.cli.signing import Watermarking
from diagonal.cli.spread import Spread
from diagonal.cli.video_prompts import Making, Many

if TYPE_CHECKING:
    from torch import Tensor

    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.engine.ranks import Ranks
    from diagonal.generation.chunk_session import ChunkSession
    from diagonal.generation.components import Weights
    from diagonal.generation.request import Request
    from diagonal.generation.video import VideoModel
    from diagonal.media.provenance.writing import Marking
    from diagonal.media.video import VideoArray
    from diagonal.planning.presets import Preset

WITH_PROMPTS = ("prompts", "each", "negative_prompt")  # of Shown


@dataclass(frozen=True, kw_only=True)
class VideoSource:
    """Which diffusion model, and where its origin are."""

    panel: ClassVar[str] = "Model"

    model: Annotated[str, typer.Option(help="A diffusion model from `diagonal models`.")] = "doom-t2v"
    weights: Annotated[
        str | None,
        typer.Option(help="Checkpoint file, folder or hub id; 'random': untrained. Default: the shipped ones."),
    ] = None
    vae: Annotated[str | None, typer.Option(help="Its VAE, if it is apart.")] = None
    preview: Annotated[str | None, typer.Option(help="TAEHV, for --decoder preview.")] = None
    text_encoder: Annotated[str | None, typer.Option(help="Its text encoder, if it is apart.")] = None
    special_tokens: Annotated[
        str | None, typer.Option(help="MAGI-1's special_tokens.npz: what stands before a caption.")
    ] = None
    lora: Annotated[list[str] | None, typer.Option(help="A LoRA to merge; may be repeated.")] = None
    lora_scale: Annotated[float | None, typer.Option(help="How much of it. Default: all.")] = None
    part: Annotated[str | None, typer.Option(help="Of a .pt: generator, generator_ema, ...")] = None

    def source(self) -> Weights:
        """The same in the library's words."""
        from diagonal.generation.components import Weights

        named = ("vae", "preview", "text_encoder", "special_tokens", "lora", "lora_scale", "part")
        return Weights(self.weights, **chosen(self, *named))


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is to be seen, and what it begins with."""

    panel: ClassVar[str] = "Prompt"

    prompt: Annotated[str | None, typer.Option(help="What is to be seen.")] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="File of prompts, a video each: one a line, VidProM's .csv, VBench's .json; --out: a folder."
        ),
    ] = None
    each: Annotated[int | None, typer.Option(min=1, help="Of each prompt. Default: 1; VBench: 5.")] = None
    prompt_embeds: Annotated[
        Path | None, typer.Option("--prompt-embeds", "--text-embeds", help="Its embeddings instead, from a file.")
    ] = None
    prompt_at: Annotated[
        list[str] | None, typer.Option(help="'CHUNK:text': another prompt from a chunk on; may be repeated.")
    ] = None
    negative_prompt: Annotated[str | None, typer.Option(help="Guided away from it; for presets with guidance.")] = None
    image: Annotated[Path | None, typer.Option(help="Picture to begin with.")] = None
    video: Annotated[Path | None, typer.Option(help="Clip to go on from.")] = None
    prompt_frames: Annotated[int | None, typer.Option(min=1, help="Last ones of --video. Default: all.")] = None

    def __post_init__(self) -> None:
        if self.image is not None and self.video is not None:
            raise ValueError("--image and --video both say what to begin with; give one")
        if self.prompts is not None:
            others = {name: option for name, option in given(self).items() if name not in WITH_PROMPTS}
            refuse(others, "--prompts, a file of many")
        elif self.each is not None:
            raise ValueError(f"--each {self.each} needs --prompts, a file of them")
        elif self.prompt is None and self.prompt_embeds is None:
            raise ValueError("--prompt is needed: what is to be seen; or --prompt-embeds, a file; or --prompts, many")
        if self.prompt_frames is not None and self.video is None:
            raise ValueError(f"--prompt-frames {self.prompt_frames} needs --video: it says how much of it is used")
        for option, text in (("--prompt", self.prompt), ("--negative-prompt", self.negative_prompt)):
            if text is not None:
                check_is_text(option, text, "--image or --video begins with a file")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How long and how large the video is."""

    panel: ClassVar[str] = "Size"

    frames: Annotated[
        int | None,
        typer.Option(
            "--num-frames", "--frames", min=1, help="All frames, given ones included. Default: as it was trained."
        ),
    ] = None
    height: Annotated[int | None, typer.Option(min=1, help="Of the frames. Default: the model's.")] = None
    width: Annotated[int | None, typer.Option(min=1, help="Likewise.")] = None


@dataclass(frozen=True, kw_only=True)
class Denoising:
    """How the model is run."""

    panel: ClassVar[str] = "Schedule"

    preset: Annotated[
        str | None,
        typer.Option(help="How it was trained to be run: a name (the model's own if left out) or a YAML file."),
    ] = None
    schedule: Annotated[
        str | None, typer.Option(help="Denoising steps of each chunk, such as 4322222. Default: the preset's.")
    ] = None
    guidance_scale: Annotated[float | None, typer.Option(help="Classifier-free guidance, of presets that have it.")] = (
        None
    )
    num_inference_steps: Annotated[int | None, typer.Option(help="Denoising steps, of presets with guidance.")] = None
    keep_sink: Annotated[
        bool | None, typer.Option("--keep-sink/--no-keep-sink", help="A sink keeps the prompt that it had (default).")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The noise that it starts from."""

    panel: ClassVar[str] = "Sampling"

    seed: Annotated[int | None, typer.Option(help="The same seed gives the same video. Default: 0.")] = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """How latents become a file."""

    panel: ClassVar[str] = "Output"

    decoder: Annotated[str | None, typer.Option(help="vae (default), or preview: faster.")] = None
    out_path: Annotated[str, typer.Option("--out", help="Video to write; '-' streams mp4 to stdout.")] = "out.mp4"
    scale: Annotated[int | None, typer.Option(min=1, help="Enlarge pixels so many times. Default: to be seen.")] = None
    capture: Annotated[
        bool | None,
        typer.Option("--capture/--no-capture", help="On a GPU, capture the model's calls as graphs (default)."),
    ] = None
    as_json: Json = False


@dataclass(frozen=True)
class VideoTiming:
    """What one video took: model calls, and seconds from the first one to the last frame, loading not counted."""

    calls: int
    frames: int  # new ones: those that were given are not counted
    given_frames: int
    seconds: float
    first_chunk_ms: float

    def report(self) -> dict[str, Any]:
        """The fields, and the rate of new frames."""
        return asdict(self) | {"fps": self.frames / self.seconds}


@app.command()
@flat
def video(
    origin: VideoSource,
    computing: Computing,
    shown: Shown,
    fitting: Fitting,
    size: Size,
    denoising: Denoising,
    drawn: SamplingOptions,
    output: Output,
    signing: Watermarking,
    spread: Spread,
    parallel: FramesShared,
) -> None:
    """Make a video from a prompt with a diffusion model: frames are written as they complete."""
    if output.out_path == "-" and output.as_json:
        raise ValueError("--out - streams the video to stdout; it does not go with --json")
    if output.decoder == "none":
        raise ValueError("--decoder none makes no frames to write; take vae or preview")
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import diffusion_variant
    from diagonal.generation.request import Request
    from diagonal.media.video import check_target, to_be_seen

    # All that can be refused is refused before a large model is loaded.
    name, source = origin.model, origin.source()
    variant = diffusion_variant(find("models", name), name)
    many = None if shown.prompts is None else Many.of(shown.prompts, shown.each or 1, drawn.seed or 0, output.out_path)
    if many is None:
        refuse(given(spread), "one video: --ray is for many (--prompts)")
        check_target(output.out_path)
    usual = size.height or variant.size[0], size.width or variant.size[1]
    request = Request(
        prompt=shown.prompt if many is None else many.prompts[0],
        prompt_embeds=_embeds(shown.prompt_embeds),
        prompt_at=_prompts(shown.prompt_at or ()),
        num_frames=size.frames or variant.frames,
        image=_image(shown.image, fitting, usual),
        video=_clip(shown, fitting, usual),
        **chosen(denoising, "schedule", "guidance_scale", "num_inference_steps", "keep_sink"),
        **chosen(shown, "negative_prompt") | chosen(size, "height", "width") | chosen(drawn, "seed"),
        **chosen(output, "decoder", "capture") | read_preset(denoising.preset),
    ).named(variant.preset)
    _check(name, variant, source, computing, request)
    marking = signing.marking(None if many is not None else output.out_path)
    if many is not None:
        refuse(given(parallel), "--prompts, a file of many")
        many.check(variant, source)
        making = Making(
            name=name,
            source=source,
            computing=computing,
            request=request,
            scale=output.scale or 1,
            signing=signing,
            out=many.out.resolve(),
        )
        many.make(making, variant, spread, output.as_json)
        return
    asked = size.height or size.width  # who says how large it is gets just that
    scale = output.scale or (1 if asked else to_be_seen(variant.size[0]))
    with shared_frames(parallel, name, computing.device) as ranks:
        model = load_video(name, source, computing)
        session, run, marked = _make(model, request, (output.out_path, scale, marking), ranks)
    told = {"model": name, "weights": model.weights} | _facts(request, denoising.preset)
    told |= dict(zip(("height", "width"), usual, strict=True)) | {"scale": scale, "out": output.out_path}
    told |= {"credentials": marking.words, "watermark": signing.watermark, "watermark_seconds": marked}
    if output.as_json:
        print_json(told | run.report() | {"changes": [asdict(change) for change in session.changes]})
    elif output.out_path != "-":
        _print(run, told, session)


def _make(
    model: VideoModel, request: Request, into: tuple[str, int, Marking], ranks: Ranks | None
) -> tuple[ChunkSession, VideoTiming, float]:
    """Make the video and write it to a path, enlarged; of several processes that make it, the first one writes. The
    last number is the seconds that its watermark took."""
    from diagonal.generation.origin import of_request
    from diagonal.media.provenance.writing import MarkedWriter, marked_writer
    from diagonal.media.video import enlarge

    path, scale, marking = into
    session = (model if ranks is None else model.shared_by(ranks)).stream(request)
    written: AbstractContextManager[MarkedWriter | Unwritten] = nullcontext(Unwritten())
    if not follows():
        written = marked_writer(path, model.variant.fps, of_request(model, request), marking, from_text=True)
    with written as file:
        run = _run(session, lambda frames: file.write(enlarge(frames, scale)))
        return session, run, 0.0 if file.watermark is None else file.watermark.seconds


def _check(name: str, variant: DiffusionVariant, source: Weights, computing: Computing, request: Request) -> None:
    """Refuse what needs no model to be refused."""
    from diagonal.checkpoints.quantize import VIDEO_KINDS
    from diagonal.generation import checks

    checks.check_weights(name, variant, source.transformer)
    check_computing(computing, VIDEO_KINDS)
    checks.check_request(name, variant, request)
    checks.check_decoder(name, variant, source, request.decoder)
    if source.text_encoder is None:
        texts = [request.prompt, request.negative_prompt, *request.prompt_at.values()]
        checks.check_texts(variant, [text for text in texts if isinstance(text, str)])


def load_video(name: str, source: Weights, computing: Computing) -> VideoModel:
    """The library's `load`, with a remark where the weights are random."""
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load_video_model

    device = computing.device
    model = load_video_model(name, source, device=device, dtype=find_dtype(computing.dtype, device))
    remark_random(name, model.weights)
    return model if computing.kind is None else model.quantize(computing.kind)


def read_preset(name: str | None) -> dict[str, Preset]:
    """The preset by its name, or from its file, with a remark on what else the file says. None: the library's own."""
    from diagonal.planning.presets import find, read_yaml

    if name is None:
        return {}
    if not name.endswith((".yaml", ".yml")):
        return {"preset": find(name)}
    preset, elsewhere = read_yaml(name)
    if elsewhere:
        err.print(f"[yellow]{name} also gives {', '.join(elsewhere)}: no part of a preset, give them too.[/]")
    return {"preset": preset}


def _embeds(path: Path | None) -> Tensor | None:
    from diagonal.text.encoders import read

    return None if path is None else read(path)


def _prompts(given: Iterable[str]) -> dict[int, str]:
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


def _image(path: Path | None, fitting: Fitting, size: tuple[int, int]) -> VideoArray | None:
    """The picture (H, W, 3) that a video begins with."""
    from diagonal.media import video

    return None if path is None else fitting.fit(video.read(path, most=1), size)[0]


def _clip(shown: Shown, fitting: Fitting, size: tuple[int, int]) -> VideoArray | None:
    """The frames that a video goes on from: the last ones of the clip, where their number was given."""
    from diagonal.media import video

    if shown.video is None:
        return None
    asked = shown.prompt_frames
    clip = video.read(shown.video, most=asked, last=True)
    if asked is not None and len(clip) < asked:
        raise ValueError(f"{shown.video} has {len(clip)} frames; --prompt-frames asks for {asked}")
    return fitting.fit(clip, size)


def _run(session: ChunkSession, write: Callable[[VideoArray], object]) -> VideoTiming:
    """Consume a session with a progress bar. Its first piece brings the given frames too."""
    calls, new, first = 0, 0, 0.0
    start = time.perf_counter()
    with progress_bar("frames") as progress:
        task = progress.add_task("chunk 0", total=session.frames, note="")
        for number, piece in enumerate(session, 1):
            write(piece.frames)
            seconds = time.perf_counter() - start
            calls, new, first = calls + piece.calls, new + piece.new, first or seconds
            note = f"{new / seconds:.1f} FPS"
            progress.update(task, description=f"chunk {number}", completed=new, note=note)
    return VideoTiming(calls, new, session.given, time.perf_counter() - start, 1000 * first)


def _facts(request: Request, preset: str | None) -> dict[str, Any]:
    """How a request is met, its defaults included."""
    from diagonal.planning.denoising import spec

    name = str(request.preset) if preset is None else preset
    schedule = spec(request.how().schedule)
    return {"preset": name, "schedule": schedule, "seed": request.seed, "decoder": request.decoder}


def _print(run: VideoTiming, shared: dict[str, Any], session: ChunkSession) -> None:
    table = Table("model calls", "new frames", "seconds", "FPS", "first chunk", box=None)
    cells = f"{run.calls}", f"{run.frames}", f"{run.seconds:.2f}", f"{run.frames / run.seconds:.2f}"
    table.add_row(*cells, f"{run.first_chunk_ms:.0f} ms")
    out.print(table)
    for change in session.changes:
        out.print(f"from chunk {change.applied_at} on: {change.prompt}", markup=False)
    behind = f" behind {run.given_frames} given" if run.given_frames else ""
    made = f"{run.frames} frames of {shared['model']} ({shared['weights']} weights){behind} in {shared['out']}"
    marks = f"credentials: {shared['credentials']}; watermark: {'yes' if shared['watermark'] else 'no'}"
    out.print(f"{made}; {shared['preset']}, {shared['schedule']}; {marks}", markup=False)
    marked = f", {shared['watermark_seconds']:.1f} s of them for the watermark" if shared["watermark"] else ""
    seconds = "seconds: all model calls and the decoding of frames to pixels; loading and the text not counted"
    out.print(f"[dim]{seconds}{marked}[/]")
