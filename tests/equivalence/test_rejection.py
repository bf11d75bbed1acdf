"""Speculative Jacobi decoding and its coupled forms draw from raster's distribution: 10^5 frames, all outcomes."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.attention import Dense
from diagonal.engine.sampler import weights
from diagonal.engine.tokens.live import LiveDecoder, LiveKind
from diagonal.engine.tokens.ring import Turn
from diagonal.planning.decoding.lossless import RULES
from diagonal.planning.frames import frame_plan
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import Order
from tests.tiny import build, tiny_config

IDS, CELLS, DRAWS, BATCH = 4, 3, 100_000, 2_000
SHARP = Sampling(temperature=0.15)
FILTERED = Sampling(temperature=0.3, top_k=3, top_p=0.9)


@cache
def world() -> tuple[Any, Any, Layout]:
    """A model of few ids, the frame it begins with, and frames of few cells."""
    config = tiny_config("mcar/tiny", rows=1, cols=CELLS, frames=2, reference_frames=1, codebook=IDS, vocab=IDS + 2)
    return config, build(config, seed=1), Layout(Grid(2, 1, CELLS), 0, config.suffix)


def beginning(config: Any) -> tuple[Tensor, Tensor]:
    """A frame, and the action after it."""
    return torch.arange(CELLS) % IDS, torch.full((config.suffix,), IDS + 1)


@cache
def chances(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The probability of each frame: that of its first cell, times that of the second behind it, and so on."""
    config, model, layout = world()
    frame, action = beginning(config)
    frames = list(itertools.product(range(IDS), repeat=CELLS))
    given = torch.cat([frame, action]).expand(len(frames), -1)
    tokens = torch.cat([given, torch.tensor(frames)], 1)
    length = tokens.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    logits = model(tokens, torch.arange(length), Dense(mask))[:, layout.unit - 1 : -1, :IDS]
    drawn = weights(logits.flatten(0, 1), sampling)
    p = (drawn / drawn.sum(-1, keepdim=True)).view(len(frames), CELLS, IDS)
    each = p.gather(2, torch.tensor(frames)[..., None])[..., 0].double().prod(1)
    return dict(zip(frames, each.tolist(), strict=True))


def drawn_frames(rule: str, window: int, sampling: Sampling) -> Tensor:
    """Many frames, (DRAWS, CELLS), and the calls they took."""
    config, model, layout = world()
    kind = LiveKind(model, layout, BATCH, torch.device("cpu"), torch.float32)
    ids = torch.tensor([(0, IDS)] * CELLS + [(IDS, IDS + 1)] * config.suffix)
    decoder: LiveDecoder = kind.make((), ids)
    plan = frame_plan(1, CELLS, config.suffix, Order.of(f"lossless:window={window},rule={rule}"))
    unit = torch.cat(beginning(config))
    first = unit.expand(1, -1)
    decoder.begin(0, first)
    for row in range(1, BATCH):
        decoder.ring.copy(row, decoder.ring, 0)
    made = []
    for start in range(0, DRAWS, BATCH):
        turns = [Turn(row, start + row, 1, 1, 1, 2) for row in range(BATCH)]
        decoder.act(turns, unit[CELLS:].expand(BATCH, -1))
        decoder.decode(plan, sampling, turns)
        made.append(decoder.made(turns)[0][:, 0])
    return torch.cat(made)


@pytest.mark.parametrize(
    ("rule", "window", "sampling"),
    [*((rule, 3, SHARP) for rule in RULES), ("sjd", 2, FILTERED)],
    ids=[*RULES, "sjd-filtered"],
)
def test_frames_are_drawn_as_often_as_raster_draws_them(rule: str, window: int, sampling: Sampling) -> None:
    expected = chances(sampling)
    assert math.isclose(sum(expected.values()), 1, abs_tol=1e-6)
    assert max(expected.values()) > 4 / IDS**CELLS  # far from even, or little would be shown
    found = drawn_frames(rule, window, sampling)
    codes = (found * IDS ** torch.arange(CELLS - 1, -1, -1)).sum(1)
    counts = torch.bincount(codes, minlength=IDS**CELLS).tolist()
    pairs = list(zip(counts, (p * DRAWS for p in expected.values()), strict=True))
    assert all(count == 0 for count, wanted in pairs if wanted == 0)  # what the filters leave out
    often = [(count, wanted) for count, wanted in pairs if wanted >= 5]
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in often)
    freedom = len(often) - 1
    assert freedom >= 5
    assert statistic < freedom + 6 * math.sqrt(2 * freedom), (statistic, freedom)
