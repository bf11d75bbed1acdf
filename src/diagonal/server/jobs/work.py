"""What a model is asked to do for a job: checked against the model when it is asked, done when its time has come."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from torch import Tensor

from diagonal.generation import checks
from diagonal.generation.origin import frames_told, of_request, of_world
from diagonal.generation.request import Request
from diagonal.generation.session import Session
from diagonal.generation.video import VideoModel
from diagonal.generation.world import World
from diagonal.media.draw import stamp
from diagonal.media.provenance.origin import Origin
from diagonal.media.video import VideoArray, cover, enlarge, resize, to_be_seen
from diagonal.planning.decoding import DEFAULT
from diagonal.planning.denoising import spec
from diagonal.planning.plan import Order
from diagonal.planning.sampling import Sampling
from diagonal.server.asked import Asked
from diagonal.server.house import Served
from diagonal.server.jobs.fields import DIFFUSION, WORLD, FieldError, Fields
from diagonal.server.jobs.uploads import decoded
from diagonal.server.settings import Limits
from diagonal.server.video_models import ServedVideo
from diagonal.server.world_models import SCHEDULES, ServedWorld
from diagonal.worlds.script import spell

Result = TypeVar("Result")
OFFLINE = (*SCHEDULES, "diagonal:k=1,d=10", "diagonal:k=2,d=10")  # nobody waits for the next frame alone
LARGEST = 2048 * 1536  # pixels of an enlarged frame
NARROW = 8  # times as long as wide, at most, is what is cropped


class Work(Protocol):
    """A video to be made."""

    @property
    def frames(self) -> int:
        """Of the whole video."""
        ...

    @property
    def fps(self) -> Fraction: ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the file."""
        ...

    @property
    def schedule(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def from_text(self) -> bool:
        """Whether its frames have a watermark."""
        ...

    def begin(self) -> Session:
        """Begin, in the thread of the model."""
        ...

    def shown(self, frames: VideoArray) -> VideoArray:
        """Frames as they are in the file."""
        ...

    def origin(self) -> Origin:
        """What its credentials say."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldWork:
    """A world that goes on along actions."""

    world: World
    prompt: Tensor | VideoArray  # tokens of a start view, or frames
    known: list[Any]  # actions between these
    actions: list[Any]
    order: Order
    sampling: Sampling
    seed: int
    scale: int
    told: dict[str, str]
    from_text: bool = False

    @property
    def frames(self) -> int:
        """New ones: those that it begins with are not in the file."""
        return len(self.actions)

    @property
    def fps(self) -> Fraction:
        """Of the world."""
        return Fraction(self.world.variant.fps)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the file."""
        height, width = self.world.size
        return height * self.scale, width * self.scale

    @property
    def schedule(self) -> str:
        """In its text form."""
        return str(self.order)

    def begin(self) -> Session:
        """Begin, in the thread of the world."""
        how: dict[str, Any] = {"schedule": self.order, "sampling": self.sampling, "seed": self.seed}
        return self.world.stream(self.prompt, [*self.known, *self.actions], frames=self.frames, **how)

    def shown(self, frames: VideoArray) -> VideoArray:
        """Enlarged, with the mark that the model's licence asks for."""
        large = enlarge(frames, self.scale)
        return stamp(large, self.world.variant.mark) if self.world.variant.mark else large

    def origin(self) -> Origin:
        """What its credentials say."""
        return of_world(self.world, self.order, self.sampling, self.seed, self.told)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoWork:
    """A video of a diffusion model."""

    model: VideoModel
    request: Request
    scale: int
    from_text: bool = True

    @property
    def frames(self) -> int:
        """All of them."""
        assert self.request.num_frames is not None
        return self.request.num_frames

    @property
    def fps(self) -> Fraction:
        """Of the model."""
        return Fraction(self.model.variant.fps)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the file."""
        height, width = self.request.size(self.model.variant.size)
        return height * self.scale, width * self.scale

    @property
    def schedule(self) -> str:
        """In its text form."""
        return spec(self.request.how().schedule)

    @property
    def seed(self) -> int:
        """Of its noise."""
        return self.request.seeds()[0]

    def begin(self) -> Session:
        """Begin, in the thread of the model."""
        return self.model.stream(self.request)

    def shown(self, frames: VideoArray) -> VideoArray:
        """Enlarged."""
        return enlarge(frames, self.scale)

    def origin(self) -> Origin:
        """What its credentials say."""
        return of_request(self.model, self.request)


def thread_of(model: Served) -> Callable[[Callable[[], Result]], Future[Result]]:
    """What does something in the thread of a model, between what it does for others."""
    return model.ticker.ask if isinstance(model, ServedWorld) else model.thread.submit


def work_of(model: Served, fields: Fields, upload: bytes | None, limits: Limits) -> Work:
    """What a model is to do for these fields, or why it cannot."""
    fields = fields.model_copy(update={"seed": secrets.randbelow(2**31) if fields.seed is None else fields.seed})
    others, kind = (WORLD, "a diffusion model") if isinstance(model, ServedVideo) else (DIFFUSION, "a world")
    wrong = sorted(fields.model_fields_set & set(others))
    if wrong:
        raise FieldError(wrong[0], "bad_value", f"{model.name} is {kind}, which has no such thing")
    if fields.num_frames is not None and fields.seconds is not None:
        raise FieldError("num_frames", "bad_value", "num_frames and seconds both say how long the video is; give one")
    if fields.fit is not None and upload is None:
        raise FieldError("fit", "bad_value", "there is no input_reference to fit")
    if len(fields.prompt) > limits.prompt and isinstance(model, ServedVideo):
        raise FieldError("prompt", "bad_value", f"{len(fields.prompt)} characters; at most {limits.prompt} are taken")
    try:
        if isinstance(model, ServedWorld):
            return _world_work(model, fields, upload, limits)
        return _video_work(model.model, fields, upload, limits)
    except (OverflowError, MemoryError) as error:  # of a number that is out of all proportion
        raise ValueError(f"this cannot be made: {error}") from error


def _world_work(model: ServedWorld, fields: Fields, upload: bytes | None, limits: Limits) -> WorldWork:
    world, known = model.world, list[Any]()
    prompt: Tensor | VideoArray
    if upload is not None:
        if fields.start is not None:
            raise FieldError("start", "bad_value", "start and input_reference both say where to begin; give one")
        prompt = _fitted(decoded(upload, world.variant.prompt_frames, world.variant.prompt_last), fields, world.size)
        checks.check_prompt(world, prompt)
        known, told = [world.actions.NOOP] * (len(prompt) - 1), {"prompt": frames_told(prompt)}
    else:
        name = next(iter(model.starts)) if fields.start is None else fields.start
        if name not in model.starts:
            raise FieldError("start", "unknown_start", f"no start view {name!r}; known: {', '.join(model.starts)}")
        start, told = model.starts[name], {"start": name}
        prompt = start.tokens_THW
        known = [world.actions.NOOP] * (len(prompt) - 1) if start.actions is None else list(start.actions)
    actions = _actions(world, fields, limits)
    schedule = fields.schedule or DEFAULT
    if schedule not in OFFLINE:
        raise FieldError("schedule", "bad_value", f"{schedule!r} given; known: {', '.join(OFFLINE)}")
    order = Order.of(schedule)
    checks.check_order(world, len(prompt), len(actions), order, len(prompt) + len(actions) - 1)
    drawn = {name: value for name, value in fields.given().items() if name in ("temperature", "top_k", "top_p")}
    assert fields.seed is not None
    return WorldWork(
        world=world,
        prompt=prompt,
        known=known,
        actions=actions,
        order=order,
        sampling=replace(world.variant.sampling, **drawn),
        seed=fields.seed,
        scale=_scale(world, fields),
        told=told | {"actions": spell(actions)},
    )


def _actions(world: World, fields: Fields, limits: Limits) -> list[Any]:
    """One for each new frame: in `actions`, or as the prompt, which every client of the OpenAI shape can send."""
    said = fields.actions if isinstance(fields.actions, str | None) else ",".join(fields.actions)
    if said is not None and fields.prompt.strip():
        raise FieldError("prompt", "bad_value", f"{world.name} reads no text: actions or prompt say what is done")
    name = "prompt" if said is None else "actions"
    frames = fields.num_frames
    if fields.seconds is not None:
        frames = max(1, round(fields.seconds * float(world.variant.fps)))
    if frames is not None and frames > limits.video_frames:
        raise FieldError("num_frames", "bad_value", f"{frames} given; at most {limits.video_frames} are made")
    script = (fields.prompt if said is None else said).strip()
    if not script:
        return [world.actions.NOOP] * frames if frames else world.actions.parse(world.actions.SCRIPT)
    try:
        actions = world.actions.parse(script)
    except ValueError as error:
        raise FieldError(name, "bad_value", f"{error}; a world goes by actions, such as 'forward*8,left*4'") from error
    if frames not in (None, len(actions)):
        raise FieldError(name, "bad_value", f"{len(actions)} actions for {frames} frames; give one for each")
    if len(actions) > limits.video_frames:
        raise FieldError(name, "bad_value", f"{len(actions)} actions; at most {limits.video_frames} are taken")
    return actions


def _scale(world: World, fields: Fields) -> int:
    """How many times frames are enlarged: to the size that is asked for, or to be seen."""
    own = world.size
    asked = _size(fields)
    if asked == (None, None):
        return to_be_seen(own[0])
    sides = [(side, given) for side, given in zip(own, asked, strict=True) if given is not None]
    scale = sides[0][1] // sides[0][0]
    large = scale > 1 and own[0] * own[1] * scale**2 > LARGEST
    if scale < 1 or large or any(side * scale != given for side, given in sides):
        known = ", ".join(f"{own[1] * times}x{own[0] * times}" for times in (1, 2, 3))
        raise FieldError("size", "bad_value", f"frames of {world.name} are enlarged a whole number of times: {known}")
    return scale


def _video_work(model: VideoModel, fields: Fields, upload: bytes | None, limits: Limits) -> VideoWork:
    variant, (height, width) = model.variant, _size(fields)
    own = ("num_frames", "seconds", "seed", "schedule", *DIFFUSION)
    given = {name: value for name, value in fields.given().items() if name in own}
    asked = Asked(prompt=fields.prompt, height=height, width=width, **given)
    request = asked.request(variant, limits, variant.frames)
    if upload is not None:
        clip = _fitted(decoded(upload, limits.video_frames), fields, request.size(variant.size))
        shown: dict[str, Any] = {"image": clip[0]} if len(clip) == 1 else {"video": clip}
        request = replace(request, **shown)
    checks.check_request(model.name, variant, request)
    checks.check_texts(variant, [text for text in (fields.prompt, fields.negative_prompt) if text])
    sized = height is not None or width is not None
    return VideoWork(model=model, request=request, scale=1 if sized else to_be_seen(variant.size[0]))


def _size(fields: Fields) -> tuple[int | None, int | None]:
    """Height and width that are asked for."""
    if fields.size is None:
        return fields.height, fields.width
    if fields.width is not None or fields.height is not None:
        raise FieldError("size", "bad_value", "size, and width or height, are given; give one of them")
    width, height = map(int, fields.size.split("x"))
    if not width or not height:
        raise FieldError("size", "bad_value", f"{fields.size} given; both sides must be at least 1")
    return height, width


def _fitted(clip: VideoArray, fields: Fields, size: tuple[int, int]) -> VideoArray:
    """Frames in the size that is needed, or a refusal that says how to have them fitted."""
    if clip.shape[1:3] == size:
        return clip
    have = f"{clip.shape[2]}x{clip.shape[1]}"
    if fields.fit is None:
        why = f"it is {have}, and {size[1]}x{size[0]} is needed; send it so, or give fit: crop or resize"
        raise FieldError("input_reference", "bad_value", why)
    if fields.fit == "resize":
        return resize(clip, *size)
    if max(clip.shape[1:3]) > NARROW * min(clip.shape[1:3]):  # covering enlarges the short side, and with it the long
        raise FieldError("input_reference", "bad_value", f"it is {have}, too narrow to be cropped; take fit: resize")
    return cover(clip, *size)
