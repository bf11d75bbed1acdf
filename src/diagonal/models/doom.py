"""The embedded worlds: small MC-AR models of Doom, trained by recipes/doom.py. No modules of their own."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from diagonal.catalog.variants import Variant
from diagonal.models.mcar import Config
from diagonal.planning.sampling import Sampling

_CONFIG = Config(
    width=384,
    layers=10,
    heads=6,
    kv_heads=2,
    mlp=1024,
    frames=16,
    reference_frames=4,
    rows=12,
    cols=16,
    suffix=1,
    codebook=625,
    vocab=640,
)

VARIANTS = {
    "": Variant(
        _CONFIG,
        tokenizer="fsq/doom",
        actions="vizdoom",
        fps=Fraction(35, 4),
        sampling=Sampling(top_p=0.8),
        licence="Apache-2.0",
        source="embedded: our own, ViZDoom my_way_home",
        embedded="doom",
        card="docs/cards/doom.md",
    ),
    "tiny": Variant(
        replace(_CONFIG, width=64, layers=2, heads=4, mlp=128, frames=6, reference_frames=2, codebook=64, vocab=72),
        tokenizer="fsq/tiny",
        actions="vizdoom",
        fps=Fraction(35, 4),
        sampling=Sampling(top_p=0.8),
        licence="Apache-2.0",
        source="none: random, for tests and the smoke recipe",
        random=True,
    ),
}
