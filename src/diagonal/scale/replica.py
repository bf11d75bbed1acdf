"""One process of many that serve: the server of one machine (`diagonal.server`) as a replica of Ray Serve.

A socket ends in the replica that owns its session; frames travel through nothing but the proxy. Who finds no seat is
refused by the server itself, in words, before Serve's own limits. When the replica is to go, its sessions are kept as
they stand, their clients are told (`session.closing`, close code 1012) and go on at another replica.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from diagonal.scale.presence import Presence, listen

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from diagonal.server.house import Served
    from diagonal.server.settings import Settings

log = logging.getLogger(__name__)
AGAIN = 1.0  # seconds until the list of replicas is asked for again
ELSEWHERE = 30.0  # seconds for another replica to make a file


class ServeArgs(BaseModel):
    """What each replica is told: the `args` of a Serve config file. Those of `diagonal serve` by the same names."""

    model_config = ConfigDict(extra="forbid")
    models: list[str] = Field(default=["doom"], min_length=1)
    weights: str | None = None
    tokenizer: str | None = None
    prompt: str | None = None
    device: str = "auto"  # cuda where the replica has a GPU
    dtype: str = "auto"
    quantize: str | None = None
    seats: PositiveInt = 8
    host: str = "127.0.0.1"  # the proxy's: without a token only this machine may come
    token: str | None = None
    origins: list[str] = []
    snapshots: str | None = None
    snapshot_every: PositiveInt = 16
    snapshot_seconds: PositiveFloat = 5.0
    unsigned: bool = False
    sign_key: str | None = None
    sign_certificate: str | None = None
    version: str = ""  # another text replaces all replicas, one after the other

    def settings(self) -> Settings:
        """The same in the server's words."""
        from diagonal.media.provenance.writing import Marking, signed_by
        from diagonal.server.settings import Settings
        from diagonal.server.store import StoreLimits

        identity = None if self.unsigned else signed_by(_path(self.sign_key), _path(self.sign_certificate))[0]
        return Settings(
            host=self.host,
            token=self.token,
            origins=tuple(self.origins),
            seats=self.seats,
            jobs=False,  # a client would ask another replica for its video
            snapshots=self.snapshots,
            marking=Marking(identity, watermark=False),
            keep=StoreLimits(every=self.snapshot_every, seconds=self.snapshot_seconds),
        )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


class Replica:
    """Made by Serve, in a process of its own."""

    def __init__(self, args: dict[str, Any]) -> None:
        from ray import serve

        from diagonal.server.app import create_app

        asked = ServeArgs.model_validate(args)
        settings = asked.settings()
        self._app = create_app(settings, {name: open_model(name, asked, settings) for name in asked.models})
        self._house = self._app.state.house
        self._house.replica = serve.get_replica_context().replica_tag
        self._house.elsewhere = self._ask_others
        self._watching: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> Any:
        """Serve's name for: the application."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if self._watching is None:  # with the application's start, in the loop that it runs in
                self._watching = asyncio.create_task(self._watch())
            await self._app(scope, receive, send)

        return watched

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What `by_seats` looks at."""
        seats = [model.seats for model in self._house.models.values()]
        count, free = sum(one.count for one in seats), sum(one.free for one in seats)
        return {"seats": float(count), "seats_taken": float(count - free)}

    async def present(self) -> None:
        """For other replicas, which learn the list of replicas by asking."""

    async def file_of(self, session_id: str, what: str) -> bytes | None:
        """The snapshot or the recording of a session, for a replica that was asked for it; None: it is not here."""
        from diagonal.server.sessions import file_of

        return await file_of(self._house, session_id, what) if session_id in self._house.sessions else None

    async def _ask_others(self, session_id: str, what: str) -> bytes | None:
        """Ask all replicas for a file of a session: it is made where the session is."""
        asked = self._own().broadcast("file_of", session_id, what)
        answers = await asked.results_async(timeout_s=ELSEWHERE, return_exceptions=True)
        return next((answer for answer in answers if isinstance(answer, bytes)), None)

    def _own(self) -> Any:
        from ray import serve

        context = serve.get_replica_context()
        return serve.get_deployment_handle(context.deployment, context.app_name)

    async def _watch(self) -> None:
        """Learn when this replica is to go (presence.py)."""
        from ray import serve

        loop, handle = asyncio.get_running_loop(), self._own()

        def changed(wanted: bool) -> None:
            loop.call_soon_threadsafe(self._wanted, wanted)

        listen(Presence(serve.get_replica_context().replica_tag, changed).heard)
        while True:  # the first call that succeeds gives this process a list, which Serve then keeps up to date
            try:
                await handle.broadcast("present").results_async(timeout_s=ELSEWHERE)
                return
            except Exception as error:  # there is no replica yet, this one included
                log.debug("no list of replicas yet: %s", error)
                await asyncio.sleep(AGAIN)

    def _wanted(self, wanted: bool) -> None:
        if wanted:
            self._house.reopen()
        else:
            self._moving = asyncio.create_task(self._house.say_goodbye("this replica is replaced; go on at another"))


def open_model(name: str, asked: ServeArgs, settings: Settings) -> Served:
    """Load a model, in the process that owns the GPU: torch is imported here and not before."""
    import torch

    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.generation.components import Weights
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load, load_video_model
    from diagonal.media import video
    from diagonal.server.video_models import serve_video
    from diagonal.server.world_models import serve_world

    device = ("cuda" if torch.cuda.is_available() else "cpu") if asked.device == "auto" else asked.device
    found = find("models", name)
    if isinstance(found, DiffusionVariant):
        model = load_video_model(name, Weights(asked.weights), device=device, dtype=find_dtype(asked.dtype, device))
        return serve_video(model.quantize(asked.quantize) if asked.quantize else model, asked.seats)
    dtype = find_dtype(asked.dtype, device, int8_rows=asked.weights is None and bool(found.embedded))
    world = load(name, asked.weights, tokenizer=asked.tokenizer, device=device, dtype=dtype)
    world = world.quantize(asked.quantize) if asked.quantize else world
    frames = world.variant.prompt_frames
    prompt = None if asked.prompt is None else video.read(Path(asked.prompt), most=frames)
    return serve_world(world, asked.seats, settings.limits, prompt)
