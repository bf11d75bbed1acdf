"""The README's moving picture: one clip of the embedded Doom world by two schedules, side by side, slowed down.

    python benchmarks/picture.py [--start lamps] [--actions "right*4,forward*4"] [--out docs/demo.webp]

The clips are made here. Their pace is that of `scripts/demo` as benchmarks/results has it, so that picture and README
agree; the clocks show it, and time passes `SLOWER` times as slowly, for a frame of a tenth of a second shows no cells.
Within a frame, cells appear in the order of the schedule, in equal steps of time. What a cell shows is taken from the
complete frame; what is not decoded yet is the frame before, dimmed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

import diagonal

ROOT = Path(__file__).parents[1]
DEMO = "2026-11-19-cpu-demo.json"
PAPER, INK, GREY, DONE, EMPTY = (22, 22, 26), (235, 235, 240), (130, 130, 140), (110, 200, 90), (38, 38, 42)
SCALE, GAP, TOP, SECOND = 3, 16, 34, 80  # of pixels; around panels; above them; milliseconds a picture
SLOWER = 8  # times, while frames are decoded; complete clips play at the game's own rate
WAIT = 2.5  # seconds that the last pictures take, when both clips are complete
DIM = 0.45

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Panel:
    """A clip and its pace: frames (T, H, W, 3) after `before` (H, W, 3), and each cell's step within its frame."""

    schedule: str
    before: Pixels
    frames: Pixels
    steps: npt.NDArray[np.int64]  # (rows, cols)
    frame_seconds: float

    @property
    def calls(self) -> int:
        """Model calls for one frame."""
        return int(self.steps.max()) + 1

    @property
    def seconds(self) -> float:
        """Until the clip is complete."""
        return len(self.frames) * self.frame_seconds

    def made(self, at: float) -> int:
        """Model calls that have been made after so many seconds."""
        return min(len(self.frames) * self.calls, int(at / self.frame_seconds * self.calls))

    def picture(self, at: float, fps: float) -> Pixels:
        """What there is to see after so many seconds: the frame in the making; once all are complete they play."""
        frame, call = divmod(self.made(at), self.calls)
        if frame == len(self.frames):
            playing: Pixels = self.frames[int((at - self.seconds) * fps) % len(self.frames)]
            return playing
        height, width = self.before.shape[:2]
        rows, cols = self.steps.shape
        decoded = (self.steps < call).repeat(height // rows, axis=0).repeat(width // cols, axis=1)
        last = self.frames[frame - 1] if frame else self.before
        seen: Pixels = np.where(decoded[..., None], self.frames[frame], last * DIM).astype(np.uint8)
        return seen


def pace() -> dict[str, float]:
    """Seconds a frame of each schedule, as `scripts/demo` measured them."""
    demo = json.loads((ROOT / "benchmarks" / "results" / DEMO).read_text(encoding="utf-8"))
    return {row["schedule"]: row["seconds"] / demo["frames"] for row in demo["rows"]}


def panels(start: str, actions: str, seed: int, seconds: dict[str, float]) -> list[Panel]:
    """The clips of these schedules, slowest first, from one start view along the same actions."""
    world = diagonal.load("doom")
    before, between = world.actions.start(start)
    made = []
    for schedule, frame_seconds in sorted(seconds.items(), key=lambda item: -item[1]):
        clip = world.generate(before, between + world.actions.parse(actions), schedule=schedule, seed=seed)
        rows, cols = clip.tokens.shape[-2:]
        plan = diagonal.make_plan(diagonal.Layout(diagonal.Grid(2, rows, cols), suffix=1), schedule, known=1)
        made.append(Panel(schedule, before[-1], clip.frames, plan.times[-1] - plan.times[-1].min(), frame_seconds))
    return made


def draw(all_panels: Sequence[Panel], at: float, fps: float) -> Image.Image:
    """The picture after so many seconds."""
    height, width = (SCALE * size for size in all_panels[0].before.shape[:2])
    count = len(all_panels[0].frames)
    small = (width // count, height // count)
    bottom = TOP + height + 8 + small[1]
    image = Image.new("RGB", (GAP + len(all_panels) * (width + GAP), bottom + 36), PAPER)
    pen = ImageDraw.Draw(image)
    for index, panel in enumerate(all_panels):
        left, calls, total = GAP + index * (width + GAP), panel.made(at), panel.calls * count
        done = calls == total
        colour = DONE if done else INK
        pen.text((left, 8), panel.schedule, fill=INK, font=_font(17))
        after = left + pen.textlength(panel.schedule, font=_font(17)) + 10
        pen.text((after, 10), f"{panel.calls} calls a frame", fill=GREY, font=_font(14))
        pen.text((left + width, 10), "playing" if done else "decoding", fill=colour, font=_font(14), anchor="ra")
        shown = Image.fromarray(panel.picture(at, fps)).resize((width, height), Image.Resampling.NEAREST)
        image.paste(shown, (left, TOP))
        for number in range(count):  # the frames that are complete
            place = (left + number * small[0], TOP + height + 8)
            if number < calls // panel.calls:
                image.paste(Image.fromarray(panel.frames[number]).resize(small, Image.Resampling.BOX), place)
            filled = None if number < calls // panel.calls else EMPTY
            pen.rectangle((*place, place[0] + small[0] - 1, place[1] + small[1] - 1), fill=filled, outline=PAPER)
        pen.text((left, bottom + 9), f"{calls:,} of {total:,} model calls", fill=colour, font=_font(15))
        clock = f"{min(at, panel.seconds):.2f} s"
        pen.text((left + width, bottom + 9), clock, fill=colour, font=_font(15), anchor="ra")
    return image


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def film(all_panels: Sequence[Panel], fps: float) -> Iterator[Image.Image]:
    """All pictures, until the slowest panel is complete and was seen for a moment."""
    end = max(panel.seconds for panel in all_panels) + WAIT / SLOWER
    for number in range(int(end * SLOWER * 1000 / SECOND) + 1):
        yield draw(all_panels, number * SECOND / 1000 / SLOWER, fps * SLOWER)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", default="lamps")
    parser.add_argument("--actions", default="right*4,forward*4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "demo.webp")
    given = parser.parse_args()
    made = panels(given.start, given.actions, given.seed, pace())
    first, *rest = film(made, fps=8.75)
    first.save(given.out, save_all=True, append_images=rest, duration=SECOND, loop=0, quality=70, method=6)


if __name__ == "__main__":
    main()
