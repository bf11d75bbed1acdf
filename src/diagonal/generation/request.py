"""What a diffusion model is asked for: the prompt and its changes, length and size, how it is run, what it begins with.

    Request(prompt="a cat on a skateboard", num_frames=81, schedule="4322222")

All that can be refused without the model is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from diagonal.media.video import VideoArray
from diagonal.planning import presets
from diagonal.planning.denoising.forcing import Forcing
from diagonal.planning.denoising.teacher import Teacher
from diagonal.planning.presets import Preset

USUAL = "diagonal-distillation"  # the preset, where neither a request nor a model says one
DECODERS = ("vae", "preview", "none")
Prompts = str | Sequence[str] | Tensor  # a text, or one for each sample; or embeddings ([B,] rows, width)


@dataclass(frozen=True, slots=True)
class Request:
    """One video. `num_frames` counts all of its frames, those of `image` or `video` included; None is without end.

    `image` (H, W, 3) or `video` (T, H, W, 3) of uint8 is what it begins with. `prompt_at` gives other prompts from the
    start of a chunk on. `latents` (F, C, rows, cols) is the noise to start from, instead of that of the seed.

    A list of prompts, or embeddings with one more dimension in front, is a batch of videos that are made together:
    sample b has seed + b, or the b-th of several seeds. Pictures, clips and noise are then one for all, or have one
    more dimension too.
    """

    prompt: str | Sequence[str] | None = None
    prompt_embeds: Tensor | None = None  # ([B,] rows, width), instead of a prompt
    prompt_at: Mapping[int, Prompts] = field(default_factory=dict)
    num_frames: int | None = None
    height: int | None = None  # of the frames; None: as the model was trained
    width: int | None = None
    preset: str | Path | Preset | None = None  # a name, a YAML file of the Self-Forcing family; None: the model's own
    schedule: str | None = None  # instead of the preset's, such as 4322222
    seed: int | Sequence[int] = 0
    generator: torch.Generator | None = None  # draws the seed, if given
    latents: Tensor | None = None
    image: VideoArray | None = None
    video: VideoArray | None = None
    decoder: str = "vae"  # of DECODERS
    keep_sink: bool = True  # a sink that left the window keeps the keys of the prompt before
    capture: bool = True  # on a GPU, record the model's calls and replay them
    # Of presets with guidance alone, such as `wan` and `skyreels`:
    negative_prompt: str | Tensor | None = None
    guidance_scale: float | None = None
    num_inference_steps: int | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.prompt_embeds is None):
            raise ValueError("a prompt, or its embeddings (prompt_embeds), must be given: one of the two")
        for prompts in (self.prompt, *self.prompt_at.values()):
            for text in texts(prompts):
                check_prompt(text)
        if self.prompt is not None and not texts(self.prompt):
            raise ValueError("an empty list of prompts given; a batch has at least one")
        sizes = {chunk: batch_of(prompts) for chunk, prompts in self.prompt_at.items()}
        other = next((chunk for chunk, size in sizes.items() if size not in (None, self.batch)), None)
        if other is not None:
            raise ValueError(f"{sizes[other]} prompts given at chunk {other} for {self.batch or 1} videos")
        if self.image is not None and self.video is not None:
            raise ValueError("image and video both say what to begin with; give one")
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder {self.decoder!r} is not known; known: {', '.join(DECODERS)}")
        self.seeds()  # or they are refused here

    @property
    def batch(self) -> int | None:
        """Videos that are made together; None: one, which is no batch."""
        prompts = self.prompt if self.prompt is not None else self.prompt_embeds
        assert prompts is not None
        return batch_of(prompts)

    def seeds(self) -> tuple[int, ...]:
        """The seed of each sample, as they were given."""
        batch = self.batch or 1
        seeds = tuple(range(self.seed, self.seed + batch)) if isinstance(self.seed, int) else tuple(self.seed)
        if len(seeds) != batch:
            raise ValueError(f"{len(seeds)} seeds given for {batch} prompts")
        if not all(0 <= seed < 2**63 for seed in seeds):
            raise ValueError(f"seed {self.seed} given; a seed is a whole number from 0 to 2^63 - 1")
        return seeds

    def draw_seeds(self) -> tuple[int, ...]:
        """The seed of each sample: drawn by the generator, which moves on, or the given ones."""
        if self.generator is None:
            return self.seeds()
        count, device = self.batch or 1, self.generator.device
        drawn = [torch.randint(2**62, (), generator=self.generator, device=device) for _ in range(count)]
        return tuple(int(seed) for seed in drawn)

    def named(self, usual: str) -> Request:
        """The same under a model's own preset, if it says none."""
        return self if self.preset is not None else replace(self, preset=usual)

    def how(self) -> Preset:
        """The preset with all that this request changes in it."""
        named = USUAL if self.preset is None else self.preset
        preset = named if isinstance(named, Preset) else presets.find(str(named))
        preset = preset if self.schedule is None else preset.with_schedule(self.schedule)
        return self._guided(self._whole(preset) if preset.sees.whole else self._causal(preset))

    def _causal(self, preset: Preset) -> Preset:
        """A preset whose chunks see those before them."""
        if self.num_frames is None and not preset.endless:
            raise ValueError(f"num_frames is needed: without end there must be a window, as of {_named(endless=True)}")
        return preset

    def _whole(self, preset: Preset) -> Preset:
        """A preset that shows all frames in every call."""
        chunked: dict[str, object] = {"prompt_at": self.prompt_at or None}
        if preset.chunk_frames is None:
            chunked |= {"image": self.image, "video": self.video}
        given = [name for name, value in chunked.items() if value is not None]
        if given:
            raise ValueError(f"{given[0]} given; all frames at once cannot have it: take {_named(endless=False)}")
        if self.num_frames is None:
            raise ValueError("num_frames is needed: all frames are in every call, such as 81")
        if preset.chunk_frames is None and not isinstance(preset.schedule, Teacher):
            raise ValueError(f"schedule {self.schedule!r} given; all frames at once take a number of steps, such as 50")
        return preset

    def _guided(self, preset: Preset) -> Preset:
        """A preset with the guidance and the steps that are asked for, where it has them."""
        schedule, steps = preset.schedule, self.num_inference_steps
        guiding = {"negative_prompt": self.negative_prompt, "guidance_scale": self.guidance_scale}
        own = guiding | {"num_inference_steps": steps}
        given = [name for name, value in own.items() if value is not None]
        solved = isinstance(schedule, Teacher | Forcing)
        if given and not solved:
            raise ValueError(
                f"{given[0]} given; only the presets {', '.join(_solved())} have guidance and steps: others have a "
                "schedule"
            )
        if steps is not None and isinstance(schedule, Teacher | Forcing):
            preset = replace(preset, schedule=replace(schedule, steps=steps))
        return preset if self.guidance_scale is None else replace(preset, guidance_scale=self.guidance_scale)

    def size(self, usual: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the frames, of a model that usually makes those of `usual`."""
        return self.height or usual[0], self.width or usual[1]


def batch_of(prompts: Prompts) -> int | None:
    """How many samples prompts are for; None: one that is no batch, or the same for all."""
    if isinstance(prompts, Tensor):
        return len(prompts) if prompts.ndim == 3 and len(prompts) > 1 else None
    return None if isinstance(prompts, str) else len(prompts)


def texts(prompts: Prompts | None) -> list[str]:
    """The texts among prompts."""
    if prompts is None or isinstance(prompts, Tensor):
        return []
    return [prompts] if isinstance(prompts, str) else list(prompts)


def check_prompt(text: str) -> None:
    """Refuse a text that says nothing."""
    if not text.strip():
        raise ValueError("the prompt is empty; say what is to be seen, or give its embeddings")


class Stretch(Protocol):
    """How latent frames lie in time: a codec, or its config."""

    @property
    def stride(self) -> int: ...

    @property
    def first(self) -> int:
        """Frames of the first latent frame; each later one is `stride` frames."""
        ...


def frames_of(latents: int, codec: Stretch) -> int:
    """Frames of so many latent ones, from the start of a video."""
    return codec.first + codec.stride * (latents - 1) if latents else 0


def latent_frames(num_frames: int, preset: Preset, codec: Stretch, given: int = 0) -> int:
    """Latent frames of a video that is made chunk by chunk, behind given latent frames."""
    chunk, stride = preset.chunk_frames or 1, codec.stride
    step, least = stride * chunk, frames_of(given + chunk, codec)  # the frames of a chunk, and with the first of them
    odd = (num_frames - least) % step
    if num_frames < least or odd:
        below = max(least, num_frames - odd)
        nearest = f"{least}" if num_frames < least else f"{below} or {below + step}"
        after = f", after {given} given latent frames" if given else ""
        raise ValueError(
            f"num_frames={num_frames} given; {chunk} latent frames of {stride} frames (the first of {codec.first}) are "
            f"made at a time{after}: the nearest is {nearest}"
        )
    return 1 + (num_frames - codec.first) // stride


def latent_size(height: int, width: int, patch: int, side: int) -> tuple[int, int]:
    """Rows and columns of latents: `patch` pixels each, of which `side` in both directions are a token."""
    step = patch * side
    for name, value in (("height", height), ("width", width)):
        if value % step or value < step:
            below = max(step, value // step * step)
            raise ValueError(f"{name}={value} given; it must be a multiple of {step}: {below} or {below + step}")
    return height // patch, width // patch


def _named(endless: bool) -> str:
    """The presets that work in chunks over a cache: with a window or segments, or any."""
    chunked = {name: one for name, one in presets.PRESETS.items() if not one.sees.whole}
    return ", ".join(name for name, one in chunked.items() if not endless or one.endless)


def _solved() -> list[str]:
    """The presets of many steps."""
    return [name for name, one in presets.PRESETS.items() if isinstance(one.schedule, Teacher | Forcing)]
