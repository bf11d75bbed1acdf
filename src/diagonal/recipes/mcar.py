"""MC-AR from scratch on VPT, as appendix G of the Diagonal Decoding paper trains it (Tables 8 and 9).

The paper gives the sizes (in models/mcar.py), AdamW 3e-4 with betas 0.9 and 0.95, weight decay 0.1, 10,000 steps of
warm-up, cosine decay, and 1,000 steps of fine-tuning; and that the VQ-VAE was trained before and is fine-tuned on VPT.
It gives neither the number of steps nor the batch, nor how the VQ-VAE is tuned: those here are ours (one pass over
about 400 hours of video), and nobody has run them yet. `mcar:tiny` is the same chain in small, for tests.
"""

from __future__ import annotations

from dataclasses import replace

from diagonal.training.loop import RunConfig
from diagonal.training.recipe import Recipe, TokenizerRecipe, WorldRecipe

SIZES = ("300m", "700m", "1200m")
TINY = "tiny"


def recipe(size: str = "300m") -> Recipe:
    """`size` is a variant of models/mcar.py: 300m, 700m or 1200m; tiny is for tests."""
    if size not in (*SIZES, TINY):
        raise ValueError(f"mcar has no size {size!r}; known: {', '.join(SIZES)}, and {TINY} for tests")
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
    whole = Recipe(
        model=f"mcar/{size}",
        world="vpt",
        scenario="",
        frames=28_800_000,
        tokenizer_frames=65_536,
        held_out_frames=72_000,
        seed=0,
        tokenizer=TokenizerRecipe(
            "mcar/vq", RunConfig(steps=20_000, seed=1, warmup=500, decay_from=0.5), batch=64, lr=1e-4
        ),
        base=world,
        finetune=finetune,
        diagonal=finetune,
        judge=None,
        held_out_episode=0,
        tuned=True,
    )
    return _smaller(whole) if size == TINY else whole


def _smaller(whole: Recipe) -> Recipe:
    """The same stages, a few steps each; the tokenizer begins with random weights."""

    def few(run: RunConfig, steps: int) -> RunConfig:
        return replace(run, steps=steps, warmup=1, decay_from=0.5, log_every=1, evaluate_every=steps, save_every=2)

    def world(how: WorldRecipe) -> WorldRecipe:
        return replace(how, run=few(how.run, 4), batch=2, held_out_sequences=2)

    tokenizer = replace(whole.tokenizer, variant="mcar/tiny", run=few(whole.tokenizer.run, 4), batch=4, lr=1e-3)
    return replace(
        whole,
        frames=64,
        tokenizer_frames=64,
        held_out_frames=32,
        tokenizer=tokenizer,
        base=world(whole.base),
        finetune=world(whole.finetune),
        diagonal=world(whole.diagonal),
        tuned=False,
    )
