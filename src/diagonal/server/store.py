"""Where snapshots of open sessions are kept, so that a session outlives the process that it is played in.

    store = SnapshotStore("/shared/sessions")      # a folder, or s3://bucket/sessions: any address that fsspec knows
    store.save("session_0f...", snapshot.as_json())
    saved = store.load("session_0f...")            # in another process, on another machine

A snapshot is a file named by its session's id, which is not to be guessed: who knows it may go on with the session. It
appears whole or not at all. Nothing that goes wrong here may end a session; it is a `StoreError` that says what to do.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from diagonal.media.files import atomic

SESSION_ID = r"^session_[0-9a-f]{32}$"
NAME = re.compile(r"session_[0-9a-f]{32}\.json")
# Here what is put appears whole; elsewhere it is put aside and moved.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "r2", "memory"}


class StoreError(ValueError):
    """The store cannot keep or give a snapshot; the text says why."""


@dataclass(frozen=True, kw_only=True)
class StoreLimits:
    """The most of everything that is kept."""

    bytes: int = 4 * 2**20  # of a snapshot
    seconds: float = 5.0  # until a save or a load is given up
    age_seconds: float = 24 * 3600.0  # of a snapshot; older ones are removed
    every: int = 16  # frames between two snapshots of a session


class Files(Protocol):
    """Small files in one place."""

    def prepare(self) -> None:
        """Make the place, if it is not there."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """All of it, or nothing."""
        ...

    def read(self, name: str, most: int) -> bytes:
        """FileNotFoundError if there is none; at most one byte more than `most`."""
        ...

    def remove(self, name: str) -> None:
        """Whether or not there is one."""
        ...

    def ages(self) -> Iterator[tuple[str, float]]:
        """Names, and seconds since each was written."""
        ...


class SnapshotStore:
    """Of the sessions of one server or of many. Used in threads; nothing in it waits for another call."""

    def __init__(self, place: str | Path, limits: StoreLimits | None = None) -> None:
        self.place, self.limits = str(place), limits or StoreLimits()
        self._files = _open(self.place)

    def check(self) -> None:
        """Make the place if it is not there, and refuse one that snapshots cannot be kept in, before anybody plays."""
        name = f".probe-{secrets.token_hex(8)}"
        with self._in_words("be made"):
            self._files.prepare()
        with self._in_words("be written to"):
            self._files.write(name, b"{}")
        with self._in_words("be read"):
            found = self._files.read(name, 2)
            self._files.remove(name)
        if found != b"{}":
            raise StoreError(f"the snapshot store {self.place} does not give back what was written to it")

    def save(self, session_id: str, snapshot: Mapping[str, Any]) -> None:
        """Keep a snapshot in the place of the one before."""
        data = json.dumps(snapshot).encode()
        if len(data) > self.limits.bytes:
            raise StoreError(f"the snapshot has {len(data)} bytes; at most {self.limits.bytes} are kept")
        with self._in_words("keep the session"):
            self._files.write(_name(session_id), data)

    def load(self, session_id: str) -> dict[str, Any] | None:
        """The newest snapshot of a session; None: there is none."""
        try:
            with self._in_words("be read"):
                data = self._files.read(_name(session_id), self.limits.bytes)
        except FileNotFoundError:
            return None
        if len(data) > self.limits.bytes:
            raise StoreError(f"what is kept of {session_id} has more than {self.limits.bytes} bytes, the most")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"what is kept of {session_id} is damaged: {error}") from error
        if not isinstance(found, dict):
            raise StoreError(f"what is kept of {session_id} is no snapshot")
        return found

    def remove(self, session_id: str) -> None:
        """A session that is over needs none."""
        with self._in_words("forget the session"):
            self._files.remove(_name(session_id))

    def prune(self) -> int:
        """Remove what is older than it may get; gives how many. Other files than snapshots stay."""
        with self._in_words("be listed"):
            old = [name for name, age in self._files.ages() if NAME.fullmatch(name) and age > self.limits.age_seconds]
            for name in old:
                self._files.remove(name)
        return len(old)

    def _in_words(self, what: str) -> _InWords:
        return _InWords(self.place, what)


@dataclass(frozen=True, slots=True)
class _InWords:
    """Errors of the place as a StoreError; that a file is missing is told by whoever asked for it."""

    place: str
    what: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, StoreError):
            return
        if self.what == "be read" and isinstance(error, FileNotFoundError):
            return
        raise StoreError(f"the snapshot store {self.place} cannot {self.what}: {_why(error)}") from error


def _why(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "it is full; remove what is not needed, or give it more room"
    if isinstance(error, FileNotFoundError):
        return "it is gone; make the folder again, or mount it"
    if isinstance(error, PermissionError) or number == errno.EROFS:
        return "it may not be written by this process"
    return str(error) or type(error).__name__


def _name(session_id: str) -> str:
    if not re.fullmatch(SESSION_ID, session_id):
        raise ValueError(f"{session_id!r} is no id of a session")
    return f"{session_id}.json"


def _open(place: str) -> Files:
    protocol, separator, rest = place.partition("://")
    if not separator:
        return Folder(Path(place))
    if protocol in ("file", "local"):
        return Folder(Path(rest))
    try:
        import fsspec
    except ImportError as error:
        raise ValueError(f"{place} needs fsspec: pip install 'diagonal[ray]'; a folder needs nothing") from error
    try:
        system, root = fsspec.url_to_fs(place)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{place} cannot be opened as a snapshot store: {error}") from error
    return Remote(system, root.rstrip("/"), protocol in OBJECT_STORES)


class Folder:
    """A folder, which may be one that several machines share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """With the folders that it is in."""
        if self._folder.exists() and not self._folder.is_dir():
            raise NotADirectoryError("it is a file; name a folder")
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """A folder that went away is not made anew: it may be a mount that is missing."""
        with atomic(self._folder / name) as temporary:
            temporary.write_bytes(data)

    def read(self, name: str, most: int) -> bytes:
        """What is there."""
        with (self._folder / name).open("rb") as file:
            return file.read(most + 1)

    def remove(self, name: str) -> None:
        """If it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def ages(self) -> Iterator[tuple[str, float]]:
        """Those of all files."""
        now = time.time()
        for path in self._folder.iterdir():
            try:
                yield path.name, now - path.stat().st_mtime
            except FileNotFoundError:  # another server was quicker
                continue


class Remote:
    """A place of fsspec's."""

    def __init__(self, system: Any, root: str, whole: bool) -> None:
        self._system, self._root, self._whole = system, root, whole

    def prepare(self) -> None:
        """A bucket must be there; folders are made."""
        self._system.makedirs(self._root, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """In one request where that is whole or nothing."""
        target = f"{self._root}/{name}"
        aside = target if self._whole else f"{self._root}/.{name}-{secrets.token_hex(8)}"
        self._system.pipe_file(aside, data)
        if aside != target:
            self._system.mv(aside, target)

    def read(self, name: str, most: int) -> bytes:
        """No more than asked for."""
        with self._system.open(f"{self._root}/{name}", "rb") as file:
            found: bytes = file.read(most + 1)
        return found

    def remove(self, name: str) -> None:
        """If it is there."""
        try:
            self._system.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return

    def ages(self) -> Iterator[tuple[str, float]]:
        """Of files whose place says when they were written."""
        now = time.time()
        for entry in self._system.ls(self._root, detail=True):
            written = next(
                (entry[key] for key in ("mtime", "LastModified", "updated", "created") if entry.get(key)), None
            )
            if isinstance(written, str):
                written = datetime.fromisoformat(written)
            if isinstance(written, datetime):
                written = written.timestamp()
            if written is not None:
                yield str(entry["name"]).rsplit("/", 1)[-1], now - float(written)
