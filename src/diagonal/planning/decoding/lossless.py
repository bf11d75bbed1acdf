"""Raster's own tokens in fewer calls: Jacobi iteration under fixed noise (docs/lossless.md).

The noise of sampling belongs to a position, so raster decoding is a function of what came before, and that function has
one fixed point. Each call feeds a window of drafts and samples all of them anew; what was sampled as it was drafted, up
to the first difference, is what raster decodes. Song et al. ("Accelerating Feedforward Computation via Parallel
Nonlinear Equation Solving", ICML 2021) for greedy decoding; with shared noise after Daliri et al. (arXiv:2408.07978).

How many calls that takes is not known ahead: a plan under this schedule has raster's steps, which are the most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagonal.planning.grid import Grid, IntArray

DRAFTS = {  # what is fed where nothing was sampled yet
    "previous_frame": "the cells of the frame before",
    "above": "the cell above, as it is known or drafted; in the first row the newest token",
    "repeat": "the newest token",
    "diagonal": "what diagonal:k=1 decodes",
}
RULES = {  # which drafts are right
    "equal": "those that raster samples with the same seed: its tokens",
    "sjd": "by speculative Jacobi decoding (Teng et al., arXiv:2410.01699): raster's distribution",
    "coupled": "the same, drafts drawn by maximal coupling (So et al., arXiv:2510.24211): raster's distribution",
    "gumbel": "the same, drafts drawn with shared Gumbel noise (So et al.): raster's distribution",
}


@dataclass(frozen=True, slots=True)
class Lossless:
    """window: tokens that a call samples (None: chosen as it goes, from what was right so far); draft: one of DRAFTS
    (None: previous_frame); rule: one of RULES, of which `equal` alone gives the tokens of raster (None)."""

    window: int | None = None
    draft: str | None = None
    rule: str | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"lossless: window={self.window} given; it must be at least 1, or left out to be chosen")
        for name, value, known in (("draft", self.draft, DRAFTS), ("rule", self.rule, RULES)):
            if value is not None and value not in known:
                raise ValueError(f"lossless: {name}={value} given; it must be one of {', '.join(known)}")

    def times(self, grid: Grid) -> IntArray:
        """Raster's: its tokens, and what each of them sees."""
        return np.arange(grid.tokens).reshape(grid.frames, grid.rows, grid.cols)
