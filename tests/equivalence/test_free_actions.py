"""Actions that the model chooses itself are decoded between the frames: as exact as all else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Free, Grid, Layout, Piece, Plan, Sampling, World, make_plan
from diagonal.engine.attention import Dense
from diagonal.engine.tokens.masks import dense_mask
from diagonal.media.draw import test_card as picture
from diagonal.planning.plan import NONE
from diagonal.worlds import xbox
from tests.tiny import build, naive, random_prompt, run, tiny_config

SPATIAL = ["raster", "diagonal:k=1", "diagonal:k=2", "window:s=2"]
GREEDY = Sampling(temperature=0)


def _plan(config: Any, spec: str, acts: int) -> Plan:
    return make_plan(Layout(Grid(4, config.rows, config.cols), 0, config.suffix), spec, 1, acts)


@pytest.mark.parametrize("acts", [0, 1, 2])
@pytest.mark.parametrize("spec", SPATIAL)
def test_teacher_forcing_gives_the_engines_logits(spec: str, acts: int) -> None:
    config = tiny_config("wham/tiny")
    model, plan = build(config), _plan(config, spec, acts)
    tokens, stepwise = run(model, plan, random_prompt(config, plan))
    entries = plan.entries
    memory = Dense(dense_mask(entries))
    at_once = model(tokens[:, entries.read], torch.from_numpy(entries.position), memory)
    written = np.concatenate([step.write[step.write != NONE] for step in plan.steps])
    entry = {int(cell): index for index, cell in enumerate(entries.write) if cell != NONE}
    order = torch.tensor([entry[int(cell)] for cell in written])
    torch.testing.assert_close(at_once[:, order], stepwise, atol=1e-4, rtol=1e-4)
    decoded_actions = (3 - acts) * config.suffix
    assert len(written) == 3 * config.rows * config.cols + decoded_actions
    assert len(plan.steps) == len(_plan(config, spec, 3).steps) + decoded_actions


@pytest.mark.parametrize("acts", [0, 2])
def test_raster_is_the_naive_token_loop(acts: int) -> None:
    config = tiny_config("wham/tiny")
    model, plan = build(config), _plan(config, "raster", acts)
    prompt = random_prompt(config, plan)
    planned, _ = run(model, plan, prompt)
    assert torch.equal(planned, naive(model, plan, prompt))


def test_overlapping_frames_need_their_actions_ahead() -> None:
    config = tiny_config("wham/tiny")
    with pytest.raises(ValueError, match="frames overlap in this schedule, so every action must be known ahead"):
        _plan(config, "diagonal:k=1,d=2", 0)
    assert _plan(config, "diagonal:k=1,d=2", 3).steps  # all given


@pytest.fixture(scope="module")
def world() -> World:
    return diagonal.load("wham/tiny")


def _actions(world: World, frames: list[Any]) -> list[xbox.Action]:
    return [xbox.from_tokens(frame.actions[0].tolist(), world.variant.config.codebook) for frame in frames]


def _same_actions(one: Piece, other: Piece, sample: int | None = None) -> bool:
    assert one.actions is not None and other.actions is not None
    return torch.equal(one.actions, other.actions if sample is None else other.actions[sample])


def test_chosen_actions_given_back_make_the_same_video(world: World) -> None:
    """Past the window too (6 frames): what the model chose stays in its context."""
    prompt = picture(*world.size)
    chosen = list(world.stream(prompt, Free(), frames=8, sampling=GREEDY))
    actions = _actions(world, chosen)
    given = list(world.stream(prompt, actions, sampling=GREEDY))
    assert len(given) == 8
    for one, two in zip(chosen, given, strict=True):
        assert torch.equal(one.tokens, two.tokens) and _same_actions(one, two)
        np.testing.assert_array_equal(one.frames, two.frames)


def test_given_actions_come_first(world: World) -> None:
    prompt, begin = picture(*world.size), xbox.parse("b3*2")
    frames = list(world.stream(prompt, Free(begin), frames=4, sampling=GREEDY))
    assert _actions(world, frames)[:2] == begin


def test_a_batch_chooses_for_each_sample(world: World) -> None:
    prompts = torch.randint(256, (2, 1, 9, 15), generator=torch.Generator().manual_seed(0))
    together = list(world.stream(prompts, Free(), frames=2, seed=5))
    for index in range(2):
        alone = list(world.stream(prompts[index], Free(), frames=2, seed=5 + index))
        for one, both in zip(alone, together, strict=True):
            assert torch.equal(one.tokens, both.tokens[index]) and _same_actions(one, both, index)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("mcar/tiny", None, "mcar/tiny chooses no actions; give them"),
        ("cosmos/tiny", None, "cosmos/tiny chooses no actions; give them"),
        ("wham/tiny", "noop*9", "9 actions given to begin with; 1 prompt frames have 0 between them, and 2 new"),
    ],
)
def test_what_cannot_be_chosen_is_refused(name: str, given: str | None, text: str) -> None:
    world = diagonal.load(name)
    actions = None if given is None else xbox.parse(given)
    with pytest.raises(ValueError, match=text):
        world.stream(picture(*world.size), Free(actions), frames=2 * world.tokenizer.stride)


def test_a_window_that_slides_is_fed_once_for_each_frame(world: World) -> None:
    """Six frames fit. Each later frame: one wide call with the five before it and their actions, then diagonals."""
    stream = world.stream(picture(*world.size), xbox.parse("noop*9"), schedule="diagonal:k=1")
    unit, calls = stream.video.layout.unit, []

    class Counted:
        cache_spec = world.model.cache_spec

        def __call__(self, tokens_BS: Any, *rest: Any) -> Any:
            calls.append(tokens_BS.shape[1])
            return world.model(tokens_BS, *rest)

    counted: Any = Counted()
    stream.model = counted
    assert len(list(stream.token_frames())) == 9
    wide = [size for size in calls if size >= unit]
    assert wide == [unit] + [5 * unit] * 4  # the prompt, then the sliding windows
    assert len(calls) == stream.calls == 9 * (8 + 15)
