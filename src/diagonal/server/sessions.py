"""Open sessions over HTTP: as a file that goes on, as a video."""

from __future__ import annotations

import json
import secrets
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from diagonal.server.house import House, Open
from diagonal.server.recording import record

SessionId = Annotated[str, Path(pattern="^session_[0-9a-f]{32}$")]


def routes(house: House) -> APIRouter:
    """`/v1/sessions`. An id is not to be guessed: who has it may see the session."""
    router = APIRouter(prefix="/v1/sessions")

    @router.get("/{session_id}/snapshot")
    async def snapshot(session_id: SessionId) -> Response:
        """The session as a file, from which `session.start` and `diagonal play --resume` go on."""
        saved = await _find(house, session_id).snapshot()
        headers = {"content-disposition": f'attachment; filename="{session_id}.json"'}
        return Response(json.dumps(saved), media_type="application/json", headers=headers)

    @router.get("/{session_id}/recording")
    async def recording(session_id: SessionId) -> Response:
        """What was played, as mp4."""
        session = _find(house, session_id)
        path = house.data / "recordings" / f"{secrets.token_hex(16)}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        async with house.recording:
            try:
                await record(session.ticker, session.player, path, house.settings.marking)
            except ValueError as error:
                raise HTTPException(409, f"the session changed while it was recorded: {error}") from error
        return FileResponse(path, filename=f"{session_id}.mp4", background=BackgroundTask(path.unlink, missing_ok=True))

    return router


def _find(house: House, session_id: str) -> Open:
    if session_id not in house.sessions:
        raise HTTPException(404, f"there is no open session {session_id}")
    return house.sessions[session_id]
