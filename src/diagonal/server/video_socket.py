"""One WebSocket on which a video is watched while it is made: vLLM-Omni's dialect, and a receipt for every prompt.

Fragments of MP4 cannot be dropped, so a chunk is made only when the one before it was sent. A client that acknowledges
what it shows has at most one chunk that it has not shown; from others nothing but the pace keeps the server. A video
without a length goes on until it is stopped; it is sent at the pace at which it is watched, or prompts would be seen
long after they came.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from fractions import Fraction
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from diagonal.generation.chunk_session import ChunkSession
from diagonal.generation.prompts import Receipt
from diagonal.generation.request import Request
from diagonal.generation.session import Piece
from diagonal.server import video_wire as wire
from diagonal.server.asked import Asked, longest
from diagonal.server.fmp4 import FragmentedMp4
from diagonal.server.house import House
from diagonal.server.marks import StreamMarks
from diagonal.server.sockets import DONE, POLICY, RESTART, TOO_LARGE, check_model, farewell, receive_text
from diagonal.server.video_models import ServedVideo
from diagonal.server.wire import RefusedError


def begin(socket: WebSocket, model: ServedVideo, house: House, text: str | bytes | None) -> VideoSocket:
    """The video that a first message asks for."""
    limits = house.settings.limits
    start = wire.video_message(text, limits.start_bytes)
    if not isinstance(start, wire.Start):
        raise RefusedError("wrong_order", f"{start.type} came first; session.start must", start.event_id)
    check_model(start.model, model.name)
    try:
        variant = model.model.variant
        request = _asked(start).request(variant, limits, longest(variant, limits.video_frames))
    except ValueError as error:
        raise RefusedError("bad_value", str(error), start.event_id) from error
    return VideoSocket(socket, model, house, (start, request))


class VideoSocket:
    """A video that has a seat."""

    def __init__(self, socket: WebSocket, model: ServedVideo, house: House, asked: tuple[wire.Start, Request]) -> None:
        self.id = f"video_stream-{secrets.token_hex(16)}"
        self._socket, self._model, self._house = socket, model, house
        self._start, self._request = asked
        fps = self._start.fps or self._start.video_params.fps
        self._fps = Fraction(model.model.variant.fps) if fps is None else Fraction(fps).limit_denominator(1000)
        self._prompts = dict[str, Receipt | None]()  # by event; None: it is being encoded
        self._sending = asyncio.Lock()
        self._stopped, self._closing = asyncio.Event(), ""
        self._chunks = self._frames = 0
        self._shown = -1  # the newest chunk that the client has acknowledged
        self._heard = asyncio.Event()  # something new of the client: that, or that it is still there

    async def run(self) -> None:
        """Make the video until it is done or stopped."""
        try:
            marking = self._house.settings.marking
            marks = await asyncio.to_thread(StreamMarks, self._model.model, self._request, marking)
            session = await self._work(self._model.model.stream, self._request)
        except ValueError as error:
            raise RefusedError("bad_value", str(error), self._start.event_id) from error
        self._house.videos.add(self)
        try:
            code, last = await self._converse(session, marks)
            await farewell(self._socket, code, last)
        except WebSocketDisconnect:
            pass
        finally:
            self._house.videos.discard(self)
            await asyncio.shield(self._work(session.close))

    def close(self, reason: str) -> None:
        """The server goes: say so, and end."""
        self._closing = reason
        self._stopped.set()

    async def _work(self, task: Any, *arguments: Any) -> Any:
        """Do something in the thread of the model."""
        return await asyncio.get_running_loop().run_in_executor(self._model.thread, task, *arguments)

    async def _converse(self, session: ChunkSession, marks: StreamMarks) -> tuple[int, dict[str, Any] | None]:
        """Make it until either side ends it; gives the close code and the last message."""
        request = self._request
        config: dict[str, Any] = {"model": self._model.name, "prompt": request.prompt, "num_frames": request.num_frames}
        config |= {"height": request.height, "width": request.width, "seed": request.seed, "fps": float(self._fps)}
        start = {"type": "video.start", "request_id": self.id, "format": "m4s", "config": config}
        await self._say(start | {"provenance": marks.statement()})
        work = self._make(session, marks), self._read(session), self._stopped.wait()
        tasks = [asyncio.create_task(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._closing:
                return RESTART, {"type": "session.closing", "reason": self._closing}
            code = next((int(task.result()) for task in tasks[:2] if task in done), DONE)
            if code != DONE:
                return code, None
            stopped = tasks[0] not in done
            return DONE, {"type": "session.done", "request_id": self.id, "chunks": self._chunks, "stopped": stopped}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, session: ChunkSession, marks: StreamMarks) -> int:
        """Chunk after chunk."""
        encoder, clock = FragmentedMp4(self._fps), _Clock(self._start.extra_params, self._paced)
        while True:
            began = time.perf_counter()
            piece: Piece | None = await self._work(next, session, None)
            if piece is None:
                return DONE
            marked = await asyncio.to_thread(marks.mark, piece.frames)
            data = await asyncio.to_thread(encoder.chunk, marked)
            self._model.metrics.frames[str(self._request.schedule or "default")] += piece.new
            self._model.metrics.frame_seconds.observe(time.perf_counter() - began)
            await clock.due(self._frames / float(self._fps))
            try:
                await self._until_shown()
                async with asyncio.timeout(self._house.settings.limits.stall_seconds):
                    await self._send(piece, data)
            except TimeoutError:
                return POLICY
            self._frames += len(piece.frames)
            self._chunks += 1

    async def _until_shown(self) -> None:
        """Wait until the client has shown what it was sent; TimeoutError if it says nothing at all."""
        while self._start.extra_params.acknowledge and self._shown < self._chunks - 1:
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), self._house.settings.limits.stall_seconds)

    @property
    def _paced(self) -> bool:
        """Whether chunks are held back until they are watched."""
        asked, params = self._start.extra_params.pace_to_media_time, self._start.video_params
        endless = self._start.num_frames is None and self._start.seconds is None and params.num_frames is None
        return endless if asked is None else asked

    async def _send(self, piece: Piece, data: bytes) -> None:
        index = self._chunks
        begun = [name for name, change in self._prompts.items() if change is not None and change.applied_at == index]
        active = [
            name
            for name, change in self._prompts.items()
            if change is not None and change.applied_at is not None and change.applied_at <= index
        ][-1:]
        about = {
            "type": "video.chunk_metadata",
            "request_id": self.id,
            "kind": "media",
            "transport_chunk_index": index,
            "generation_chunk_index": index,
            "num_frames": len(piece.frames),
            "byte_length": len(data),
            "started_event_ids": begun,
            "active_event_ids": active,
            "completed_event_ids": begun,
        }
        for name in begun:
            await self._say({"type": "session.applied", "what": "prompt", "event_id": name, "chunk": index})
        async with self._sending:
            await self._socket.send_json(about)
            await self._socket.send_bytes(data)
        self._model.metrics.images += 1

    async def _say(self, message: dict[str, Any]) -> None:
        async with self._sending:  # never between what is said of a chunk and the chunk
            await self._socket.send_json(message)

    async def _read(self, session: ChunkSession) -> int:
        """Do what the client says until it stops."""
        limits, errors = self._house.settings.limits, 0
        while True:
            try:
                message = wire.video_message(await receive_text(self._socket, None), limits.message_bytes)
                match message:
                    case wire.Ack(chunk=chunk):
                        if chunk > self._chunks:
                            raise RefusedError("bad_value", f"chunk {chunk} was not sent yet", message.event_id)
                        self._shown = max(self._shown, chunk)
                        self._heard.set()
                    case wire.Ping():
                        self._heard.set()
                        await self._say({"type": "session.pong"})
                    case wire.Stop():
                        return DONE
                    case wire.Start():
                        raise RefusedError("wrong_order", "the video has begun; open another socket", message.event_id)
                    case wire.Interaction(interaction=change):
                        await self._change(session, change)
            except RefusedError as refused:
                await self._say(refused.as_json() | {"request_id": self.id})
                errors += 1
                if refused.code == "too_large" or errors > limits.errors:
                    return TOO_LARGE if refused.code == "too_large" else POLICY

    async def _change(self, session: ChunkSession, change: wire.Change) -> None:
        """Another prompt; its receipt comes with the first chunk that follows it."""
        name = change.event_id or f"event-{secrets.token_hex(8)}"
        if name in self._prompts:
            raise RefusedError("event_id_conflict", f"the event {name!r} was sent before; give each its own id", name)
        prompt, limits = change.event.prompt, self._house.settings.limits
        if len(prompt) > limits.prompt:
            raise RefusedError("interaction_failed", f"at most {limits.prompt} characters are taken", name)
        if len(self._prompts) >= limits.prompts:
            raise RefusedError("interaction_failed", f"at most {limits.prompts} prompts are taken", name)
        self._prompts[name] = None
        try:
            self._prompts[name] = await asyncio.to_thread(session.update, prompt)
        except ValueError as error:
            del self._prompts[name]
            raise RefusedError("interaction_failed", str(error), name) from error
        await self._say({"type": "session.interaction.queued", "request_id": self.id, "event_id": name})


class _Clock:
    """Holds chunks until their first frame is watched; the first is sent at once."""

    def __init__(self, how: wire.Extra, paced: bool) -> None:
        self._how, self._paced, self._zero = how, paced, 0.0

    async def due(self, media: float) -> None:
        """Wait until a chunk is due that begins at this time of the video."""
        now = time.monotonic()
        if media == 0 or now - self._zero - media > self._how.pacing_max_lag_seconds:
            self._zero = now - media  # behind for so long: nothing is made up for by a burst
        if self._paced:
            await asyncio.sleep(max(0.0, self._zero + media - self._how.pacing_lead_seconds - now))


def _asked(start: wire.Start) -> Asked:
    params, size = start.video_params, start.size.split("x") if start.size else (None, None)
    width, height = (None if side is None else int(side) for side in size)
    return Asked(
        prompt=start.prompt,
        num_frames=start.num_frames or params.num_frames,
        seconds=start.seconds,
        height=start.height or params.height or height,
        width=start.width or params.width or width,
        seed=start.seed,
        schedule=start.extra_params.schedule,
        negative_prompt=start.negative_prompt,
        guidance_scale=start.guidance_scale,
        num_inference_steps=start.num_inference_steps,
    )
