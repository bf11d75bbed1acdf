"""How fast live sessions are: the numbers behind `diagonal bench --sessions`.

`DEFINITION` says what is timed, and goes with every result. The lock-step row of the same run is what `World.stream`
makes of a batch of as many clips: the same model calls, without seats.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.checkpoints import RANDOM
from diagonal.engine.kernels import select
from diagonal.evaluation.speed.floor import Traffic
from diagonal.evaluation.speed.machine import bandwidth, describe
from diagonal.evaluation.speed.world import is_lossless, random_ids
from diagonal.generation.arena import Arena
from diagonal.generation.clock import Clock
from diagonal.generation.live import LiveSession
from diagonal.generation.world import World
from diagonal.planning.frames import frame_plan
from diagonal.planning.plan import Order

DEFINITION = """\
session             a world that is played: one action in, its frame out, as pixels in the host's memory. All sessions
                    have random prompts of one frame and random actions of their own; lossless ones begin with start
                    views, for how many calls they take depends on what there is to see
steps               model calls of a frame: of a lossless one their mean over `frames` frames
fps                 frames of each session per second, once all windows are full, over `frames` frames: frames are asked
                    for one after the other, the next while the last one is decoded to pixels (Arena.submit)
fps_filling         the same from the prompt until the window is full, which is what lock_step_fps has to do
lock_step_fps       World.stream of a batch of as many clips, from the end of its first step: frames of each per second
median_ms, p95_ms   from asking for the frames of all sessions to having their pixels, one after the other (Arena.step),
                    over `frames` frames: what a player waits for. worst_ms: the slowest
floor_ms            the least that the steps of a frame could take: weights, and keys and values of full windows, over
                    bandwidth_gbs; pixels are not in it. Not told of lossless schedules
equal_tokens        share of tokens of a frame that are the same when a session decodes it alone and when it does beside
                    the others, from the same past; over 8 frames
seat_mb             keys and values of a session
warmup_s            the first frame, with all that is compiled and captured; in no other number
units               ms: milliseconds; MB: 10^6 bytes, GB: 10^9
kernels             operation -> what computed it in the first frame (engine/kernels/README.md)"""
COMPARED = 8  # frames


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """How it is measured."""

    sessions: tuple[int, ...]
    frames: int = 200
    context: str | None = None
    lock_step: bool = True

    def __post_init__(self) -> None:
        if any(one < 1 for one in self.sessions) or self.frames < 2:
            raise ValueError(f"sessions={self.sessions}, frames={self.frames} given; at least 1 and 2 are needed")


def measure_live(
    world: World, order: Order, settings: LiveSettings, on_case: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """The numbers of each number of sessions, as JSON takes them."""
    speed, cases = bandwidth(world.device), []
    for count in settings.sessions:
        cases.append(_case(world, order, settings, count) | {"bandwidth_gbs": speed / 1e9})
        cases[-1]["floor_ms"] = None if is_lossless(order) else 1e3 * _floor_bytes(world, order, count) / speed
        on_case()
    return cases


def _case(world: World, order: Order, settings: LiveSettings, count: int) -> dict[str, Any]:
    config, clock = world.variant.config, Clock(world.device)
    arena = world.arena(count, settings.context)
    ids = _prompts(world, order, count)
    sessions = [arena.play(ids[index], schedule=order, seed=index) for index in range(count)]
    actions = _Actions(world, sessions)
    began = time.perf_counter()
    with select.recorded() as kernels:
        arena.step(actions())
    clock.wait()
    warmup = time.perf_counter() - began
    filling = _pipelined(arena, actions, config.frames - 2)
    full = _pipelined(arena, actions, settings.frames)
    timed = [_waited(arena, actions) for _ in range(settings.frames)]
    waited = [seconds for seconds, _ in timed]
    equal = _equal_tokens(arena, actions) if count > 1 else None
    spec = world.model.cache_spec
    seat = 2 * spec.layers * spec.kv_heads * spec.head_dim * world.layout(config.frames).length
    for session in sessions:
        session.close()
    arena.close()
    return {
        "model": world.name,
        "weights": world.weights,
        "schedule": str(order),
        "context": arena.context,
        "dtype": str(next(world.model.parameters()).dtype).removeprefix("torch."),
        "quantize": world.quantized or "none",
        "sessions": count,
        "frames": settings.frames,
        "steps": statistics.mean(calls for _, calls in timed),
        "fps": settings.frames / full,
        "fps_filling": (config.frames - 2) / filling,
        "lock_step_fps": _lock_step(world, order, count) if settings.lock_step else None,
        "median_ms": 1e3 * statistics.median(waited),
        "p95_ms": 1e3 * float(np.percentile(waited, 95)),
        "worst_ms": 1e3 * max(waited),
        "equal_tokens": equal,
        "seat_mb": seat * world.cache_dtype.itemsize / 1e6,
        "warmup_s": warmup,
        "kernels": kernels,
    } | describe(world.device)


class _Actions:
    """Random actions for all sessions, always the same ones."""

    def __init__(self, world: World, sessions: Sequence[LiveSession]) -> None:
        self._known = world.actions.parse(world.actions.SCRIPT) or [world.actions.NOOP]
        self._sessions, self._noise = sessions, np.random.default_rng(0)

    def __call__(self) -> dict[LiveSession, Any]:
        drawn = self._noise.integers(len(self._known), size=len(self._sessions))
        return {session: self._known[index] for session, index in zip(self._sessions, drawn, strict=True)}


def _prompts(world: World, order: Order, count: int) -> Tensor:
    """Tokens (sessions, 1, rows, cols) of a frame each."""
    if not is_lossless(order):
        return random_ids(world, count, 1)
    if world.weights == RANDOM or not world.actions.STARTS:
        raise ValueError(
            f"sessions of {world.name} ({world.weights} weights) cannot be timed under {order}: only trained weights "
            "and a start view can tell how many calls that takes; take raster or diagonal:k=1"
        )
    views = [world.encode(world.actions.start(name)[0])[0][0, -1:] for name in world.actions.STARTS]
    return torch.stack([views[index % len(views)] for index in range(count)])


def _pipelined(arena: Arena, actions: _Actions, frames: int) -> float:
    """Seconds for so many frames of all sessions, each asked for before the pixels of the last are waited for."""
    began, last = time.perf_counter(), None
    for _ in range(frames):
        tick = arena.submit(actions())
        if last is not None:
            last.result()
        last = tick
    if last is not None:
        last.result()
    return time.perf_counter() - began


def _waited(arena: Arena, actions: _Actions) -> tuple[float, int]:
    """Seconds from asking for a frame of all sessions to having their pixels, and the calls that it took."""
    asked, began = actions(), time.perf_counter()
    made = arena.step(asked)
    return time.perf_counter() - began, next(iter(made.values())).calls


def _equal_tokens(arena: Arena, actions: _Actions) -> float:
    """Share of tokens that the first session decodes alone as beside the others, from the same past."""
    shares = []
    for _ in range(COMPARED):
        asked = actions()
        first = next(iter(asked))
        alone = arena.another()
        same = alone.adopt(first, True, first.seed)
        made = arena.step(asked)[first].tokens
        shares.append(float((same.step(asked[first]).tokens == made).double().mean()))
        same.close()
    return statistics.mean(shares)


def _lock_step(world: World, order: Order, count: int) -> float:
    """Frames of each clip per second of a whole batch, streamed with pixels; the second of two runs."""
    seconds = frames = 0.0
    for _ in range(2):
        stream, marks = world.stream(_prompts(world, order, count), schedule=order), list[Any]()
        clock = Clock(world.device)
        stream.on_call = lambda clock=clock, marks=marks: marks.append(clock.mark())  # type: ignore[misc]
        for _piece in stream:
            pass
        seconds, frames = sum(clock.milliseconds([marks[0], clock.mark()])) / 1e3, stream.frames
    return frames / seconds


def _floor_bytes(world: World, order: Order, count: int) -> float:
    """Bytes that the steps of a frame must read, with full windows."""
    layout = world.layout(world.variant.config.frames)
    plan = frame_plan(layout.grid.rows, layout.grid.cols, layout.suffix, order)
    traffic = Traffic.of(world.model, world.cache_dtype, count)
    inputs = sum(len(step.read) for step in plan.steps)
    old = layout.length - layout.unit
    seen = sum(old + int(np.count_nonzero(plan.fed[layout.unit :] <= index)) for index in range(len(plan.steps)))
    return float(traffic.weights * len(plan.steps) + traffic.row * inputs + traffic.slot * seen)
