"""The routes of `/v1/videos`: docs/jobs.md says what each takes, and what it costs."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import FileResponse
from starlette.requests import Request
from starlette.responses import Response

from diagonal.server.house import House, Served
from diagonal.server.jobs.body import FILE, Bodies
from diagonal.server.jobs.counters import exposition
from diagonal.server.jobs.fields import FieldError, Fields, MissingError, checked
from diagonal.server.jobs.messages import Deleted, Video, VideoList, poll_after, video
from diagonal.server.jobs.runner import Runner, Running
from diagonal.server.jobs.store import COMPLETED, QUEUED, SPRITESHEET, THUMBNAIL, UPLOAD, VIDEO, WAITING, Job
from diagonal.server.jobs.work import Work, WorldWork, work_of
from diagonal.server.wire import RefusedError
from diagonal.server.world_models import ServedWorld
from diagonal.worlds.script import spell

CONTENT = {
    "video": (VIDEO, "video/mp4"),
    "thumbnail": (THUMBNAIL, "image/webp"),
    "spritesheet": (SPRITESHEET, "image/jpeg"),
}
ENDS = 10.0  # seconds to wait for a job that was cancelled to end
POLL = "openai-poll-after-ms"
MOVES = ("prompt", "actions", "num_frames", "seconds")  # what is done in a world, and for how long
Limit = Annotated[int, Query(ge=1, le=100)]


class Desk:
    """What the routes have in common: jobs as they are now, and new ones."""

    def __init__(self, house: House, runner: Runner) -> None:
        self.house, self.runner = house, runner
        self._bodies, self._checking = Bodies(house.settings.limits), asyncio.Lock()

    def find(self, job_id: str, param: str = "video_id") -> Job:
        """A job by its id, if there is one; one whose file has gone says so."""
        self.runner.tidy()
        job = self.runner.store.find(job_id)
        if job is None:
            raise MissingError(param, "not_found", f"there is no video {job_id[:100]!r}")
        return self._honest(job)

    def page(self, after: str | None, limit: int, order: str) -> VideoList:
        """Jobs in the order in which they came."""
        if after is not None:
            self.find(after, param="after")
        self.runner.tidy()
        jobs, more = self.runner.store.page(after, limit, order == "desc")
        data = [self.shown(self._honest(job)) for job in jobs]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return VideoList(data=data, has_more=more, first_id=first, last_id=last)

    def shown(self, job: Job) -> Video:
        """A job as it is now."""
        position = None
        if job.status == QUEUED:
            before = [one.id for one in self.runner.store.waiting(job.model, WAITING)]
            position = before.index(job.id) if job.id in before else None
        return video(job, self.runner.running(job.id), position)

    async def create(self, request: Request) -> Job:
        """The job that a request asks for."""
        body = await self._bodies.read(request)
        return await self.put(checked(body.fields), body.upload)

    async def remix(self, job: Job, request: Request) -> Job:
        """The same with another prompt: of a world, other actions."""
        body = await self._bodies.read(request)
        if set(body.fields) != {"prompt"} or body.upload is not None:
            wrong = next((name for name in body.fields if name != "prompt"), "prompt")
            raise FieldError(wrong, "bad_value", "a remix takes a prompt and nothing else")
        # How long a world's video is was said by the actions before.
        world = isinstance(self.house.models.get(job.model), ServedWorld)
        kept = {name: value for name, value in job.fields.items() if not world or name not in MOVES}
        return await self.put(checked(kept | {"prompt": body.fields["prompt"]}), await self._upload(job), job.id)

    async def extend(self, request: Request) -> Job:
        """A video of a world that goes on along more actions. It is made from its start again, with its seed: so its
        frames come again, and those that follow are the ones that more actions would have led to at once."""
        body = await self._bodies.read(request)
        job = self.find(_named(body.fields.pop("video", None)), "video")
        model = self._model(job.model)
        if not isinstance(model, ServedWorld):
            raise RefusedError("unsupported", f"{model.name} is no world: its videos go on live, on the socket, alone")
        wrong = next((name for name in body.fields if name not in MOVES), FILE if body.upload is not None else None)
        if wrong is not None:
            raise FieldError(wrong, "bad_value", f"an extension takes a video, and of {', '.join(MOVES)} what is new")
        upload, more = await self._upload(job), checked(body.fields)
        made = await asyncio.to_thread(_work, model, Fields.model_validate(job.fields), upload, self.house)
        new = await asyncio.to_thread(_work, model, more, None, self.house)
        assert isinstance(made, WorldWork) and isinstance(new, WorldWork)
        kept = {name: value for name, value in job.fields.items() if name not in MOVES}
        return await self.put(checked(kept | {"actions": spell([*made.actions, *new.actions])}), upload, job.id)

    async def _upload(self, job: Job) -> bytes | None:
        """What a job began with, if it was sent."""
        place = self.runner.store.place(job.id) / UPLOAD
        if job.uploaded and not place.is_file():
            raise FieldError(FILE, "expired", "what this video began with has gone")
        return await asyncio.to_thread(place.read_bytes) if job.uploaded else None

    async def put(self, fields: Fields, upload: bytes | None, remix_of: str | None = None) -> Job:
        """Check what is asked for, keep it, and have it made."""
        model = self._model(fields.model)
        if self.house.closing:
            raise RefusedError("closing", "the server stops; try again later")
        async with self._checking:  # one at a time: decoding clips takes memory
            work = await asyncio.to_thread(_work, model, fields, upload, self.house)
            self._check_room(len(upload or b""))
            given = fields.given() | {"model": model.name, "seed": work.seed}
            if isinstance(model, ServedWorld) and upload is None:
                given.setdefault("start", next(iter(model.starts)))
            job = Job(
                id=f"video_{secrets.token_hex(16)}",
                model=model.name,
                fields=given,
                frames=work.frames,
                fps=float(work.fps),
                size=work.size,
                schedule=work.schedule,
                remix_of=remix_of,
            )
            kept = await asyncio.to_thread(self.runner.put, job, upload)
            self.runner.counters[model.name].created += 1
        return kept

    async def cancelled(self, job: Job) -> Job:
        """A job after it was told to end; read again, for it may have been done just before."""
        running = self.runner.cancel(job.id)
        if running is not None:
            await _ended(running)
        return self.find(job.id)

    async def deleted(self, job: Job) -> Deleted:
        """Stop it, and forget it."""
        running = self.runner.cancel(job.id)
        if running is not None:
            await _ended(running)
        if not await asyncio.to_thread(self.runner.delete, job.id):
            raise MissingError("video_id", "not_found", f"there is no video {job.id!r}")
        return Deleted(id=job.id)

    def metrics(self) -> str:
        """Text for `/metrics`."""
        waiting = dict.fromkeys(((name, status) for name in self.house.models for status in WAITING), 0)
        for job in self.runner.store.waiting(status=WAITING):
            if (job.model, job.status) in waiting:
                waiting[job.model, job.status] += 1
        return exposition(self.runner.counters, waiting)

    def _honest(self, job: Job) -> Job:
        """A video whose file somebody took away is not completed."""
        if job.status == COMPLETED and not (self.runner.store.place(job.id) / VIDEO).is_file():
            return self.runner.lost(job, "content_missing", "the file of this video is not there any more")
        return job

    def _model(self, name: str | None) -> Served:
        models = self.house.models
        if name is not None and name not in models:
            raise MissingError(
                "model", "unknown_model", f"there is no model {name[:100]!r}; known: {', '.join(models)}"
            )
        return next(iter(models.values())) if name is None else models[name]

    def _check_room(self, more: int) -> None:
        limits, store = self.house.settings.limits, self.runner.store
        if len(store.waiting()) >= limits.jobs:
            raise RefusedError("queue_full", f"{limits.jobs} jobs wait already; try again when one of them is done")
        if store.count() >= limits.records:
            raise RefusedError(
                "too_many", f"{limits.records} jobs are kept, which is all that there may be; delete some"
            )
        if store.used() + more >= limits.disk_bytes:
            most = f"{limits.disk_bytes / 2**30:g} GiB"
            raise RefusedError("disk_full", f"videos take {most}, which is all that there is for them; delete some")


def routes(desk: Desk) -> APIRouter:
    """`/v1/videos`. Ids are not to be guessed, but whoever may use the server sees the list of all."""

    async def switched_on() -> None:
        if not desk.house.settings.jobs:
            raise RefusedError("unsupported", "this server makes no videos in the background, but live ones alone")

    router = APIRouter(prefix="/v1/videos", dependencies=[Depends(switched_on)])

    def answer(job: Job, response: Response) -> Video:
        response.headers[POLL] = str(poll_after(desk.runner.running(job.id)))
        return desk.shown(job)

    @router.post("", openapi_extra=_body(Fields.model_json_schema(), file=True))
    async def create(request: Request, response: Response) -> Video:
        """Ask for a video."""
        return answer(await desk.create(request), response)

    @router.get("")
    async def listed(
        after: Annotated[str | None, Query(max_length=100)] = None,
        limit: Limit = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> VideoList:
        """Jobs, the newest first."""
        return desk.page(after, limit, order)

    @router.get("/{video_id}")
    async def retrieve(video_id: str, response: Response) -> Video:
        """How far a job is."""
        return answer(desk.find(video_id), response)

    @router.delete("/{video_id}")
    async def delete(video_id: str) -> Deleted:
        """Stop a job, and forget it and its files."""
        return await desk.deleted(desk.find(video_id))

    @router.post("/{video_id}/cancel")
    async def cancel(video_id: str, response: Response) -> Video:
        """Stop a job: it fails with the code 'cancelled', unless it was done before."""
        return answer(await desk.cancelled(desk.find(video_id)), response)

    @router.get("/{video_id}/content", response_class=FileResponse, responses=_files())
    async def content(video_id: str, variant: Literal["video", "thumbnail", "spritesheet"] = "video") -> FileResponse:
        """The video of a job that is completed, a picture of its first frame, or a sheet of up to 16 frames."""
        job = desk.find(video_id)
        if job.status != COMPLETED:
            code, why = job.error or ("not_ready", "ask again later")
            raise MissingError("video_id", code, f"this video is {job.status}, and has no content: {why}")
        name, kind = CONTENT[variant]
        return FileResponse(desk.runner.store.place(job.id) / name, media_type=kind, filename=f"{job.id}-{name}")

    @router.post("/{video_id}/remix", openapi_extra=_body(_REMIX, file=False))
    async def remix(video_id: str, request: Request, response: Response) -> Video:
        """The same video with another prompt, or of a world with other actions: its seed, start and size stay."""
        return answer(await desk.remix(desk.find(video_id), request), response)

    @router.post("/extensions", openapi_extra=_body(_EXTENSION, file=False))
    async def extend(request: Request, response: Response) -> Video:
        """A video of a world, and what follows it along more actions; `seconds` of the answer are those of all."""
        return answer(await desk.extend(request), response)

    @router.post("/edits", include_in_schema=False)
    @router.post("/characters", include_in_schema=False)
    async def unsupported(request: Request) -> Video:
        """What no model here can do."""
        what = request.url.path.rpartition("/")[2]
        raise RefusedError("unsupported", f"{what} are not made here; docs/jobs.md says what can be done instead")

    return router


def _work(model: Served, fields: Fields, upload: bytes | None, house: House) -> Work:
    try:
        return work_of(model, fields, upload, house.settings.limits)
    except ValueError as error:
        raise RefusedError("bad_value", str(error)) from error


async def _ended(running: Running) -> None:
    """Wait until a job has ended, but not for long: a piece of a large model may take minutes."""
    until = time.monotonic() + ENDS
    while not running.ended.is_set() and time.monotonic() < until:
        await asyncio.sleep(0.01)


def _named(given: Any) -> str:
    """The id in `video`: itself, or {"id": ...}."""
    found = given.get("id") if isinstance(given, dict) and len(given) == 1 else given
    if not isinstance(found, str):
        raise FieldError("video", "bad_value", "the id of a video is needed, or {'id': ...}; files are not taken")
    return found


_EXTENSION = {
    "type": "object",
    "properties": {
        "video": {"type": "string"},
        **{name: Fields.model_json_schema()["properties"][name] for name in ("prompt", "actions", "num_frames")},
    },
    "required": ["video"],
}
_REMIX = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}


def _body(schema: dict[str, Any], file: bool) -> dict[str, Any]:
    """A body that is read by hand, as OpenAPI has it."""
    form = {**schema, "properties": {**schema["properties"], FILE: {"type": "string", "format": "binary"}}}
    kinds = {"multipart/form-data": {"schema": form if file else schema}, "application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": kinds}}


def _files() -> dict[int | str, dict[str, Any]]:
    """What a file comes as."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": "The file.", "content": {kind: binary for _, kind in CONTENT.values()}}}
