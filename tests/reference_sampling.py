"""The rule of sampling, word for word and in float64: what `sample` and its kernel are tested against."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.kernels.select import Draw

TINY = 1e-5  # of the whole: float32 may err by so much
BELOW_ONE = 1 - 2**-24
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(),
    Sampling(temperature=1e-4),
    Sampling(temperature=1e4, top_p=0.5),
    Sampling(top_k=1),
    Sampling(temperature=2, top_k=7),
    Sampling(top_k=10_000, top_p=1.0),
    Sampling(top_p=0.8),
    Sampling(top_p=0.8, keep_crossing=False),
    Sampling(top_p=1e-6),
    Sampling(top_p=1e-6, keep_crossing=False),
    Sampling(temperature=1e-4, top_p=0.9, keep_crossing=False),
    Sampling(temperature=0.7, top_k=20, top_p=0.9),
    Sampling(temperature=0.7, top_k=20, top_p=0.9, keep_crossing=False),
]


Rows = tuple[Tensor, Tensor, Tensor, Tensor]  # logits, valid ids [low, high), uniform numbers


def rows(kind: str, count: int, size: int, seed: int) -> Rows:
    """Random rows of a kind; NaN stands wherever no one may look."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, size, generator=generator)
    low = torch.randint(size // 3, (count,), generator=generator)
    high = torch.randint(size // 2, size + 1, (count,), generator=generator)
    low[0], high[0] = 0, size
    if kind == "bfloat16":
        logits = logits.bfloat16()
    elif kind == "ties":
        logits = logits.round()  # among them both zeros
    elif kind == "infinite":
        logits[torch.rand(count, size, generator=generator) < 0.5] = -torch.inf
        logits[:, size // 3] = 1.0
    elif kind == "single":
        high = low + 1
    elif kind == "equal":
        logits[:] = -2.5
    elif kind == "two":
        logits = torch.where(logits > 1, 1.5, -0.25).bfloat16()
    elif kind == "wide":  # both signs, from subnormal numbers to 1e30
        logits *= 10.0 ** torch.randint(-43, 31, (count, size), generator=generator)
    elif kind == "tiny":  # subnormal alone
        logits *= 1e-40
    elif kind == "rising":  # the greatest are far above all before them
        logits += torch.linspace(-90, 10, size)
    elif kind == "peaked":  # what crosses is next to the top, and far above the rest
        logits[:, size // 3 : size // 3 + 3] += 20
    uniform = torch.rand(count, generator=generator)
    uniform[1], uniform[2] = 0.0, BELOW_ONE
    ids = torch.arange(size)
    logits[(ids < low[:, None]) | (ids >= high[:, None])] = torch.nan
    padded = torch.full((count, size + 5), torch.nan, dtype=logits.dtype)
    padded[:, :size] = logits
    return padded[:, :size], low, high, uniform


def on(device: str, given: Rows) -> Rows:
    logits, low, high, uniform = given
    return logits.to(device), low.to(device), high.to(device), uniform.to(device)


KINDS = [
    "float32",
    "bfloat16",
    "ties",
    "infinite",
    "single",
    "equal",
    "two",
    "wide",
    "tiny",
    "rising",
    "peaked",
]


def probabilities(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """What is drawn from, in float64: top-k, then top-p over the softmax of the rest; equal logits share their fate."""
    x = logits_V.double()
    more = x[None, :] > x[:, None]  # more[i, j]: j is likelier than i
    if sampling.top_k is not None:
        x = x.masked_fill(more.sum(-1) >= sampling.top_k, -torch.inf)
    probs = ((x - x.max()) / sampling.temperature).softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        likelier = more.double() @ probs
        same = (x[None, :] == x[:, None]).double() @ probs
        keep = likelier <= sampling.top_p if sampling.keep_crossing else likelier + same <= sampling.top_p
        probs = torch.where(keep | (x == x.max()), probs, 0.0)
    return probs / probs.sum()


def possible(logits_V: Tensor, uniform: float, sampling: Sampling) -> list[int]:
    """The id that the rule draws, and after it those that it draws if top_p or the uniform number is a trifle off."""
    if sampling.temperature == 0:
        return [int(logits_V.double().argmax())]
    ids = []
    for off in (0, -TINY, TINY):
        changed = sampling if sampling.top_p is None else replace(sampling, top_p=min(sampling.top_p * (1 + off), 1.0))
        probs = probabilities(logits_V, changed)
        likely = probs.nonzero().flatten()
        for shift in (0, -TINY, TINY):
            index = int((probs[likely].cumsum(0) <= uniform + shift).sum())
            ids.append(int(likely[min(index, len(likely) - 1)]))
    return ids


def check(draw: Draw, kind: str, sampling: Sampling, size: int, device: str = "cpu") -> None:
    """Draw from random rows and compare with the rule."""
    given = rows(kind, 6, size, seed=SAMPLINGS.index(sampling))
    drawn = draw(*on(device, given), sampling).cpu()
    assert drawn.dtype == torch.long and drawn.shape == (6,)
    for row, (logits, low, high, uniform) in enumerate(zip(*given, strict=True)):
        ids = possible(logits[low:high], float(uniform), sampling)
        found = int(drawn[row]) - int(low)
        assert found in ids, f"row {row} of {kind} under {sampling}: id {found} drawn, the rule says {ids[0]}"


def chi_square(drawn: Tensor, probs: Tensor) -> float:
    """How far counts are from their expectation, in standard deviations of the chi-square distribution."""
    expected = probs.double() * len(drawn)
    counts = drawn.bincount(minlength=len(probs)).double()
    assert not counts[expected == 0].any()
    likely = expected > 0
    freedom = int(likely.sum()) - 1
    distance = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    return float((distance - freedom) / (2 * freedom) ** 0.5)
