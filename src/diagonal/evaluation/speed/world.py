"""How fast a world decodes, beside how fast it could: the numbers behind `diagonal bench`.

`DEFINITION` says what is timed, and goes with every result. `measure` runs the cases in turns, round after round, so
that whatever slows the machine for a while slows all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.kernels import select
from diagonal.engine.tokens.decode import Span
from diagonal.evaluation.speed.floor import FloatArray, Traffic, step_bytes
from diagonal.evaluation.speed.machine import bandwidth, describe
from diagonal.generation.clock import Clock
from diagonal.generation.token_session import TokenSession
from diagonal.generation.world import World
from diagonal.planning.decoding.lossless import Lossless
from diagonal.planning.plan import NONE, Order, Plan

DEFINITION = """\
step                one call of the model and the sampling of its tokens, from the end of the step before to its own
                    end; the prompts are encoded before, and the tokenizer is timed apart
batch               prompts that are decoded together, each with random ids and a text of its own. frames, steps and
                    tokens_per_step are those of one of them; fps, fps_with_tokenizer and tokens_per_second count all
prefill_ms          the first step, which is fed the prompt; in no other time but first_frame_ms. Where a video slides
                    past the model's window, feeding the kept frames again is a step like the others
ms_per_step         median over all steps but the first, and over repeats; p95_ms: their 95th percentile; mean_ms: mean
floor_ms            the least that these steps could take, on average: bytes of the weights and of the visible keys and
                    values of the whole batch that a step must read, over bandwidth_gbs
                    Lossless: of raster's steps, which read as much
floor_ratio         ms_per_step / floor_ms
bandwidth_gbs       of the best of several large copies on the device, bytes read and written
fps                 batch * frames / (steps * mean_ms): new frames as tokens. derived = true: only the first
                    measured_steps were run, and fps, fps_with_tokenizer and tokens_per_second take all the others to be
                    like these
                    With random weights, or without a start view, nobody knows how many steps lossless decoding takes:
                    no steps and no fps then; ms_per_step is what a call of its window takes
fps_with_tokenizer  the same frames as pixels in the host's memory, streamed: from the end of the first step to the last
                    frame, plus one step as in fps; median over repeats. Captured steps run while frames are decoded.
                    Where derived: fps with tokenizer_ms added
tokens_per_second   tokens of these frames over the same time
tokenizer_ms        all new frames decoded to pixels alone, one after the other, those of a batch together
first_frame_ms      prefill, steps and (where the tokenizer is measured) pixels of the first new token frame, of all
                    prompts together
warmup_s            the first run, with all that is set up or compiled once; in no other number
peak_gb             most memory in use at once on the GPU, that of all cases that take turns
units               ms: milliseconds; GB: 10^9 bytes; one decoding, of a whole batch, runs at a time
kernels             operation -> what computed it in the first run, which is not measured (engine/kernels/README.md)"""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: a world under an order."""

    world: World
    order: Order


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """How it is measured."""

    frames: int | None = None  # new ones; None: what the model's window holds
    known: int | None = None  # token frames of the prompt; None: what the model is usually given
    batch: int = 1  # prompts that are decoded together
    repeat: int = 3
    warmup: int = 1
    steps: int | None = None  # only so many after the first are run; None: all
    tokenizer: bool = True

    def __post_init__(self) -> None:
        counts = {"known": self.known, "batch": self.batch, "repeat": self.repeat, "warmup": self.warmup}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} given; it must be at least 1")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps={self.steps} given; at least 1 must be measured, or leave it out for all")


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One decoding: milliseconds of every step, how many the first frame took, and the most bytes in use."""

    step_ms: list[float]
    first_frame: int | None  # None: it ended before
    seconds: float
    peak: int | None


def measure(
    cases: Sequence[Case], settings: WorldSettings, on_run: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """The numbers of each case, as JSON takes them. `on_run` is called after every run of a case."""
    device = next(cases[0].world.model.parameters()).device
    for case in cases:
        calls = decoding(case, settings).calls
        if calls is not None and calls < 2:
            raise ValueError(f"{case.order} decodes all in its first step; measure more frames, or another schedule")
    cases = [Case(with_text(case.world, settings.batch), case.order) for case in cases]
    speed = bandwidth(device)
    runs: list[list[TimedRun]] = [[] for _ in cases]
    kernels: list[dict[str, str]] = []
    for index in range(settings.warmup + settings.repeat):
        for case, made in zip(cases, runs, strict=True):
            # The first run is for warmth, and chooses: what it captures is replayed later.
            with select.recorded() if index == 0 else nullcontext(dict[str, str]()) as chosen:
                made.append(_run(case, settings))
            kernels += [chosen] if index == 0 else []
            on_run()
    measured = zip(cases, runs, kernels, strict=True)
    return [_numbers(case, settings, made, speed) | {"kernels": chosen} for case, made, chosen in measured]


def with_text(world: World, batch: int = 1) -> World:
    """A world that reads text is given one for each prompt, or its text layers would be left out: rows of noise, as
    many as usual. One that goes by a class or pictures is given the first class, or black ones."""
    config: Any = world.variant.config  # that of a model with text knows the width of its embeddings
    if world.variant.steered and config.classes:
        return world.steered(label=0)
    if world.variant.steered and config.given:
        return world.steered(pictures=np.zeros((config.given, *world.size, 3), np.uint8))
    if not world.variant.text:
        return world
    generator = torch.Generator().manual_seed(0)
    return world.guided(torch.randn(batch, _text_rows(world), config.text, generator=generator))


def _text_rows(world: World) -> int:
    """Rows of a text, padding included, to which every input attends."""
    config: Any = world.variant.config
    return config.text_length if world.variant.text else 0


def decoding(case: Case, settings: WorldSettings) -> TokenSession:
    """The decoding of a case, after prompts of random ids; where what they are decides how many calls it takes, after
    a start view, if the world has one."""
    world = case.world
    usual = 1 + (world.variant.prompt_frames - 1) // int(world.tokenizer.stride)
    known = usual if settings.known is None else settings.known
    prompt: Tensor | None = None
    if tells_calls(case) and known == 1:
        clip, _ = world.actions.start(world.actions.STARTS[0])
        prompt = world.encode(clip)[0][:, -1:].expand(settings.batch, -1, -1, -1)
    elif known:
        prompt = random_ids(world, settings.batch, known)
    return world.stream(prompt, frames=settings.frames, schedule=case.order, seed=range(settings.batch))


def is_lossless(order: Order) -> bool:
    """Whether calls are not known ahead, since they depend on the weights and on the prompt."""
    return isinstance(order.schedule, Lossless)


def tells_calls(case: Case) -> bool:
    """Whether the number of calls can be measured: of lossless decoding only with trained weights, after a picture."""
    return is_lossless(case.order) and case.world.weights != "random" and len(case.world.actions.STARTS) > 0


def random_ids(world: World, batch: int, frames: int) -> Tensor:
    """Token ids (batch, frames, rows, cols) of prompts, always the same ones."""
    config = world.variant.config
    shape = (batch, frames, config.rows, config.cols)
    return torch.randint(config.codebook, shape, generator=torch.Generator().manual_seed(0))


def cut(windows: Sequence[tuple[Span, Plan]], steps: int | None) -> list[tuple[Span, Plan]]:
    """The windows with their plans ended after the first step and `steps` more; None leaves them whole."""
    if steps is None:
        return list(windows)
    left, result = steps + 1, []
    for span, plan in windows:
        if left > 0:
            # A plan that is left whole stays the same object: what is captured for it is used again.
            result.append((span, plan if left >= len(plan.steps) else _shortened(plan, left)))
        left -= len(plan.steps)
    return result


@lru_cache(maxsize=8)
def _shortened(plan: Plan, steps: int) -> Plan:
    """The same object for every run."""
    return replace(plan, steps=plan.steps[:steps])


class _EnoughError(Exception):
    """As many calls were made as are to be measured."""


def _run(case: Case, settings: WorldSettings) -> TimedRun:
    began = time.perf_counter()
    stream = decoding(case, settings)
    device = stream.video.units_BTU.device
    clock, marks = Clock(device), list[Any]()

    def on_call() -> None:
        marks.append(clock.mark())
        if settings.steps is not None and len(marks) > settings.steps + 1:
            raise _EnoughError

    stream.on_call = on_call
    if clock.cuda:
        torch.cuda.reset_peak_memory_stats(device)
    frames, first = stream.token_frames(), None
    clock.wait()  # the cache is there
    marks.append(clock.mark())
    with suppress(_EnoughError):
        for _ in frames:
            first = len(marks) - 1 if first is None else first
    step_ms = clock.milliseconds(marks)
    seconds = time.perf_counter() - began
    return TimedRun(step_ms, first, seconds, torch.cuda.max_memory_allocated(device) if clock.cuda else None)


def _streamed_ms(case: Case, settings: WorldSettings) -> float:
    """Milliseconds from the end of the first step to the last frame's pixels on the host: the median."""
    times = []
    for _ in range(settings.warmup + settings.repeat):
        stream, marks = decoding(case, settings), list[Any]()
        clock = Clock(stream.video.units_BTU.device)
        stream.on_call = lambda clock=clock, marks=marks: marks.append(clock.mark())  # type: ignore[misc]
        for _frame in stream:
            pass
        times += clock.milliseconds([marks[0], clock.mark()])
    return statistics.median(times[settings.warmup :])


def _tokenizer_ms(case: Case, settings: WorldSettings, frames: int) -> float:
    """Milliseconds to decode one token frame of each prompt to pixels on the host: the median, one frame after the
    other."""
    world, clock = case.world, Clock(next(case.world.model.parameters()).device)
    ids_BTHW = random_ids(world, settings.batch, frames + 1).to(clock.device)
    times = []
    if world.tokenizer.whole:  # a clip is decoded at once: a frame's part of it
        for _ in range(settings.warmup + settings.repeat):
            began = clock.mark()
            world.tokenizer.decode(ids_BTHW[:, 1:], {}).cpu()
            times += [one / frames for one in clock.milliseconds([began, clock.mark()])]
        return statistics.median(times[settings.warmup :])
    for index in range(settings.warmup + settings.repeat):
        state: dict[str, Tensor] = {}
        world.tokenizer.decode(ids_BTHW[:, :1], state)  # the prompt's, on which a later one may look back
        marks = [clock.mark()]
        for ids_BHW in ids_BTHW[:, 1:].unbind(1):
            world.tokenizer.decode(ids_BHW[:, None], state).cpu()
            marks.append(clock.mark())
        times += clock.milliseconds(marks) if index >= settings.warmup else []
    return statistics.median(times)


def _numbers(case: Case, settings: WorldSettings, runs: Sequence[TimedRun], speed: float) -> dict[str, Any]:
    """All that is reported of a case. Fields are explained in DEFINITION."""
    world, stream, made = case.world, decoding(case, settings), runs[settings.warmup :]
    step_ms = np.array([run.step_ms[1:] for run in made])
    tokens = _tokens_per_step(case, stream, None if settings.steps else step_ms.shape[1] + 1)
    new = stream.frames // int(world.tokenizer.stride)
    pixels = _tokenizer_ms(case, settings, new) if settings.tokenizer else None
    peaks = [run.peak for run in runs if run.peak is not None]
    parameters = list(world.model.parameters())
    facts = {
        "model": world.name,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "weights": world.weights,
        "schedule": str(case.order),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "quantize": world.quantized or "none",
        "sampling": asdict(stream.sampler.sampling),
        "batch": settings.batch,
        "known": stream.known,
        "frames": stream.frames,
        "measured_steps": step_ms.shape[1],
        "repeat": settings.repeat,
    } | tokens
    whole = facts["steps"] is not None and step_ms.shape[1] == facts["steps"] - 1
    streamed = _streamed_ms(case, settings) if whole and settings.tokenizer else None
    floor_ms = 1e3 * _floor_bytes(case, stream, settings).mean() / speed
    return (
        facts
        | _times(step_ms, floor_ms)
        | _rates(facts, float(step_ms.mean()), None if pixels is None else pixels * new, streamed)
        | {
            "prefill_ms": statistics.median(run.step_ms[0] for run in made),
            "first_frame_ms": _first_frame_ms(made, pixels),
            "warmup_s": runs[0].seconds,
            "peak_gb": max(peaks) / 1e9 if peaks else None,
            "bandwidth_gbs": speed / 1e9,
        }
        | describe(parameters[0].device)
    )


def _tokens_per_step(case: Case, stream: TokenSession, calls: int | None) -> dict[str, Any]:
    """How many steps there are, and tokens of a step. `calls`: that a lossless decoding took, if all were made."""
    plans = [plan for _, plan in stream.windows]
    if stream.calls is None:
        steps = calls if tells_calls(case) else None
        mean = None if steps is None else sum(plan.tokens for plan in plans) / steps
        return {"steps": steps, "tokens_per_step": mean, "max_tokens_per_step": None}
    tokens = np.array([np.count_nonzero(step.write != NONE) for plan in plans for step in plan.steps])
    sizes = {"tokens_per_step": float(tokens.mean()), "max_tokens_per_step": int(tokens.max())}
    return {"steps": stream.calls} | sizes


def _floor_bytes(case: Case, stream: TokenSession, settings: WorldSettings) -> FloatArray:
    """Bytes that each of the measured steps must read."""
    traffic = Traffic.of(case.world.model, stream.cache_dtype, len(stream.video.units_BTU))
    plans = [plan for _, plan in cut(stream.windows, None if stream.calls is None else settings.steps)]
    return step_bytes(traffic, plans, _text_rows(case.world))[1:]


def _times(step_ms: FloatArray, floor_ms: float) -> dict[str, Any]:
    """What (repeats, steps) milliseconds say of a step."""
    middle = float(np.median(step_ms))
    return {
        "ms_per_step": middle,
        "p95_ms": float(np.percentile(step_ms, 95)),
        "mean_ms": float(step_ms.mean()),
        "mean_ms_by_repeat": step_ms.mean(axis=1).tolist(),
        "floor_ms": float(floor_ms),
        "floor_ratio": middle / float(floor_ms),
    }


def _rates(
    facts: dict[str, Any], mean_ms: float, tokenizer_ms: float | None, streamed_ms: float | None
) -> dict[str, Any]:
    """Frames and tokens per second of the whole batch, all steps of the plan at the mean; nothing where nobody knows
    how many steps there are."""
    if facts["steps"] is None:
        rates = "tokens_per_second", "fps", "fps_with_tokenizer"
        return {"derived": False, "tokenizer_ms": tokenizer_ms} | dict.fromkeys(rates)
    decoding_ms, frames = facts["steps"] * mean_ms, facts["batch"] * facts["frames"]
    with_tokenizer = None if tokenizer_ms is None else decoding_ms + tokenizer_ms
    if streamed_ms is not None:
        with_tokenizer = streamed_ms + mean_ms
    return {
        "derived": facts["measured_steps"] < facts["steps"] - 1,
        "tokens_per_second": 1e3 * facts["batch"] * facts["tokens_per_step"] / mean_ms,
        "fps": 1e3 * frames / decoding_ms,
        "tokenizer_ms": tokenizer_ms,
        "fps_with_tokenizer": None if with_tokenizer is None else 1e3 * frames / with_tokenizer,
    }


def _first_frame_ms(runs: Sequence[TimedRun], pixels_ms: float | None) -> float | None:
    """From the start to the first new frame; with its pixels, where the tokenizer is measured."""
    reached = [sum(run.step_ms[: run.first_frame]) for run in runs if run.first_frame is not None]
    return statistics.median(reached) + (pixels_ms or 0.0) if reached else None
