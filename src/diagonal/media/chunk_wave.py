"""Pictures of denoising: chunks downwards, calls of the model to the right, the noise level as colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diagonal.media.draw import GLYPHS, INK, PAPER, colours, font
from diagonal.media.files import atomic, check_target
from diagonal.planning.work import Call, Worked

NOISE = 1000
STILL = "·"  # a chunk that is shown without being taken further


def wave(calls: Sequence[Call], width: int, height: int = 40) -> str:
    """Text with rich markup: a row for each chunk, and in it the step that it takes in each call, 0 to Z. Given latents
    have no row."""
    rows, cells = _cells(calls), dict[tuple[int, int], Worked]()
    for column, call in enumerate(calls):
        cells |= {(part.chunk, column): part for part in call.parts}
    label = len(str(rows[-1])) + 1
    stride = max(1, -(-len(calls) // max(1, width - label)))
    lines = []
    for row in rows[:height]:
        found = [cells.get((row, column)) for column in range(0, len(calls), stride)]
        lines.append(f"{row:<{label}}" + "".join(map(_glyph, found)).rstrip())
    notes = [f"every {stride}th call"] * (stride > 1) + [f"first {height} of {len(rows)} chunks"] * (len(rows) > height)
    still = any(part.step is None and part.chunk >= 0 for part in cells.values())
    words = ["chunks downwards, calls to the right; a chunk's steps from 0 on, dark is noise, bright is clean"]
    words += [f"{STILL} shown without a step"] * still + notes
    return "\n".join([*lines, f"[dim]{'; '.join(words)}[/]"])


def save(calls: Sequence[Call], path: str | Path, title: str) -> None:
    """A PNG: each chunk in a call as a block in the colour of its level, and as a thin one where it takes no step."""
    from PIL import Image, ImageDraw

    check_target(path, ".png")
    rows = _cells(calls)
    cell, line, left, top = max(3, min(24, 1200 // len(calls))), 26, 60, 44
    size = (max(420, left + cell * len(calls) + 12), top + line * len(rows) + 34)
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((12, 12), title, fill=INK, font=font(16))
    for row in rows:
        draw.text((12, top + line * row + 4), f"{row}", fill=INK, font=font(13))
    for column, call in enumerate(calls):
        for part in call.parts:
            if part.chunk >= 0:
                x, y = left + cell * column, top + line * part.chunk
                thin = 0 if part.step is not None else line // 2 - 3
                draw.rectangle((x, y + thin, x + cell - 2, y + line - 4 - thin), fill=_colour(part.level))
    legend = colours(np.arange(201), 200)[None].repeat(10, axis=0)
    image.paste(Image.fromarray(legend), (left, size[1] - 22))
    draw.text((left + 210, size[1] - 26), "timestep 1000 to 0", fill=INK, font=font(13))
    with atomic(path) as temporary:
        image.save(temporary, format="PNG")


def _cells(calls: Sequence[Call]) -> range:
    """The chunks of a video."""
    return range(1 + max(part.chunk for call in calls for part in call.parts))


def _colour(level: float) -> tuple[int, int, int]:
    red, green, blue = colours(np.array(NOISE - round(level)), NOISE).tolist()
    return red, green, blue


def _glyph(part: Worked | None) -> str:
    if part is None:
        return " "
    red, green, blue = _colour(part.level)
    text = STILL if part.step is None else GLYPHS[min(part.step, len(GLYPHS) - 1)]
    return f"[rgb({red},{green},{blue})]{text}[/]"
