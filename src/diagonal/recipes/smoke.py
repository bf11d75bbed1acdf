"""Everything `doom` does, so small that a laptop finishes in a minute. The result is not meant to be good."""

from __future__ import annotations

from diagonal.training.loop import RunConfig
from diagonal.training.recipe import JudgeRecipe, Recipe, TokenizerRecipe, WorldRecipe


def recipe() -> Recipe:
    """A tiny tokenizer, a tiny world and a tiny judge."""

    def run(steps: int, seed: int) -> RunConfig:
        return RunConfig(steps=steps, seed=seed, warmup=5, log_every=10, evaluate_every=steps, save_every=10)

    return Recipe(
        model="doom/tiny",
        world="vizdoom",
        scenario="my_way_home",
        frames=1024,
        tokenizer_frames=1024,
        held_out_frames=48,
        seed=0,
        tokenizer=TokenizerRecipe("fsq/tiny", run(40, 1), batch=16, lr=2e-3),
        base=WorldRecipe(run(30, 2), batch=2, mixture=(("raster", 1.0),)),
        finetune=WorldRecipe(run(10, 3), batch=2, mixture=(("diagonal:k=1", 1.0),)),
        diagonal=WorldRecipe(run(20, 4), batch=2, mixture=(("diagonal:k=1", 0.7), ("raster", 0.3)), corruption=0.1),
        judge=JudgeRecipe(run(20, 5), batch=16),
        held_out_episode=24,
    )
