"""One WebSocket on which a world is played: docs/serving.md has the messages.

Reading and writing are two tasks. What changes the session is a task for the thread of the world, and nothing more is
read until it is done; so a client can never have more than one of them waiting.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from diagonal.generation.snapshot import Snapshot
from diagonal.server import wire
from diagonal.server.controls import Controls
from diagonal.server.house import House
from diagonal.server.images import Image, encode
from diagonal.server.keeping import Kept
from diagonal.server.outbox import Outbox
from diagonal.server.player import Delivery, Player, applied
from diagonal.server.snapshots import checked
from diagonal.server.sockets import (
    DONE,
    FAREWELL,
    INTERNAL,
    POLICY,
    RESTART,
    TOO_LARGE,
    check_model,
    farewell,
    receive_text,
)
from diagonal.server.starts import Start
from diagonal.server.store import StoreError
from diagonal.server.ticker import Joining, Ticker
from diagonal.server.wire import RefusedError
from diagonal.server.world_models import SCHEDULES, ServedWorld


def begin(socket: WebSocket, model: ServedWorld, house: House, text: str | bytes | None) -> WorldSocket:
    """The session that a first message asks for."""
    start = wire.world_message(text, house.settings.limits.start_bytes)
    if not isinstance(start, wire.Start):
        raise RefusedError("wrong_order", f"{start.type} came first; session.start must", start.event_id)
    check_model(start.model, model.name)
    return WorldSocket(socket, model, house, start)


class WorldSocket:
    """A session that has a seat."""

    def __init__(self, socket: WebSocket, model: ServedWorld, house: House, start: wire.Start) -> None:
        self.id = f"session_{secrets.token_hex(16)}"
        self._socket, self._model, self._house, self._start = socket, model, house, start
        self._outbox, self._loop = Outbox(), asyncio.get_running_loop()
        self._controls = Controls(model.controls, model.world.actions.parse)
        self._seed = secrets.randbelow(2**31) if start.seed is None else start.seed
        self._begin: Start | Snapshot | None = None
        self._player: Player | None = None
        self._errors = self._counted = 0  # wrong messages, and dropped images that are in the metrics
        self._kept = None
        if house.keeping is not None:
            self._kept = Kept(house.keeping, self.id, self.snapshot, self._outbox.say, model.metrics)

    @property
    def player(self) -> Player:
        """Who plays; there is one from `session.started` on."""
        assert self._player is not None
        return self._player

    async def run(self) -> None:
        """Play until either side ends it."""
        start, ticker, over = self._start, self.ticker, False
        self._begin = await self._beginning(start)
        usual = self._model.describe()["default_schedule"]
        if start.resume is not None and isinstance(self._begin, Snapshot):
            self._seed, usual = self._begin.seed, str(self._begin.order)
        schedule = _schedule(start.schedule or usual)
        joining = Joining(self._begin, self._seed, schedule, start.pace, start.paused, self._controls)
        if start.resume is not None:
            joined = ticker.take_up(joining, self._deliver, self._greeting)
        else:
            joined = ticker.ask(lambda: ticker.join(joining, self._deliver, self._greeting))
        try:
            self._player = await _in_words(asyncio.wrap_future(joined))
            if self._house.closing:  # meanwhile
                raise RefusedError("no_seat", "the server stops; try again later")
            self._house.sessions[self.id] = self
            if self._kept is not None:
                self._kept.shown(self.player.session.index)
            code = await self._converse()
            over = code == DONE
            await farewell(self._socket, code)
        except WebSocketDisconnect:
            pass  # it is gone, and maybe in the middle of a message to it
        finally:
            self._house.sessions.pop(self.id, None)
            if self._kept is not None:
                self._kept.stop()
            await self._leave(joined)
            if self._kept is not None and over:
                await self._kept.forget()

    @property
    def ticker(self) -> Ticker:
        """The thread of its world."""
        return self._model.ticker

    async def snapshot(self) -> dict[str, Any]:
        """The session as a file."""
        saved = await asyncio.wrap_future(self.ticker.ask(self.player.session.snapshot))
        return await asyncio.to_thread(saved.as_json)

    async def stand(self) -> dict[str, Any]:
        """The same, and no frame is made after it."""
        player = self.player

        def stand() -> None:
            player.paused = True

        await asyncio.wrap_future(self.ticker.ask(stand))
        return await self.snapshot()

    def close(self, reason: str, snapshot: dict[str, Any], is_kept: bool) -> None:
        """The server goes: say so, and end."""
        resume = {"resume": self.id} if is_kept else {}
        self._outbox.say({"type": "session.closing", "reason": reason, "snapshot": snapshot, **resume})
        self._outbox.close(RESTART)

    async def _leave(self, joined: Any) -> None:
        ticker = self.ticker
        if joined.cancel():
            return

        def leave() -> None:
            if joined.exception() is None:
                ticker.leave(joined.result())

        await asyncio.shield(asyncio.wrap_future(ticker.ask(leave)))

    async def _beginning(self, asked: wire.Start) -> Start | Snapshot:
        given = [name for name in ("start", "snapshot", "resume") if vars(asked)[name] is not None]
        if len(given) > 1:
            raise RefusedError("bad_value", f"{' and '.join(given)} say where to begin; give one")
        snapshot = asked.snapshot if asked.resume is None else await self._kept_as(asked.resume)
        if snapshot is None:
            return self._view(asked.start)
        most = self._house.settings.limits.timeline
        return await asyncio.to_thread(checked, snapshot, self._model.world, most)

    async def _kept_as(self, session_id: str) -> Mapping[str, Any]:
        """What the store has of a session that was cut off."""
        keeping = self._house.keeping
        if keeping is None:
            raise RefusedError("not_kept", "this server keeps no sessions; it was started without --snapshots")
        try:
            found = await keeping.load(session_id)
        except StoreError as error:
            raise RefusedError("not_kept", str(error)) from error
        if found is None:
            raise RefusedError("not_kept", f"there is no session {session_id} in the store: it is over, or too old")
        return found

    def _view(self, start: str | None) -> Start:
        starts = self._model.starts
        if start is None:
            return next(iter(starts.values()))
        if start not in starts:
            raise RefusedError("unknown_start", f"there is no start view {start!r}; known: {', '.join(starts)}")
        return starts[start]

    def _greeting(self, player: Player) -> dict[str, Any]:
        """`session.started`; made in the thread of the world."""
        about, limits = self._model.describe(), self._house.settings.limits
        shared = {name: about[name] for name in ("fps", "width", "height", "actions", "controls")}
        most = {"message_bytes": limits.message_bytes, "idle_seconds": limits.idle_seconds, "frames": limits.timeline}
        return {
            "type": "session.started",
            "session_id": self.id,
            "model": self._model.name,
            "seed": player.session.seed,
            "schedule": str(player.session.order),
            "frame": player.session.index,
            "kept_every": None if self._house.keeping is None else self._house.settings.keep.every,
            **shared,
            "limits": most,
        }

    def _deliver(self, delivery: Delivery) -> None:
        """Called in the thread of the world."""
        self._loop.call_soon_threadsafe(self._take, delivery)

    def _take(self, delivery: Delivery) -> None:
        for message in delivery.messages:
            self._outbox.say(dict(message))
            if message.get("code") == "internal":
                self._outbox.close(INTERNAL)
        if delivery.image is not None:
            self._outbox.show(delivery.image, delivery.cut)
            if self._kept is not None and self._player is not None:
                self._kept.shown(delivery.image.frame)

    async def _converse(self) -> int:
        """Read and write until one of the two ends; gives the close code."""
        reading, writing = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                self._outbox.close(reading.result())
                await asyncio.wait({writing}, timeout=FAREWELL)
            return writing.result() if writing.done() else DONE
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _write(self) -> int:
        """Send what there is to send; gives the close code."""
        while True:
            found = await self._outbox.next()
            if isinstance(found, int):
                return found
            try:
                async with asyncio.timeout(self._house.settings.limits.stall_seconds):
                    await (self._send(found) if isinstance(found, Image) else self._socket.send_json(found))
            except TimeoutError:  # not even the operating system takes more for this client
                return POLICY

    async def _send(self, image: Image) -> None:
        dropped = self._outbox.dropped  # before this one: while it is encoded, later ones may be
        data = await asyncio.to_thread(encode, image.pixels, self._start.format, self._start.quality)
        latency = None if image.received is None else 1000 * (time.monotonic() - image.received)
        about = {
            "type": "video.frame",
            "frame": image.frame,
            "seq": image.seq,
            "action": image.action,
            "calls": image.calls,
            "decode_ms": round(image.decode_ms, 3),
            "latency_ms": None if latency is None else round(latency, 3),
            "dropped": dropped,
            "schedule": image.schedule,
            "byte_length": len(data),
            "mime": f"image/{self._start.format}",
        }
        await self._socket.send_json(about)
        await self._socket.send_bytes(data)
        metrics = self.ticker.metrics
        metrics.images += 1
        metrics.dropped += dropped - self._counted
        self._counted = dropped
        if latency is not None:
            metrics.latency.observe(latency / 1000)

    async def _read(self) -> int:
        """Do what the client says until it stops; gives the close code."""
        limits = self._house.settings.limits
        while True:
            await self._outbox.room()  # whoever asks without end, and does not read, is not heard
            await asyncio.sleep(0)  # nor does it keep others from being heard
            try:
                text = await receive_text(self._socket, limits.idle_seconds)
                message = wire.world_message(text, limits.message_bytes)
                try:
                    if await self._answer(message):
                        return DONE
                except RefusedError as refused:
                    raise RefusedError(refused.code, str(refused), message.event_id) from refused
            except TimeoutError:
                why = f"no message came for {limits.idle_seconds:g} seconds; say session.ping now and then"
                self._outbox.say(RefusedError("idle_timeout", why).as_json())
                return POLICY
            except RefusedError as refused:
                self._outbox.say(refused.as_json())
                self._errors += 1
                if refused.code == "too_large":
                    return TOO_LARGE
                if self._errors > limits.errors:
                    return POLICY

    async def _answer(self, message: wire.AnyMessage) -> bool:
        """Do what a message says; whether it was the last."""
        match message:
            case wire.Control(seq=seq, held=held, pressed=pressed):
                try:
                    self._controls.feed(seq, held, pressed, time.monotonic())
                except ValueError as error:
                    raise RefusedError("bad_value", str(error)) from error
            case wire.Ack(frame=frame):
                self._outbox.acknowledge(frame)
            case wire.Ping():
                self._outbox.say({"type": "session.pong"})
            case wire.Stop():
                await self._stop()
                return True
            case wire.Start():
                raise RefusedError(
                    "wrong_order", "the session has started; session.reset begins again", message.event_id
                )
            case _:
                await self._change(message)
        return False

    async def _change(self, message: wire.AnyMessage) -> None:
        """What is done to the session between two frames."""
        ticker, player = self.ticker, self.player
        match message:
            case wire.Update(schedule=schedule, paused=paused, pace=paced, update_id=update_id):
                known = None if schedule is None else _schedule(schedule)
                task = ticker.ask(lambda: player.update(known, paused, paced, update_id))
            case wire.Reset(seed=seed, start=start):
                assert self._begin is not None
                self._begin = self._begin if start is None else self._view(start)
                self._seed = self._seed if seed is None else seed
                begin, said = self._begin, applied("reset", 0)
                task = ticker.ask(lambda: ticker.reset(player, begin, self._seed, said))
            case wire.Rewind(frame=frame):
                task = ticker.ask(lambda: ticker.rewind(player, frame, applied("rewind", frame)))
            case _:
                self._outbox.say({"type": "session.snapshot", "snapshot": await self.snapshot()})
                return
        await _in_words(asyncio.wrap_future(task))

    async def _stop(self) -> None:
        """No frame is made after this, and none is sent."""
        ticker, player = self.ticker, self.player
        last = player.session.index
        await asyncio.wrap_future(ticker.ask(lambda: ticker.leave(player)))
        self._outbox.say({"type": "session.done", "frames": last + 1, "stopped": True})


class _Work(Protocol):
    def __await__(self) -> Any: ...


async def _in_words(work: _Work) -> Any:
    """What comes of a task; what it refuses is told to the client."""
    try:
        return await work
    except ValueError as error:
        raise RefusedError("bad_value", str(error)) from error


def _schedule(text: str) -> str:
    if text not in SCHEDULES:
        raise RefusedError("bad_value", f"schedule {text!r} given; known: {', '.join(SCHEDULES)}")
    return text
