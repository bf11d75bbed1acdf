"""Starts a module of the tests as several processes, as torchrun does: `python -m tests.that_module FOLDER ...`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def launch(module: str, count: int, *arguments: object, timeout: float = 450) -> None:
    """Run it to the end in so many processes; what one that fails has said is in the error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    common = {**os.environ, "PYTHONPATH": paths, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    running = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=timeout)[1] for process in running]
        failed = [text for process, text in zip(running, said, strict=True) if process.returncode]
        assert not failed, failed[0]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
