"""One who plays: a session in a world, its pace, and where its frames go. Used in the thread of the world alone, but
for `controls`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from diagonal.generation.live import LiveSession
from diagonal.generation.session import Piece
from diagonal.server.controls import Controls, Taken
from diagonal.server.images import Image
from diagonal.server.timeline import Timeline
from diagonal.worlds.pace import Pace


class Delivery(NamedTuple):
    """What comes of a frame boundary, for one client: messages, and behind them an image."""

    messages: tuple[Mapping[str, Any], ...] = ()
    image: Image | None = None
    cut: bool = False  # the image does not follow those before it


Deliver = Callable[[Delivery], None]


@dataclass(slots=True)
class Player:
    """Made by `Ticker.join`."""

    session: LiveSession
    timeline: Timeline
    controls: Controls
    fps: float
    deliver: Deliver
    paused: bool = False
    pace: Pace | None = None  # None: as fast as it goes
    calls: int = 0  # of its newest frame under its schedule; 0: not known

    @property
    def schedule(self) -> str:
        """The one of its next frame."""
        return str(self.session.order)

    def left(self) -> float | None:
        """Seconds until its next frame is due; None: it waits for its player."""
        if self.paused:
            return None
        return 0.0 if self.pace is None else self.pace.left()

    def begin(self) -> Taken:
        """Its next frame is made now."""
        if self.pace is not None:
            self.pace.begin()
        return self.controls.take()

    def begin_over(self, taken: Taken) -> Taken:
        """The frame is made after all with the controls as they are now."""
        self.controls.give_back(taken)
        return self.controls.take()

    def made(self, piece: Piece, taken: Taken) -> None:
        """Its next frame is there."""
        assert piece.actions is not None
        self.timeline.add(piece.tokens[0].flatten(), piece.actions[0])
        self.calls = piece.calls
        image = Image(
            frame=piece.index,
            pixels=piece.frame,
            action=taken.action,
            schedule=self.schedule,
            seq=taken.seq,
            calls=piece.calls,
            decode_ms=1000 * (piece.model_seconds + piece.decode_seconds),
            received=taken.received,
        )
        said = () if taken.received is None else (applied("control", piece.index, seq=taken.seq),)
        self.deliver(Delivery(said, image))

    def show(self, *messages: Mapping[str, Any]) -> None:
        """The frame that there is to see now, after messages."""
        image = Image(self.session.index, self.session.view(), "", self.schedule)
        self.deliver(Delivery(messages, image, cut=True))

    def update(self, schedule: str | None, paused: bool | None, paced: bool | None, update_id: str | None) -> None:
        """Other ways to go on, from the next frame on."""
        after, said = self.session.index + 1, []
        if schedule is not None:
            self.session.update(schedule=schedule)
            self.calls = 0
            said.append(applied("schedule", after, update_id=update_id))
        if paced is not None:
            self.pace = Pace(self.fps, time.monotonic) if paced else None
            said.append(applied("pace", after, update_id=update_id))
        if paused is not None:
            self.paused = paused
            if paused:
                self.controls.release()
            said.append(applied("pause", after, update_id=update_id))
        self.deliver(Delivery(tuple(said)))


def applied(what: str, frame: int, **which: Any) -> dict[str, Any]:
    """The receipt of a change: the first frame that it is seen in."""
    named = {name: value for name, value in which.items() if value is not None}
    return {"type": "session.applied", "what": what, **named, "frame": frame}
