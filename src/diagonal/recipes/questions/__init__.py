"""The papers' open questions as data: `benchmarks/questions.py N` answers one, docs/questions.md says what came out."""

from __future__ import annotations

from collections.abc import Callable

from diagonal.recipes.questions.content import Content
from diagonal.recipes.questions.distilled import Distilled
from diagonal.recipes.questions.jobs import Question, Setting
from diagonal.recipes.questions.long import LongRollouts
from diagonal.recipes.questions.speed import Speed
from diagonal.recipes.questions.tables import better_world, from_scratch, overlapping, sizes, ways_to_align

QUESTIONS: dict[int, Callable[[Setting], Question]] = {
    1: from_scratch,
    2: sizes,
    3: LongRollouts,
    4: Content,
    5: ways_to_align,
    6: overlapping,
    7: Speed,
    8: Distilled,
    9: better_world,
}


def find(number: int, setting: Setting) -> Question:
    """A question of the list by its number, at a size."""
    if number not in QUESTIONS:
        raise ValueError(f"question {number} is not known; known: {', '.join(map(str, sorted(QUESTIONS)))}")
    return QUESTIONS[number](setting)
