"""What can be refused of a request without the model: by the variant and the sizes of its tokenizer alone.

A large model takes minutes to load, and a request that cannot be met should not wait for it. The commands ask here
before they load, and `World.stream` and `VideoModel.stream` for those who call them from Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant, TokenConfig, Variant
from diagonal.engine.tokens.decode import plans, spans
from diagonal.generation.components import NONE, VAE, Weights, published_vae
from diagonal.generation.request import Request, Stretch, latent_frames, latent_size
from diagonal.media.video import VideoArray
from diagonal.planning.decoding.lossless import Lossless
from diagonal.planning.plan import Order
from diagonal.planning.presets import PRESETS, Preset
from diagonal.text.encoders import ENCODERS, OWN, embed

FIT = "Resize them: diagonal.media.video.resize or cover, --resize or --crop"


def untrained(variant: Variant | DiffusionVariant, weights: str | Path | None) -> bool:
    """Whether `load` would draw these weights at random."""
    return variant.random if weights is None else str(weights) == checkpoints.RANDOM


def check_weights(name: str, variant: Variant | DiffusionVariant, weights: str | Path | None) -> None:
    """Refuse a model without weights, where none are shipped."""
    if weights is None and not variant.embedded and not variant.random:
        raise ValueError(
            f"{name} needs weights: give a file, a folder or a hub id. Source: {variant.source}. "
            'weights="random" runs it untrained, for speed only'
        )


# Token worlds


class Described(Protocol):
    """What is known of a token world without its weights: a `World`, or one that is not loaded."""

    @property
    def name(self) -> str: ...
    @property
    def variant(self) -> Variant: ...
    @property
    def tokenizer(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A token world before it is loaded: its tokenizer has sizes, but no numbers."""

    name: str
    variant: Variant
    tokenizer: Any

    @classmethod
    def of(cls, name: str, variant: Variant) -> Unloaded:
        """The world of this name."""
        with torch.device("meta"):
            return cls(name, variant, find("tokenizers", variant.tokenizer).build())

    def at(self, height: int, width: int) -> Unloaded:
        """The same with frames of another size."""
        return replace(self, variant=resized(self, height, width))


def frame_size(world: Described) -> tuple[int, int]:
    """Height and width of a world's frames."""
    config, patch = world.variant.config, int(world.tokenizer.patch)
    ends = world.variant.row_end is not None  # a column that is no picture
    return config.rows * patch, (config.cols - ends) * patch


def resized(world: Described, height: int, width: int) -> Variant:
    """The variant for frames of another size, where the model's positions allow it."""
    variant, patch = world.variant, int(world.tokenizer.patch)
    if height % patch or width % patch or min(height, width) < patch:
        raise ValueError(f"frames of {height}x{width} asked for; both sides must be multiples of {patch}")
    ends = variant.row_end is not None
    config = replace(cast(Any, variant.config), rows=height // patch, cols=width // patch + ends)
    if variant.written:  # its positions are rotary, and building it takes long
        return replace(variant, config=config)
    states = [built(one).state_dict() for one in (variant.config, config)]
    if any(states[1][key].shape != value.shape for key, value in states[0].items()):
        raise ValueError(f"{world.name} has learned positions of its own frames, {frame_size(world)}: no others")
    return replace(variant, config=config)


def built(config: TokenConfig) -> Any:
    """The model of this config without numbers."""
    with torch.device("meta"):
        return config.build()


def token_frames(world: Described, frames: int) -> int:
    """New frames counted as the model does."""
    stride = int(world.tokenizer.stride)
    if frames % stride:
        more = -(-frames // stride) * stride
        raise ValueError(f"{frames} new frames asked for; {world.name} makes {stride} at a time: write {more}")
    return frames // stride


def check_prompt(world: Described, prompt: VideoArray) -> None:
    """Refuse frames that the tokenizer does not take: one picture (H, W, 3), a clip (T, H, W, 3), or a batch."""
    if world.tokenizer.whole:
        raise ValueError(f"frames given to continue; {world.name} makes whole clips, from nothing or from token ids")
    (height, width), stride = frame_size(world), int(world.tokenizer.stride)
    video = prompt[None] if prompt.ndim == 3 else prompt
    if not video.size:
        raise ValueError("the prompt holds no frames; at least one is needed")
    if video.dtype != np.uint8 or video.ndim not in (4, 5) or video.shape[-3:] != (height, width, 3):
        raise ValueError(
            f"the prompt is {video.dtype} of shape {prompt.shape}; {world.name} takes uint8 RGB frames of height "
            f"{height} and width {width}, (T, {height}, {width}, 3). {FIT}"
        )
    count = video.shape[-4]
    if count % stride != 1 % stride:  # the first token frame is one frame, each later one `stride`
        raise ValueError(f"{count} prompt frames given; {world.name} takes 1 + {stride}n: {_nearest(count, stride)}")


def check_begins_with_nothing(world: Described) -> None:
    """Refuse to make a video without a prompt where the model continues one."""
    if world.variant.prompt_frames:
        raise ValueError(f"no prompt given; {world.name} continues a clip: give frames, a picture or token ids")


def check_whole(world: Described, known: int, frames: int, order: Order) -> None:
    """Refuse clips that do not end with the window, where clips are whole, and schedules that begin behind a frame
    where none is known."""
    if world.tokenizer.whole and frames != world.variant.config.frames:
        most, stride = world.variant.config.frames, int(world.tokenizer.stride)
        raise ValueError(f"{frames * stride} frames asked for; {world.name} makes whole clips of {most * stride} alone")
    if isinstance(order.schedule, Lossless) and not known:
        raise ValueError(
            f"lossless goes on behind a frame, and {world.name} begins with nothing; take raster or a diagonal"
        )


def check_strict(world: Described, inputs: int) -> None:
    """Refuse calls that cannot hold what a frame begins with, and worlds whose frames are not decoded one by one."""
    least = world.variant.config.suffix + 2  # the last cell, the action, and one more
    if inputs < least:
        raise ValueError(f"strict calls of {inputs} inputs given; {world.name} needs at least {least}")
    if not world.variant.prompt_frames:
        raise ValueError(
            f"{world.name} begins with nothing, and its frames are not decoded one by one: it has no strict calls"
        )


def check_window(order: Order, inputs: int | None) -> None:
    """Refuse a window of its own where every call has so many inputs."""
    schedule = order.schedule
    if inputs is not None and isinstance(schedule, Lossless) and schedule.window is not None:
        raise ValueError(
            f"{order} given in a strict world, where every call has {inputs} inputs: leave out window={schedule.window}"
        )


def check_steering(world: Described, label: int | Sequence[int] | None, pictures: VideoArray | None) -> None:
    """Refuse classes and pictures where a model goes by none; how many there are is for the model to say."""
    if not world.variant.steered:
        raise ValueError(f"{world.name} goes by no class and by no pictures; leave them out")
    if (label is None) == (pictures is None):
        raise ValueError("a class (label) or pictures must be given: one of the two")
    (height, width) = frame_size(world)
    if pictures is not None and (pictures.dtype != np.uint8 or pictures.shape[1:] != (height, width, 3)):
        raise ValueError(
            f"pictures of {pictures.dtype} and shape {pictures.shape} given; {world.name} goes by uint8 RGB frames of "
            f"height {height} and width {width}, (T, {height}, {width}, 3). {FIT}"
        )


def check_text(world: Described) -> None:
    """Refuse a text for a world that reads none."""
    if not world.variant.text and not world.variant.written:
        raise ValueError(f"{world.name} takes no text")


def check_chooses(world: Described) -> None:
    """Refuse a world that was not trained to choose actions."""
    config, cells = world.variant.config, world.variant.layout(1).grid.frame_tokens
    if not config.suffix or any(low < config.codebook for low, _ in config.valid_ids()[cells:]):
        raise ValueError(f"{world.name} chooses no actions; give them")


def check_order(world: Described, known: int, new: int, order: Order, acts: int | None = None) -> None:
    """Refuse an order that cannot decode so many new token frames after so many known ones. What it plans for that is
    kept, and not made again."""
    config = world.variant.config
    windows = spans(new, known, config.frames, config.reference_frames)
    plans(world.variant.layout(known + new), windows, order, acts)


# Diffusion models


def check_request(name: str, variant: DiffusionVariant, request: Request) -> None:
    """Refuse all that the model would refuse before its first call."""
    request = request.named(variant.preset)
    how, (height, width) = request.how(), request.size(variant.size)
    check_preset(name, variant, request)
    codec = find("tokenizers", variant.vae)
    latent_size(height, width, codec.patch, variant.config.patch)
    clip = begins_with(request)
    if clip is not None:
        check_clip(clip, (height, width), codec, request.batch)
    total_latents(request, how, codec, 0 if clip is None else latents_of(clip.shape[-4], codec))
    prompts = [request.prompt_embeds if request.prompt is None else request.prompt, *request.prompt_at.values()]
    for rows in prompts:
        if isinstance(rows, Tensor):
            check_embeds(name, variant, rows)


def check_preset(name: str, variant: DiffusionVariant, request: Request) -> None:
    """Refuse a preset of other models, and batches where one video is made at a time."""
    if variant.pipelined != bool(request.how().pipeline):
        fits = [one for one, preset in PRESETS.items() if bool(preset.pipeline) == variant.pipelined]
        raise ValueError(f"preset {str(request.preset)!r} given; {name} runs under {', '.join(fits)}")
    if variant.pipelined and request.batch is not None:
        raise ValueError(f"{request.batch} prompts given; {name} makes one video at a time: ask for them one by one")


def check_shared(name: str, variant: DiffusionVariant) -> None:
    """Refuse several GPUs for a video where one makes it."""
    if variant.pipelined:
        raise ValueError(f"{name} denoises chunks together, which are not divided among GPUs; run it on one")


def begins_with(request: Request) -> VideoArray | None:
    """The frames ([B,] T, H, W, 3) that a video begins with."""
    return request.image[..., None, :, :, :] if request.image is not None else request.video


def latents_of(frames: int, codec: Stretch) -> int:
    """Latent frames of a clip that a video begins with; a picture is one."""
    return 1 if frames == 1 else 1 + (frames - codec.first) // codec.stride


def check_clip(clip: VideoArray, size: tuple[int, int], codec: Stretch, batch: int | None = None) -> None:
    """Refuse frames that the VAE does not take, or that are neither for all nor for each of a batch."""
    height, width = size
    fits = clip.ndim == 4 or (clip.ndim == 5 and len(clip) == batch)
    if clip.dtype != np.uint8 or not fits or clip.shape[-3:] != (height, width, 3):
        raise ValueError(
            f"frames of {clip.dtype} and shape {clip.shape} given to begin with; uint8 RGB of height {height} and "
            f"width {width} is needed. {FIT}"
        )
    count, stride, odd = clip.shape[-4], codec.stride, codec.first % codec.stride
    if not count or (count > 1 and count % stride != odd):
        form = f"1 + {stride}n" if odd else f"1 or {stride}n"
        last = max(1, odd + (count - odd) // stride * stride)
        following = odd + stride * ((last - odd) // stride + 1)
        raise ValueError(
            f"{count} frames given to begin with; {form} are needed: {last} or {following}. --prompt-frames "
            f"{last} (video[-{last}:]) takes the last {last}"
        )


def total_latents(request: Request, how: Preset, codec: Stretch, given: int) -> int | None:
    """Latent frames of the whole video, of which so many are given; None: without end."""
    if request.num_frames is None:
        return None
    if how.pipeline:  # what fills no chunk stands in the first new one
        given -= given % (how.chunk_frames or 1)
    frames = latent_frames(request.num_frames, how, codec, given)
    chunks = (frames - given) // (how.chunk_frames or frames)
    late = [chunk for chunk in request.prompt_at if not 1 <= chunk < chunks]
    if late:
        raise ValueError(
            f"a prompt at chunk {late[0]} given; this video has the chunks 0 to {chunks - 1}, and the first prompt "
            "is that of chunk 0"
        )
    return frames


def check_embeds(name: str, variant: DiffusionVariant, rows: Tensor) -> None:
    """Refuse embeddings of a prompt that the model cannot read."""
    config, shape = variant.config, tuple(rows.shape)
    whole = rows[None] if rows.ndim == 2 else rows
    fits = whole.ndim == 3 and len(whole) and whole.shape[2] == config.text_dim
    if not fits or not 1 <= whole.shape[1] <= config.text_length:
        raise ValueError(
            f"prompt_embeds of shape {shape} given; {name} takes (rows, {config.text_dim}) with 1 to "
            f"{config.text_length} rows, or one of these for each sample of a batch"
        )


def check_texts(variant: DiffusionVariant, texts: Sequence[str]) -> None:
    """Refuse texts that are too long or of unknown words, where that takes no text encoder from elsewhere."""
    encoder = ENCODERS[variant.text]
    if encoder.source in OWN and texts:
        embed(texts, encoder, device="cpu")


def check_decoder(name: str, variant: DiffusionVariant, source: Weights, decoder: str) -> None:
    """Refuse a decoder that the model has not, or that its weights come without."""
    if decoder == NONE:
        return
    if decoder != VAE and not variant.preview:
        raise ValueError(f"{name} has no {decoder}: its VAE is small; take {VAE!r}")
    place = source.vae if decoder == VAE else source.preview
    if str(place) == NONE:
        raise ValueError(f"{decoder} 'none' given (--{decoder}), but it is what decodes to frames; leave it out")
    if decoder != VAE and place is None and not untrained(variant, source.transformer):
        raise ValueError(without_decoder(name, variant, decoder))


def without_decoder(name: str, variant: DiffusionVariant, decoder: str) -> str:
    """What to do where the weights came without the decoder that is asked for."""
    what = published_vae(variant) if decoder == VAE else "TAEHV's file, taew2_1.pth"
    return f"{name} came without {decoder!r}; name it in Weights({decoder}=...), --{decoder}: {what}"


def _nearest(count: int, stride: int) -> str:
    """The numbers 1 + stride * n next to one that is none."""
    below = max(1, 1 + (count - 1) // stride * stride)
    return f"{below} or {below + stride}"
