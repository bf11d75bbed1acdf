"""Text-to-video worlds of Doom: small Wan models, trained by recipes/doom_t2v.py. No modules of their own."""

from __future__ import annotations

from fractions import Fraction

from diagonal.catalog.variants import DiffusionVariant
from diagonal.models.wan import Config

TEXT = {"text_dim": 64, "text_length": 32}  # of the encoder `doom`
CHANNELS = 8


def _variant(config: Config, vae: str, source: str, embedded: str = "") -> DiffusionVariant:
    return DiffusionVariant(
        config,
        vae=vae,
        preview="",
        text="doom",
        licence="Apache-2.0",
        source=source,
        fps=Fraction(35, 4),
        size=(96, 128),
        frames=41,
        card="docs/cards/doom-t2v.md" if embedded else "",
        random=not embedded,
        embedded=embedded,
    )


VARIANTS = {
    "": _variant(
        Config(dim=384, ffn=1536, layers=8, heads=6, channels=CHANNELS, **TEXT),
        "wan_vae/doom",
        "embedded: our own, eight scenarios of ViZDoom",
        embedded="doom_t2v",
    ),
    "tiny": _variant(
        Config(dim=48, ffn=96, layers=2, heads=4, freq_dim=32, channels=CHANNELS, **TEXT),
        "wan_vae/doom-tiny",
        "none: random, for tests and the smoke recipe",
    ),
}
