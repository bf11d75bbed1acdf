"""The jobs of a server: one of each model at a time, in the order in which they came, beside those who play.

A job's frames are made in the thread of its model, a piece at a time, between those of sessions. While somebody has a
seat the job waits after each piece `PATIENCE` times as long as that took: it has a quarter of the model at most, and a
player waits for one piece of it at most.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from diagonal.generation.session import Piece, Session
from diagonal.media.provenance.writing import MarkedWriter, marked_writer
from diagonal.server.house import House, Served
from diagonal.server.jobs.counters import Counters
from diagonal.server.jobs.fields import Fields
from diagonal.server.jobs.film import pictures
from diagonal.server.jobs.store import COMPLETED, FAILED, FOLDER, QUEUED, RUNNING, UPLOAD, VIDEO, WAITING, Job, Store
from diagonal.server.jobs.work import Work, thread_of, work_of

PATIENCE = 3
RESTARTS = 1  # of one job: a job that takes the server down with it does not do so for ever
SWEEP, AGAIN = 30.0, 2.0  # seconds
log = logging.getLogger(__name__)


class CancelledError(Exception):
    """Somebody does not want the video any more, or the server stops."""


@dataclass(slots=True)
class Running:
    """A job that is being made."""

    id: str
    began: float = field(default_factory=time.monotonic)
    made: int = 0  # frames
    total: int = 1
    cancelled: bool = False  # by somebody; else it is the server that stops
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def progress(self) -> int:
        """Per cent; all of them only when the file is there."""
        return min(99, 100 * self.made // self.total)


class Runner:
    """Made with a house, started and stopped with it."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._store: Store | None = None
        self.counters = {name: Counters() for name in house.models}
        self._running: dict[str, Running] = {}
        self._news, self._stopping = threading.Condition(), False
        made = [self._thread(f"jobs of {name}", partial(self._work, model)) for name, model in house.models.items()]
        self._threads = [*made, self._thread("jobs that expire", self._sweep)]

    @property
    def store(self) -> Store:
        """The jobs; there are some from `start` to `stop`."""
        if self._store is None:
            raise RuntimeError("jobs are not started")
        return self._store

    def start(self) -> None:
        """Open the folder, settle what was left in it, and go on."""
        self._store = Store(self._house.data / FOLDER)
        self._settle()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the pieces that are being made. What is not done waits for the next start."""
        with self._news:
            self._stopping = True
            for running in self._running.values():
                running.stop.set()
            self._news.notify_all()
        for thread in self._threads:
            thread.join()
        self.store.close()

    def put(self, job: Job, upload: bytes | None) -> Job:
        """Keep a job, then have it made."""
        kept = self.store.add(job, upload)
        with self._news:
            self._news.notify_all()
        return kept

    def running(self, job_id: str) -> Running | None:
        """A job that is being made now."""
        return self._running.get(job_id)

    def cancel(self, job_id: str) -> Running | None:
        """Have a job not made, or not to its end; gives what is to be waited for."""
        with self._news:
            running, job = self._running.get(job_id), self.store.find(job_id)
            if running is not None:
                running.cancelled = True
                running.stop.set()
            elif job is not None and job.status in WAITING:
                self._ended(job.failed("cancelled", "the job was cancelled before it began"))
        return running

    def delete(self, job_id: str) -> bool:
        """Forget a job and its files. Those of one that is being made still go with its last piece."""
        with self._news:
            return self.store.delete(job_id, files=job_id not in self._running)

    def tidy(self) -> None:
        """End what was kept long enough: first the files, and as long again after that the job."""
        now = time.time()
        for job in self.store.expired(now):
            if job.status != COMPLETED:
                self.store.delete(job.id)
                continue
            kept = f"{self._house.settings.limits.keep_seconds / 3600:g} hours"
            self.lost(job, "expired", f"videos are kept for {kept}, and this one has gone")

    def lost(self, job: Job, code: str, why: str) -> Job:
        """A video that is not there any more is not completed."""
        gone = replace(job, status=FAILED, error=(code, why), bytes=0, expires_at=self._until())
        if self.store.change(gone):
            shutil.rmtree(self.store.place(job.id), ignore_errors=True)
        return gone

    def _thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def _until(self) -> float:
        return time.time() + self._house.settings.limits.keep_seconds

    def _settle(self) -> None:
        """What a server before this one left: jobs that were being made are made again, and once only."""
        for place in self.store.strays():
            shutil.rmtree(place, ignore_errors=True)
        for job in self.store.waiting(status=WAITING):
            if job.model not in self._house.models:
                self._ended(job.failed("model_gone", f"{job.model} is not served any more"))
            elif job.status == RUNNING and job.restarts >= RESTARTS:
                self._ended(job.failed("interrupted", "the server ended twice while it made this video"))
            elif job.status == RUNNING:
                log.warning("job %s was being made when the server ended: it is made again", job.id)
                self.store.change(replace(job, status=QUEUED, restarts=job.restarts + 1))

    def _sweep(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._stopping, SWEEP)
                if self._stopping:
                    return
            try:
                self.tidy()
            except Exception:  # a full disk, say: it is tried again
                log.exception("jobs that expired could not be ended")

    def _work(self, model: Served) -> None:
        """The thread of a model's jobs."""
        while True:
            job = self._next_job(model)
            if job is None:
                return
            running = self._running[job.id]
            ended = self._make(model, job, running)
            while not self._kept(ended):
                log.error("what became of job %s could not be kept; it is tried again", job.id)
            running.ended.set()

    def _next_job(self, model: Served) -> Job | None:
        """The next one, when there is one; None: the server stops."""
        with self._news:
            while not self._stopping:
                waiting = self.store.waiting(model.name)
                if waiting:
                    self._running[waiting[0].id] = Running(waiting[0].id, total=waiting[0].frames)
                    return waiting[0]
                self._news.wait()
        return None

    def _kept(self, job: Job) -> bool:
        """Keep what became of a job; on a full disk it may not be possible now."""
        with self._news:
            try:
                self._ended(job)
            except (sqlite3.Error, OSError):
                if not self._stopping:
                    self._news.wait(AGAIN)
                    return False
            del self._running[job.id]
        return True

    def _make(self, model: Served, job: Job, running: Running) -> Job:
        """What became of a job."""
        try:
            return self._film(model, job, running)
        except CancelledError:
            if not running.cancelled:
                return job  # as it was: the next server goes on with it
            return job.failed("cancelled", f"the job was cancelled after {running.made} of {running.total} frames")
        except ValueError as error:
            return job.failed("bad_value", str(error))
        except OSError as error:
            log.exception("the files of job %s could not be written", job.id)
            return job.failed("storage", f"the video could not be written: {error.strerror or 'an error of the disk'}")
        except Exception:  # whatever a model does: the next job may be better
            log.exception("job %s failed", job.id)
            return job.failed("internal", "the model failed; the server's log says more")

    def _film(self, model: Served, job: Job, running: Running) -> Job:
        """The video of a job, on the disk."""
        place, limits = self.store.place(job.id), self._house.settings.limits
        upload = (place / UPLOAD).read_bytes() if job.uploaded else None
        for path in place.glob(".*"):  # half a video of a server that was killed
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        work = work_of(model, Fields.model_validate(job.fields), upload, limits)
        _check_going(running)
        began, do = time.monotonic(), thread_of(model)
        session: Session = do(work.begin).result()
        try:
            if not self.store.change(replace(job, status=RUNNING)):
                raise CancelledError
            how = work.origin(), self._house.settings.marking, work.from_text
            with marked_writer(place / VIDEO, work.fps, *how) as video:
                calls = self._pieces(model, (session, work), video, running)
        finally:
            do(session.close).result()
        pictures(place)
        done = replace(job, status=COMPLETED, completed_at=time.time(), calls=calls, frames=running.made)
        return replace(done, seconds=time.monotonic() - began)

    def _pieces(self, model: Served, what: tuple[Session, Work], video: MarkedWriter, running: Running) -> int:
        """Write all pieces; gives the calls of the model."""
        (session, work), do = what, thread_of(model)
        calls, counters = 0, self.counters[model.name]
        while True:
            _check_going(running)
            began = time.monotonic()
            asked: Future[Piece | None] = do(_next(session))
            piece = asked.result()
            if piece is None:
                return calls
            took = time.monotonic() - began
            video.write(work.shown(piece.frames))
            calls, running.made = calls + piece.calls, running.made + len(piece.frames)
            counters.frames += piece.new
            if model.seats.free < model.seats.count:
                running.stop.wait(PATIENCE * took)

    def _ended(self, job: Job) -> None:
        """Keep what became of a job; of one that was deleted meanwhile nothing is left."""
        over = job.status not in WAITING
        job = replace(job, expires_at=self._until()) if over else replace(job, status=QUEUED)
        if not self.store.change(job) or job.status == FAILED:
            shutil.rmtree(self.store.place(job.id), ignore_errors=True)
        if over and job.model in self.counters:
            self.counters[job.model].ended[COMPLETED if job.error is None else job.error[0]] += 1


def _next(session: Session) -> Callable[[], Any]:
    return lambda: next(session, None)


def _check_going(running: Running) -> None:
    if running.stop.is_set():
        raise CancelledError
