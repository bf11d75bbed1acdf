"""What a tokenizer or a codec of latents has. Suffixes: `engine.protocols`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol

from torch import Tensor


class Compression(Protocol):
    """What all that shrink videos have. Videos are uint8, (B, T, C, height, width)."""

    @property
    def config(self) -> Any:
        """Its sizes, a dataclass; the whole numbers in it are saved with the weights."""
        ...

    @property
    def patch(self) -> int:
        """Pixels per token or latent along each side of a frame."""
        ...

    @property
    def stride(self) -> int:
        """Frames per token frame after the first, which holds one: n token frames are 1 + stride * (n - 1) frames."""
        ...


class VideoTokenizer(Compression, Protocol):
    """Pixels to token ids and back."""

    @property
    def whole(self) -> bool:
        """It makes whole clips alone: n token frames are stride * n frames, and `decode` gets all of them at once."""
        ...

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Token ids (B, token frames, rows, cols)."""
        ...

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Pixels of the next frames. `state` carries what earlier frames left behind; start with an empty dict."""
        ...


class VideoCodec(Compression, Protocol):
    """Pixels to latents and back: numbers, not ids. `config.latent` is their number at each place."""

    @property
    def first(self) -> int:
        """Frames of a video's first latent frame: 1, or `stride` where it is like all others. Of such a codec clips are
        encoded whole, and decoded in whole tiles."""
        ...

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Latents (B, latent frames, C, rows, cols), normalised as a denoiser takes them."""
        ...

    def decode(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Pixels of the next frames. `state` carries what earlier frames left behind; start with an empty dict."""
        ...
