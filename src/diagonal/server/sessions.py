"""Open sessions over HTTP: as a file that goes on, as a video."""

from __future__ import annotations

import json
import secrets
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from diagonal.server.house import House, Open
from diagonal.server.recording import record

SNAPSHOT, RECORDING = "snapshot", "recording"
SessionId = Annotated[str, Path(pattern="^session_[0-9a-f]{32}$")]


def routes(house: House) -> APIRouter:
    """`/v1/sessions`. An id is not to be guessed: who has it may see the session."""
    router = APIRouter(prefix="/v1/sessions")

    @router.get("/{session_id}/snapshot")
    async def snapshot(session_id: SessionId) -> Response:
        """The session as a file, from which `session.start` and `diagonal play --resume` go on."""
        saved = await _file(house, session_id, SNAPSHOT)
        headers = {"content-disposition": f'attachment; filename="{session_id}.json"'}
        return Response(saved, media_type="application/json", headers=headers)

    @router.get("/{session_id}/recording")
    async def recording(session_id: SessionId) -> Response:
        """What was played, as mp4."""
        if session_id not in house.sessions:
            headers = {"content-disposition": f'attachment; filename="{session_id}.mp4"'}
            return Response(await _file(house, session_id, RECORDING), media_type="video/mp4", headers=headers)
        path = await _recorded(house, session_id)
        return FileResponse(path, filename=f"{session_id}.mp4", background=BackgroundTask(path.unlink, missing_ok=True))

    return router


async def file_of(house: House, session_id: str, what: str) -> bytes:
    """The snapshot or the recording of a session that is open here."""
    if what == SNAPSHOT:
        return json.dumps(await house.sessions[session_id].snapshot()).encode()
    path = await _recorded(house, session_id)
    try:
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


async def _file(house: House, session_id: str, what: str) -> bytes:
    """The same of a session that is open anywhere."""
    if session_id in house.sessions:
        return await file_of(house, session_id, what)
    found = None if house.elsewhere is None else await house.elsewhere(session_id, what)
    if found is None:
        raise HTTPException(404, f"there is no open session {session_id}")
    return found


async def _recorded(house: House, session_id: str) -> FilePath:
    session: Open = house.sessions[session_id]
    path = house.data / "recordings" / f"{secrets.token_hex(16)}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    async with house.recording:
        try:
            await record(session.ticker, session.player, path, house.settings.marking)
        except ValueError as error:
            raise HTTPException(409, f"the session changed while it was recorded: {error}") from error
    return path
