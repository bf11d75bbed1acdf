"""ZipAR's row window (He et al., "ZipAR", ICML 2025): a row starts when the row above has s tokens.

The published code finishes row 0 before row 1 starts: 2w + (h-2)s steps per frame. The ideal wavefront,
which the Diagonal Decoding paper compares against, starts row 1 early too: w + (h-1)s. Frames never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagonal.planning.grid import Grid, IntArray


@dataclass(frozen=True, slots=True)
class Window:
    """s: the window; overlap_first_row: the ideal wavefront instead of the published step rule."""

    s: int
    overlap_first_row: bool = False

    def __post_init__(self) -> None:
        if self.s < 1:
            raise ValueError(f"window: s={self.s} given; the window must be at least 1")

    def times(self, grid: Grid) -> IntArray:
        # A window wider than the row is a row that must be complete.
        lag = min(self.s, grid.cols)
        starts = lag * np.arange(grid.rows)
        if not self.overlap_first_row:
            starts[1:] += grid.cols - lag
        frame = starts[:, None] + np.arange(grid.cols)
        times: IntArray = np.arange(grid.frames)[:, None, None] * (frame.max() + 1) + frame
        return times
