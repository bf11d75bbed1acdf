"""The embedded Doom world: about 20 minutes on one H200. docs/doom.md has what came out of it."""

from __future__ import annotations

from diagonal.recipes import doom_t2v
from diagonal.training.loop import RunConfig
from diagonal.training.recipe import Chain, JudgeRecipe, Recipe, TokenizerRecipe, WorldRecipe

SIZES = ("", "1m-6f", "2m", "5m", "16m", "16m-6f", "50m", "150m")


def recipe(size: str = "") -> Recipe:
    """ViZDoom my_way_home at 96x128, 625 codes, 16.2 M parameters; `size` is one of a variant of models/doom.py."""
    if size not in SIZES:
        raise ValueError(f"doom has no size {size!r}; known: {', '.join(SIZES[1:])}")
    return Recipe(
        model=f"doom/{size}" if size else "doom",
        world="vizdoom",
        scenario="my_way_home",
        frames=638_976,
        tokenizer_frames=163_840,
        held_out_frames=61_440,
        seed=0,
        tokenizer=TokenizerRecipe(
            "fsq/doom", RunConfig(steps=2800, seed=1, warmup=100, decay_from=0.2, evaluate_every=1400), batch=256
        ),
        base=WorldRecipe(
            RunConfig(steps=6000, seed=2, decay_from=0.4, save_every=2000, evaluate_every=2000),
            batch=16,
            mixture=(("raster", 1.0),),
            corruption=0.06,
            held_out_sequences=512,
        ),
        finetune=WorldRecipe(
            RunConfig(steps=1000, seed=3, decay_from=0.3),
            batch=16,
            mixture=(("diagonal:k=1", 1.0),),
            lr=1e-3,
            muon_lr=0.007,
            corruption=0.03,
            held_out_sequences=512,
        ),
        diagonal=WorldRecipe(
            RunConfig(steps=12_000, seed=4, decay_from=0.2, save_every=4000, evaluate_every=4000),
            batch=16,
            mixture=(("diagonal:k=1", 0.55), ("diagonal:k=2", 0.15), ("raster", 0.3)),
            lr=2e-3,
            muon_lr=0.014,
            corruption=0.03,
            held_out_sequences=512,
        ),
        judge=JudgeRecipe(RunConfig(steps=2500, seed=5, warmup=100), batch=256),
        held_out_episode=220,
    )


def distill(size: str = "full") -> Chain:
    """The text-to-video world of the same game: what there is to distil."""
    return doom_t2v.distill(size)
