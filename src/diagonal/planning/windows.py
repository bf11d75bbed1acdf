"""How many tokens a lossless call should sample: of a wide window more are right at once, and it takes longer.

What is right follows a law of one number: of windows of W tokens, W ** a are right on average (docs/lossless.md; a is
about a half). A call of n inputs takes 1 + cost * (n - 1) calls of one. Both are guesses of form; a is found from what
was right so far, and the window is the one with the greatest gain per time. Tokens do not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
MEMORY = 0.98  # of what was seen, kept after each call
SUPPOSED = 8.0  # calls that are supposed before anything was seen, of windows so wide ...
SUPPOSED_WINDOW, SUPPOSED_RIGHT = 8.0, 8.0**0.5  # ... with so many right


@dataclass
class WindowRule:
    """Chooses the window of each call."""

    asked: int | None  # the same for all; None: by what was right
    cost: float = 0.0  # of one more input of a call, in calls of one input

    _calls: float = 0.0
    _offered: float = 0.0  # tokens of all windows
    _right: float = 0.0  # of these

    def __post_init__(self) -> None:
        if not 0 <= self.cost <= 1:
            raise ValueError(f"cost={self.cost} given; an input costs 0 to 1 of a call of one input")

    @property
    def power(self) -> float:
        """a: W ** a tokens are right of W."""
        calls = self._calls + SUPPOSED
        offered = (self._offered + SUPPOSED * SUPPOSED_WINDOW) / calls
        right = (self._right + SUPPOSED * SUPPOSED_RIGHT) / calls
        return math.log(right) / math.log(offered)

    def choose(self, left: int) -> int:
        """The window of the next call, with so many tokens left: no wider than the width that holds them all."""
        if self.asked is not None:
            return max(min(self.asked, left), 1)
        widest, power = next((width for width in WIDTHS if width >= left), left), self.power
        return max(
            (width for width in (*WIDTHS, widest) if width <= widest),
            key=lambda width: width**power / (1 + self.cost * (width - 1)),
        )

    def forget(self) -> None:
        """Nothing was seen yet: so the same video takes the same calls."""
        self._calls = self._offered = self._right = 0.0

    def note(self, window: int, right: int) -> None:
        """So many tokens of a window were right; of one that ended with the frame, all that were left at most."""
        if window > 1:
            self._calls = MEMORY * self._calls + 1
            self._offered = MEMORY * self._offered + window
            self._right = MEMORY * self._right + right
