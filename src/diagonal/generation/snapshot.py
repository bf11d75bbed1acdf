"""A live session as a small file: its seed, its newest frames as tokens, the actions between them, and how it goes on.

Caches are not in it. They are made again from the tokens: what was given at once is fed at once, and every frame that
was decoded after it is fed step by step under the order that decoded it. In a ring that rolls on, keys know of frames
that have left it; so a snapshot goes back as far as any key can know: `reach` frames.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.media.files import atomic
from diagonal.planning.decoding import parse, spec
from diagonal.planning.plan import Order, StandIn
from diagonal.planning.sampling import Sampling

UNKNOWN = -1  # what follows the newest frame
FORMAT, VERSION = "diagonal session", 1
MAX_BYTES = 64 * 2**20  # of a file
MAX_IDS = 2**25  # that a file may unpack to


@dataclass(frozen=True, slots=True)
class How:
    """In which order a frame is decoded, and whether the model chooses the action that leads to it."""

    order: Order
    chooses: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All that a live session is. Made by `LiveSession.snapshot`, taken up by `World.resume`."""

    model: str
    weights: str  # `fingerprint` of the model's
    context: str
    order: Order
    sampling: Sampling
    seed: int
    frame: int  # number of the newest frame in the video
    units_TU: Tensor  # the newest frames, and what follows each; the newest is followed by nothing yet
    given: int  # so many of them were fed at once; the others were decoded, each
    made: tuple[How, ...]  # in this way

    def save(self, path: str | Path) -> Path:
        """Write it as JSON."""
        path = Path(path)
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(self.as_json()), encoding="utf-8")
        return path

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        ids = self.units_TU.to(torch.int32).numpy()
        return {
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(self, name) for name in ("model", "weights", "context", "seed", "frame")},
            "order": _order_as_json(self.order),
            "sampling": asdict(self.sampling),
            "shape": list(ids.shape),
            "units": base64.b64encode(zlib.compress(ids.astype("<i4").tobytes(), 9)).decode(),
            "given": self.given,
            "made": [
                {"frames": len(list(alike)), "chooses": how.chooses, **_order_as_json(how.order)}
                for how, alike in groupby(self.made)
            ],
        }

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Read what `save` wrote."""
        path = Path(path)
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} has {path.stat().st_size} bytes; a snapshot has at most {MAX_BYTES}")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is no snapshot, or a part of one: {error}") from error
        return cls.from_json(found, str(path))

    @classmethod
    def from_json(cls, found: Any, where: str = "the snapshot") -> Snapshot:
        """From plain values; `where` names them in messages."""
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"{where} is no snapshot of a session; LiveSession.save writes them")
        if found.get("version") != VERSION:
            raise ValueError(f"{where} has version {found.get('version')!r}; this library reads version {VERSION}")
        try:
            return _from_json(found)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise ValueError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def _from_json(found: Mapping[str, Any]) -> Snapshot:
    frames, unit = (_count(size) for size in found["shape"])
    if frames * unit > MAX_IDS:
        raise ValueError(f"{frames} frames of {unit} ids")
    counts = [_count(part["frames"]) for part in found["made"]]
    if sum(counts) > frames:  # before so many are made
        raise ValueError(f"{sum(counts)} decoded frames of {frames}")
    made = tuple(
        how
        for part, count in zip(found["made"], counts, strict=True)
        for how in [How(_order(part), bool(part["chooses"]))] * count
    )
    data = zlib.decompressobj().decompress(base64.b64decode(found["units"], validate=True), 4 * frames * unit + 1)
    if len(data) != 4 * frames * unit:
        raise ValueError(f"{len(data)} bytes of ids for {frames} frames of {unit}")
    given = _count(found["given"])
    if given + len(made) != frames or not given:
        raise ValueError(f"{given} given frames and {len(made)} others are not {frames}")
    units = torch.from_numpy(np.frombuffer(data, dtype="<i4").reshape(frames, unit).astype(np.int64))
    return Snapshot(
        model=_text(found["model"]),
        weights=_text(found["weights"]),
        context=_text(found["context"]),
        order=_order(found["order"]),
        sampling=Sampling(**found["sampling"]),
        seed=_count(found["seed"]),
        frame=_count(found["frame"]),
        units_TU=units,
        given=given,
        made=made,
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no whole number from 0 on")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _order_as_json(order: Order) -> dict[str, Any]:
    return {"schedule": spec(order.schedule), "stand_in": str(order.stand_in), "refeed": order.refeed}


def _order(found: Mapping[str, Any]) -> Order:
    return Order(parse(_text(found["schedule"])), StandIn(found["stand_in"]), bool(found["refeed"]))


class Past:
    """The newest frames of a session, and the actions between them, as far back as the keys of its ring know."""

    def __init__(self, units_TU: Tensor, made: Sequence[How], most: int, cells: int) -> None:
        self._frames = deque(units_TU[:, :cells].unbind())
        self._acts = deque(units_TU[:-1, cells:].unbind())  # each led to the frame after it
        self._made, self._most, self._suffix = deque(made), most, units_TU.shape[1] - cells
        self._trim()

    def add(self, cells: Tensor, action: Tensor, how: How) -> None:
        """A frame was decoded, after an action."""
        self._frames.append(cells)
        self._acts.append(action)
        self._made.append(how)
        self._trim()

    def refilled(self, count: int) -> None:
        """The newest frames were fed again, at once."""
        while len(self._frames) > count:
            self._frames.popleft()
            self._acts.popleft()
        self._made.clear()

    def kept(self) -> tuple[Tensor, int, tuple[How, ...]]:
        """Frames with what follows each, how many of them were fed at once, and how the others were decoded."""
        last_S = torch.full((self._suffix,), UNKNOWN)
        units = torch.cat([torch.stack([*self._frames]), torch.stack([*self._acts, last_S])], 1)
        return units, len(units) - len(self._made), tuple(self._made)

    def copy(self) -> Past:
        """The same past of another session."""
        other = copy(self)
        other._frames, other._acts, other._made = self._frames.copy(), self._acts.copy(), self._made.copy()
        return other

    def _trim(self) -> None:
        while len(self._frames) > self._most:
            self._frames.popleft()
            self._acts.popleft()
            if len(self._made) == len(self._frames):  # the first one is given, whoever made it
                self._made.popleft()


def reach(layers: int, places: int) -> int:
    """Frames before the next one that keys in a ring that rolls on can know of: the ring of the last layer, and of each
    layer below it as many frames more as one sees."""
    return layers * (places - 1)


def fingerprint(model: torch.nn.Module) -> str:
    """Tells the weights of models apart: a checksum of a few numbers of every tensor, rounded so that a cast to
    bfloat16 does not matter."""
    return checksum((name, a_few(tensor.flatten())) for name, tensor in model.state_dict().items())


def a_few(numbers: Tensor) -> Tensor:
    """At most 16 of many numbers, from all over."""
    return numbers[:: max(1, numbers.numel() // 16)][:16]


def checksum(named: Iterable[tuple[str, Tensor]]) -> str:
    """Of some numbers of each tensor, by its name."""
    found = 0
    for name, few in sorted(named, key=lambda one: one[0]):
        found = zlib.crc32(few.float().bfloat16().float().cpu().numpy().tobytes(), zlib.crc32(name.encode(), found))
    return f"{found:08x}"
