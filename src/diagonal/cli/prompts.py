"""What a token world continues: the prompt, its actions and a text, made ready before the model is loaded."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import typer

from diagonal.cli.options import Computing, Fitting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from diagonal.generation.checks import Described
    from diagonal.generation.world import World
    from diagonal.media.video import VideoArray
    from diagonal.planning.plan import Order
    from diagonal.worlds.protocols import ActionSpace, Free


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a world begins with."""

    panel: ClassVar[str] = "Prompt"

    prompt: Annotated[str | None, typer.Option(help="Clip, picture or folder of pictures to continue.")] = None
    start: Annotated[str | None, typer.Option(help="A bundled start view instead (doom: hall, lamps, ...).")] = None
    prompt_frames: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Frames of the prompt that are used: its first ones, behind which recorded actions go on; of Cosmos, "
            "which takes no actions, its last ones. Default: the model's number.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.prompt is not None and self.start is not None:
            raise ValueError("--prompt and --start both say where to begin; give one")
        if self.prompt is None and self.prompt_frames is not None:
            raise ValueError(f"--prompt-frames {self.prompt_frames} needs --prompt")
        if self.prompt is not None and not Path(self.prompt).exists():
            raise FileNotFoundError(
                f"--prompt {self.prompt} does not exist; give a video, a picture, or a folder of pictures"
            )

    def frames_of(self, world: Described, fitting: Fitting, untrained: bool) -> tuple[VideoArray, list[Any]]:
        """The frames that a world begins with, fitted, and the actions between them. Without weights a drawn picture
        will do."""
        from diagonal.generation import checks

        clip, between = _begin(world, space(world), self, untrained)
        clip = clip if self.prompt is None else fitting.fit(clip, checks.frame_size(world))
        checks.check_prompt(world, clip)
        return clip, between


@dataclass(frozen=True, kw_only=True)
class PromptOptions(Beginning):
    """What is continued, and along which actions."""

    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH of the frames. Default: the model's.")] = None
    text: Annotated[str | None, typer.Option(help="What is to happen, for models that read text.")] = None
    text_embeds: Annotated[
        Path | None, typer.Option("--text-embeds", "--prompt-embeds", help="Embeddings of the text, from a file.")
    ] = None
    actions: Annotated[
        str | None,
        typer.Option(
            help="'forward*8,left*4' for the new frames, or a file with one action per frame from the prompt's first "
            "on, or 'model': it chooses itself. Default: a short script; with --frames, standing still."
        ),
    ] = None
    frames: Annotated[
        int | None,
        typer.Option("--frames", "--num-frames", min=1, help="New frames. Default: as the actions, or a window."),
    ] = None
    label: Annotated[
        int | None, typer.Option("--class", min=0, help="Class of the video, for models that know classes.")
    ] = None

    def __post_init__(self) -> None:
        Beginning.__post_init__(self)
        if self.text is not None and self.text_embeds is not None:
            raise ValueError("--text and --text-embeds both say what is to happen; give one")


@dataclass(frozen=True)
class Continuation:
    """What a world continues. `actions` are those of every frame but the last, the prompt's included."""

    world: Described  # with frames of the size asked for
    clip: VideoArray | None  # None: it begins with nothing
    actions: list[Any] | Free | None
    frames: int | None  # new ones; None: as many as the actions lead to, or as a window holds
    size: tuple[int, int] | None  # None: the model's own
    text: str | Tensor | None
    label: int | None = None  # a class
    pictures: VideoArray | None = None  # that steer it

    def check(self, orders: Sequence[Order], seed: int) -> None:
        """Refuse orders that cannot decode this, and seeds that are none."""
        import torch

        from diagonal.engine.sampler import seeds
        from diagonal.generation import checks

        seeds(seed, 1, torch.device("cpu"))
        world, stride = self.world, int(self.world.tokenizer.stride)
        known = 0 if self.clip is None else 1 + (len(self.clip) - 1) // stride
        rest = max(world.variant.config.frames - known, 1)
        new = rest if self.frames is None else checks.token_frames(world, self.frames)
        chosen = self.actions is not None and not isinstance(self.actions, list)  # by the model, behind the prompt's
        for order in orders:
            checks.check_whole(world, known, known + new, order)
            checks.check_order(world, known, new, order, known - 1 if chosen else known + new - 1)

    def told(self, asked: PromptOptions) -> dict[str, str]:
        """What it begins with and follows, for the credentials of the video."""
        from diagonal.generation.origin import actions_told, frames_told

        told = {"actions": actions_told(self.actions)}
        given = {"prompt": self.clip, "pictures": self.pictures}
        told |= {name: frames_told(frames) for name, frames in given.items() if frames is not None}
        if self.label is not None:
            told["class"] = str(self.label)
        if self.clip is not None and asked.prompt is None and (asked.start is not None or space(self.world).STARTS):
            told["start"] = asked.start or space(self.world).STARTS[0]
        if self.text is not None:
            told["text"] = self.text if isinstance(self.text, str) else frames_told(self.text.float())
        return told

    def under(self, world: World) -> World:
        """The loaded world, with frames of this size and under this text."""
        world = world if self.size is None else world.at(*self.size)
        if self.label is not None or self.pictures is not None:
            return world.steered(self.label, self.pictures)
        return world if self.text is None else world.guided(self.text)


def prepare(world: Described, asked: PromptOptions, fitting: Fitting, untrained: bool) -> Continuation:
    """What these options ask a world for; `world` need not be loaded. Without weights a drawn picture is continued."""
    from diagonal.generation import checks

    size = None if asked.size is None else _size(asked.size)
    if size is not None:
        world = checks.Unloaded(world.name, checks.resized(world, *size), world.tokenizer)
    text, actions = _text(world, asked), space(world)
    if not world.variant.prompt_frames:
        pictures = _pictures(world, asked, fitting, untrained)
        taken, frames = _actions(world, actions, asked, [])
        frames = frames or (1 if world.variant.written else None)  # pictures come one at a time
        return Continuation(world, None, taken, frames, size, text, asked.label, pictures)
    if asked.label is not None:
        checks.check_steering(world, asked.label, None)
    clip, between = asked.frames_of(world, fitting, untrained)
    taken, frames = _actions(world, actions, asked, between)
    return Continuation(world, clip, taken, frames, size, text)


def check_asked(world: Described, asked: PromptOptions, untrained: bool) -> None:
    """Refuse what no checkpoint can make right: of worlds whose checkpoint decides on their sizes."""
    _text(world, asked)
    actions = space(world)
    if not world.variant.prompt_frames:
        _actions(world, actions, asked, [])
        return
    _, between = _begin(world, actions, asked, untrained)
    _actions(world, actions, asked, between)


def space(world: Described) -> ActionSpace:
    """The actions of a world that need not be loaded."""
    return cast("ActionSpace", importlib.import_module(f"diagonal.worlds.{world.variant.actions}"))


def _begin(world: Described, actions: ActionSpace, asked: Beginning, untrained: bool) -> tuple[VideoArray, list[Any]]:
    """The frames that are continued, as they come, and the actions between them."""
    if asked.prompt is None:
        return _start(world, actions, asked.start, untrained)
    return _read(world, actions, Path(asked.prompt), asked.prompt_frames)


def check_computing(computing: Computing, kinds: tuple[str, ...]) -> None:
    """Refuse devices, dtypes and kinds of weights that there are not."""
    from diagonal.checkpoints.quantize import check
    from diagonal.generation.devices import check_device, find_dtype

    check_device(computing.device)
    find_dtype(computing.dtype, computing.device)
    check(computing.kind, kinds)


def check_is_text(option: str, text: str, instead: str) -> None:
    """Refuse the name of a file where a text belongs."""
    if os.path.exists(text):
        raise ValueError(
            f"{option} {text!r} is a file or folder, and this is a text; {instead}. If it is the text, write a space "
            f"before it: {option} {' ' + text!r}"
        )


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text.strip().lower())
    if match is None:
        raise ValueError(f"--size {text!r} is not HEIGHTxWIDTH; write for example 384x640")
    return int(match[1]), int(match[2])


def _text(world: Described, asked: PromptOptions) -> str | Tensor | None:
    from diagonal.generation import checks
    from diagonal.text.encoders import read

    if asked.text is None and asked.text_embeds is None:
        return None
    checks.check_text(world)
    if asked.text is None:
        return read(cast(Path, asked.text_embeds))
    check_is_text("--text", asked.text, f'for what is written in it: --text "$(cat {asked.text})"')
    return asked.text


def _read(world: Described, actions: ActionSpace, path: Path, asked: int | None) -> tuple[VideoArray, list[Any]]:
    """The frames of a prompt that are used, and the actions between them: those of the file, or doing nothing."""
    from diagonal.media import video
    from diagonal.worlds import xbox

    most, last = asked or world.variant.prompt_frames, world.variant.prompt_last
    taken: list[Any]
    if path.suffix == ".npz":
        clip, taken = xbox.read_clip(path)
    else:
        clip = video.read(path, most=most, last=last)
        taken = [actions.NOOP] * len(clip)
    count = min(most, len(clip))
    if asked is not None and count < asked:
        raise ValueError(f"{path} has {count} frames; --prompt-frames asks for {asked}")
    if asked is None:  # of a clip that is shorter than usual, as many frames as the tokenizer takes
        stride = int(world.tokenizer.stride)
        count = 1 + (count - 1) // stride * stride
    first = len(clip) - count if last else 0
    return clip[first : first + count], taken[first : first + count - 1]


def _pictures(world: Described, asked: PromptOptions, fitting: Fitting, untrained: bool) -> VideoArray | None:
    """The pictures that a video goes by, of a model of clips that begin with nothing: its prompt, if it takes one."""
    import numpy as np

    from diagonal.generation import checks
    from diagonal.media import draw, video

    config: Any = world.variant.config
    count = int(config.given) if world.variant.steered and asked.label is None else 0
    if asked.start is not None:
        raise ValueError(f"--start {asked.start} given; {world.name} has no start views and begins with nothing")
    if asked.prompt is None:
        return np.repeat(draw.test_card(*checks.frame_size(world))[:1], count, 0) if count and untrained else None
    if not count:
        raise ValueError(f"--prompt {asked.prompt} given; {world.name} begins with nothing and goes by no pictures")
    clip = fitting.fit(video.read(Path(asked.prompt), most=count), checks.frame_size(world))
    checks.check_steering(world, None, clip)
    return clip


def _start(world: Described, actions: ActionSpace, name: str | None, untrained: bool) -> tuple[VideoArray, list[Any]]:
    """A bundled start view that fits the world; a drawn picture where there is none and nothing can be spoilt."""
    from diagonal.generation.checks import frame_size
    from diagonal.media import draw

    if name is not None or actions.STARTS:
        return actions.start(name or actions.STARTS[0])
    if not untrained:
        raise ValueError("give --prompt: a clip, a picture or a folder of pictures to continue")
    return draw.test_card(*frame_size(world)), []


def _actions(
    world: Described, actions: ActionSpace, asked: PromptOptions, between: list[Any]
) -> tuple[list[Any] | Free | None, int | None]:
    """Actions for every frame but the last, those `between` prompt frames included, and how many frames are new."""
    from diagonal.generation.checks import check_chooses
    from diagonal.worlds.protocols import Free

    known, script, frames = len(between) + 1, asked.actions, asked.frames
    if script == "model":
        check_chooses(world)
        return Free(between), frames
    if script is None and frames is None:
        script = actions.SCRIPT or None
    if script is None:
        # Doing nothing after the prompt.
        idle = frames is not None and world.variant.config.suffix
        return (between + [actions.NOOP] * frames if idle and frames else None), frames
    if Path(script).suffix in (".jsonl", ".json", ".npz"):
        recorded = actions.read(script)
        frames = frames or max(1, min(world.variant.config.frames, len(recorded) + 1) - known)
        needed = known - 1 + frames
        if len(recorded) < needed:
            raise ValueError(
                f"{script} has {len(recorded)} actions; {known} prompt and {frames} new frames need {needed}"
            )
        return recorded[:needed], frames
    new = actions.parse(script)
    if frames not in (None, len(new)):
        raise ValueError(f"--actions has {len(new)} actions and --frames asks for {frames}; give one action per frame")
    return between + new, len(new)
