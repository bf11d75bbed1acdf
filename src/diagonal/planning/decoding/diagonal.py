"""Diagonal Decoding (Ye et al., "Fast Autoregressive Video Generation with Diagonal Decoding").

Cell (t, i, j) is decoded in step `t*d + i*k + j`: rows of a frame start k steps apart, frames d steps apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagonal.planning.grid import Grid, IntArray


@dataclass(frozen=True, slots=True)
class Diagonal:
    """k: tokens the row above is ahead; d: steps the previous frame is ahead (None: it is complete).

    A row has no more than its width to be ahead: a larger k asks for the whole row above, as raster does.
    """

    k: int = 1
    d: int | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"diagonal: k={self.k} given; k must be at least 1 (k=1 is the fastest)")
        if self.d is not None and self.d < 1:
            raise ValueError(f"diagonal: d={self.d} given; d must be at least 1, or left out for whole frames")

    def frame_steps(self, grid: Grid) -> int:
        """Steps for one frame: s_spa = (h - 1) k + w (eq. 3)."""
        return (grid.rows - 1) * self._lag(grid) + grid.cols

    def steps(self, grid: Grid) -> int:
        """Steps for all frames: s_step = (T - 1) d + s_spa (eq. 5)."""
        return (grid.frames - 1) * self._delay(grid) + self.frame_steps(grid)

    def times(self, grid: Grid) -> IntArray:
        t, i, j = np.ogrid[: grid.frames, : grid.rows, : grid.cols]
        times: IntArray = t * self._delay(grid) + i * self._lag(grid) + j
        return times

    def _lag(self, grid: Grid) -> int:
        return min(self.k, grid.cols)

    def _delay(self, grid: Grid) -> int:
        whole = self.frame_steps(grid)
        if self.d is None:
            return whole
        if self.d > whole:
            raise ValueError(
                f"diagonal: d={self.d} given; on frames of {grid.rows}x{grid.cols} with k={self.k} it must be "
                f"1 to {whole} = (rows-1)*k + cols. Leave d out to wait for the whole frame"
            )
        return self.d
