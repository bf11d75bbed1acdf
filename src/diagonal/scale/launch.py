"""Starts a program once for each GPU of this machine, as torchrun does, with what a person wants to see of it: the
first process has the terminal, the others are heard only where one of them fails."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO

GRACE_S = 10.0  # that the others have to end by themselves where one has failed
LINES = 5  # of what a failed process said


def launch(command: Sequence[str], count: int, environment: Mapping[str, str] | None = None) -> int:
    """Run a command as ranks 0 to count - 1 of one group, to the end; gives the exit code: that of the first rank, or
    of the one that failed while it did not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**(os.environ if environment is None else environment), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    shared.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    with ExitStack() as end:
        said = [end.enter_context(tempfile.TemporaryFile()) for _ in range(1, count)]
        running: list[subprocess.Popen[bytes]] = []
        end.callback(_stop, running)
        for rank in range(count):
            own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            rest = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said[rank - 1]} if rank else {}
            running.append(subprocess.Popen(command, env=own, **rest))  # type: ignore[call-overload]
        codes = _wait(running)
        failed = [rank for rank, code in enumerate(codes) if code not in (0, None)]
        if codes[0] is not None and (codes[0] or not failed):
            return codes[0]
        rank = failed[0]
        raise ChildProcessError(f"rank {rank} of {count} ended with exit code {codes[rank]}: {_last(said[rank - 1])}")


def _wait(running: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    """Their exit codes; None for those that had to be stopped because another one failed."""
    deadline = None
    while any(process.poll() is None for process in running):
        if deadline is None and any(process.poll() for process in running):
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return [process.poll() for process in running]
        time.sleep(0.02)
    return [process.returncode for process in running]


def _stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last(file: IO[bytes]) -> str:
    file.seek(0)
    return " ".join(file.read().decode(errors="replace").splitlines()[-LINES:]).strip() or "it said nothing"
