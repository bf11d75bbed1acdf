"""Writing files so that a failed run leaves nothing half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_target(path: str | Path, *suffixes: str) -> None:
    """Refuse at once a name that cannot be written, or that ends in none of `suffixes`, if any are given."""
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise ValueError(f"cannot write {path}: the name must end in {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path` that becomes `path` on success and is removed on failure."""
    path = Path(path)
    check_target(path)
    # The suffix stays last: encoders choose their format by it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; give the ordinary permissions.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.filename == str(temporary):  # speak of the file that was asked for
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """One process at a time, for files of a folder that are read, added to and written again. The lock goes with its
    process, however that ends. Where the system has no such locks (Windows) one process must do all of it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # network file systems want to write what they lock, and a folder cannot be
            os.close(handle)
            handle = os.open(Path(folder) / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
