"""A video while it is being made, and what comes of it: the same for worlds of tokens and for diffusion models.

    session = world.stream(prompt, actions)  # or model.stream("a red cat", num_frames=81)
    for piece in session:
        piece.index, piece.frames, piece.calls

Whatever shows, writes, measures or serves a video is a consumer of `Session`. Its two forms are `token_session` and
`chunk_session`; a `Clip` is what they collect. A world that is played gives its pieces one by one (`live.LiveSession`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from torch import Tensor

from diagonal.media.video import VideoArray


class _Coded:
    """Frames with what they were decoded from: token ids, or latents."""

    __slots__ = ()
    code: Tensor

    @property
    def tokens(self) -> Tensor:
        """Token ids ([B,] N, rows, cols) of token frames, each of which may be several frames."""
        if self.code.is_floating_point():
            raise ValueError("this was denoised: it has latents and no tokens")
        return self.code

    @property
    def latents(self) -> Tensor:
        """Latents ([B,] F, C, rows, cols) on the CPU; of latent frames, each of which may be several frames."""
        if not self.code.is_floating_point():
            raise ValueError("this was decoded from tokens: it has no latents")
        return self.code


@dataclass(frozen=True, slots=True)
class Piece(_Coded):
    """Frames that were completed together: a token frame's, or a chunk's. Of a batch, all arrays have one more
    dimension in front."""

    index: int  # of the first of its frames in the video, prompt included
    frames: VideoArray  # ([B,] T, H, W, 3) uint8; none where nothing decodes
    code: Tensor  # what they were decoded from: `tokens` or `latents`
    calls: int  # model calls since the piece before
    model_seconds: float  # that these calls took
    decode_seconds: float  # that decoding to pixels took
    given: int = 0  # so many of its first frames were given to begin with, and are not new
    actions: Tensor | None = None  # of token worlds: ids ([B,] N, suffix) of the actions that led to its token frames

    @property
    def frame(self) -> VideoArray:
        """The last of its frames, (H, W, 3)."""
        if self.frames.ndim != 4 or not len(self.frames):
            raise ValueError(f"a piece with frames of shape {self.frames.shape} has no one last frame; take `frames`")
        return cast(VideoArray, self.frames[-1])

    @property
    def new(self) -> int:
        """Frames of each sample that were generated."""
        return int(self.frames.shape[-4]) - self.given


@dataclass(frozen=True, slots=True)
class Clip(_Coded):
    """A whole video: frames ([B,] T, H, W, 3), what they were decoded from, and the model calls it took."""

    frames: Any  # an array, or a tensor where that was asked for
    code: Tensor
    calls: int


class Session(Protocol):
    """A video while it is being made: iterate over it once, or call `next`."""

    @property
    def frames(self) -> int | None:
        """New frames that will be made, of each sample; None: without end."""
        ...

    @property
    def calls(self) -> int | None:
        """Model calls that will be made, if no other prompt comes in between; None: without end."""
        ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> Piece: ...

    def close(self) -> None:
        """Stop, and give back what the video was made with. What is being computed is finished first."""
        ...


def collect(session: Iterator[Piece], batched: bool) -> Clip:
    """All that comes of a session, as one clip."""
    pieces, axis = list(session), 1 if batched else 0
    frames = np.concatenate([piece.frames for piece in pieces], axis=axis)
    code = torch.cat([piece.code for piece in pieces], dim=axis)
    return Clip(frames, code, sum(piece.calls for piece in pieces))
