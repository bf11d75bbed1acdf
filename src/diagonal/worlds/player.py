"""Who plays Doom when it is recorded: chance decides what is done and for how long, walls decide otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

STANDING = "noop"

Habits = Mapping[str, tuple[float, tuple[int, int]]]

# How often the player chooses an action, and for how many frames it is held.
RESTLESS: Habits = {
    "noop": (0.09, (2, 5)),
    "forward": (0.30, (3, 9)),
    "back": (0.05, (2, 5)),
    "left": (0.06, (2, 6)),
    "right": (0.06, (2, 6)),
    "forward+left": (0.20, (3, 8)),
    "forward+right": (0.20, (3, 8)),
    "attack": (0.04, (1, 3)),
}

# The same of a player whose clips get captions: longer, so that there is something to say, and with more shots.
PATIENT: Habits = {
    "noop": (0.08, (10, 20)),
    "forward": (0.28, (14, 40)),
    "back": (0.08, (10, 24)),
    "left": (0.12, (12, 36)),
    "right": (0.12, (12, 36)),
    "forward+left": (0.11, (14, 36)),
    "forward+right": (0.11, (14, 36)),
    "attack": (0.10, (8, 20)),
}


@dataclass
class Policy:
    """A player who holds actions for a while, walks where there is room and turns where there is none."""

    rng: np.random.Generator
    action: str = STANDING
    left: int = 0  # frames the action is still held
    escape: str = ""  # the turn that leads away from a wall
    habits: Habits = field(default_factory=lambda: RESTLESS)

    def next(self, depth: npt.NDArray[np.uint8], moved: float) -> str:
        """The next action, given the depth of what is seen and how far the last one moved the player."""
        middle = depth[92:104]
        ahead, lefts, rights = middle[:, 112:144].mean(), middle[:, 16:80].mean(), middle[:, 176:240].mean()
        if self.action == self.escape and ahead > 8:
            self.left = 0  # there is room again
        blocked = (ahead < 5 and self.rng.random() < 0.5) or (moved < 3 and self.rng.random() < 0.6)
        if self.action.startswith("forward") and self.left > 0 and blocked:
            deeper = lefts > rights if self.rng.random() < 0.85 else lefts <= rights
            self.escape = "left" if deeper else "right"
            # Away from the wall: mostly by turning, sometimes backwards.
            self.action, self.left = (self.escape, 10) if self.rng.random() < 0.75 else ("back", 4)
        elif self.left <= 0:
            self.escape = ""
            names = list(self.habits)
            self.action = names[self.rng.choice(len(names), p=[share for share, _ in self.habits.values()])]
            low, high = self.habits[self.action][1]
            self.left = int(self.rng.integers(low, high + 1))
        self.left -= 1
        return self.action
