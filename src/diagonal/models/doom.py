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

_SHIPPED = Variant(
    _CONFIG,
    tokenizer="fsq/doom",
    actions="vizdoom",
    fps=Fraction(35, 4),
    sampling=Sampling(top_p=0.8),
    licence="Apache-2.0",
    source="embedded: our own, ViZDoom my_way_home",
    embedded="doom",
    card="docs/cards/doom.md",
)


def _sized(size: str, config: Config) -> Variant:
    """The same world in another size, over the same tokenizer; `diagonal train world --recipe doom:SIZE` trains it."""
    return replace(_SHIPPED, config=config, source=f"none: train it, recipe doom:{size}", embedded="", card="")


# Named by parameters, and by frames where the window is another one: a shorter one is for training on a CPU. With
# rotary positions, weights fit any window.
_SIZES = {
    "1m-6f": replace(_CONFIG, width=128, layers=4, heads=2, kv_heads=1, mlp=384, frames=6),
    "2m": replace(_CONFIG, width=192, layers=5, heads=3, kv_heads=1, mlp=512),
    "5m": replace(_CONFIG, width=256, layers=7, heads=4, mlp=704),
    "16m": _CONFIG,
    "16m-6f": replace(_CONFIG, frames=6),
    "50m": replace(_CONFIG, width=640, layers=12, heads=10, mlp=1728),
    "150m": replace(_CONFIG, width=1024, layers=14, heads=16, kv_heads=4, mlp=2752),
}

VARIANTS = {
    "": _SHIPPED,
    **{size: _sized(size, config) for size, config in _SIZES.items()},
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
