"""Training loss = what the decoder assigns: the lesson of a plan scores tokens as the engine, step by step, would."""

from __future__ import annotations

import itertools
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal import Grid, Layout, Order, Plan, Sampling, StandIn, checkpoints, make_plan
from diagonal.catalog.names import find
from diagonal.engine.attention import Causal, Dense, Flex
from diagonal.engine.tokens.decode import decode
from diagonal.engine.tokens.masks import dense_mask
from diagonal.engine.tokens.runner import Eager
from diagonal.planning.decoding import parse
from diagonal.planning.rolling import rolled
from diagonal.recipes import find as find_recipe
from diagonal.training.data.recordings import TokenData
from diagonal.training.loop import RunConfig, fit
from diagonal.training.recipe import WorldRecipe
from diagonal.training.stages import MODEL, run
from diagonal.training.tokens import stages, world
from diagonal.training.tokens.world import Lesson, WorldTask, held_out_windows, lesson, mean_nats, nats
from tests.tiny import TINY, Recorded, build, new_cache, tiny_config
from tests.worlds import actions_of, prompt_of, small_world

CPU = torch.device("cpu")
ORDERS = [
    Order(parse("raster")),
    *[Order(parse(spec)) for spec in ("diagonal:k=1", "diagonal:k=2", "diagonal:k=1,d=4", "window:s=2")],
    Order(parse("diagonal:k=2,d=3"), StandIn.ABOVE),
    Order(parse("diagonal:k=1"), StandIn.PROMPT_FRAME),
    Order(parse("diagonal:k=1"), refeed=False),
]


def _plan(config: Any, order: Order | str, frames: int = 4) -> Plan:
    grid = Grid(frames, config.rows, config.cols)
    return make_plan(Layout(grid, len(config.prefix_ids), config.suffix), order, known=1)


def _units(config: Any, frames: int, seed: int = 0) -> Tensor:
    """Frames of random cells, each followed by random actions."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(config.codebook, (frames, config.rows * config.cols), generator=generator)
    beyond = max(config.vocab, config.codebook + 1)  # a model without actions may have no other ids
    actions = torch.randint(config.codebook, beyond, (frames, config.suffix), generator=generator)
    return torch.cat([cells, actions], dim=1).int()


def _sequences(config: Any, plan: Plan, batch: int = 2) -> Tensor:
    prefix = torch.tensor(config.prefix_ids, dtype=torch.long)
    frames = plan.layout.grid.frames
    return torch.stack([torch.cat([prefix, _units(config, frames, seed).flatten().long()]) for seed in range(batch)])


class Forced:
    """A sampler that draws the true tokens, and keeps what the decoder thought of them."""

    def __init__(self, true_BL: Tensor) -> None:
        self.true_BL = true_BL
        self.nats: list[Tensor] = []

    def begin(self, length: int, start: int) -> None:
        assert length > self.true_BL.shape[1]

    def __call__(self, logits_BSV: Tensor, positions_S: Tensor) -> Tensor:
        tokens = self.true_BL[:, positions_S]
        self.nats.append(-logits_BSV.float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0])
        return tokens


def _decoded_nats(model: Any, plan: Plan, true_BL: Tensor) -> Tensor:
    """Negative log-likelihoods of the true tokens from the engine's own steps, (B, decoded)."""
    tokens = true_BL.clone()
    for frame in range(plan.known, plan.layout.grid.frames):
        tokens[:, plan.layout.frame(frame)] = -1  # a read before its time would fail
    forced: Any = Forced(true_BL)
    for _ in decode(Eager(Recorded(model), new_cache(model, plan, len(tokens)), forced), plan, tokens):
        pass
    assert torch.equal(tokens, true_BL)
    return torch.cat(forced.nats, dim=1)


def _data(config: Any, frames: int = 12, seed: int = 0) -> TokenData:
    return TokenData(_units(config, frames, seed), torch.arange(frames) // (frames // 2))


def _task(name: str, mixture: list[tuple[str, float]], data: TokenData | None = None, **changes: Any) -> WorldTask:
    config = tiny_config(name)
    torch.manual_seed(0)
    recording = _data(config) if data is None else data
    orders = [(Order.of(spec), share) for spec, share in mixture]
    return WorldTask(config.build(), recording, recording, orders, **({"batch": 2, "seed": 0} | changes))


# What is scored


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_training_loss_is_what_the_decoder_assigns(name: str, order: Order) -> None:
    config = tiny_config(name)
    model, plan = build(config), _plan(config, order)
    tokens = _sequences(config, plan)
    stepwise = _decoded_nats(model, plan, tokens)
    assert stepwise.shape == (2, 3 * config.rows * config.cols)
    loss = nats(model, tokens, tokens, lesson(plan, CPU, use_flex=False))
    assert loss.item() == pytest.approx(stepwise.mean().item(), abs=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("spec", ["diagonal:k=1", "diagonal:k=2,d=3", "window:s=2"])
def test_flex_attention_gives_the_loss_of_the_dense_mask(name: str, spec: str) -> None:
    config = tiny_config(name)
    model, plan = build(config), _plan(config, spec)
    tokens = _sequences(config, plan)
    blocks, dense = lesson(plan, CPU, use_flex=True), lesson(plan, CPU, use_flex=False)
    assert isinstance(blocks.memory, Flex)
    assert isinstance(dense.memory, Dense)
    with torch.no_grad():
        losses = [nats(model, tokens, tokens, taught).item() for taught in (blocks, dense)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("use_flex", [False, True])
def test_raster_needs_no_mask_and_gives_the_loss_of_the_dense_one(name: str, use_flex: bool) -> None:
    config = tiny_config(name)
    model, plan = build(config), _plan(config, "raster")
    tokens = _sequences(config, plan)
    taught = lesson(plan, CPU, use_flex)
    assert isinstance(taught.memory, Causal)
    masked = Lesson(taught.read, taught.position, taught.keep, taught.target, Dense(dense_mask(plan.entries)))
    plain, dense = (nats(model, tokens, tokens, one).item() for one in (taught, masked))
    assert plain == pytest.approx(dense, abs=1e-4)


def test_a_diagonal_as_slow_as_raster_is_taught_as_raster() -> None:
    plan = _plan(tiny_config("mcar/tiny"), "diagonal:k=6")
    assert isinstance(lesson(plan, CPU, use_flex=False).memory, Causal)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_decoded_cell_is_scored_once_and_nothing_else(order: Order) -> None:
    config = tiny_config("mcar/tiny")
    plan = _plan(config, order)
    taught = lesson(plan, CPU, use_flex=False)
    assert sorted(taught.target.tolist()) == sorted(plan.layout.positions()[1:].ravel().tolist())


def test_the_orders_of_a_mixture_are_different_lessons() -> None:
    """The tests above could not tell orders apart if all gave the same number."""
    config = tiny_config("mcar/tiny")
    model = build(config)
    losses = set()
    for order in ORDERS:
        plan = _plan(config, order)
        tokens = _sequences(config, plan)
        losses.add(round(nats(model, tokens, tokens, lesson(plan, CPU, use_flex=False)).item(), 5))
    assert len(losses) == len(ORDERS)


# The task


@pytest.mark.parametrize("name", TINY)
def test_the_tasks_loss_is_the_decoders_on_the_windows_it_drew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole path: data, windows, mixture, lesson."""
    task = _task(name, [("diagonal:k=1", 1.0)])
    seen: list[Tensor] = []
    original = world.nats

    def spied(model: Any, tokens_BL: Tensor, given_BL: Tensor, taught: Lesson) -> Tensor:
        seen.append(tokens_BL)
        return original(model, tokens_BL, given_BL, taught)

    monkeypatch.setattr(world, "nats", spied)
    loss, _ = task.loss(3)
    (tokens,) = seen
    config = task.module.config
    plan = _plan(config, "diagonal:k=1", config.frames)
    assert tokens.shape == (2, plan.layout.length)
    assert tokens[:, len(config.prefix_ids) :].unflatten(1, (config.frames, -1))[0].tolist() in [
        task.data.units_NU[start : start + config.frames].tolist() for start in (0, 6)
    ]
    model = task.module.eval().requires_grad_(False)
    assert loss.item() == pytest.approx(_decoded_nats(model, plan, tokens).mean().item(), abs=1e-4)


def test_a_batch_depends_on_the_seed_and_the_step_alone() -> None:
    mixture = [("raster", 0.5), ("diagonal:k=1", 0.5)]
    data = TokenData(_units(tiny_config("mcar/tiny"), 40), torch.zeros(40, dtype=torch.long))
    first, again = (_task("mcar/tiny", mixture, data, corruption=0.3) for _ in range(2))
    other = _task("mcar/tiny", mixture, data, corruption=0.3, seed=1)
    first.loss(0)
    losses = [task.loss(5)[0].item() for task in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]
    assert first.loss(6)[0].item() != losses[0]


def test_the_orders_of_a_mixture_come_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    task = _task("mcar/tiny", [("raster", 3.0), ("diagonal:k=1", 1.0)])
    raster = 0

    def spied(model: Any, tokens_BL: Tensor, given_BL: Tensor, taught: Lesson) -> Tensor:
        nonlocal raster
        raster += isinstance(taught.memory, Causal)
        return torch.zeros(())

    monkeypatch.setattr(world, "nats", spied)
    for step in range(800):
        task.loss(step)
    assert raster / 800 == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("corruption", [0.0, 0.06, 1.0])
def test_a_corrupted_batch_changes_cells_that_are_read_never_actions_and_never_targets(
    name: str, corruption: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = _task(name, [("raster", 1.0)], batch=64, corruption=corruption)
    seen: list[tuple[Tensor, Tensor]] = []

    def spied(model: Any, tokens_BL: Tensor, given_BL: Tensor, taught: Lesson) -> Tensor:
        seen.append((tokens_BL, given_BL))
        return torch.zeros(())

    monkeypatch.setattr(world, "nats", spied)
    task.loss(0)
    ((tokens, given),) = seen
    config = task.module.config
    prefix = len(config.prefix_ids)
    assert torch.equal(tokens[:, :prefix], given[:, :prefix])
    tokens, given = tokens[:, prefix:], given[:, prefix:]
    true, read = (part.unflatten(1, (config.frames, -1)) for part in (tokens, given))
    cells = config.rows * config.cols
    windows = {tuple(task.data.units_NU[start : start + 6].flatten().tolist()) for start in (0, 6)}
    assert {tuple(row) for row in tokens.tolist()} == windows  # the targets are true
    assert torch.equal(true[..., cells:], read[..., cells:])
    assert read[..., :cells].min() >= 0 and read[..., :cells].max() < config.codebook
    changed = (true != read)[..., :cells].float().mean((1, 2))
    deviation = (corruption * (1 - corruption) / (config.frames * cells)) ** 0.5  # of a share counted on so many cells
    assert changed.max() <= corruption + 5 * deviation
    # A share drawn evenly from none to all of it, for each sequence anew.
    assert changed.mean().item() == pytest.approx(corruption / 2, abs=0.1 * corruption)
    assert (changed.std() > 0.1 * corruption).item() == (corruption > 0)


@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1"])
def test_true_tokens_are_scored_by_what_corrupted_ones_show(spec: str) -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, spec)
    tokens, taught = _sequences(config, plan), lesson(plan, CPU, use_flex=False)
    given = tokens.roll(7, dims=1)
    logits = model(given[:, plan.entries.read], torch.from_numpy(plan.entries.position), taught.memory)
    kept = np.flatnonzero(plan.entries.write >= 0)
    scores = logits[:, kept].log_softmax(-1)
    expected = -scores.gather(-1, tokens[:, plan.entries.write[kept], None]).mean()
    assert nats(model, tokens, given, taught).item() == pytest.approx(expected.item(), abs=1e-4)


def test_corruption_changes_the_loss() -> None:
    """What the model reads is corrupted: the same weights score the same tokens otherwise."""
    clean, corrupt = (_task("mcar/tiny", [("raster", 1.0)], batch=4, corruption=share) for share in (0.0, 0.5))
    assert clean.loss(0)[0].item() != corrupt.loss(0)[0].item()


# Learning


@pytest.mark.parametrize("muon_lr", [0.02, None], ids=["muon", "adamw"])
@pytest.mark.parametrize("name", TINY)
def test_a_mixture_learns_one_sequence_by_heart(name: str, muon_lr: float | None, tmp_path: Any) -> None:
    config = tiny_config(name)
    data = TokenData(_units(config, config.frames), torch.zeros(config.frames, dtype=torch.long))
    task = _task(name, [("raster", 0.4), ("diagonal:k=1", 0.6)], data, batch=1, muon_lr=muon_lr, lr=5e-3)
    before = task.evaluate()
    assert list(before) == ["val_nats raster", "val_nats diagonal:k=1"]
    lines = list(fit(task, RunConfig(steps=60, warmup=5, log_every=30), tmp_path))
    for order, start in before.items():
        assert start > np.log(config.codebook) - 0.5
        assert lines[-1][order] < 0.5 * start


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1"])
def test_gradients_flow_to_every_parameter(name: str, spec: str) -> None:
    task = _task(name, [(spec, 1.0)])
    task.loss(0)[0].backward()
    # Without a text nothing reaches the layers that read one; tests/unit/test_cosmos.py trains them with one.
    for key, parameter in task.module.named_parameters():
        if ".text_" in key:
            continue
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("muon_lr", [0.02, None], ids=["muon", "adamw"])
def test_every_parameter_is_in_one_optimizer(name: str, muon_lr: float | None) -> None:
    task = _task(name, [("raster", 1.0)], muon_lr=muon_lr, lr=1e-3, weight_decay=0.3)
    groups = [group for optimizer in task.optimizers for group in optimizer.param_groups]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in task.module.parameters())
    assert all(group["weight_decay"] == 0.3 for group in groups)
    assert [group["lr"] for group in groups] == ([0.02, 1e-3] if muon_lr else [1e-3])
    assert groups[-1]["betas"] == (0.9, 0.95)  # appendix G, Table 9


# Held-out numbers


def test_held_out_windows_are_spread_over_the_recording() -> None:
    config = tiny_config("mcar/tiny")
    data = TokenData(_units(config, 40), torch.arange(40) // 20)
    windows = held_out_windows(data, 6, count=4)
    firsts = [row.tolist() for row in data.units_NU.long()]
    starts = [firsts.index(window[: data.units_NU.shape[1]].tolist()) for window in windows]
    assert starts[0] == 0 and starts[-1] == 34
    assert starts == sorted(starts)
    assert len(held_out_windows(data, 6, count=1000)) == 30  # no more than there are


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 100])
def test_the_mean_over_held_out_sequences_does_not_depend_on_the_batch(batch: int) -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, "diagonal:k=1")
    tokens = _sequences(config, plan, batch=5)
    taught = lesson(plan, CPU, use_flex=False)
    expected = float(_decoded_nats(model, plan, tokens).mean())
    assert mean_nats(model, tokens, taught, batch) == pytest.approx(expected, abs=1e-4)


def test_prefix_tokens_are_part_of_every_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with tokens before the first frame is taught with them in their places."""
    config = tiny_config("mcar/tiny", prefix_ids=(513, 514))
    data = _data(config)
    torch.manual_seed(0)
    task = WorldTask(config.build(), data, data, [(Order.of("raster"), 1.0)], batch=2, seed=0)
    seen: list[Tensor] = []
    original = world.nats

    def spied(model: Any, tokens_BL: Tensor, given_BL: Tensor, taught: Lesson) -> Tensor:
        seen.extend((tokens_BL, given_BL))
        return original(model, tokens_BL, given_BL, taught)

    monkeypatch.setattr(world, "nats", spied)
    task.loss(0)
    task.evaluate()
    length = _plan(config, "raster", config.frames).layout.length
    for tokens in seen:
        assert tokens.shape[1] == length
        assert tokens[:, :2].tolist() == [[513, 514]] * len(tokens)


def test_all_tiny_models_are_tried() -> None:
    assert len(TINY) >= 2
    assert len(list(itertools.product(TINY, ORDERS))) >= 16


def test_training_goes_on_from_shrunk_weights_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shipped weights are int8 and float16; an optimizer in float16 would soon give no numbers."""
    from safetensors.torch import save_file

    config = find("models", "doom/tiny").config
    model: Any = build(config)
    state = {f"transformer.{key}": value for key, value in model.state_dict().items()}
    (tmp_path / "start").mkdir()
    save_file(checkpoints.shrink(state), tmp_path / "start" / MODEL)
    data = _data(config)
    recipe = WorldRecipe(RunConfig(steps=3, log_every=1, warmup=0), batch=1, mixture=(("diagonal:k=1", 1.0),))
    monkeypatch.setattr(stages.RecipeData, "tokens", lambda *_: (data, data))
    given = stages.RecipeData(find_recipe("smoke"), tmp_path, torch.device("cpu"))
    stage = stages.world_stage("finetune", recipe, given, tmp_path, tmp_path / "run", start=tmp_path / "start")
    assert all(np.isfinite(line["loss"]) for _, line in run([stage]))
    assert {value.dtype for value in checkpoints.read(tmp_path / "run" / MODEL).values()} == {torch.float32}


@pytest.mark.parametrize("name", ["doom/tiny", "mcar/tiny"])
@pytest.mark.parametrize("order", ["raster", "diagonal:k=1", "diagonal:k=2", "window:s=2"])
def test_a_rolled_lesson_sees_what_a_live_session_saw(name: str, order: str) -> None:
    """Greedy frames of a ring that was taken twice over are what the lesson expects; without the ring they are not."""
    small = small_world(name)
    config, frames = small.variant.config, 2 * small.variant.config.frames + 3
    actions = actions_of(small, frames - 1)
    session = small.play(prompt_of(small, 1), schedule=order, sampling=Sampling(temperature=0), context="roll")
    pieces = [session.step(action) for action in actions]
    cells = torch.cat([prompt_of(small, 1), *(piece.tokens for piece in pieces)]).flatten(1)
    ids = torch.tensor([*small.actions.tokens(actions, config.codebook), [0] * config.suffix])
    tokens = torch.cat([torch.tensor(config.prefix_ids, dtype=torch.long), torch.cat([cells, ids], 1).flatten()])[None]
    plan = make_plan(small.layout(frames), order, known=1)
    expected = []
    for seen in (rolled(plan, config.frames), plan):
        taught = lesson(seen, CPU, use_flex=False)
        logits = small.model(tokens[:, taught.read], taught.position, taught.memory, taught.keep)
        allowed = logits[..., : config.codebook]
        expected.append((allowed.argmax(-1) == tokens[:, taught.target]).double().mean())
    assert expected[0] == 1 > expected[1]


def test_a_world_is_trained_beyond_its_window() -> None:
    recorded = TokenData(_units(small_world("doom/tiny").variant.config, 40), torch.zeros(40, dtype=torch.long))
    module = deepcopy(small_world("doom/tiny").model).requires_grad_(True)
    how: dict[str, Any] = {"batch": 2, "seed": 0, "held_out_sequences": 2, "mixture": [(Order.of("diagonal:k=1"), 1.0)]}
    task = WorldTask(module=module, data=recorded, held_out=recorded, rolled=4, **how)
    assert task._lessons["diagonal:k=1"].target.max() == small_world("doom/tiny").layout(9).frame(8).stop - 1
    loss, _ = task.loss(0)
    assert torch.isfinite(loss) and task.evaluate()["val_nats diagonal:k=1"] > 0


def test_plans_that_do_not_roll_are_refused() -> None:
    layout = small_world("doom/tiny").layout(8)
    with pytest.raises(ValueError, match="frames overlap"):
        rolled(make_plan(layout, "diagonal:k=1,d=2", known=1), 5)
    with pytest.raises(ValueError, match="6 frames given in a ring of 5"):
        rolled(make_plan(layout, "raster", known=6), 5)
    wham = small_world("wham/tiny")
    recorded = TokenData(_units(wham.variant.config, 20), torch.zeros(20, dtype=torch.long))
    with pytest.raises(ValueError, match="learned positions"):
        WorldTask(
            module=wham.model, data=recorded, held_out=recorded, mixture=[(Order.of("raster"), 1.0)],
            batch=1, seed=0, rolled=1,
        )  # fmt: skip
