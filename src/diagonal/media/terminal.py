"""Frames as what terminals draw: half blocks in 24-bit or 256 colours, and sixels. Arrays are uint8, (H, W, 3).

A half block shows two pixels in one character cell: the upper one in the colour of the text, the lower one in that of
the background. Sixels (VT340) are bands of six rows; each colour of a band is drawn by one character a column, whose
six bits say which of the rows have it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagonal.media.video import VideoArray, resize

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

HALF = "▀".encode()
RESET = b"\x1b[0m"
CUBE = np.array([0, 95, 135, 175, 215, 255])  # levels of the 256 colours 16 to 231; 232 to 255 are greys
PERCENT = np.array([0, 8, 23, 44, 70, 100])  # levels of a sixel's colours: closer where it is dark
LEVELS = np.round(PERCENT * 2.55).astype(np.int64)
BAYER = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])  # ordered dither: it does not flicker


def fitted(pixels: VideoArray, most_height: int, most_width: int) -> VideoArray:
    """A frame as large as there is room for, its aspect ratio kept."""
    height, width = pixels.shape[:2]
    factor = min(most_height / height, most_width / width)
    size = max(1, min(most_height, round(height * factor))), max(1, min(most_width, round(width * factor)))
    return pixels if size == (height, width) else resize(pixels[None], *size)[0]


def blocks(pixels: VideoArray, full: bool = True) -> list[bytes]:
    """A line of half blocks for every two rows, in 24-bit colour (`full`) or in 256 colours."""
    rows = np.pad(pixels, ((0, len(pixels) % 2), (0, 0), (0, 0)))
    if full:
        numbers = np.concatenate([rows[0::2], rows[1::2]], axis=2).astype(np.int64)
        words = [b"\x1b[38;2;", b";", b";", b";48;2;", b";", b";", b"m"]
    else:
        nearest = nearest_256(rows)
        numbers = np.stack([nearest[0::2], nearest[1::2]], axis=2)
        words = [b"\x1b[38;5;", b";48;5;", b"m"]
    lines = _sentences(words, numbers)
    lines[:, 1:][(numbers[:, 1:] == numbers[:, :-1]).all(axis=2)] = 0  # the colours of the cell before hold still
    halves = np.broadcast_to(np.frombuffer(HALF, np.uint8), (*lines.shape[:2], len(HALF)))
    return [_packed(line) + RESET for line in np.concatenate([lines, halves], axis=2)]


def nearest_256(pixels: VideoArray) -> Numbers:
    """The nearest of xterm's 256 colours (H, W): of its cube, or of its greys."""
    wide = pixels.astype(np.int64)
    places = np.abs(np.arange(256)[:, None] - CUBE).argmin(axis=1)[wide]
    grey = np.clip(np.round((wide.mean(axis=2) - 8) / 10).astype(np.int64), 0, 23)
    far_cube = ((CUBE[places] - wide) ** 2).sum(axis=2)
    far_grey = ((8 + 10 * grey[..., None] - wide) ** 2).sum(axis=2)
    cube = 16 + places @ np.array([36, 6, 1])
    nearest: Numbers = np.where(far_grey < far_cube, 232 + grey, cube)
    return nearest


def sixel(pixels: VideoArray) -> bytes:
    """A frame as one sixel picture in 216 colours, dithered."""
    height, width = pixels.shape[:2]
    colour = _dithered(pixels) @ np.array([36, 6, 1])
    row, column = np.indices((height, width))
    band = row // 6
    # A line of sixels for every colour of a band; each pixel sets its bit there.
    lines, of_pixel = np.unique(band * 216 + colour, return_inverse=True)
    places = of_pixel.reshape(height, width) * width + column
    bits = np.bincount(places.ravel(), (1 << row % 6).ravel(), len(lines) * width).reshape(len(lines), width)
    head = f'\x1bP0;1q"1;1;{width};{height}'.encode() + _palette()
    return head + _packed(_runs(bits.astype(np.int64), lines)) + b"\x1b\\"


def _dithered(pixels: VideoArray) -> Numbers:
    """The place of each channel among LEVELS, the one below or above it by a fixed pattern."""
    below = np.clip(np.searchsorted(LEVELS, np.arange(256), side="right") - 1, 0, len(LEVELS) - 2)
    share = (np.arange(256) - LEVELS[below]) / (LEVELS[below + 1] - LEVELS[below])
    height, width = pixels.shape[:2]
    threshold = (np.tile(BAYER, (height // 4 + 1, width // 4 + 1))[:height, :width, None] + 0.5) / 16
    places: Numbers = below[pixels] + (share[pixels] > threshold)
    return places


def _palette() -> bytes:
    grid = np.stack(np.meshgrid(PERCENT, PERCENT, PERCENT, indexing="ij"), axis=-1).reshape(-1, 3)
    return "".join(f"#{number};2;{red};{green};{blue}" for number, (red, green, blue) in enumerate(grid)).encode()


def _runs(bits: Numbers, lines: Numbers) -> Bytes:
    """Lines of sixels as runs, a row of bytes each: what ends the line before, the colour, how often, which sixel."""
    width = bits.shape[1]
    begins = np.ones(bits.shape, dtype=bool)
    begins[:, 1:] = bits[:, 1:] != bits[:, :-1]
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=bits.size)
    sixels, line, first = bits.ravel()[starts], starts // width, starts % width == 0
    kept = (sixels > 0) | ((starts + lengths) % width > 0)  # nothing is to be said of what is empty up to the end
    same_band = np.diff(lines // 216, prepend=lines[:1] // 216) == 0
    ends = np.where(same_band, ord("$"), ord("-"))[line]
    ends[line == 0] = 0
    colours = _sentences([b"#", b""], (lines % 216)[line][:, None])
    times = _sentences([b"!", b""], lengths[:, None])
    colours[~first], times[lengths == 1] = 0, 0
    parts = [np.where(first, ends, 0)[:, None], colours, times, 63 + sixels[:, None]]
    runs: Bytes = np.concatenate(parts, axis=1).astype(np.uint8)[kept]
    return runs


def _sentences(words: list[bytes], numbers: Numbers) -> Bytes:
    """Bytes (..., n) of numbers (..., N) between N + 1 words, filled up with zeros."""
    shape, most = numbers.shape[:-1], max(int(numbers.max()), 255)
    table = np.array([str(number) for number in range(most + 1)], dtype=f"S{len(str(most))}")
    digits = table.view(np.uint8).reshape(most + 1, -1)
    parts = []
    for index, word in enumerate(words):
        parts.append(np.broadcast_to(np.frombuffer(word, np.uint8), (*shape, len(word))))
        if index < numbers.shape[-1]:
            parts.append(digits[numbers[..., index]])
    return np.concatenate(parts, axis=-1)


def _packed(rows: Bytes) -> bytes:
    """Bytes without the zeros that fill them up."""
    return bytes(rows[rows != 0])
