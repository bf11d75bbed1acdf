"""Next-token prediction: one cell per step, frame by frame, row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagonal.planning.grid import Grid, IntArray


@dataclass(frozen=True, slots=True)
class Raster:
    """The order the models were trained in."""

    def times(self, grid: Grid) -> IntArray:
        return np.arange(grid.tokens).reshape(grid.frames, grid.rows, grid.cols)
