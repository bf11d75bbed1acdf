"""Pictures of who attends to whom: a map of attention (Figure 6 of the paper), and the mask of a plan (Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diagonal.media.draw import INK, PAPER, colours, font
from diagonal.media.files import atomic, check_target
from diagonal.media.video import VideoArray
from diagonal.planning.grid import IntArray
from diagonal.planning.plan import Plan

Map = npt.NDArray[np.float32]  # (queries, keys)

WIDE, SMALL, ACROSS = 1120, 200, 5  # pixels of the large map and of one of a layer, and layers in a row
EDGE, TOP, TICK = 24, 96, 16
MARKS = ((255, 120, 90), (120, 200, 255), (255, 255, 255))
LINE = (110, 110, 120)

GIVEN, DECODED, STAND_IN, MASKED, LATER = range(5)  # of a query and a key: see `mask_of`
KINDS = {
    "a given token, seen": (70, 130, 200),
    "a decoded token, seen": (110, 200, 90),
    "a stand-in, seen": (250, 228, 60),
    "masked: raster sees it": (120, 44, 66),
    "later, or a stand-in that is replaced": (38, 38, 44),
}
MOST = 512  # entries whose mask can still be read
SIDE, STRIP = 980, 8  # pixels of a mask, and of the strip of steps beside it


@dataclass(frozen=True, slots=True)
class Diagonals:
    """What the columns of a map are: keys from `first` on; each query is a cell at a position of its own."""

    cells_Q: IntArray
    first: int
    frames: Mapping[str, int]  # what begins at which position
    marks: Mapping[str, int]  # how far before its cell each diagonal is


def save_map(layers: Sequence[Map], diagonals: Diagonals, path: str | Path, title: str) -> None:
    """A PNG: the mean of all layers large, with its diagonals marked at the edges, and each layer small."""
    from PIL import Image, ImageDraw

    check_target(path, ".png")
    shown = [layer[:, diagonals.first :] for layer in layers]
    large = np.mean(shown, axis=0)
    enlarged, shrunk = max(1, min(6, WIDE // large.shape[1])), -(-large.shape[1] // WIDE)
    picture = _pixels(large, enlarged, shrunk)
    small = [_pixels(layer, 1, -(-layer.shape[1] // SMALL)) for layer in shown]
    step = (small[0].shape[1] + 12, small[0].shape[0] + 28)
    across = max(1, min(ACROSS, len(small), (picture.shape[1] + 12) // step[0]))
    below = TOP + picture.shape[0] + 2 * TICK
    legend = below + 26 * len(diagonals.marks)
    size = (2 * EDGE + picture.shape[1] + TICK, legend + 32 + step[1] * -(-len(small) // across) + EDGE // 2)
    image = Image.new("RGB", (max(size[0], 640), size[1]), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((EDGE, 14), title, fill=INK, font=font(18))
    image.paste(Image.fromarray(picture), (EDGE, TOP))
    _edges(draw, diagonals, picture.shape, enlarged / shrunk)
    for index, (name, colour) in enumerate(zip(diagonals.marks, MARKS, strict=False)):
        line = below + 26 * index
        draw.line((EDGE, line + 2, EDGE + 14, line + 16), fill=colour, width=3)
        draw.text((EDGE + 26, line), f"{name} (offset {diagonals.marks[name]})", fill=INK, font=font(14))
    draw.text((EDGE, legend + 4), "each layer, mean over its heads", fill=INK, font=font(14))
    for index, pixels in enumerate(small):
        row, column = divmod(index, across)
        at = (EDGE + column * step[0], legend + 32 + row * step[1])
        image.paste(Image.fromarray(pixels), at)
        draw.text((at[0], at[1] + pixels.shape[0] + 4), f"layer {index}", fill=INK, font=font(12))
    with atomic(path) as temporary:
        image.save(temporary, format="PNG")


def _pixels(values: Map, enlarged: int, shrunk: int) -> VideoArray:
    """Colours of the square roots of a map's values; a smaller picture keeps the largest value of every block."""
    if shrunk > 1:
        rows, cols = (-(-side // shrunk) * shrunk for side in values.shape)
        whole = np.zeros((rows, cols), values.dtype)
        whole[: values.shape[0], : values.shape[1]] = values
        values = whole.reshape(rows // shrunk, shrunk, cols // shrunk, shrunk).max((1, 3))
    # The brightest colour is for as many values as there are rows: one diagonal.
    top = float(np.quantile(values, 1 - 1 / values.shape[1])) or float(values.max()) or 1.0
    levels = np.round(255 * np.sqrt(np.clip(values / top, 0, 1))).astype(np.int64)
    found = colours(levels, 255)
    found[values == 0] = PAPER  # what a query cannot see has exactly nothing
    large: VideoArray = found.repeat(enlarged, 0).repeat(enlarged, 1)
    return large


def _edges(draw: Any, diagonals: Diagonals, shape: tuple[int, ...], scale: float) -> None:
    """Frames above the map, and ticks where the diagonals enter and leave it: nothing is drawn over it."""
    bottom, right = TOP + shape[0], EDGE + shape[1]
    for name, first in diagonals.frames.items():
        x = EDGE + max(0, first - diagonals.first) * scale
        draw.line((x, TOP - 2 * TICK - 4, x, TOP), fill=LINE)
        draw.text((x + 5, TOP - 2 * TICK - 12), name, fill=INK, font=font(14))
    for offset, colour in zip(diagonals.marks.values(), MARKS, strict=False):
        start = float(diagonals.cells_Q[0] - offset - diagonals.first) * scale
        if start >= 0:
            x, y = EDGE + start, float(TOP)
        else:  # it enters from the left
            x, y = float(EDGE), TOP - start
        draw.line((x - TICK, y - TICK, x - 2, y - 2), fill=colour, width=3)
        end = EDGE + float(diagonals.cells_Q[-1] + 1 - offset - diagonals.first) * scale
        if end <= right:
            draw.line((end + 2, bottom + 2, end + TICK, bottom + TICK), fill=colour, width=3)


def mask_of(plan: Plan) -> tuple[IntArray, IntArray]:
    """What each entry of a plan is to each other one, (queries, keys), of KINDS by number; and the order they stand in:
    by position, a stand-in behind the token that replaces it."""
    entries = plan.entries
    stand_in = entries.read != entries.position
    order = np.lexsort((stand_in, entries.position))
    given = ~np.isin(entries.position, entries.write)  # what no entry decodes
    key = np.where(stand_in, STAND_IN, np.where(given, GIVEN, DECODED))
    before = entries.position[None, :] <= entries.position[:, None]
    hidden = np.where(before & ~stand_in[None, :], MASKED, LATER)
    kinds = np.where(entries.visible(), key[None, :], hidden)
    return kinds[np.ix_(order, order)], order


def save_mask(plan: Plan, path: str | Path, title: str) -> None:
    """A PNG of the attention mask of training under a plan: rows are queries, columns keys, all entries by position.
    The strips beside it have the colours of the wave: when each is fed."""
    from PIL import Image, ImageDraw

    check_target(path, ".png")
    count = len(plan.entries)
    if count > MOST:
        raise ValueError(
            f"the mask of this plan has {count} queries and keys; up to {MOST} can be read: take a smaller --grid, "
            "such as 2x4x6"
        )
    kinds, order = mask_of(plan)
    cell = max(1, min(18, SIDE // count))
    edge = EDGE + STRIP + 4
    side, top = count * cell, 48 + STRIP + 4
    image = Image.new("RGB", (max(640, edge + side + EDGE), top + side + 16 + 26 * (len(KINDS) + 1)), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((EDGE, 14), title, fill=INK, font=font(16))
    block = np.array(list(KINDS.values()), np.uint8)[kinds].repeat(cell, 0).repeat(cell, 1)
    if cell > 4:
        block[::cell], block[:, ::cell] = PAPER, PAPER
    image.paste(Image.fromarray(block), (edge, top))
    last = len(plan.steps) - 1
    fed = colours(plan.entries.fed[order], last).repeat(cell, 0)
    image.paste(Image.fromarray(fed[:, None].repeat(STRIP, 1)), (EDGE, top))
    image.paste(Image.fromarray(fed[None].repeat(STRIP, 0)), (edge, 48))
    for index, (name, colour) in enumerate(KINDS.items()):
        line = top + side + 16 + 26 * index
        draw.rectangle((EDGE, line + 2, EDGE + 14, line + 16), fill=colour)
        draw.text((EDGE + 26, line), name, fill=INK, font=font(14))
    line = top + side + 16 + 26 * len(KINDS)
    scale = colours(np.linspace(0, last, 120).astype(np.int64), last)[None].repeat(12, 0)
    image.paste(Image.fromarray(scale), (EDGE, line + 3))
    draw.text((EDGE + 132, line), f"strips: fed in step 0 to {last}", fill=INK, font=font(14))
    with atomic(path) as temporary:
        image.save(temporary, format="PNG")
