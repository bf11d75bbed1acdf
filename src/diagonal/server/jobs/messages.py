"""What `/v1/videos` answers: OpenAI's Video, with fields of our own behind it."""

from __future__ import annotations

import time
from typing import Literal

from pydantic import BaseModel

from diagonal.server.jobs.runner import Running
from diagonal.server.jobs.store import QUEUED, RUNNING, Job


class JobError(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class Video(BaseModel):
    """A job. `seconds` and `size` are those of the file."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    prompt: str | None
    remixed_from_video_id: str | None
    seconds: str
    size: str
    error: JobError | None
    # Ours:
    num_frames: int
    fps: float
    seed: int
    schedule: str
    actions: str | list[str] | None
    start: str | None
    position: int | None  # jobs before it, of one that waits
    restarts: int  # how often it was begun again, because the server ended
    model_calls: int | None
    inference_time_s: float | None


class VideoList(BaseModel):
    """A page of jobs."""

    object: Literal["list"] = "list"
    data: list[Video]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Deleted(BaseModel):
    """A job that is gone."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True


def video(job: Job, running: Running | None, position: int | None) -> Video:
    """A job as it is now."""
    ended = job.status not in (QUEUED, RUNNING)
    progress = 100 if job.status == "completed" else 0 if running is None else running.progress
    (height, width), fields = job.size, job.fields
    return Video.model_validate(
        {
            "id": job.id,
            "model": job.model,
            "status": job.status,
            "progress": progress,
            "created_at": int(job.created_at),
            "completed_at": int(job.completed_at) if ended and job.completed_at else None,
            "expires_at": int(job.expires_at) if job.expires_at else None,
            "prompt": fields.get("prompt"),
            "remixed_from_video_id": job.remix_of,
            "seconds": f"{job.frames / job.fps:.6g}",
            "size": f"{width}x{height}",
            "error": None if job.error is None else {"code": job.error[0], "message": job.error[1]},
            "num_frames": job.frames,
            "fps": job.fps,
            "seed": fields["seed"],
            "schedule": job.schedule,
            "actions": fields.get("actions"),
            "start": fields.get("start"),
            "position": position,
            "restarts": job.restarts,
            "model_calls": job.calls,
            "inference_time_s": job.seconds,
        }
    )


def poll_after(running: Running | None) -> int:
    """Milliseconds after which asking again is worth while: half of what is left, as far as that can be told."""
    if running is None or not running.made:
        return 500
    spent = time.monotonic() - running.began
    left = spent / running.made * (running.total - running.made)
    return int(1000 * min(max(left / 2, 0.1), 5.0))
