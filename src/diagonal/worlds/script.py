"""The short text form of actions that all worlds share: a comma separates them, '*n' repeats one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

MAX_ACTIONS = 1_000_000

Action = TypeVar("Action")


def parse(text: str, one: Callable[[str], Action]) -> list[Action]:
    """The actions of 'forward*8, left', each made by `one` from what stands before the '*'."""
    actions: list[Action] = []
    for item in text.split(","):
        held, star, times = (part.strip() for part in item.partition("*"))
        if star and not re.fullmatch(r"[1-9]\d{0,6}", times):
            raise ValueError(f"{item.strip()!r}: after '*' comes how often, a whole number from 1")
        count = int(times) if star else 1
        if len(actions) + count > MAX_ACTIONS:
            raise ValueError(f"more than {MAX_ACTIONS} actions given")
        actions += [one(held)] * count
    return actions


def spell(actions: Sequence[object]) -> str:
    """Actions in the short text form, each as its own text says it: 'forward*8,left'."""
    runs = [(text, len([*same])) for text, same in groupby(map(str, actions))]
    return ",".join(text if times == 1 else f"{text}*{times}" for text, times in runs)


def together(parts: Sequence[str], known: Callable[[str], object]) -> str:
    """The text of one action that holds these parts, the newest last: where `known` refuses them together, older ones
    are left out. Without parts, doing nothing."""
    held: list[str] = []
    for part in reversed(parts):
        try:
            known("+".join([part, *held]))
        except ValueError:
            continue
        held.insert(0, part)
    return "+".join(held) or "noop"
