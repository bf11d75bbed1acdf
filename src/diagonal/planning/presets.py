"""How the published causal video models are run: their schedule, chunks, window and guidance, by name or from YAML.

    PRESETS["diagonal-distillation"], find("self-forcing").with_schedule("2"), read_yaml("self_forcing_dmd.yaml")

Frames are latent frames here: the first is one frame of the video, each later one is four.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from diagonal.planning.denoising import ChunkSchedule, is_steps, parse, spec
from diagonal.planning.denoising.diagonal import Diagonal
from diagonal.planning.denoising.even import Even
from diagonal.planning.denoising.explicit import Explicit
from diagonal.planning.denoising.forcing import Forcing
from diagonal.planning.denoising.noise import CLEAN, LAST, START
from diagonal.planning.denoising.quadratic import A_QUARTER, Quadratic
from diagonal.planning.denoising.teacher import Teacher
from diagonal.planning.lag import SEES_ALL, Sees
from diagonal.planning.passes import DISTILLED, GUIDED, PIPELINES, pipeline_calls
from diagonal.planning.segments import Cut

RENOISE, UNIPC, UNIPC_IN_PLACE, EULER = "renoise", "unipc", "unipc-in-place", "euler"
SOLVERS = (RENOISE, UNIPC, UNIPC_IN_PLACE, EULER)
WHOLE = Sees(whole=True)


@dataclass(frozen=True, slots=True)
class Preset:
    """How a model is run. A model may be run otherwise, but it was trained for one of these."""

    schedule: ChunkSchedule
    chunk_frames: int | None = 3  # denoised together; None: all at once, without a cache
    window_frames: int | None = None  # that a chunk sees, itself included; None: all before it
    sink_frames: int = 0  # the first of the video, which stay in the window
    relative_rope: bool = False  # positions are counted in the window, so that no video is too long for them
    guidance_scale: float = 1.0  # 1: without classifier-free guidance
    sees: Sees = SEES_ALL  # what a chunk sees of what the window holds, or of the whole video
    solver: str = RENOISE  # between levels: of SOLVERS, see `engine.chunks.solvers`
    pipeline: str = ""  # of PIPELINES: how chunks that are in a call together are guided, each at its own level
    segment_frames: int | None = None  # longer videos are made in segments, each with positions from 0; None: in one
    overlap_frames: int = 0  # latent frames that a segment begins with, from the end of the one before
    overlap_level: float = 0.0  # as the model is shown them, a timestep: a little noise hides the seam

    def __post_init__(self) -> None:
        if self.chunk_frames is not None and self.chunk_frames < 1:
            raise ValueError(f"chunks of {self.chunk_frames} frames given; they must have at least 1")
        if self.sink_frames < 0:
            raise ValueError(f"a sink of {self.sink_frames} frames given; it must have 0 or more")
        least = self.sink_frames + (self.chunk_frames or 1)
        if self.window_frames is not None and self.window_frames < least:
            raise ValueError(
                f"a window of {self.window_frames} frames given; it holds the sink and the current chunk, so it must "
                f"have at least {least}, or be left out to see everything"
            )
        if self.window_frames is None and (self.sink_frames or self.relative_rope):
            raise ValueError("a sink or relative positions given without a window; they need one")
        if self.relative_rope and self.schedule.lag is not None:
            raise ValueError("a lag given with relative positions: chunks that overlap have no one place of the sink")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver {self.solver!r} is not known; known: {', '.join(SOLVERS)}")
        if self.solver in (UNIPC, UNIPC_IN_PLACE) and not isinstance(self.schedule, Teacher | Forcing):
            raise ValueError(
                f"schedule {spec(self.schedule)!r} given; presets with a solver take a number of steps, such as 30, or "
                "forcing:steps=30,lag=5"
            )
        if self.pipeline not in ("", *PIPELINES):
            raise ValueError(f"pipeline {self.pipeline!r} is not known; known: {', '.join(PIPELINES)}")
        if self.pipeline and not (isinstance(self.schedule, Quadratic) and self.sees.reach and self.solver == EULER):
            raise ValueError(
                f"schedule {spec(self.schedule)!r} given; a pipeline takes a number of steps, such as 16, or "
                "quadratic:steps=16,lag=4, straight steps, and chunks that see a number of others"
            )
        self._check_segments()

    def _check_segments(self) -> None:
        chunk, segment = self.chunk_frames or 1, self.segment_frames
        new = None if segment is None else segment - self.overlap_frames
        if new is not None and (self.overlap_frames < 1 or new < 1 or new % chunk or (segment or 0) % chunk):
            raise ValueError(
                f"segments of {segment} latent frames that begin with {self.overlap_frames} of the one before given; "
                f"both the segment and what is new of it must be chunks of {chunk}"
            )
        if not 0 <= self.overlap_level < START:
            raise ValueError(f"an overlap at timestep {self.overlap_level:g} given; it must be 0 (clean) to 1000")

    @property
    def cut(self) -> Cut:
        """How a video is cut into segments and chunks. One that is denoised all at once is a chunk of its own: see
        `for_frames`."""
        return Cut(self.chunk_frames or 1, self.segment_frames, self.overlap_frames)

    def for_frames(self, frames: int | None) -> Preset:
        """The same for a video of so many latent frames: all of them are one chunk, where there are no smaller ones."""
        return self if self.chunk_frames is not None or frames is None else replace(self, chunk_frames=frames)

    def calls(self, frames: int, given: int = 0) -> list[int]:
        """Model calls for each chunk of a video of so many latent frames, so many of which are given."""
        own = self.for_frames(frames)
        if self.pipeline:
            return pipeline_calls(self.pipeline, self.schedule, own.sees, *self._chunks(frames, given))
        return [(1 + self.guided) * count for count in own.cut.calls(self.schedule, self.sees, frames, given)]

    def _chunks(self, frames: int, given: int) -> tuple[int, int]:
        """New chunks of a video of so many latent frames, and whole ones that are given."""
        size = self.chunk_frames or frames
        return frames // size - given // size, given // size

    @property
    def endless(self) -> bool:
        """Whether a video may have no end: what chunks see is limited."""
        limited = (self.window_frames, self.segment_frames, self.pipeline or None)
        return any(one is not None for one in limited)

    @property
    def guided(self) -> bool:
        """Whether each level takes two calls: with the prompt and without."""
        return self.guidance_scale != 1.0

    @property
    def shift(self) -> float:
        """The shift of the model's noise levels."""
        return self.schedule.shift

    def with_schedule(self, text: str) -> Preset:
        """The same with another schedule, of this shift if the text gives none.

        Digits alone are steps in the preset's own spacing (even ones where it has a list): 4444444 of `self-forcing`
        is 1000, 937.5, 833.33, 625 for each chunk. Of `wan`, `skyreels` and `magi` they are the number of steps.
        """
        schedule = self.schedule
        if not is_steps(text):
            named = parse(text)
            return replace(self, schedule=named if "shift=" in text else _with_shift(named, self.shift))
        steps = text.strip()
        if isinstance(schedule, Quadratic):
            return replace(self, schedule=replace(schedule, steps=int(steps), lag=A_QUARTER))
        if isinstance(schedule, Teacher | Forcing):
            return replace(self, schedule=replace(schedule, steps=int(steps)))
        if isinstance(schedule, Diagonal):
            return replace(self, schedule=replace(schedule, steps=steps))
        context = schedule.context if isinstance(schedule, Even | Explicit) else CLEAN
        return replace(self, schedule=Even(steps, context, self.shift))

    def with_context(self, text: str) -> Preset:
        """The same with another level at which later chunks see this one: `clean`, 100 (before the shift), t100 (after
        it), or where the schedule has it, `last`."""
        if not isinstance(self.schedule, Diagonal | Even | Explicit):
            raise ValueError(f"context {text!r} given; {spec(self.schedule)} has no other than its own")
        return replace(self, schedule=replace(self.schedule, context=text))


def _with_shift(schedule: Any, shift: float) -> ChunkSchedule:
    return cast(ChunkSchedule, replace(schedule, shift=shift))


# SkyReels-V2, as diffusers masks it: a chunk of 5 latent frames begins 5 steps after the one before, over a cache of
# finished ones. Videos of more than 97 frames are segments that begin with the last 17 frames of the one before.
_SKYREELS = Preset(
    Forcing(),
    chunk_frames=5,
    guidance_scale=6.0,
    solver=UNIPC_IN_PLACE,
    segment_frames=25,
    overlap_frames=5,
    overlap_level=20.0,
)


def _magi(steps: int, pipeline: str) -> Preset:
    """MAGI-1: four chunks of 6 latent frames in a call, over one finished one. At first a chunk sees four before it."""
    sees = Sees(reach=(5, 4, 3, 2), context_reach=1)
    return Preset(Quadratic(steps), chunk_frames=6, sees=sees, solver=EULER, pipeline=pipeline)


PRESETS = {
    "diagonal-distillation": Preset(Diagonal(), window_frames=12, sink_frames=3),
    "infinity": Preset(Even(context="last"), window_frames=12, sink_frames=3, relative_rope=True),
    "self-forcing": Preset(Even()),
    # Causal-Forcing's models of one latent frame. Those of one step are run with 41.
    "frame-wise": Preset(Even("42"), chunk_frames=1),
    "causvid": Preset(Explicit("t1000-t757-t522", shift=8.0)),
    "wan": Preset(Teacher(), chunk_frames=None, guidance_scale=6.0, sees=WHOLE, solver=UNIPC),
    "skyreels": _SKYREELS,
    "magi": _magi(64, GUIDED),
    "magi-24b": _magi(32, GUIDED),
    "magi-distilled": _magi(16, DISTILLED),
    "skyreels-full": replace(_SKYREELS, sees=WHOLE),  # as its authors run it: all latents in every call
    # Their other mode: all latents at one level, in videos of any length that the model can see at once.
    "skyreels-sync": Preset(Teacher(30), chunk_frames=None, guidance_scale=6.0, sees=WHOLE, solver=UNIPC_IN_PLACE),
}


def find(name: str) -> Preset:
    """The preset of this name, or of a YAML file; what the file says beside it is named in a warning."""
    if name.endswith((".yaml", ".yml")):
        preset, elsewhere = read_yaml(name)
        if elsewhere:
            warnings.warn(f"{name} also gives {', '.join(elsewhere)}, no part of a preset: give it too", stacklevel=2)
        return preset
    if name not in PRESETS:
        raise ValueError(f"no preset is called {name!r}; known: {', '.join(PRESETS)}, or a YAML file")
    return PRESETS[name]


# Keys of the YAML files of Self-Forcing, CausVid, LongLive, Causal-Forcing and Diagonal Distillation. Each may stand
# at the top or under model_kwargs. What has no default must be there; the defaults are those of their code.
REQUIRED = ("denoising_step_list", "warp_denoising_step", "num_frame_per_block", "timestep_shift")
DEFAULTS: dict[str, Any] = {
    "local_attn_size": -1,
    "sink_size": 0,
    "context_noise": 0,
    "denoising_step_list_first_chunk": None,
    "use_diagonal_denoising": None,
    "use_infinite_attention": False,
    "independent_first_frame": False,
}
# These change the video too, but are no part of a preset: they are arguments elsewhere.
ELSEWHERE = (
    *("model_name", "generator_ckpt", "lora_ckpt", "adapter", "use_ema", "seed", "num_samples", "num_output_frames"),
    *("guidance_scale", "negative_prompt", "image_or_video_shape", "global_sink", "i2v", "use_taehv"),
)


def read_yaml(path: str | Path) -> tuple[Preset, tuple[str, ...]]:
    """The preset that a YAML file of the Self-Forcing family describes, and the keys in it that also change the video
    but are not part of a preset, such as the checkpoint or the seed: give those yourself."""
    content = _mapping(Path(path).expanduser())
    nested = content.get("model_kwargs") or {}
    if not isinstance(nested, dict):
        raise ValueError(f"{path}: model_kwargs is {nested!r}; it must be a table of keys")
    unknown = sorted(map(str, nested.keys() - {*REQUIRED, *DEFAULTS, *ELSEWHERE}))
    if unknown:
        known = ", ".join((*REQUIRED, *DEFAULTS))
        raise ValueError(f"{path}: model_kwargs holds {', '.join(unknown)}, which nothing here knows; known: {known}")
    twice = [key for key in (*REQUIRED, *DEFAULTS) if key in content and key in nested and content[key] != nested[key]]
    if twice:
        raise ValueError(f"{path}: {twice[0]} is {content[twice[0]]!r}, but {nested[twice[0]]!r} in model_kwargs")
    found = content | nested
    missing = [key for key in REQUIRED if key not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; add them, or merge it with the defaults it belongs to")
    try:
        preset = _preset(DEFAULTS | found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return preset, tuple(key for key in ELSEWHERE if key in found)


def _mapping(path: Path) -> dict[Any, Any]:
    """A YAML file's table, of plain values alone."""
    try:
        import yaml
    except ImportError as error:
        raise ValueError(f"{path} needs PyYAML to be read: pip install pyyaml; or name a preset") from error
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r} does not exist; give a YAML file")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is no YAML file of plain values ({reason}); code in it is never run") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; a table of keys is needed")
    return content


def _preset(values: Mapping[str, Any]) -> Preset:
    if _bool(values, "independent_first_frame"):
        raise ValueError("independent_first_frame is true; chunks of different sizes are not supported")
    window = _int(values, "local_attn_size", -1)
    if window == 0:
        raise ValueError("local_attn_size is 0; it must be -1 (everything) or a number of frames")
    # Without a window nothing leaves the cache, so that a sink says nothing.
    return Preset(
        _schedule(values),
        chunk_frames=_int(values, "num_frame_per_block", 1),
        window_frames=None if window == -1 else window,
        sink_frames=0 if window == -1 else _int(values, "sink_size", 0),
        relative_rope=_bool(values, "use_infinite_attention"),
    )


def _schedule(values: Mapping[str, Any]) -> ChunkSchedule:
    shift = values["timestep_shift"]
    if isinstance(shift, bool) or not isinstance(shift, int | float):
        raise ValueError(f"timestep_shift is {shift!r}; it must be a number such as 5.0")
    steps = _steps(values, "denoising_step_list")
    first = "denoising_step_list_first_chunk"
    if values["use_diagonal_denoising"] is None:
        lists = [steps] if values[first] is None else [_steps(values, first), steps]
        noise = _int(values, "context_noise", 0)
        return Explicit("/".join(map("-".join, lists)), f"t{noise}" if noise else CLEAN, float(shift))
    if values[first] is not None:
        raise ValueError(f"{first} is given along with use_diagonal_denoising; only one of them may be")
    # The code that knows this key leaves the cache to the last step, whatever context_noise is.
    if not _bool(values, "use_diagonal_denoising"):
        return Explicit("-".join(steps), LAST, float(shift))
    if len(steps) != 2 or steps[0] not in ("1000", "t1000"):
        raise ValueError(f"denoising_step_list is {', '.join(steps)}; with use_diagonal_denoising it must be 1000, end")
    return Diagonal(context=steps[1], shift=float(shift))


def _steps(values: Mapping[str, Any], key: str) -> list[str]:
    """A list as levels: warped ones are steps before the shift. A 0 at the end is no step, as in their code."""
    given = values[key]
    if not isinstance(given, list) or not given or any(type(one) is not int for one in given):
        raise ValueError(f"{key} is {given!r}; it must be a list of whole numbers such as [1000, 750, 500, 250]")
    steps = given[:-1] if given[-1] == 0 else given
    return [f"{'' if _bool(values, 'warp_denoising_step') else 't'}{step}" for step in steps]


def _bool(values: Mapping[str, Any], key: str) -> bool:
    if not isinstance(values[key], bool):
        raise ValueError(f"{key} is {values[key]!r}; it must be true or false")
    return bool(values[key])


def _int(values: Mapping[str, Any], key: str, least: int) -> int:
    if type(values[key]) is not int or values[key] < least:
        raise ValueError(f"{key} is {values[key]!r}; it must be a whole number of {least} or more")
    return int(values[key])
