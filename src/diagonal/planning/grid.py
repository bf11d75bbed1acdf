"""The shape of a video as tokens, and where each token sits in the model's sequence.

`Grid` counts cells (frame, row, column). `Layout` adds what surrounds the frames in the flat sequence:
tokens before the first frame (text, a start token) and given tokens after every frame (actions).
Nothing here knows in which order the cells are decoded: that is a schedule's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_TOKENS = 2**22  # far beyond any model's window; a plan holds a few numbers for each


@dataclass(frozen=True, slots=True)
class Grid:
    """A video of `frames` frames, each `rows` x `cols` tokens."""

    frames: int
    rows: int
    cols: int

    def __post_init__(self) -> None:
        for name in ("frames", "rows", "cols"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"grid {self} has {name}={value}; every side must be at least 1")
        if self.tokens > MAX_TOKENS:
            raise ValueError(f"grid {self} has {self.tokens} tokens; at most {MAX_TOKENS} can be planned")

    @classmethod
    def parse(cls, text: str) -> Grid:
        """Read the form people write, frames x rows x columns: '3x40x64'."""
        match = re.fullmatch(r"(\d{1,6})x(\d{1,6})x(\d{1,6})", text.strip().lower())
        if match is None:
            raise ValueError(f"grid {text!r} is not FRAMESxROWSxCOLS; write for example 3x40x64")
        return cls(*(int(side) for side in match.groups()))

    @property
    def frame_tokens(self) -> int:
        return self.rows * self.cols

    @property
    def tokens(self) -> int:
        return self.frames * self.frame_tokens

    def __str__(self) -> str:
        return f"{self.frames}x{self.rows}x{self.cols}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The flat sequence `prefix, frame 0, suffix, frame 1, suffix, ...` in which position = cache slot."""

    grid: Grid
    prefix: int = 0  # tokens before the first frame
    suffix: int = 0  # given tokens after each frame, such as an action
    row_end: bool = False  # the last column is no picture: a constant token that ends each row

    def __post_init__(self) -> None:
        if self.row_end and self.grid.cols < 2:
            raise ValueError(f"grid {self.grid} has one column, which would be row ends alone; at least 2 are needed")
        if self.prefix < 0 or self.suffix < 0:
            raise ValueError(f"prefix={self.prefix} and suffix={self.suffix} must not be negative")

    @property
    def unit(self) -> int:
        """Positions from the start of one frame to the start of the next."""
        return self.grid.frame_tokens + self.suffix

    @property
    def length(self) -> int:
        return self.prefix + self.grid.frames * self.unit

    def frame(self, index: int) -> slice:
        """Positions of the cells of one frame."""
        start = self.prefix + index * self.unit
        return slice(start, start + self.grid.frame_tokens)

    def after(self, index: int) -> slice:
        """Positions of the suffix tokens that follow one frame."""
        end = self.frame(index).stop
        return slice(end, end + self.suffix)

    @property
    def drawn(self) -> Grid:
        """The cells that are decoded: all but row ends."""
        return Grid(self.grid.frames, self.grid.rows, self.grid.cols - self.row_end)

    def positions(self) -> IntArray:
        """Position of every cell, row ends included, shaped (frames, rows, cols)."""
        starts = self.prefix + self.unit * np.arange(self.grid.frames)
        cells = np.arange(self.grid.frame_tokens).reshape(self.grid.rows, self.grid.cols)
        return starts[:, None, None] + cells
