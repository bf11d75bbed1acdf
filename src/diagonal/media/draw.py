"""Pictures of plans, clips and numbers: the wave of a schedule (terminal, PNG), videos side by side, curves."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diagonal.media.files import atomic, check_target
from diagonal.media.video import VideoArray
from diagonal.planning.grid import IntArray
from diagonal.planning.plan import Plan

# Dark blue, teal, green, yellow: the order of steps reads as brightness too.
STOPS = np.array([[48, 18, 92], [46, 92, 150], [32, 150, 138], [110, 200, 90], [250, 228, 60]], dtype=np.float64)
GLYPHS = string.digits + string.ascii_lowercase + string.ascii_uppercase
INK, PAPER = (235, 235, 240), (24, 24, 28)
_GREY, _FLOOR, _POINT = (70, 70, 78), (110, 200, 90), (250, 228, 60)


def colours(steps: IntArray, last: int) -> npt.NDArray[np.uint8]:
    """RGB of each step, from the first (dark) to the last (bright)."""
    place = steps / max(last, 1) * (len(STOPS) - 1)
    below = np.minimum(place.astype(int), len(STOPS) - 2)
    weight = (place - below)[..., None]
    mixed: npt.NDArray[np.uint8] = np.round(STOPS[below] * (1 - weight) + STOPS[below + 1] * weight).astype(np.uint8)
    return mixed


def wave(plan: Plan, width: int, height: int = 40) -> str:
    """The decoded frames side by side as text with rich markup: each cell shows when it is decoded, 0 to Z."""
    frames, rows, cols = plan.times.shape
    stride = max(1, -(-rows // height), -(-cols // width))
    shown = max(1, min(frames, (width + 2) // (-(-cols // stride) + 2)))
    last = len(plan.steps) - 1
    lines = []
    for row in plan.times[:shown, ::stride, ::stride].transpose(1, 0, 2):
        lines.append("  ".join("".join(_cell(step, last) for step in frame) for frame in row))
    notes = [f"every {stride}th row and column"] * (stride > 1) + [f"first {shown} of {frames} frames"] * (
        shown < frames
    )
    lines.append(f"[dim]0 first, Z last{''.join(f'; {note}' for note in notes)}[/]")
    return "\n".join(lines)


def _cell(step: int, last: int) -> str:
    red, green, blue = colours(np.array(step), last).tolist()
    return f"[rgb({red},{green},{blue})]{GLYPHS[step * (len(GLYPHS) - 1) // max(last, 1)]}[/]"


def save_plan(plan: Plan, path: str | Path, title: str) -> None:
    """A PNG of the decoded frames, each cell coloured by its step."""
    from PIL import Image, ImageDraw

    check_target(path, ".png")
    frames, rows, cols = plan.times.shape
    cell = max(3, min(24, 1200 // (cols * min(frames, 4))))
    across = max(1, min(frames, 1600 // (cols * cell)))
    down, gap, top = -(-frames // across), 12, 44
    size = (gap + across * (cols * cell + gap), top + down * (rows * cell + gap) + 28)
    image = Image.new("RGB", (max(size[0], 420), size[1]), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((gap, 12), title, fill=INK, font=font(16))
    last = len(plan.steps) - 1
    for index, frame in enumerate(plan.times):
        block = colours(frame, last).repeat(cell, axis=0).repeat(cell, axis=1)
        if cell > 4:  # a line between cells
            block[::cell], block[:, ::cell] = PAPER, PAPER
        row, column = divmod(index, across)
        image.paste(Image.fromarray(block), (gap + column * (cols * cell + gap), top + row * (rows * cell + gap)))
    legend = colours(np.linspace(0, last, 200).astype(np.int64), last)[None].repeat(10, axis=0)
    image.paste(Image.fromarray(legend), (gap, size[1] - 22))
    draw.text((gap + 210, size[1] - 26), f"step 0 to {last}", fill=INK, font=font(13))
    with atomic(path) as temporary:
        image.save(temporary, format="PNG")


def numbers(case: Mapping[str, Any]) -> str:
    """The kind of numbers of a benchmark's case: 'bfloat16', or 'bfloat16/int8' where the weights are of another kind
    (which results did not always say)."""
    kind = case.get("quantize", "none")
    return str(case["dtype"]) + ("" if kind == "none" else f"/{kind}")


def save_speed(cases: Sequence[Mapping[str, Any]], path: str | Path, title: str) -> None:
    """A PNG of results of `diagonal bench`: speed-up over the case with the most steps, against steps, both in
    logarithms; and a line where the cases would be if every step took its floor."""
    from PIL import Image, ImageDraw

    check_target(path, ".png")
    base = max(cases, key=lambda case: case["steps"])
    ordered, several = sorted(cases, key=lambda case: case["steps"]), len(set(map(numbers, cases))) > 1
    measured = [(case["steps"], case["fps"] / base["fps"]) for case in ordered]
    # As many steps as the plan has, each at its floor instead of its mean.
    floor = [
        (steps, y * case["mean_ms"] / case["floor_ms"]) for (steps, y), case in zip(measured, ordered, strict=True)
    ]
    image = Image.new("RGB", (960, 560), PAPER)
    draw, box = ImageDraw.Draw(image), (90, 60, 900, 480)
    draw.text((16, 16), title, fill=INK, font=font(18))
    x_axis, y_axis = (_Axis.over([point[axis] for point in measured + floor]) for axis in (0, 1))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        left, top, right, bottom = box
        return left + x_axis.share(point[0]) * (right - left), bottom - y_axis.share(point[1]) * (bottom - top)

    draw.rectangle(box, outline=_GREY)
    for value in x_axis.ticks():
        draw.text((place((value, y_axis.low))[0], box[3] + 8), f"{value:g}", fill=INK, font=font(13), anchor="ma")
    for value in y_axis.ticks():
        height = place((x_axis.low, value))[1]
        draw.line((box[0], height, box[2], height), fill=_GREY)
        draw.text((box[0] - 8, height), f"{value:g}x", fill=INK, font=font(13), anchor="rm")
    draw.text(((box[0] + box[2]) / 2, 512), "steps", fill=INK, font=font(14), anchor="ma")
    draw.line([place(point) for point in floor], fill=_FLOOR, width=2)
    for point in floor:
        _dot(draw, place(point), 3, _FLOOR)
    draw.text((place(floor[0])[0] + 10, place(floor[0])[1] - 4), "floor", fill=_FLOOR, font=font(13), anchor="lb")
    for case, point in zip(ordered, measured, strict=True):
        _dot(draw, place(point), 5, _POINT)
        right = x_axis.share(point[0]) > 0.5  # the label goes where there is room
        name = case["schedule"] + (f" {numbers(case)}" if several else "")
        label = f"{name}  {point[1]:.2f}x{'  derived' if case['derived'] else ''}"
        at = (place(point)[0] + (-10 if right else 10), place(point)[1] + 6)
        draw.text(at, label, fill=INK, font=font(13), anchor="ra" if right else "la")
    with atomic(path) as temporary:
        image.save(temporary, format="PNG")


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> _Axis:
        """One that shows all values, with some room at both ends."""
        return cls(min(values) / 1.3, max(values) * 1.3)

    def share(self, value: float) -> float:
        """Where a value lies between both ends, 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten, as far as they are on the axis."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in values if self.low <= value <= self.high]


def _dot(draw: Any, centre: tuple[float, float], radius: float, colour: tuple[int, int, int]) -> None:
    x, y = centre
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


@dataclass(frozen=True, slots=True)
class Point:
    """A number at a place of a curve, with the bounds of its interval and a label, where it has them."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves by name over the same two axes; the points of `loose` ones are not connected, those of `lines` are nothing
    but the ends of lines. `log`: x in logarithms."""

    x: str
    y: str
    curves: Mapping[str, Sequence[Point]]
    loose: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    log: bool = False


def save_panels(panels: Sequence[Panel], path: str | Path, title: str, across: int = 2) -> None:
    """A PNG of panels, `across` of them in a row, each curve in a colour that is the same in all."""
    from PIL import Image, ImageDraw

    check_target(path, ".png")
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    shades = dict(zip(names, colours(np.arange(len(names)) + 1, len(names)).tolist(), strict=True))
    width, height, top = 560, 360, 48
    down = -(-len(panels) // across)
    image = Image.new("RGB", (min(across, len(panels)) * width, top + down * height + 24 * len(names)), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((16, 14), title, fill=INK, font=font(18))
    for index, panel in enumerate(panels):
        row, column = divmod(index, across)
        left, above = column * width, top + row * height
        _panel(draw, panel, (left + 72, above + 24, left + width - 24, above + height - 48), shades)
    for index, name in enumerate(names):
        line = top + down * height + 24 * index
        _dot(draw, (28, line + 9), 5, tuple(shades[name]))
        draw.text((44, line), name, fill=INK, font=font(14))
    with atomic(path) as temporary:
        image.save(temporary, format="PNG")


def _panel(draw: Any, panel: Panel, box: tuple[int, int, int, int], shades: Mapping[str, Any]) -> None:
    points = [point for curve in panel.curves.values() for point in curve]
    ends = [one for point in points for one in (point.y, point.low, point.high) if one is not None]
    (x_low, x_high), (y_low, y_high) = _room([point.x for point in points]), _room(ends)
    left, top, right, bottom = box
    x_axis = _Axis.over([point.x for point in points]) if panel.log else None

    def place(x: float, y: float) -> tuple[float, float]:
        along = (x - x_low) / (x_high - x_low) if x_axis is None else x_axis.share(x)
        return left + along * (right - left), bottom - (y - y_low) / (y_high - y_low) * (bottom - top)

    draw.rectangle(box, outline=_GREY)
    for value in _ticks(x_low, x_high) if x_axis is None else x_axis.ticks():
        draw.text((place(value, y_low)[0], bottom + 6), f"{value:g}", fill=INK, font=font(12), anchor="ma")
    for value in _ticks(y_low, y_high):
        at = place(x_low if x_axis is None else x_axis.low, value)[1]
        draw.line((left, at, right, at), fill=_GREY)
        draw.text((left - 6, at), f"{value:g}", fill=INK, font=font(12), anchor="rm")
    draw.text(((left + right) / 2, bottom + 24), panel.x, fill=INK, font=font(13), anchor="ma")
    draw.text((left, top - 6), panel.y, fill=INK, font=font(13), anchor="lb")
    for name, curve in panel.curves.items():
        if name not in panel.loose:
            draw.line([place(point.x, point.y) for point in curve], fill=tuple(shades[name]), width=2)
    for name, curve in panel.curves.items():
        shade = tuple(shades[name])
        for point in curve if name not in panel.lines else ():
            if point.low is not None and point.high is not None:
                draw.line((*place(point.x, point.low), *place(point.x, point.high)), fill=shade)
            _dot(draw, place(point.x, point.y), 3, shade)
    _labels(draw, [(*place(point.x, point.y), point.label) for point in points], box)


def _labels(draw: Any, marks: Sequence[tuple[float, float, str]], box: tuple[int, int, int, int]) -> None:
    """Each label beside its mark, where it covers least of the other labels and marks, within the box if it can."""
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y, _ in marks]
    left, top, right, bottom = box
    for x, y, text in marks:
        late = x > (left + right) / 2  # first the side where there is room
        sides = [(-8, "rm"), (8, "lm")] if late else [(8, "lm"), (-8, "rm")]
        places = [(x + dx, y + dy, anchor) for dy in (-8, 8, -20, 20) for dx, anchor in sides]
        places += [(x, y + dy, "mm") for dy in (-16, 16, -30, 30)]

        def cost(at: tuple[float, float, str], text: str = text) -> float:
            found: tuple[float, ...] = draw.textbbox(at[:2], text, font=font(12), anchor=at[2])
            outside = max(0, left - found[0], found[2] - right, top - found[1], found[3] - bottom)
            return float(100 * outside) + sum(_overlap(found, one) for one in taken)

        best = min(places, key=cost)
        if text:
            taken.append(draw.textbbox(best[:2], text, font=font(12), anchor=best[2]))
            draw.text(best[:2], text, fill=INK, font=font(12), anchor=best[2])


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """The area that two boxes share."""
    across, down = (float(min(one[i + 2], other[i + 2]) - max(one[i], other[i])) for i in (0, 1))
    return max(0.0, across) * max(0.0, down)


def _room(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that shows all values, with some room at both."""
    low, high = min(values), max(values)
    more = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    return low - more, high + more


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between both ends, four to nine."""
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(power / share for share in (1, 2, 5) if (high - low) * share / power >= 4)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def side_by_side(videos: Sequence[VideoArray], labels: Sequence[str]) -> VideoArray:
    """Videos next to each other, each under its label; all must have the same shape."""
    from PIL import Image, ImageDraw

    if len({video.shape for video in videos}) > 1:
        raise ValueError(f"videos of different shapes cannot stand side by side: {[video.shape for video in videos]}")
    band, gap = 32, 8
    frames, height, width = videos[0].shape[:3]
    total = len(videos) * width + (len(videos) - 1) * gap
    canvas = Image.new("RGB", (total + total % 2, height + band + (height + band) % 2), PAPER)
    draw = ImageDraw.Draw(canvas)
    for index, label in enumerate(labels):
        draw.text((index * (width + gap) + 6, 7), label, fill=INK, font=font(15))
    result = np.repeat(np.asarray(canvas)[None], frames, axis=0)
    for index, video in enumerate(videos):
        left = index * (width + gap)
        result[:, band : band + height, left : left + width] = video
    return result


def stamp(frames: VideoArray, text: str) -> VideoArray:
    """Frames (..., H, W, 3) with a line of text in the lower left corner, light on dark so that it can be read."""
    from PIL import Image, ImageDraw

    height, width = frames.shape[-3:-1]
    letters = font(max(8, height // 24))
    left, top, right, bottom = letters.getbbox(text)
    label = Image.new("RGB", (int(right - left) + 6, int(bottom - top) + 6), PAPER)
    ImageDraw.Draw(label).text((3 - left, 3 - top), text, fill=INK, font=letters)
    pixels = np.asarray(label)[:height, :width]
    marked = frames.copy()
    marked[..., height - len(pixels) :, : pixels.shape[1], :] = pixels
    return marked


def test_card(height: int, width: int) -> VideoArray:
    """A picture to start from where there is no clip: sky, ground and a few blocks, (1, H, W, 3)."""
    rows, columns = np.mgrid[0:height, 0:width] / np.array([height, width]).reshape(2, 1, 1)
    sky = np.stack([110 + 60 * rows, 160 + 50 * rows, 230 - 20 * rows], axis=-1)
    checks = (np.floor(columns * 12) + np.floor(rows * 12)) % 2
    ground = np.stack([90 + 30 * checks, 130 + 30 * checks, 60 + 10 * checks], axis=-1)
    picture = np.where((rows > 0.55)[..., None], ground, sky)
    for left, top, colour in ((0.15, 0.35, (120, 85, 60)), (0.55, 0.25, (70, 110, 60)), (0.75, 0.45, (140, 140, 145))):
        block = (columns > left) & (columns < left + 0.12) & (rows > top) & (rows < 0.62)
        picture[block] = colour
    return picture.astype(np.uint8)[None]


def font(size: int) -> Any:
    """The font of all pictures."""
    from PIL import ImageFont

    return ImageFont.load_default(size)
