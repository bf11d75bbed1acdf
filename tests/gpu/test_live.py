"""Live decoding on a GPU: captured steps, seats and the CPU in float32 decode the same tokens, greedily."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import diagonal
from diagonal import LiveSession, Sampling, World
from diagonal.engine.kernels.device import SWITCH
from diagonal.engine.warm import Warm
from tests.worlds import PLAYABLE, SPATIAL, actions_of, prompt_of, small_world

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
GREEDY = Sampling(temperature=0)


def _on(world: World, device: str) -> World:
    """The same world on a device, with nothing warm."""
    torch.backends.cuda.matmul.allow_tf32 = False
    other = copy.copy(world)
    other.model, other.tokenizer = (copy.deepcopy(one).to(device) for one in (world.model, world.tokenizer))
    other.runner, other.warm, other.live = other.model, Warm(), Warm()
    return other


def _played(session: LiveSession, actions: list[Any]) -> Tensor:
    return torch.cat([session.step(action).tokens for action in actions])


@pytest.mark.parametrize("name", PLAYABLE)
@pytest.mark.parametrize("schedule", SPATIAL)
@pytest.mark.parametrize("kernels", ["0", "1"])
def test_captured_frames_are_those_of_the_cpu(
    name: str, schedule: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = small_world(name)
    prompt, actions = prompt_of(world, 2), actions_of(world, 12)
    expected = _played(world.play(prompt, schedule=schedule, sampling=GREEDY), actions)
    monkeypatch.setenv(SWITCH, kernels)
    moved = _on(world, "cuda")
    session = moved.play(prompt.cuda(), schedule=schedule, sampling=GREEDY)
    assert torch.equal(_played(session, actions), expected)


@pytest.mark.parametrize("context", ["roll", "refill"])
def test_sampled_seats_come_and_go_and_nothing_is_captured_again(context: str) -> None:
    world = small_world("doom/tiny")
    moved = _on(world, "cuda")
    arena = moved.arena(5, context)
    alone: dict[LiveSession, LiveSession] = {}
    for number in range(5):
        prompt = prompt_of(world, 1 + number % 3, number)
        alone[arena.play(prompt.cuda(), seed=number)] = world.play(prompt, seed=number, context=context)

    def tick(sessions: list[LiveSession], seed: int) -> None:
        actions = dict(zip(sessions, actions_of(world, len(sessions), seed), strict=True))
        for session, piece in arena.step(actions).items():
            assert torch.equal(piece.tokens, alone[session].step(actions[session]).tokens)

    for seed in range(9):  # all sizes of batches, and past the window
        everybody = [*alone]
        tick(everybody[: 1 + seed % 5], seed)
    captured = len(arena._decoder.captures)
    for seed in range(9, 18):
        leaving = [*alone][seed % 5]
        leaving.close()
        alone.pop(leaving).close()
        prompt = prompt_of(world, 2, seed)
        alone[arena.play(prompt.cuda(), seed=seed)] = world.play(prompt, seed=seed, context=context)
        tick([*alone][: 1 + seed % 5], seed)
    assert len(arena._decoder.captures) == captured


def test_frames_in_flight_are_those_that_were_waited_for() -> None:
    world = diagonal.load("doom", device="cuda")
    sessions = [world.play("hall", seed=3) for _ in range(2)]
    waited = [sessions[0].step(action).tokens for action in ("forward", "left", "forward")]
    ticks = [sessions[1].arena.submit({sessions[1]: action}) for action in ("forward", "left", "forward")]
    found = [tick.result()[sessions[1]].tokens for tick in ticks]
    assert torch.equal(torch.cat(found), torch.cat(waited))


def test_a_snapshot_and_a_branch_go_on_alike() -> None:
    world = _on(small_world("mcar/tiny"), "cuda")
    session = world.play(prompt_of(world, 3).cuda(), seed=8, sampling=GREEDY)
    actions = actions_of(world, 16)
    _played(session, actions[:11])
    other, branch = world.resume(session.snapshot()), session.branch()
    expected = _played(session, actions[11:])
    assert torch.equal(_played(other, actions[11:]), expected)
    assert torch.equal(_played(branch, actions[11:]), expected)


def test_more_seats_than_memory_holds_are_refused() -> None:
    world = diagonal.load("doom", device="cuda")
    with pytest.raises(ValueError, match=r"1000000 seats asked for; \d+ fit"):
        world.arena(1_000_000)


@pytest.mark.parametrize("name", [*PLAYABLE, "cosmos/tiny"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_strict_lossless_frames_are_those_of_raster(name: str, dtype: torch.dtype) -> None:
    """To the token, whatever the kernels round: every call has as many inputs."""
    small = small_world(name) if name in PLAYABLE else small_world(name, rows=2, cols=3, frames=4, reference_frames=2)
    moved = _on(small, "cuda")
    moved.model, moved.tokenizer = moved.model.to(dtype), moved.tokenizer.to(dtype)
    world = moved.strict(32)
    prompts = torch.stack([prompt_of(world, 1, number) for number in range(3)]).cuda()
    lists = [actions_of(world, 6, number) for number in range(3)] if world.variant.config.suffix else None
    clips = [
        world.generate(prompts, lists, frames=6 * int(world.tokenizer.stride), schedule=one, seed=3)
        for one in ("raster", "lossless", "lossless:draft=above", "lossless:draft=diagonal")
    ]
    for clip in clips[1:]:
        assert torch.equal(clip.tokens, clips[0].tokens)
