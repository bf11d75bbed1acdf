"""Recipes: every one is complete, and its names lead somewhere."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diagonal import recipes
from diagonal.catalog.names import find as find_named
from diagonal.catalog.variants import Variant
from diagonal.planning.plan import Order
from diagonal.recipes import find, names
from diagonal.training.loop import RunConfig
from diagonal.training.recipe import Recipe, WorldRecipe
from diagonal.training.tokens import stages
from diagonal.training.tokens.tokenizer import TokenizerTask
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part

ALL = ["doom", "doom:5m", "doom:1m-6f", "mcar", "mcar:300m", "mcar:700m", "mcar:1200m", "smoke"]


def stages_of(recipe: Recipe) -> list[WorldRecipe]:
    return [recipe.base, recipe.finetune, recipe.diagonal]


@pytest.fixture(params=ALL)
def recipe(request: Any) -> Recipe:
    return find(request.param)


def test_all_recipes_are_listed():
    assert {name.partition(":")[0] for name in ALL} == set(names())


def test_a_recipes_names_lead_to_a_model_its_tokenizer_and_its_world(recipe):
    variant: Variant = find_named("models", recipe.model)
    assert recipe.tokenizer.variant == variant.tokenizer
    assert find_named("tokenizers", recipe.tokenizer.variant).patch >= 1
    assert recipe.world == variant.actions
    assert importlib.import_module(f"diagonal.worlds.{recipe.world}").NOOP is not None


def test_a_recipes_ids_fit_its_model(recipe):
    variant: Variant = find_named("models", recipe.model)
    config: Any = variant.config
    action = importlib.import_module(f"diagonal.worlds.{recipe.world}")
    ids = action.tokens([action.NOOP], config.codebook)[0]
    assert len(ids) == config.suffix
    assert max(ids) < config.vocab


def test_every_order_of_a_mixture_is_a_schedule_with_a_share(recipe):
    for world in stages_of(recipe):
        assert world.mixture
        for spec, share in world.mixture:
            assert str(Order.of(spec)) == spec
            assert 0 < share <= 1
        assert sum(share for _, share in world.mixture) == pytest.approx(1)
        assert world.batch >= 1
        assert 0 <= world.corruption < 1


def test_the_base_is_raster_and_the_later_stages_are_diagonal(recipe):
    assert recipe.base.mixture == (("raster", 1.0),)
    for later in (recipe.finetune, recipe.diagonal):
        assert any(spec.startswith("diagonal") for spec, _ in later.mixture)


def trained(recipe: Recipe) -> list[RunConfig]:
    """The runs of all stages; a tokenizer without frames is loaded, not trained."""
    runs = [recipe.tokenizer.run] if recipe.tokenizer_frames else []
    return [*runs, *(world.run for world in stages_of(recipe)), *([recipe.judge.run] if recipe.judge else [])]


@pytest.mark.parametrize("name", [name for name in ALL if name != "smoke"])
def test_the_learning_rate_reaches_its_peak_before_it_falls(name):
    for run in trained(find(name)):
        assert run.warmup <= int(run.steps * run.decay_from)


def test_every_stage_has_a_seed_of_its_own_and_more_steps_than_warm_up(recipe):
    runs = trained(recipe)
    assert all(run.warmup < run.steps for run in runs)
    assert len({run.seed for run in runs}) == len(set(runs))
    assert recipe.held_out_seed != recipe.seed


def test_a_state_is_saved_only_where_the_loss_is_looked_at(recipe):
    """Between two lines of the curve nobody knows whether the weights are still numbers."""
    assert all(run.save_every % run.log_every == run.evaluate_every % run.log_every == 0 for run in trained(recipe))


@pytest.mark.parametrize("name", ["doom", "smoke"])
def test_a_recorded_world_has_a_scenario_and_enough_frames(name):
    recipe = find(name)
    assert recipe.scenario in vizdoom.SCENARIOS
    assert 0 < recipe.tokenizer_frames <= recipe.frames
    variant: Variant = find_named("models", recipe.model)
    config: Any = variant.config
    assert config.frames <= recipe.held_out_episode <= recipe.held_out_frames
    assert config.frames <= vizdoom.EPISODE
    assert recipe.judge is not None
    assert stages.frame_size(recipe) == (vizdoom.HEIGHT, vizdoom.WIDTH)


@pytest.mark.parametrize("size", ["300m", "700m", "1200m"])
def test_mcar_is_trained_as_table_9_of_the_paper_says(size):
    """AdamW alone, 3e-4 (its betas are WorldTask's), weight decay 0.1, 10,000 steps of warm-up, then cosine."""
    recipe = find(f"mcar:{size}")
    base = recipe.base
    assert recipe.model == f"mcar/{size}"
    assert (base.lr, base.muon_lr, base.weight_decay) == (3e-4, None, 0.1)
    assert base.run.warmup == 10_000
    assert int(base.run.steps * base.run.decay_from) == 10_000  # the decay starts where the warm-up ends
    assert recipe.finetune.run.steps == 1000
    assert recipe.finetune.muon_lr is None


@pytest.mark.parametrize(
    ("size", "width", "heads", "mlp"), [("300m", 1024, 16, 4096), ("700m", 2048, 32, 4096), ("1200m", 2048, 32, 8192)]
)
def test_mcar_has_the_sizes_of_the_released_models(size, width, heads, mlp):
    variant: Variant = find_named("models", find(f"mcar:{size}").model)
    config: Any = variant.config
    assert (config.width, config.heads, config.mlp, config.layers) == (width, heads, mlp, 20)
    assert (config.rows, config.cols) == (14, 24)


def test_the_default_size_of_mcar_is_the_smallest():
    assert find("mcar") == find("mcar:300m")


@pytest.mark.parametrize("name", ["quake", "", "Doom", "doom/tiny", "mcar/300m", "__init__"])
def test_an_unknown_recipe_is_named_with_the_known_ones(name):
    with pytest.raises(ValueError, match="unknown recipe") as caught:
        find(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in names())


@pytest.mark.parametrize("name", ["doom:big", "smoke:tiny", "mcar:9000m"])
def test_an_unknown_size_is_refused(name):
    with pytest.raises(ValueError, match=name.partition(":")[2]):
        find(name)


def test_smoke_is_small_enough_for_a_laptop():
    recipe = find("smoke")
    variant: Variant = find_named("models", recipe.model)
    with torch.device("meta"):
        modules = [variant.config.build(), find_named("tokenizers", recipe.tokenizer.variant).build()]
    assert all(sum(parameter.numel() for parameter in module.parameters()) < 500_000 for module in modules)
    assert recipe.frames + recipe.held_out_frames <= 2048
    runs = [recipe.tokenizer.run, *(world.run for world in stages_of(recipe))]
    assert sum(run.steps for run in runs) <= 500
    assert all(world.batch <= 4 for world in stages_of(recipe))


def test_doom_has_the_size_its_description_says():
    variant: Variant = find_named("models", find("doom").model)
    with torch.device("meta"):
        module = variant.config.build()
    assert sum(parameter.numel() for parameter in module.parameters()) == pytest.approx(16.5e6, rel=0.02)


def test_what_a_tokenizers_recipe_says_reaches_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No number of a recipe is lost on the way."""
    recipe = replace(find("smoke").tokenizer, batch=3, lr=0.123, lpips_scale=0.77)
    seen: list[Any] = []

    def spied(*args: Any, **kwargs: Any) -> Any:
        seen.append(TokenizerTask(*args, **kwargs))
        raise InterruptedError

    monkeypatch.setattr(stages, "TokenizerTask", spied)
    part = Part(torch.zeros(4, 16, 16, 3, dtype=torch.uint8), torch.zeros(4, 1), torch.zeros(4))
    monkeypatch.setattr(stages.RecipeData, "frames", lambda _: (part, part))
    data = stages.RecipeData(replace(find("smoke"), tokenizer=recipe), tmp_path, torch.device("cpu"))
    with pytest.raises(InterruptedError):
        stages.tokenizer_stage(data, tmp_path).inputs()
    (task,) = seen
    assert (task.batch, task.lr, task.seed, task.lpips_scale) == (3, 0.123, recipe.run.seed, 0.77)


def test_a_recipe_that_distils_is_found_and_others_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "paintings.py").write_text(
        "from diagonal.training.stages import Stage\n\n\n"
        "def distill():\n    return lambda folder, *_: [Stage('teacher', 2, folder, iter)]\n"
    )
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(tmp_path)])
    (stage,) = recipes.distillation("paintings")(tmp_path, torch.device("cpu"), None)
    assert (stage.name, stage.steps) == ("teacher", 2)
    with pytest.raises(ValueError, match="'paintings' trains no world of tokens"):
        find("paintings")
    with pytest.raises(ValueError, match=r"'smoke' distils nothing; recipes that do: .*paintings"):
        recipes.distillation("smoke")
    with pytest.raises(ValueError, match="unknown recipe 'soup'"):
        recipes.distillation("soup")
    del sys.modules["diagonal.recipes.paintings"]
