"""SkyReels-V2 (SkyworkAI, 2025), its diffusion-forcing models: the transformer of Wan2.1, weight for weight.

What is theirs is how it is run: every latent frame has a noise level of its own, and chunks begin a few steps one after
the other (`planning.lag`, the presets `skyreels` and `skyreels-full`).

The 1.3B also embeds the frame rate, 16 FPS or another one, and adds it to what the noise level makes of every frame:

    changes = time_projection(time) + fps_projection(fps_embedding[rate])

That is the same in every call, so it is folded into the bias of the time projection when weights are loaded: as for
24 FPS, the rate of the published models.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.catalog.variants import DiffusionVariant
from diagonal.models.wan import Config

RATE = 1  # the row of the embedding that is for any other rate than 16 FPS
EMBEDDING, FOLDED = "fps_embedding.weight", "time_projection.1.bias"
PROJECTION = {  # the names of the authors, and those of diffusers
    f"fps_projection.{ours}.{kind}": f"fps_projection.net.{theirs}.{kind}"
    for ours, theirs in (("0", "0.proj"), ("2", "2"))
    for kind in ("weight", "bias")
}
PICTURES = ("img_emb.", "condition_embedder.image_embedder.")  # of models that begin with a picture


def fold(config: Config, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A transformer's tensors without those of the frame rate, which are added to a bias. One that has none stays as it
    is: the 14B, and what was folded before."""
    if any(key.startswith(PICTURES) for key in state):
        raise ValueError(
            "these weights are of an image-to-video model of SkyReels-V2; the diffusion-forcing ones "
            "(SkyReels-V2-DF-...) are what runs here. They begin with pictures too"
        )
    names = {theirs: ours for ours, theirs in PROJECTION.items()}
    known = {names.get(key, key): value for key, value in state.items()}
    rate = {key: known.pop(key) for key in (EMBEDDING, *PROJECTION) if key in known}
    if not rate:
        return state
    dim = config.dim
    wanted = {EMBEDDING: (2, dim), "fps_projection.0.weight": (dim, dim), "fps_projection.0.bias": (dim,)}
    wanted |= {"fps_projection.2.weight": (6 * dim, dim), "fps_projection.2.bias": (6 * dim,)}
    wrong = [key for key, shape in wanted.items() if key not in rate or tuple(rate[key].shape) != shape]
    bias = known.get(FOLDED)
    if wrong or bias is None or tuple(bias.shape) != (6 * dim,):
        raise ValueError(
            f"the checkpoint does not fit: of its frame rate {', '.join(wrong or [FOLDED])} is missing or of another "
            "shape"
        )
    full = {key: value.float() for key, value in rate.items()}
    with torch.no_grad():
        hidden = F.linear(full[EMBEDDING][RATE], full["fps_projection.0.weight"], full["fps_projection.0.bias"])
        added = F.linear(F.silu(hidden), full["fps_projection.2.weight"], full["fps_projection.2.bias"])
    return known | {FOLDED: (bias.float() + added).to(bias.dtype)}


def _released(config: Config, source: str) -> DiffusionVariant:
    return DiffusionVariant(
        config,
        vae="wan_vae/1",
        preview="taehv/wan",
        text="umt5-xxl",
        licence="Skywork Community License",
        source=source,
        fps=24,
        size=(544, 960),
        frames=97,
        preset="skyreels-full",
        fold=fold,
    )


VARIANTS = {
    "1.3b": _released(Config(dim=1536, ffn=8960, layers=30, heads=12), "Skywork/SkyReels-V2-DF-1.3B-540P"),
    "14b": _released(Config(dim=5120, ffn=13824, layers=40, heads=40), "Skywork/SkyReels-V2-DF-14B-540P"),
    "tiny": DiffusionVariant(
        Config(dim=96, ffn=192, layers=2, heads=4, text_dim=48, text_length=16, freq_dim=32),
        vae="wan_vae/tiny",
        preview="taehv/tiny",
        text="hash",
        licence="Apache-2.0",
        source="none: random, for tests and demonstrations",
        fps=24,
        frames=97,
        preset="skyreels-full",
        random=True,
        fold=fold,
    ),
}
