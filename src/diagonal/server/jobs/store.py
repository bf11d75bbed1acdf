"""Jobs that outlive the server: a table of them in SQLite, and a folder of files for each.

Whatever is written of a job, its row changes last: so what a row says is there.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from diagonal.media.files import atomic

QUEUED, RUNNING, COMPLETED, FAILED = "queued", "in_progress", "completed", "failed"
WAITING = (QUEUED, RUNNING)
VIDEO, THUMBNAIL, SPRITESHEET, UPLOAD = "video.mp4", "thumbnail.webp", "spritesheet.jpg", "input"
FOLDER = "videos"
TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, model TEXT NOT NULL, status TEXT NOT NULL,
    expires_at REAL, bytes INTEGER NOT NULL, record TEXT NOT NULL
)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A video that is asked for, and what became of it."""

    id: str
    model: str
    fields: dict[str, Any]  # from which it is made: those that were given, and its seed
    frames: int
    fps: float
    size: tuple[int, int]  # height and width
    schedule: str
    created_at: float = field(default_factory=time.time)
    status: str = QUEUED
    completed_at: float | None = None  # when it ended, however it did
    expires_at: float | None = None
    error: tuple[str, str] | None = None  # code and message
    uploaded: bool = False  # there is an input
    remix_of: str | None = None
    restarts: int = 0
    calls: int | None = None  # of the model
    seconds: float | None = None  # that it took, all waiting for others included
    bytes: int = 0

    def failed(self, code: str, why: str) -> Job:
        """The same, ended for this reason."""
        return replace(self, status=FAILED, error=(code, why), completed_at=time.time())


class Store:
    """The jobs of one server. May be used from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._lock = folder, threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(folder / "jobs.sqlite", timeout=0.5, check_same_thread=False, isolation_level=None)
        try:
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")  # of two servers the second is refused
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.execute("PRAGMA temp_store = MEMORY")
            self._base.execute("BEGIN EXCLUSIVE")
            self._base.execute(TABLE)
            self._base.execute("CREATE INDEX IF NOT EXISTS waiting ON jobs (status, model)")
            self._base.execute("CREATE INDEX IF NOT EXISTS expiring ON jobs (expires_at)")
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            self._base.close()
            why = f"the jobs in {folder} cannot be opened ({error}): another server uses them, or the file is damaged"
            raise ValueError(f"{why}; stop that server, or name another folder (--data)") from error

    def close(self) -> None:
        """Let another server have it."""
        with self._lock:
            self._base.close()

    def place(self, job_id: str) -> Path:
        """The folder of a job's files."""
        return self.folder / job_id

    def add(self, job: Job, upload: bytes | None) -> Job:
        """Keep a new job, and what came with it."""
        place = self.place(job.id)
        place.mkdir()
        try:
            if upload is not None:
                with atomic(place / UPLOAD) as temporary:
                    temporary.write_bytes(upload)
            job = replace(job, uploaded=upload is not None, bytes=len(upload or b""))
            row = (job.id, job.model, job.status, job.expires_at, job.bytes, json.dumps(asdict(job)))
            with self._cursor() as base:
                base.execute(
                    "INSERT INTO jobs (id, model, status, expires_at, bytes, record) VALUES (?,?,?,?,?,?)", row
                )
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        return job

    def change(self, job: Job) -> bool:
        """Keep what became of a job; whether it is there still."""
        if job.status == COMPLETED and self.place(job.id).is_dir():
            job = replace(job, bytes=sum(file.stat().st_size for file in self.place(job.id).iterdir()))
        row = (job.status, job.expires_at, job.bytes, json.dumps(asdict(job)), job.id)
        with self._cursor() as base:
            found = base.execute("UPDATE jobs SET status=?, expires_at=?, bytes=?, record=? WHERE id=?", row)
            return found.rowcount == 1

    def delete(self, job_id: str, files: bool = True) -> bool:
        """Forget a job, and its files if it is said; whether it was there."""
        with self._cursor() as base:
            found = base.execute("DELETE FROM jobs WHERE id=?", (job_id,)).rowcount == 1
        if found and files:
            shutil.rmtree(self.place(job_id), ignore_errors=True)
        return found

    def find(self, job_id: str) -> Job | None:
        """A job by its id."""
        found = self._jobs("SELECT record FROM jobs WHERE id=?", (job_id,))
        return found[0] if found else None

    def page(self, after: str | None, limit: int, newest: bool) -> tuple[list[Job], bool]:
        """So many jobs in the order in which they came, behind one of them, and whether there are more."""
        order, sign = ("DESC", "<") if newest else ("ASC", ">")
        where = "" if after is None else f"WHERE number {sign} (SELECT number FROM jobs WHERE id=?)"
        given = (limit + 1,) if after is None else (after, limit + 1)
        found = self._jobs(f"SELECT record FROM jobs {where} ORDER BY number {order} LIMIT ?", given)
        return found[:limit], len(found) > limit

    def waiting(self, model: str | None = None, status: tuple[str, ...] = (QUEUED,)) -> list[Job]:
        """Jobs of a model, or of all, in this state, the first first."""
        marks = ",".join("?" * len(status))
        where, given = ("", status) if model is None else ("AND model=?", (*status, model))
        return self._jobs(f"SELECT record FROM jobs WHERE status IN ({marks}) {where} ORDER BY number", given)

    def expired(self, now: float) -> list[Job]:
        """Jobs that were kept long enough."""
        return self._jobs("SELECT record FROM jobs WHERE expires_at <= ?", (now,))

    def used(self) -> int:
        """Bytes of all files."""
        with self._cursor() as base:
            (total,) = base.execute("SELECT COALESCE(SUM(bytes), 0) FROM jobs").fetchone()
        return int(total)

    def count(self) -> int:
        """All jobs, those that ended too."""
        with self._cursor() as base:
            (total,) = base.execute("SELECT COUNT(*) FROM jobs").fetchone()
        return int(total)

    def strays(self) -> list[Path]:
        """Folders of no job: of one that was deleted, or never kept, while the server was stopped."""
        with self._cursor() as base:
            known = {row[0] for row in base.execute("SELECT id FROM jobs")}
        return [path for path in self.folder.glob("video_*") if path.is_dir() and path.name not in known]

    def _jobs(self, query: str, given: tuple[Any, ...]) -> list[Job]:
        with self._cursor() as base:
            rows = base.execute(query, given).fetchall()
        return [_job(row[0]) for row in rows]

    @contextmanager
    def _cursor(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._base


def check_folder(data: Path) -> None:
    """Refuse now a folder whose jobs could not be opened."""
    try:
        Store(data / FOLDER).close()
    except OSError as error:
        raise ValueError(
            f"the folder {data} cannot be written ({error.strerror}); name another one (--data)"
        ) from error


def _job(text: str) -> Job:
    found = json.loads(text)
    error = found.pop("error")
    return Job(**found | {"size": tuple(found["size"]), "error": None if error is None else tuple(error)})
