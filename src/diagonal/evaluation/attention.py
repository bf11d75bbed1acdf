"""What a token model attends to: Figure 6 of Diagonal Decoding (Ye et al.) as numbers.

One teacher-forced pass in raster order. A cell is sampled from the input before it, so the attention of a cell is that
of this input: the input itself is the cell's predecessor, the token to its left. Every position that it may attend to
belongs to exactly one `PLACES`; and under a schedule to exactly one of decoded, masked and missed (`under`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diagonal.engine.tokens.recorder import Recorder
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap
from diagonal.generation.opening import opening
from diagonal.generation.world import World
from diagonal.planning.grid import BoolArray, IntArray, Layout
from diagonal.planning.plan import NONE, Order, make_plan

Weights = npt.NDArray[np.float32]  # (layers, cells, positions)

LEFT, ABOVE, BEFORE = "left", "above", "same cell, frame before"
PLACES = {  # of a cell (t, i, j)
    LEFT: "(t, i, j-1): the input itself",
    ABOVE: "(t, i-1, j)",
    BEFORE: "(t-1, i, j)",
    "beside above": "(t, i-1, j-1) and (t, i-1, j+1)",
    "around, frame before": "the eight cells around (t-1, i, j)",
    "rest of the row": "(t, i, < j-1)",
    "rest of the frame": "earlier rows of frame t",
    "rest of the frame before": "frame t-1",
    "actions": "given tokens after frames",
    "start": "the very first position, and all before the first frame",
    "earlier frames": "frames before t-1",
}
SCHEDULED = ("decoded", "masked", "missed")
OFFSETS = 12  # the strongest ones are named


def targets(layout: Layout, frame: int) -> IntArray:
    """Positions of the cells of a frame that are sampled, in raster order; each from the input before it."""
    cells = layout.positions()[frame, :, : layout.drawn.cols].ravel()
    sampled: IntArray = cells[cells > 0]  # nothing comes before the first token of all
    return sampled


def observe(world: World, units_TU: Tensor, frame: int) -> Weights:
    """Attention of the cells of one frame of a video, given as ids of frames and what follows each: of every layer, the
    mean over heads, to all positions before the frame's last cell."""
    layout = world.layout(frame + 1)
    if not 0 <= frame < len(units_TU) or frame >= world.variant.config.frames:
        raise ValueError(
            f"frame {frame} asked for; the video has frames 0 to {len(units_TU) - 1}, and {world.name} sees "
            f"{world.variant.config.frames} at once"
        )
    cells, device = torch.from_numpy(targets(layout, frame)), world.device
    prefix = torch.tensor(world.variant.config.prefix_ids, dtype=torch.long)
    tokens = torch.cat([prefix, units_TU[: frame + 1].flatten().cpu()])[None, : int(cells[-1])].to(device)
    recorder = Recorder(cells.to(device) - 1)
    with torch.inference_mode():
        world.runner(tokens, torch.arange(tokens.shape[1], device=device), recorder, recorder.queries_Q[:1])
    return torch.stack([layer[0].cpu() for layer in recorder.weights]).numpy()


def units(world: World, frames: npt.NDArray[np.uint8] | Tensor, actions: Sequence[object] | None) -> Tensor:
    """Ids (T, unit) of a clip: of its frames, and of the action after each but the last."""
    return opening(world, frames, actions, len(frames) + 1, len(frames))[0]


def places(layout: Layout, frame: int) -> dict[str, BoolArray]:
    """For each of PLACES where it is, (cells, positions). Every position up to a cell's input has exactly one."""
    cells = targets(layout, frame)
    position = np.arange(int(cells[-1]))
    t, rest = np.divmod(position - layout.prefix, layout.unit)
    i, j = np.divmod(rest, layout.grid.cols)
    row, col = (part[:, None] for part in np.divmod(cells - layout.frame(frame).start, layout.grid.cols))
    given = (t >= 0) & (rest >= layout.grid.frame_tokens)
    now, before = (t == frame) & ~given, (t == frame - 1) & (t >= 0) & ~given
    down, aside = i - row, abs(j - col)
    wanted = {  # the first one counts
        LEFT: now & (down == 0) & (j == col - 1),
        ABOVE: now & (down == -1) & (aside == 0),
        BEFORE: before & (down == 0) & (aside == 0),
        "beside above": now & (down == -1) & (aside == 1),
        "around, frame before": before & (abs(down) <= 1) & (aside <= 1),
        "start": (t < 0) | (position == 0),
        "rest of the row": now & (down == 0),
        "rest of the frame": now,
        "rest of the frame before": before,
        "actions": given,
    }
    free = position < cells[:, None]
    found = {}
    for name, where in wanted.items():
        found[name] = where & free
        free = free & ~where
    found["earlier frames"] = free
    return {name: found[name] for name in PLACES}


def under(layout: Layout, order: Order, known: int, frame: int) -> dict[str, BoolArray]:
    """What an order leaves of all that raster lets a cell attend to, (cells, positions).

    decoded: the true token is in the cache; masked: it is decoded, and not in the cache; missed: it is not decoded yet.
    Where a stand-in is in the cache instead of a masked or missed token, `stand-in` says so too.
    """
    plan, cells = make_plan(layout, order, known), targets(layout, frame)
    decoded = np.full(layout.length, NONE, dtype=np.int64)
    decoded[layout.positions()[known:, :, : layout.drawn.cols]] = plan.times
    entries = plan.entries
    query = {int(target): index for index, target in enumerate(entries.write) if target != NONE}
    rows = np.array([query[int(cell)] for cell in cells])
    visible, true = entries.visible()[rows], entries.read == entries.position
    size = int(cells[-1])
    there, instead = (np.zeros((len(cells), size), dtype=bool) for _ in range(2))
    for into, some in ((there, true), (instead, ~true)):
        shown, at = visible[:, some], entries.position[some]
        for row, seen in enumerate(shown):
            into[row, at[seen & (at < size)]] = True
    before = np.arange(size) < cells[:, None]
    early = decoded[:size] < decoded[cells][:, None]
    return {
        "decoded": there & before,
        "masked": ~there & early & before,
        "missed": ~there & ~early & before,
        "stand-in": instead & ~there & before,
    }


def shares(weights: Weights, where: Mapping[str, BoolArray]) -> FloatArray:
    """The attention that falls on each of some sets of positions, the mean over cells: (layers, sets)."""
    found: FloatArray = np.stack([(weights * mask).sum(-1, dtype=np.float64).mean(-1) for mask in where.values()], -1)
    return found


def even(where: Mapping[str, BoolArray], layout: Layout, frame: int) -> FloatArray:
    """The same of a model that attends to all it may see alike."""
    cells = targets(layout, frame)
    return np.array([(mask.sum(-1) / cells).mean() for mask in where.values()])


def by_offset(weights: Weights, layout: Layout, frame: int) -> FloatArray:
    """Attention to the position n before a cell, n = 1 (its input) and on: the mean over layers, and over the cells
    that have such a position."""
    cells, mean = targets(layout, frame), weights.mean(0, dtype=np.float64)
    total, count = np.zeros(int(cells[-1]) + 1), np.zeros(int(cells[-1]) + 1)
    for cell, row in zip(cells, mean, strict=True):
        total[1 : cell + 1] += row[:cell][::-1]
        count[1 : cell + 1] += 1
    profile: FloatArray = total[1:] / np.maximum(count[1:], 1)
    return profile


def offsets(layout: Layout) -> dict[str, int]:
    """How far before a cell its neighbours are: the diagonals of the map."""
    return {LEFT: 1, ABOVE: layout.grid.cols, BEFORE: layout.unit}


@dataclass(frozen=True, slots=True)
class Attended:
    """Attention of the cells of one frame, in the mean over clips, and its shares with intervals over clips."""

    layout: Layout
    frame: int
    known: int  # frames that are given, for the orders
    clips: int
    weights: Weights  # mean over heads and clips
    places: dict[str, FloatArray]  # (clips, layers), the share of each of PLACES
    orders: dict[str, dict[str, FloatArray]]  # by order, the same of each of SCHEDULED and of stand-ins

    def content(self) -> dict[str, object]:
        """All numbers as JSON takes them; the weights stay out."""
        where = places(self.layout, self.frame)
        alike = dict(zip(where, even(where, self.layout, self.frame), strict=True))
        profile = by_offset(self.weights, self.layout, self.frame)
        common = int(np.median(targets(self.layout, self.frame)))  # half of the cells have so many positions before
        strongest = np.argsort(-profile[:common], kind="stable")[:OFFSETS]
        return {
            "grid": str(self.layout.grid),
            "frame": self.frame,
            "known": self.known,
            "clips": self.clips,
            "layers": len(self.weights),
            "places": {name: _numbers(values) | {"even": float(alike[name])} for name, values in self.places.items()},
            "diagonals": offsets(self.layout),
            "offsets": [float(one) for one in profile],
            "strongest_offsets": [[int(one) + 1, float(profile[one])] for one in strongest],
            "schedules": {
                order: {name: _numbers(values) for name, values in parts.items()}
                for order, parts in self.orders.items()
            },
        }


def over_clips(values: FloatArray) -> Interval:
    """The mean over layers of (clips, layers), with its interval over clips."""
    return bootstrap(values.mean(1, keepdims=True))


def _numbers(values: FloatArray) -> dict[str, object]:
    whole = over_clips(values)
    layers = [float(one) for one in values.mean(0)]
    return {"mean": whole.mean, "low": whole.low, "high": whole.high, "layers": layers}


def measure(world: World, clips: Iterable[Tensor], frame: int, known: int, orders: Sequence[Order]) -> Attended:
    """Attention of one frame of several clips, each given as `units`."""
    layout = world.layout(frame + 1)
    if known > frame:
        raise ValueError(f"frame {frame} is one of {known} known ones, which no schedule decodes; take a later frame")
    sets = {"": places(layout, frame)} | {str(order): under(layout, order, known, frame) for order in orders}
    total: Weights | None = None
    kept: dict[str, list[FloatArray]] = {name: [] for name in sets}
    for one in clips:
        weights = observe(world, one, frame)
        total = weights if total is None else total + weights
        for name, where in sets.items():
            kept[name].append(shares(weights, where))
    if total is None:
        raise ValueError("no clips given; attention is measured on at least one")
    by_name = {
        name: dict(zip(sets[name], np.moveaxis(np.stack(values), -1, 0), strict=True)) for name, values in kept.items()
    }
    own = by_name.pop("")
    count = len(kept[""])
    mean: Weights = (total / count).astype(np.float32)
    return Attended(layout, frame, known, count, mean, own, by_name)
