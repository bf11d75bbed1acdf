"""Lossless = raster, token by token, in no more calls: every family, window, draft, sampling, batch and seed."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import diagonal
from diagonal import Free, LiveSession, Sampling, World
from diagonal.engine.kernels.device import SWITCH
from diagonal.engine.warm import Warm
from diagonal.planning.decoding.lossless import DRAFTS
from tests.worlds import PLAYABLE, actions_of, prompt_of, small_world

WORLDS = [*PLAYABLE, "cosmos/tiny"]
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=5),
    Sampling(temperature=1.2, top_p=0.8),
    Sampling(temperature=0.3, top_p=0.9, top_k=20),
]


def played(session: LiveSession, actions: list[Any]) -> tuple[Tensor, list[int]]:
    """Tokens of the frames that actions lead to, and the calls of each."""
    pieces = [session.step(action) for action in actions]
    return torch.cat([piece.tokens for piece in pieces]), [piece.calls for piece in pieces]


@st.composite
def schedules(draw: st.DrawFn) -> str:
    """Any lossless schedule that gives raster's tokens."""
    window = draw(st.one_of(st.none(), st.integers(1, 30)))
    parts = [f"window={window}"] if window else []
    draft = draw(st.sampled_from([None, *DRAFTS]))
    return "lossless:" + ",".join([*parts, *([f"draft={draft}"] if draft else [])])


@given(
    name=st.sampled_from(WORLDS),
    schedule=schedules(),
    sampling=st.sampled_from(SAMPLINGS),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**40),
)
@settings(deadline=None, max_examples=25)
def test_a_stream_has_the_tokens_of_raster(name: str, schedule: str, sampling: Sampling, batch: int, seed: int) -> None:
    """Past the window of the model, samples at their own pace."""
    world = _small(name)
    prompts = torch.stack([prompt_of(world, 1, seed % 7 + number) for number in range(batch)])
    lists = None if world.variant.config.suffix == 0 else [actions_of(world, 6, number) for number in range(batch)]
    asked: dict[str, Any] = {"frames": 6 * int(world.tokenizer.stride), "sampling": sampling, "seed": seed}
    raster = world.generate(prompts, lists, schedule="raster", **asked)
    made = world.generate(prompts, lists, schedule=schedule, **asked)
    assert torch.equal(made.tokens, raster.tokens)
    assert (made.frames == raster.frames).all()
    drafted = raster.calls if "draft=diagonal" in schedule else 0  # its narrow calls come first
    assert made.calls <= raster.calls + drafted


def _small(name: str) -> World:
    return small_world(name) if name in PLAYABLE else small_world(name, rows=2, cols=3, frames=4, reference_frames=2)


@given(
    name=st.sampled_from(PLAYABLE),
    schedule=schedules(),
    sampling=st.sampled_from(SAMPLINGS),
    context=st.sampled_from(["roll", "refill"]),
    seed=st.integers(0, 2**40),
)
@settings(deadline=None, max_examples=25)
def test_a_session_has_the_tokens_of_raster(
    name: str, schedule: str, sampling: Sampling, context: str, seed: int
) -> None:
    world = small_world(name)
    context = context if name != "wham/tiny" else "refill"
    prompt, actions = prompt_of(world, 1, seed % 5), actions_of(world, 8, seed % 3)
    sessions = [
        world.play(prompt, schedule=one, sampling=sampling, seed=seed, context=context) for one in ("raster", schedule)
    ]
    (raster, most), (made, calls) = (played(session, actions) for session in sessions)
    assert torch.equal(made, raster)
    if "draft=diagonal" not in schedule:
        assert all(few <= many for few, many in zip(calls, most, strict=True))


@pytest.mark.parametrize(
    "schedule", ["lossless", "lossless:window=5", "lossless:draft=above", "lossless:draft=diagonal"]
)
def test_actions_that_the_model_chooses_are_those_of_raster(schedule: str) -> None:
    world = small_world("wham/tiny")
    prompt, given = prompt_of(world, 2), actions_of(world, 3)
    pieces = {one: [*world.stream(prompt, Free(given), frames=7, schedule=one, seed=9)] for one in ("raster", schedule)}
    for first, second in zip(*pieces.values(), strict=True):
        assert torch.equal(first.tokens, second.tokens)
        assert torch.equal(first.actions, second.actions)
    live = world.play(prompt, given[:1], seed=9, schedule=schedule)
    made = [live.step(action) for action in [*given[1:], *[Free()] * 5]]
    assert torch.equal(torch.cat([p.tokens for p in made]), torch.cat([p.tokens for p in pieces["raster"]]))


def test_seats_accept_at_their_own_pace_beside_other_schedules() -> None:
    world = small_world("doom/tiny")
    arena = world.arena(5)
    schedules = ["lossless", "lossless:window=3", "raster", "lossless", "diagonal:k=1"]
    sessions = [arena.play(prompt_of(world, 1, n), schedule=one, seed=n) for n, one in enumerate(schedules)]
    alone = [
        world.play(prompt_of(world, 1, n), schedule="raster" if "lossless" in one else one, seed=n)
        for n, one in enumerate(schedules)
    ]
    for number, action in enumerate(actions_of(world, 9)):
        asked = [n for n in range(5) if (n + number) % 4]  # somebody sits every tick out
        made = arena.step({sessions[n]: action for n in asked})
        for n in asked:
            assert torch.equal(made[sessions[n]].tokens, alone[n].step(action).tokens), n


def test_it_goes_on_from_other_schedules_from_snapshots_and_in_branches() -> None:
    world = small_world("mcar/tiny")
    prompt, actions = prompt_of(world, 2), actions_of(world, 12)
    raster = world.play(prompt, actions[:1], schedule="raster", seed=4)
    expected = torch.cat([raster.step(action).tokens for action in actions[1:]])
    session = world.play(prompt, actions[:1], schedule="lossless", seed=4)
    tokens = [session.step(action).tokens for action in actions[1:4]]
    session.update(schedule="raster")
    tokens.append(session.step(actions[4]).tokens)
    session.update(schedule="lossless:window=6,draft=repeat")
    tokens += [session.step(action).tokens for action in actions[5:8]]
    other, again = session.branch(), world.resume(session.snapshot())
    for one in (session, other, again):
        rest = [one.step(action).tokens for action in actions[8:]]
        assert torch.equal(torch.cat([*tokens, *rest]), expected)


def test_the_same_video_takes_the_same_calls_again() -> None:
    world = small_world("doom/tiny")
    clips = [world.generate(prompt_of(world, 1), actions_of(world, 9), schedule="lossless", seed=1) for _ in range(3)]
    assert len({clip.calls for clip in clips}) == 1


def test_what_was_drafted_right_takes_few_calls() -> None:
    """A world that does nothing but repeat itself: every draft from the frame before is right."""
    world = small_world("doom/tiny")
    prompt, actions = prompt_of(world, 1), actions_of(world, 3)
    first = world.play(prompt, schedule="lossless:window=12", sampling=Sampling(temperature=0))
    tokens, _ = played(first, actions)
    known = first.snapshot()
    units = known.units_TU.to(world.device)
    decoder, turn = first.arena._decoder, first.turn
    how = first.arena.plan(known.made[-1])
    assert decoder.decode(how, known.sampling, [turn], units[-1:]) == 1
    assert torch.equal(first.arena._decoder.made([turn])[0][0], tokens[-1])


def test_calls_are_not_known_ahead() -> None:
    world = small_world("doom/tiny")
    stream = world.stream(prompt_of(world, 1), actions_of(world, 4), schedule="lossless")
    assert stream.calls is None
    counted: list[int] = []
    stream.on_call = lambda: counted.append(1)
    pieces = [*stream]
    assert len(counted) == sum(piece.calls for piece in pieces) > 0


def test_doom_as_shipped_has_the_tokens_of_raster() -> None:
    """Its bfloat16 weights in rows of int8, from every start view: the kernels of a CPU compute a row as they would
    alone. The 64 clips of docs/lossless.md: benchmarks/lossless.py."""
    world = diagonal.load("doom")
    for number, start in enumerate(("hall", "gate")):
        sessions = [
            world.play(start, schedule=one, seed=number) for one in ("raster", "lossless", "lossless:window=64")
        ]
        tokens = [played(session, ["forward", "left"])[0] for session in sessions]
        assert torch.equal(tokens[0], tokens[1]) and torch.equal(tokens[0], tokens[2])


def halved(name: str) -> World:
    """A tiny world in bfloat16, whose sums depend on their order so much that tokens do."""
    world = copy(_small(name))
    world.model, world.tokenizer = (deepcopy(one).bfloat16() for one in (world.model, world.tokenizer))
    world.runner, world.warm, world.live = world.model, Warm(), Warm()
    return world


@given(
    name=st.sampled_from(WORLDS),
    inputs=st.sampled_from([18, 20, 33, 64]),
    draft=st.sampled_from([None, *DRAFTS]),
    sampling=st.sampled_from(SAMPLINGS),
    batch=st.integers(1, 3),
    kernels=st.booleans(),
)
@settings(deadline=None, max_examples=10)
def test_strict_calls_make_it_raster_in_bfloat16_too(
    name: str, inputs: int, draft: str | None, sampling: Sampling, batch: int, kernels: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SWITCH, str(int(kernels)))
        world = halved(name).strict(inputs)
        prompts = torch.stack([prompt_of(world, 1, number) for number in range(batch)])
        lists = None if world.variant.config.suffix == 0 else [actions_of(world, 6, number) for number in range(batch)]
        asked: dict[str, Any] = {"frames": 6 * int(world.tokenizer.stride), "sampling": sampling, "seed": inputs}
        raster = world.generate(prompts, lists, schedule="raster", **asked)
        made = world.generate(prompts, lists, schedule=f"lossless:draft={draft}" if draft else "lossless", **asked)
    assert torch.equal(made.tokens, raster.tokens)


def test_strict_seats_do_not_depend_on_who_else_is_there() -> None:
    """In bfloat16: under other schedules, idle, gone; and a snapshot goes on as it would have."""
    world = halved("mcar/tiny").strict(16)
    actions = actions_of(world, 9)
    arena = world.arena(3)
    alone = arena.play(prompt_of(world, 2), actions[:1], schedule="raster", seed=5)
    expected, _ = played(alone, actions[1:])
    alone.close()
    session = arena.play(prompt_of(world, 2), actions[:1], schedule="lossless", seed=5)
    others = [
        arena.play(prompt_of(world, 1, n), schedule=one, seed=n) for n, one in ((1, "raster"), (2, "diagonal:k=1"))
    ]
    tokens = []
    for number, action in enumerate(actions[1:]):
        if number == 4:
            saved = session.snapshot()
            session.close()
            session = arena.resume(saved)
        beside = others if number % 3 else others[:1]
        tokens.append(arena.step({session: action, **dict.fromkeys(beside, action)})[session].tokens)
    assert torch.equal(torch.cat(tokens), expected)


@pytest.mark.parametrize(
    ("name", "inputs", "schedule", "said"),
    [
        ("mcar/tiny", 12, "lossless", "at least 13"),
        ("videogpt/tiny", 64, "raster", "begins with nothing"),
        ("doom/tiny", 16, "lossless:window=8", "leave out window=8"),
    ],
)
def test_strict_calls_that_cannot_be_are_refused(name: str, inputs: int, schedule: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        world = diagonal.load(name, weights="random").strict(inputs)
        world.generate(prompt_of(world, 1), actions_of(world, 1), schedule=schedule)
