"""VBench's totals (Huang et al., 2024): sixteen scores, each normalised, weighted and averaged.

Nothing is clipped, and a missing score enters as 0 before it is normalised, so it counts below zero: a total of some
scores is no total. Use `missing` first, and report single scores where it is not empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Least and largest score, by the leaderboard; all others: 0 and 1.
LIMITS = {
    "subject consistency": (0.1462, 1.0),
    "background consistency": (0.2615, 1.0),
    "temporal flickering": (0.6293, 1.0),
    "motion smoothness": (0.706, 0.9975),
    "scene": (0.0, 0.8222),
    "appearance style": (0.0009, 0.2855),
    "temporal style": (0.0, 0.364),
    "overall consistency": (0.0, 0.364),
}
QUALITY = {  # and their weights
    "subject consistency": 1.0,
    "background consistency": 1.0,
    "temporal flickering": 1.0,
    "motion smoothness": 1.0,
    "aesthetic quality": 1.0,
    "imaging quality": 1.0,
    "dynamic degree": 0.5,
}
SEMANTIC = (
    "object class",
    "multiple objects",
    "human action",
    "color",
    "spatial relationship",
    "scene",
    "appearance style",
    "temporal style",
    "overall consistency",
)
QUALITY_WEIGHT, SEMANTIC_WEIGHT = 4, 1


@dataclass(frozen=True, slots=True)
class Totals:
    """As the leaderboard shows them, 0 to 1."""

    quality: float
    semantic: float
    total: float


def missing(scores: Mapping[str, float]) -> list[str]:
    """The scores that a total lacks."""
    return [name for name in (*QUALITY, *SEMANTIC) if name not in scores]


def normalised(name: str, score: float) -> float:
    """A score between the least and the largest one."""
    low, high = LIMITS.get(name, (0.0, 1.0))
    return (score - low) / (high - low)


def totals(scores: Mapping[str, float]) -> Totals:
    """Quality: the weighted mean of seven. Semantic: the mean of nine. Total: (4 quality + semantic) / 5."""
    found = {name: normalised(name, scores.get(name, 0.0)) for name in (*QUALITY, *SEMANTIC)}
    quality = sum(weight * found[name] for name, weight in QUALITY.items()) / sum(QUALITY.values())
    semantic = sum(found[name] for name in SEMANTIC) / len(SEMANTIC)
    whole = QUALITY_WEIGHT + SEMANTIC_WEIGHT
    return Totals(quality, semantic, (QUALITY_WEIGHT * quality + SEMANTIC_WEIGHT * semantic) / whole)
