"""The application: routes, errors as JSON, and the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.websockets import WebSocketDisconnect

import diagonal
from diagonal.server import sessions, video_socket, world_socket
from diagonal.server.access import Access
from diagonal.server.house import House, Served
from diagonal.server.images import encode
from diagonal.server.jobs.api import Desk, routes
from diagonal.server.jobs.fields import FieldError, MissingError
from diagonal.server.jobs.runner import Runner
from diagonal.server.openapi import REFUSALS, Application
from diagonal.server.settings import Settings
from diagonal.server.sockets import attend, refuse
from diagonal.server.wire import RefusedError
from diagonal.server.world_models import ServedWorld

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
STATUS = {"too_slow": 408, "too_large": 413, "bad_content_type": 415, "closing": 503}
STATUS |= dict.fromkeys(("busy", "queue_full", "disk_full"), 429)
RETRY = {"queue_full": {"retry-after": "5"}, "disk_full": {"x-should-retry": "false"}}  # OpenAI's clients go by these


def create_app(settings: Settings, models: Mapping[str, Served]) -> FastAPI:
    """The server's application, whose worlds run while it does. `app.state.house` is what it has open."""
    house = House(settings, models)
    jobs = Runner(house)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        house.start()
        try:
            if settings.jobs:
                jobs.start()
            yield
            await house.say_goodbye("the server stops")
            if settings.jobs:
                await asyncio.to_thread(jobs.stop)
        finally:
            house.stop()

    # The pages of these addresses load scripts from elsewhere, which ours never do.
    pages: dict[str, Any] = {"docs_url": None, "redoc_url": None}
    app = Application(title="diagonal", version=diagonal.__version__, lifespan=running, responses=REFUSALS, **pages)
    app.state.house, app.state.jobs = house, jobs
    app.add_middleware(Access, settings=settings)
    _errors(app)
    _routes(app, house, Desk(house, jobs))
    _page(app, Path(str(resources.files("diagonal.server") / "static")))
    return app


def _routes(app: FastAPI, house: House, desk: Desk) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """What is served."""
        return {"object": "list", "data": [model.describe() for model in house.models.values()]}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server runs, and how full it is."""
        return house.health()

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Counters for Prometheus."""
        return house.metrics() + (desk.metrics() if house.settings.jobs else "")

    @app.get("/v1/models/{model:path}/starts/{start}")
    async def start(model: str, start: str) -> Response:
        """A picture of a start view."""
        found = house.models.get(model)
        if not isinstance(found, ServedWorld) or start not in found.starts:
            raise HTTPException(404, f"there is no start view {start!r} of a model {model!r}")
        picture = await asyncio.to_thread(encode, found.starts[start].picture, "webp", 90)
        return Response(picture, media_type="image/webp", headers={"cache-control": "max-age=3600"})

    app.include_router(sessions.routes(house))
    app.include_router(routes(desk))

    @app.websocket("/v1/realtime/video")
    async def realtime(socket: WebSocket, model: str | None = None) -> None:
        await socket.accept()
        try:
            found = house.models.get(model) if model else next(iter(house.models.values()))
            if found is None:
                known = ", ".join(house.models)
                await refuse(socket, RefusedError("unknown_model", f"there is no model {model!r}; known: {known}"))
            elif isinstance(found, ServedWorld):
                await attend(socket, found, house, partial(world_socket.begin, socket, found, house))
            else:
                await attend(socket, found, house, partial(video_socket.begin, socket, found, house))
        except WebSocketDisconnect:
            pass


def _page(app: FastAPI, folder: Path) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        index = folder / "index.html"
        if not index.is_file():
            raise HTTPException(404, "this server has no page; /v1/models says what it serves")
        return FileResponse(index)

    if folder.is_dir():
        app.mount("/static", StaticFiles(directory=folder), name="static")


def _errors(app: FastAPI) -> None:
    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), headers=error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:])
        return problem(400, f"{param}: {first['msg']}" if param else first["msg"], "bad_value", param)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        param = error.param if isinstance(error, FieldError) else None
        status = 404 if isinstance(error, MissingError) else STATUS.get(error.code, 400)
        return problem(status, str(error), error.code, param, RETRY.get(error.code))

    async def broken(request: Request, error: Exception) -> Response:
        return problem(500, "the server failed; its log says more", "internal")

    app.add_exception_handler(HTTPException, failed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(Exception, broken)


def problem(
    status: int,
    message: str,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error as OpenAI's clients read it."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = code or kind.removesuffix("_error")
    content = {"error": {"message": message, "type": kind, "code": code, "param": param}}
    return JSONResponse(content, status, headers=headers)
