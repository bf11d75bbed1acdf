"""Ways to run a command: in a fork of one process that has imported all that is slow to import, or to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
ENVIRONMENT.pop("FORCE_COLOR", None)

# Importing torch and diffusers is most of a short run: this does it once, then forks for every command.
SERVER = """
import gc, json, os, sys
import av, PIL.Image, torch
import diagonal
from diagonal.cli import main

diagonal.load("mcar/tiny")
diagonal.load("wan/tiny")
with torch.device("meta"):
    torch.nn.Embedding(1, 1)
gc.freeze()  # the children leave these objects alone as they end

for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(request["outputs"], 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["diagonal", *request["arguments"]]
        main()
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

# Runs a command and kills it where a line of its curve has just been written.
KILLED = """
import os, signal, sys
from diagonal import cli
from diagonal.training import loop

append, step = loop._append, int(sys.argv.pop(1))

def last(path, line):
    append(path, line)
    if line["step"] == step:
        os.kill(os.getpid(), signal.SIGKILL)

loop._append = last
cli.main()
"""


def killed(folder: Path, step: int, *arguments: str) -> None:
    """Run a command that trains, up to a step: nothing is said, saved or removed after it."""
    command = [sys.executable, "-c", KILLED, str(step), *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert done.returncode == -signal.SIGKILL, done.stderr


def numbers_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What --json printed in a run that must have succeeded."""
    assert done.returncode == 0, done.stderr
    numbers: dict[str, Any] = json.loads(done.stdout)
    return numbers


Run = Callable[..., subprocess.CompletedProcess[str]]
_servers: list[Run] = []  # of the module whose tests run now


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, in a module that uses the fixture `forked`."""
    return _servers[-1](folder, *arguments)


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """`call` for commands that load a model."""
    outputs = [tmp_path_factory.mktemp("outputs") / name for name in ("stdout", "stderr")]
    command = [sys.executable, "-c", SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, stdin=pipe, stdout=pipe) as server:

        def run_forked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
            assert server.stdin is not None and server.stdout is not None
            request = {"folder": str(folder), "arguments": arguments, "outputs": [str(path) for path in outputs]}
            print(json.dumps(request), file=server.stdin, flush=True)
            status = int(server.stdout.readline())
            return subprocess.CompletedProcess(arguments, status, *(path.read_text() for path in outputs))

        _servers.append(run_forked)
        yield run_forked
        _servers.remove(run_forked)
        assert server.stdin is not None
        server.stdin.close()
