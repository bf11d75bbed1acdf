"""What the credentials of a video say of the model that made it, and of what it was asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from diagonal import checkpoints
from diagonal.checkpoints.hashes import hashes
from diagonal.generation.request import Prompts, Request, texts
from diagonal.generation.video import VideoModel
from diagonal.generation.world import World
from diagonal.media.provenance.origin import Origin
from diagonal.planning.denoising import spec
from diagonal.planning.plan import Order
from diagonal.planning.sampling import Sampling
from diagonal.worlds.protocols import Free
from diagonal.worlds.script import spell


def of_world(world: World, order: Order, sampling: Sampling, seed: int, told: Mapping[str, str]) -> Origin:
    """Of a video of a token world. `told`: what it began with, actions and texts, each by its name."""
    drawn = {name: value for name, value in asdict(sampling).items() if value is not None}
    return Origin(
        model=_model(world.name),
        **_weights(world),
        schedule=str(order),
        seed=seed,
        told=told,
        settings=drawn,
        mark=world.variant.mark,
    )


def of_request(model: VideoModel, request: Request) -> Origin:
    """Of the video that a diffusion model makes for a request."""
    told = _told("prompt", request.prompt if request.prompt is not None else request.prompt_embeds)
    told |= _told("negative_prompt", request.negative_prompt)
    for chunk, prompts in request.prompt_at.items():
        told |= _told(f"prompt_at {chunk}", prompts)
    for name, given in (("image", request.image), ("video", request.video)):
        if given is not None:
            told[name] = frames_told(given)
    how = request.named(model.variant.preset).how()
    asked: dict[str, str | int | float | None]
    asked = {"decoder": request.decoder, "guidance_scale": how.guidance_scale, "num_frames": request.num_frames}
    return Origin(
        model=_model(model.name),
        **_weights(model),
        schedule=spec(how.schedule),
        seed=request.seed if isinstance(request.seed, int) else ", ".join(map(str, request.seed)),
        told=told,
        settings={name: value for name, value in asked.items() if value is not None},
    )


def frames_told(frames: Any) -> str:
    """Frames that were given: how many, and the SHA-256 of their pixels."""
    pixels = np.ascontiguousarray(frames)
    size = "x".join(map(str, pixels.shape))
    return f"frames {size}, sha256 {hashlib.sha256(pixels.tobytes()).hexdigest()}"


def actions_told(actions: Sequence[Any] | Free | None) -> str:
    """Actions in the short text form, as far as they are given."""
    if isinstance(actions, Free):
        given = spell([*actions.given]) if actions.given else ""
        return f"{given}, then chosen by the model".removeprefix(", then ")
    return "none" if actions is None else spell(actions)


def _told(name: str, prompts: Prompts | None) -> dict[str, str]:
    """A text, several, or the hash of embeddings."""
    if prompts is None:
        return {}
    if isinstance(prompts, Tensor):
        data = prompts.detach().float().cpu().contiguous().numpy().tobytes()
        return {name: f"embeddings {tuple(prompts.shape)}, sha256 of float32 {hashlib.sha256(data).hexdigest()}"}
    found = texts(prompts)
    return {name: found[0]} if len(found) == 1 else {f"{name} {place}": text for place, text in enumerate(found)}


def _weights(model: World | VideoModel) -> dict[str, Any]:
    """Where its weights come from, without the paths of this machine, and their hashes."""
    label = model.weights
    known = label in (checkpoints.EMBEDDED, checkpoints.RANDOM)
    return {
        "weights": label if known else _public(label),
        "sha256": hashes(*model.sources),
        "quantize": model.quantized,
    }


def _public(place: str) -> str:
    """A name, or of a path of this machine its last part."""
    path = Path(place).expanduser()
    return path.resolve().name if path.exists() else place


def _model(name: str) -> str:
    """The name of a model: 'hf:/home/me/emu3' is 'hf:emu3'."""
    kind, colon, place = name.partition(":")
    return f"{kind}:{_public(place)}" if colon else name
