"""Played = streamed, rolled = the same window over all that ever was, alone = among others, resumed = gone on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import diagonal
from diagonal import Arena, Free, LiveSession, Order, Sampling, Snapshot, StandIn, World, make_plan
from diagonal.engine.attention import Dense
from diagonal.generation import arena as arenas
from diagonal.generation import memory
from diagonal.planning.decoding import parse
from diagonal.planning.grid import Grid, Layout
from tests.worlds import PLAYABLE, SPATIAL, actions_of, prompt_of, small_world

GREEDY = Sampling(temperature=0)


def played(session: LiveSession, actions: list[Any]) -> Tensor:
    """The tokens (T, rows, cols) of the frames that actions lead to."""
    return torch.cat([session.step(action).tokens for action in actions])


@pytest.mark.parametrize("name", PLAYABLE)
@pytest.mark.parametrize("schedule", SPATIAL)
def test_play_makes_the_tokens_of_a_stream_with_the_same_windows(name: str, schedule: str) -> None:
    world = small_world(name)
    prompt, actions = prompt_of(world, 2), actions_of(world, 10)
    streamed = world.generate(prompt, actions, schedule=schedule, seed=3)
    session = world.play(prompt, actions[:1], schedule=schedule, seed=3, context="refill")
    pieces = [session.step(action) for action in actions[1:]]
    assert torch.equal(torch.cat([piece.tokens for piece in pieces]), streamed.tokens)
    np.testing.assert_array_equal(np.concatenate([piece.frames for piece in pieces]), streamed.frames)
    assert [piece.index for piece in pieces] == [*range(2, 11)]
    np.testing.assert_array_equal(session.view(), pieces[-1].frame)


@pytest.mark.parametrize(
    "order",
    [
        Order(parse("diagonal:k=1"), StandIn.ABOVE),
        Order(parse("diagonal:k=1"), refeed=False),
        Order(parse("window:s=3,overlap_first_row=true")),
    ],
    ids=str,
)
def test_other_row_starts_are_played_as_they_are_streamed(order: Order) -> None:
    world = small_world("doom/tiny")
    prompt, actions = prompt_of(world, 1), actions_of(world, 9)
    streamed = world.generate(prompt, actions, schedule=order, seed=5)
    assert torch.equal(played(world.play(prompt, schedule=order, seed=5, context="refill"), actions), streamed.tokens)


def test_a_model_that_chooses_its_actions_plays_as_it_streams() -> None:
    world = small_world("wham/tiny")
    prompt, given = prompt_of(world, 2), actions_of(world, 3)
    streamed = world.stream(prompt, Free(given), frames=7, seed=9)
    pieces = [*streamed]
    session = world.play(prompt, given[:1], seed=9)
    made = [session.step(action) for action in [*given[1:], *[Free()] * 5]]
    assert torch.equal(torch.cat([p.tokens for p in made]), torch.cat([p.tokens for p in pieces]))
    assert torch.equal(torch.cat([p.actions for p in made]), torch.cat([p.actions for p in pieces]))  # type: ignore[misc]


@pytest.mark.parametrize("schedule", ["raster", "diagonal:k=1", "diagonal:k=2"])
def test_a_ring_that_rolls_sees_the_newest_frames_of_all_that_ever_was(schedule: str) -> None:
    """Ring = concatenation: all entries of all frames in one call, under the plan's mask and a window."""
    world = small_world("mcar/tiny")
    config, frames = world.variant.config, 14
    prompt, actions = prompt_of(world, 1), actions_of(world, frames - 1)
    tokens = played(world.play(prompt, schedule=schedule, sampling=GREEDY, context="roll"), actions)
    layout = Layout(Grid(frames, config.rows, config.cols), 0, config.suffix)
    plan = make_plan(layout, schedule, known=1)
    sequence = torch.full((1, layout.length), -1)
    sequence[0, layout.frame(0)] = prompt.flatten()
    for index, (frame, action) in enumerate(zip(tokens, actions, strict=True), 1):
        sequence[0, layout.frame(index)] = frame.flatten()
        sequence[0, layout.after(index - 1)] = torch.tensor(world.actions.tokens([action], config.codebook)[0])
    entries, per_frame = plan.entries, len(plan.steps) // (frames - 1)
    # Of every entry the frame that it is of, and the frame that is decoded when it is fed; a prompt's cells see but it.
    own, decoded = entries.position // layout.unit, 1 + entries.fed // per_frame
    window = own[None, :] > decoded[:, None] - config.frames
    mask = torch.from_numpy(entries.visible() & window)
    logits = world.model(sequence[:, entries.read], torch.from_numpy(entries.position), Dense(mask))[0]
    sampled = np.flatnonzero(entries.write >= 0)
    found = logits[sampled, : config.codebook].argmax(-1)
    assert torch.equal(found, sequence[0, entries.write[sampled]])


def test_before_it_slides_a_rolling_window_plays_what_is_streamed() -> None:
    world = small_world("doom/tiny", frames=8)
    prompt, actions = prompt_of(world, 3), actions_of(world, 7)
    streamed = world.generate(prompt, actions, seed=1)
    assert torch.equal(played(world.play(prompt, actions[:2], seed=1), actions[2:]), streamed.tokens)


@pytest.mark.parametrize("context", ["roll", "refill"])
@pytest.mark.parametrize("schedule", [*SPATIAL, "lossless"])
def test_a_frame_that_is_given_up_midway_leaves_no_trace(schedule: str, context: str) -> None:
    world = small_world("doom/tiny")
    prompt, actions = prompt_of(world, 2), actions_of(world, 14)
    whole = world.play(prompt, actions[:1], schedule=schedule, seed=3, context=context)
    expected = played(whole, actions[1:])
    arena = world.arena(1, context)
    session = arena.play(prompt, actions[:1], schedule=schedule, seed=3)
    made = []
    for number, action in enumerate(actions[1:], 1):
        with pytest.raises(StopIteration):
            arena.step({session: actions[number - 1]}, iter(range(number % 4)).__next__)  # gives up after some calls
        assert session.index == number
        made.append(session.step(action).tokens)
    assert torch.cat(made).equal(expected)
    assert session.snapshot().units_TU.equal(whole.snapshot().units_TU)


def test_the_schedule_changes_between_frames() -> None:
    world = small_world("doom/tiny")
    prompt, actions = prompt_of(world, 1), actions_of(world, 6)
    session, same = (world.play(prompt, seed=2) for _ in range(2))
    first = [session.step(action) for action in actions[:2]]
    assert torch.equal(torch.cat([piece.tokens for piece in first]), played(same, actions[:2]))
    session.update(schedule="raster", sampling=GREEDY)
    third = session.step(actions[2])
    assert [piece.calls for piece in (*first, third)] == [6, 6, 12]
    assert torch.equal(third.tokens, world.resume(_turned(same, "raster", GREEDY)).step(actions[2]).tokens)


def _turned(session: LiveSession, schedule: str, sampling: Sampling) -> Snapshot:
    """A snapshot that goes on in another way."""
    return replace(session.snapshot(), order=Order.of(schedule), sampling=sampling)


moves = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "branch", "step", "step", "step", "step"]), st.integers(0, 10**6)),
    min_size=4,
    max_size=14,
)


@settings(max_examples=25)
@given(moves=moves, context=st.sampled_from(["roll", "refill"]))
def test_a_session_does_not_notice_who_else_is_there(moves: list[tuple[str, int]], context: str) -> None:
    """Sessions join, leave, idle and branch as they like; each has the tokens that it has alone."""
    world = small_world("doom/tiny")
    arena, alone = world.arena(4, context), dict[LiveSession, LiveSession]()
    for move, number in moves:
        here = [*alone]
        if move == "join" and arena.free:
            prompt = prompt_of(world, 1 + number % 3, number)
            schedule = SPATIAL[number % len(SPATIAL)]
            who = arena.play(prompt, schedule=schedule, seed=number)
            alone[who] = world.play(prompt, schedule=schedule, seed=number, context=context)
        elif move == "leave" and here:
            here[number % len(here)].close()
            alone.pop(here[number % len(here)]).close()
        elif move == "branch" and here and arena.free:
            who = here[number % len(here)]
            alone[who.branch(seed=number)] = alone[who].branch(seed=number)
        elif move == "step" and here:
            some = [who for index, who in enumerate(here) if number >> index & 1] or here[:1]
            actions = dict(zip(some, actions_of(world, len(some), number), strict=True))
            for who, piece in arena.step(actions).items():
                assert torch.equal(piece.tokens, alone[who].step(actions[who]).tokens)
    arena.close()


@pytest.mark.parametrize(("name", "context"), [("doom/tiny", "roll"), ("doom/tiny", "refill"), ("wham/tiny", "refill")])
def test_a_snapshot_goes_on_as_the_session_did(name: str, context: str, tmp_path: Path) -> None:
    world = small_world(name)
    actions = actions_of(world, 40)
    session = world.play(prompt_of(world, 3), seed=8, context=context)
    for count, schedule in ((1, "diagonal:k=1"), (4, "raster"), (9, "diagonal:k=2"), (13, "diagonal:k=1")):
        session.update(schedule=schedule)
        while session.index < count + 2:
            session.step(actions[session.index])
        saved = Snapshot.load(session.save(tmp_path / "here.json"))
        other = world.resume(saved)
        np.testing.assert_array_equal(other.view(), session.view())
        branch = session.branch()
        expected = played(branch, actions[-6:])
        assert torch.equal(played(other, actions[-6:]), expected)
        assert other.index == branch.index
        branch.close()
        other.close()


def test_another_process_resumes_a_snapshot(tmp_path: Path) -> None:
    world = diagonal.load("doom")
    session = world.play("hall", seed=4)
    played(session, ["forward"] * 2)
    session.save(tmp_path / "here.json")
    code = (
        "import diagonal, sys; s = diagonal.load('doom').resume(sys.argv[1]); "
        "print(*[int(i) for a in ('left', 'forward') for i in s.step(a).tokens.flatten()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "here.json")], capture_output=True, text=True, check=True
    )
    expected = played(session, ["left", "forward"]).flatten().tolist()
    assert [int(one) for one in done.stdout.split()] == expected


def test_positions_without_end_change_nothing() -> None:
    """A session far into its video makes the tokens of one at the beginning: rotary positions are differences."""
    world = small_world("doom/tiny")
    actions = actions_of(world, 8)
    sessions = [world.play(prompt_of(world, 2), sampling=GREEDY) for _ in range(2)]
    far = sessions[1]
    layout = world.layout(1)
    for session in sessions:
        played(session, actions[:5])  # the prompt has left the window, and keys of positions near 0 with it
    million = 10**6 * layout.unit
    near, far_logits = (_rotated_scores(world, start) for start in (0, million))
    torch.testing.assert_close(near, far_logits, atol=2e-5, rtol=1e-5)
    assert torch.equal(played(far, actions[5:]), played(sessions[0], actions[5:]))


def _rotated_scores(world: World, start: int) -> Tensor:
    """Logits of a few inputs that begin at a position."""
    tokens = torch.arange(12)[None] % world.variant.config.codebook
    causal = Dense(torch.ones(12, 12, dtype=torch.bool).tril())
    logits: Tensor = world.model(tokens, start + torch.arange(12), causal)
    return logits


def test_a_long_session_keeps_no_more_than_its_window_needs() -> None:
    world = small_world("doom/tiny", rows=1, cols=2, layers=1, frames=3)
    session = world.play(prompt_of(world, 1), seed=1)
    actions = actions_of(world, 300)
    sizes = set()
    for index, action in enumerate(actions):
        session.step(action)
        if index > 20:
            sizes.add(
                (len(session.snapshot().units_TU), len(session.waiting), len(str(session.snapshot().as_json())) // 500)
            )
    assert len(sizes) <= 2
    assert session.index == 300


def test_seats_are_limited_by_memory_and_the_number_that_fits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world = small_world("doom/tiny")
    each = memory.seat_bytes(world.model.cache_spec, world.layout(5).length, torch.float32)
    monkeypatch.setattr(arenas, "free_bytes", lambda device: int(3.5 * each / 0.9))
    assert world.arena(3).free == 3
    with pytest.raises(ValueError, match="4 seats asked for; 3 fit"):
        world.arena(4)


def test_what_cannot_be_played_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    world = small_world("doom/tiny")
    session = world.play(prompt_of(world, 1), seed=1)
    with pytest.raises(ValueError, match="unknown action 'jump'; known: noop, forward"):
        session.step("jump")
    with pytest.raises(ValueError, match="are 2 actions; a step takes one"):
        session.step("forward*2")
    with pytest.raises(ValueError, match="frames overlap in the schedule diagonal:k=1,d=2"):
        session.update(schedule="diagonal:k=1,d=2")
    with pytest.raises(ValueError, match="reads frame 0 for every frame"):
        world.play(prompt_of(world, 1), schedule=Order(parse("diagonal:k=1"), StandIn.PROMPT_FRAME))
    with pytest.raises(ValueError, match="doom/tiny chooses no actions"):
        session.step(Free())
    with pytest.raises(ValueError, match="context 'slide' is not known; known: roll, refill"):
        world.play(prompt_of(world, 1), context="slide")
    with pytest.raises(ValueError, match="wham/tiny has learned positions"):
        small_world("wham/tiny").play(prompt_of(small_world("wham/tiny"), 1), context="roll")
    with pytest.raises(ValueError, match="seed -1 given"):
        world.play(prompt_of(world, 1), seed=-1)
    with pytest.raises(ValueError, match="2 prompts given; a session plays one"):
        world.play(prompt_of(world, 2)[:, None])
    with pytest.raises(ValueError, match="2 actions given for 2 prompt frames"):
        world.play(prompt_of(world, 2), actions_of(world, 2))
    fresh = world.play(prompt_of(world, 1), seed=1)
    assert torch.equal(session.step("forward").tokens, fresh.step("forward").tokens)
    session.close()
    for refused in (lambda: session.step("forward"), session.snapshot, session.branch, session.view):
        with pytest.raises(ValueError, match="this session is closed"):
            refused()


def test_an_arena_refuses_strangers_and_more_than_its_seats() -> None:
    world = small_world("doom/tiny")
    arena, other = world.arena(1), world.arena(1)
    first, stranger = arena.play(prompt_of(world, 1)), other.play(prompt_of(world, 1))
    with pytest.raises(ValueError, match="all 1 seats are taken"):
        arena.play(prompt_of(world, 1))
    with pytest.raises(ValueError, match="a session of another arena"):
        arena.step({first: "forward", stranger: "forward"})
    with pytest.raises(ValueError, match="no actions given"):
        arena.step({})
    assert (first.index, stranger.index) == (0, 0)
    first.close()
    assert arena.play(prompt_of(world, 1)).step("left").index == 1
    with pytest.raises(ValueError, match="0 seats asked for"):
        world.arena(0)


def test_snapshots_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    world = small_world("doom/tiny")
    session = world.play(prompt_of(world, 1), seed=1)
    session.step("forward")
    path = session.save(tmp_path / "here.json")
    whole = path.read_text()
    for text, message in (
        (whole[: len(whole) // 2], "is no snapshot, or a part of one"),
        ("{}", "is no snapshot of a session"),
        (whole.replace('"version": 1', '"version": 7'), "version 7; this library reads version 1"),
        (whole.replace('"given": 1', '"given": 2'), "is damaged"),
        (whole.replace('"seed": 1', '"seed": -1'), "is damaged"),
        (whole.replace("diagonal:k=1", "os.system"), "is damaged"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            world.resume(path)
    saved = session.snapshot()
    with pytest.raises(ValueError, match="the snapshot is of mcar/tiny, not of doom/tiny"):
        world.resume(replace(saved, model="mcar/tiny"))
    with pytest.raises(ValueError, match="was made with other weights"):
        small_world("doom/tiny", layers=1).resume(saved)
    with pytest.raises(ValueError, match="no cells of doom/tiny"):
        world.resume(replace(saved, units_TU=saved.units_TU + 1000))
    with pytest.raises(ValueError, match="the snapshot has the context 'roll', this arena 'refill'"):
        world.arena(1, "refill").resume(saved)


def test_worlds_that_only_watch_are_not_played() -> None:
    world = diagonal.load("cosmos/tiny")
    with pytest.raises(ValueError, match="it cannot be played"):
        Arena(world, 1)
