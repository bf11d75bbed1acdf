"""What a client asks a diffusion model for, within a server's limits, as a request of the library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant
from diagonal.generation.request import Request, Stretch, frames_of
from diagonal.planning.presets import PRESETS
from diagonal.server.settings import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A video. What is None was not said."""

    prompt: str
    num_frames: int | None = None
    seconds: float | None = None
    height: int | None = None
    width: int | None = None
    seed: int | None = None
    schedule: str | None = None
    negative_prompt: str | None = None
    guidance_scale: float | None = None
    num_inference_steps: int | None = None

    def request(self, variant: DiffusionVariant, limits: Limits, usual: int) -> Request:
        """The same for a model; `usual`: frames where nobody says how many."""
        for text in (self.prompt, self.negative_prompt or ""):
            if len(text) > limits.prompt:
                raise ValueError(f"a prompt of {len(text)} characters given; at most {limits.prompt} are taken")
        frames = self._frames(variant, usual)
        if frames > limits.video_frames:
            raise ValueError(f"{frames} frames asked for; at most {limits.video_frames} are made")
        height, width = self.height or variant.size[0], self.width or variant.size[1]
        if height * width > variant.size[0] * variant.size[1]:
            raise ValueError(f"{width}x{height} asked for; at most {variant.size[1]}x{variant.size[0]} is made")
        own = ("seed", "schedule", "negative_prompt", "guidance_scale", "num_inference_steps")
        given: dict[str, Any] = {
            name: value for name, value in asdict(self).items() if name in own and value is not None
        }
        return Request(
            prompt=self.prompt, preset=variant.preset, num_frames=frames, height=height, width=width, **given
        )

    def _frames(self, variant: DiffusionVariant, usual: int) -> int:
        if self.num_frames is not None and self.seconds is not None:
            raise ValueError("num_frames and seconds both say how long the video is; give one")
        if self.num_frames is not None:
            return self.num_frames
        return usual if self.seconds is None else nearest(variant, self.seconds * float(variant.fps))


def nearest(variant: DiffusionVariant, frames: float) -> int:
    """The length nearest to this that can be made, for videos are made in chunks."""
    chunk, codec = _chunks(variant)
    return frames_of(chunk * max(1, round(((frames - codec.first) / codec.stride + 1) / chunk)), codec)


def longest(variant: DiffusionVariant, most: int) -> int:
    """The longest video that can be made of at most so many frames."""
    chunk, codec = _chunks(variant)
    return frames_of(chunk * max(1, ((most - codec.first) // codec.stride + 1) // chunk), codec)


def _chunks(variant: DiffusionVariant) -> tuple[int, Stretch]:
    """Latent frames of a chunk, and how these lie in time."""
    return PRESETS[variant.preset].chunk_frames or 1, find("tokenizers", variant.vae)
