"""Training a part of a world: adapters, norms and embeddings, and mixtures that change on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diagonal
from diagonal import Order, checkpoints
from diagonal.catalog.names import find
from diagonal.cli import main
from diagonal.engine.attention import Causal
from diagonal.generation.components import Weights
from diagonal.recipes import find as find_recipe
from diagonal.training.data.recordings import TokenData
from diagonal.training.loop import RunConfig
from diagonal.training.recipe import WorldRecipe
from diagonal.training.stages import MODEL, run
from diagonal.training.tokens import adapters, stages, world
from diagonal.training.tokens.stages import LORA
from diagonal.training.tokens.world import WorldTask

RANK = 3
HOW = WorldRecipe(RunConfig(steps=3, log_every=1, warmup=0), batch=1, mixture=(("diagonal:k=1", 1.0),))


def build(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return find("models", "doom/tiny").config.build()


def logits(model: Any) -> Tensor:
    tokens = torch.randint(60, (2, 30), generator=torch.Generator().manual_seed(1))
    made: Tensor = model(tokens, torch.arange(30), Causal())
    return made


def data() -> TokenData:
    generator = torch.Generator().manual_seed(0)
    units = torch.randint(64, (12, 193), generator=generator).int()
    return TokenData(units, torch.zeros(12, dtype=torch.long))


def disturbed(model: nn.Module) -> None:
    """Adapters as training may leave them."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)


def test_before_the_first_step_an_adapted_world_is_what_it_was() -> None:
    model = build()
    before = logits(model)
    adapters.adapt(model, RANK, seed=0)
    assert torch.equal(logits(model), before)


def test_merged_and_unmerged_worlds_are_equal_and_a_merged_one_is_plain() -> None:
    model = build()
    names, before = set(model.state_dict()), logits(model)
    adapters.adapt(model, RANK, seed=0)
    disturbed(model)
    apart = logits(model)
    adapters.merge(model)
    assert torch.equal(logits(model), apart) and not torch.allclose(apart, before)
    assert set(model.state_dict()) == names


def test_adapters_alone_are_learnt_and_are_small() -> None:
    model = build()
    count = sum(one.numel() for one in model.parameters())
    adapters.adapt(model, RANK, seed=0)
    learnt = [name for name, one in model.named_parameters() if one.requires_grad]
    kept = adapters.adapters(model)
    assert len(learnt) == len(kept) == 2 * 4 * len(model.blocks)
    assert all(name.startswith("blocks.") for name in learnt)
    assert sum(one.numel() for one in kept.values()) < count / 8
    logits(model).sum().backward()
    assert [name for name, one in model.named_parameters() if one.grad is not None] == learnt


def test_the_same_seed_begins_with_the_same_adapters() -> None:
    made = []
    for seed in (0, 0, 1):
        model = build()
        adapters.adapt(model, RANK, seed)
        made.append(adapters.adapters(model)["blocks.0.attention.qkv.lora_A.weight"])
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


@pytest.mark.parametrize("rank", [0, 10_000])
def test_ranks_that_a_matrix_cannot_have_are_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"a LoRA of rank {rank} is asked for; .* takes 1 to"):
        adapters.adapt(build(), rank, seed=0)


@pytest.mark.parametrize(
    ("parts", "ends"),
    [
        (("norms",), ("norm.weight",)),
        (("norms", "embeddings"), ("norm.weight", "embed.weight")),
        (("head",), ("head.weight",)),
    ],
)
def test_parts_alone_are_learnt(parts: tuple[str, ...], ends: tuple[str, ...]) -> None:
    model = build()
    adapters.learn_only(model, parts)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == name.endswith(ends), name


@pytest.mark.parametrize("parts", [(), ("heads",), ("norms", "nothing")])
def test_parts_that_no_model_has_are_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be learnt alone; these can: norms, embeddings, head"):
        adapters.learn_only(build(), parts)


def test_a_recipe_learns_either_adapters_or_parts() -> None:
    with pytest.raises(ValueError, match="leave out either"):
        replace(HOW, lora=2, only=("norms",))


# Curricula


def test_a_curriculum_teaches_each_mixture_from_its_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [Order.of(spec) for spec in ("diagonal:k=4", "diagonal:k=2", "diagonal:k=1,d=12")]
    later = [(2, [(orders[1], 1.0)]), (4, [(orders[2], 1.0)])]
    task = WorldTask(build(), data(), data(), [(orders[0], 1.0)], batch=1, seed=0, later=later)
    names = {id(taught): name for name, taught in task._lessons.items()}
    seen: list[str] = []

    def nats(*given: Any) -> Tensor:
        seen.append(names[id(given[3])])
        return torch.zeros(())

    monkeypatch.setattr(world, "nats", nats)
    for step in range(6):
        task.loss(step)
    assert seen == [str(order) for order in orders for _ in range(2)]


@pytest.mark.parametrize("begins", [(0.0,), (1.0,), (0.5, 0.5), (0.6, 0.3)])
def test_curricula_that_do_not_rise_within_the_run_are_refused(begins: tuple[float, ...]) -> None:
    later = tuple((begin, (("raster", 1.0),)) for begin in begins)
    with pytest.raises(ValueError, match="rising parts of the run between 0 and 1"):
        replace(HOW, later=later)


# Files


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A whole world in a folder, and that of a LoRA that was trained from it."""
    start = diagonal.load("doom/tiny", "random").save_pretrained(tmp_path / "start")
    monkeypatch.setattr(stages.RecipeData, "tokens", lambda *_: (data(), data()))
    given = stages.RecipeData(find_recipe("smoke"), tmp_path, torch.device("cpu"))
    how = replace(HOW, lora=RANK, lr=0.05)
    stage = stages.world_stage("finetune", how, given, tmp_path, tmp_path / "run", start=start)
    assert [line["step"] for _, line in run([stage])] == [1, 2, 3]
    return start, tmp_path / "run"


def test_a_trained_adapter_loads_as_the_merged_weights_it_came_with(trained: tuple[Path, Path]) -> None:
    start, made = trained
    merged = checkpoints.read(made / MODEL)
    assert (made / LORA).stat().st_size < (made / MODEL).stat().st_size / 4
    adapted = diagonal.load("doom/tiny", Weights(start, lora=[made / LORA]))
    plain = diagonal.load("doom/tiny", start).model.state_dict()
    found = adapted.model.state_dict()
    for key, value in found.items():
        torch.testing.assert_close(value, merged[f"transformer.{key}"], rtol=0, atol=1e-6)
    assert any(not torch.equal(value, plain[key]) for key, value in found.items())
    assert made / LORA in adapted.sources
    prompt, moves = torch.zeros(1, 12, 16, dtype=torch.long), adapted.actions.parse("forward*3")
    whole = diagonal.load("doom/tiny", made / MODEL, tokenizer=_tokenizer(start, made.parent))
    assert torch.equal(adapted.generate(prompt, moves).tokens, whole.generate(prompt, moves).tokens)


def _tokenizer(start: Path, folder: Path) -> Path:
    """The tokenizer of a whole world, as a file."""
    state = {key: value for key, value in checkpoints.read(start).items() if key.startswith("tokenizer.")}
    checkpoints.save_tensors(state, folder / "tokenizer.safetensors")
    return folder / "tokenizer.safetensors"


def test_the_command_takes_adapters(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, made = trained
    out = tmp_path / "out.mp4"
    asked = f"generate --model doom/tiny --weights {start} --lora {made / LORA} --start hall --frames 1 --unsigned"
    monkeypatch.setattr("sys.argv", ["diagonal", *asked.split(), "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code and out.exists()


def test_adapters_of_another_world_and_of_random_weights_are_refused(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    start, made = trained
    with pytest.raises(ValueError, match="lora given, but the weights of doom/tiny are random"):
        diagonal.load("doom/tiny", Weights("random", lora=[made / LORA]))
    with pytest.raises(ValueError, match="the LoRA does not fit"):
        diagonal.load("doom", Weights(lora=[made / LORA]))
    state = checkpoints.read(made / LORA)
    state["blocks.9.attention.qkv.lora_A.weight"] = state.pop("blocks.0.attention.qkv.lora_A.weight")
    checkpoints.save_tensors(state, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="the LoRA does not fit"):
        diagonal.load("doom/tiny", Weights(start, lora=[tmp_path / "other.safetensors"]))


def test_parts_that_a_token_world_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="Weights with vae, part given; doom is a token model and has none"):
        diagonal.load("doom", Weights(vae="none", part="generator"))
