"""MC-AR from scratch on VPT, as appendix G of the Diagonal Decoding paper trains it (Tables 8 and 9).

The paper gives the sizes (in models/mcar.py), AdamW 3e-4 with betas 0.9 and 0.95, weight decay 0.1, 10,000 steps of
warm-up, cosine decay, and 1,000 steps of fine-tuning. It gives neither the number of steps nor the batch: those here
are ours (one pass over about 400 hours of video), and nobody has run them yet.
"""

from __future__ import annotations

from diagonal.training.loop import RunConfig
from diagonal.training.recipe import Recipe, TokenizerRecipe, WorldRecipe

SIZES = ("300m", "700m", "1200m")


def recipe(size: str = "300m") -> Recipe:
    """`size` is a variant of models/mcar.py: 300m, 700m or 1200m."""
    if size not in SIZES:
        raise ValueError(f"mcar has no size {size!r}; known: {', '.join(SIZES)}")
    # From the first step after warm-up the learning rate falls: decay_from is where warm-up ends.
    steps, warmup = 100_000, 10_000
    world = WorldRecipe(
        RunConfig(steps=steps, seed=2, warmup=warmup, decay_from=warmup / steps, save_every=1000),
        batch=16,
        mixture=(("raster", 1.0),),
        lr=3e-4,
        muon_lr=None,
        weight_decay=0.1,
    )
    finetune = WorldRecipe(
        RunConfig(steps=1000, seed=3, warmup=50, decay_from=0.05),
        batch=16,
        mixture=(("diagonal:k=2", 1.0),),
        lr=3e-5,
        muon_lr=None,
        weight_decay=0.1,
    )
    return Recipe(
        model=f"mcar/{size}",
        world="vpt",
        scenario="",
        frames=28_800_000,
        tokenizer_frames=0,
        held_out_frames=72_000,
        seed=0,
        # The paper fine-tunes a pre-trained VQ-VAE; its weights are loaded, not trained here.
        tokenizer=TokenizerRecipe("mcar/vq", RunConfig(steps=1), batch=64),
        base=world,
        finetune=finetune,
        diagonal=finetune,
        judge=None,
        held_out_episode=0,
    )
