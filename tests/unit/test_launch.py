"""One program as several processes: what a person hears of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from diagonal.cli.parallel import FramesShared, Parallel, shared, shared_frames
from diagonal.scale.launch import launch


def program(text: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time\nrank = int(os.environ['RANK'])\n{text}"]


def test_every_rank_knows_its_place(tmp_path: Path) -> None:
    place = "os.environ['WORLD_SIZE'] + os.environ['LOCAL_RANK']"
    said = f"open(os.path.join({str(tmp_path)!r}, str(rank)), 'w').write({place})"
    assert launch(program(said), 3) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "30", "1": "31", "2": "32"}


def test_the_first_rank_alone_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(program("print('rank', rank); sys.stderr.write(f'error {rank}\\n'); sys.exit(3)"), 2) == 3
    heard = capfd.readouterr()
    assert heard.out == "rank 0\n" and heard.err == "error 0\n"


def test_a_rank_that_fails_alone_ends_the_others_and_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagonal.scale.launch.GRACE_S", 0.2)
    text = "if rank: sys.exit('out of memory')\ntime.sleep(60)"
    with pytest.raises(ChildProcessError, match="rank 1 of 2 ended with exit code 1: out of memory"):
        launch(program(text), 2)


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_another_number_than_torchruns_is_refused(one_of_two: None) -> None:
    with (
        pytest.raises(ValueError, match="--tensor-parallel 4 given to one of 2 processes"),
        shared(Parallel(tensor_parallel=4), "mcar/tiny", "cpu"),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "model", "device", "says"),
    [
        (Parallel(tensor_parallel=3), "doom", "cpu", "which 3 GPUs cannot share evenly"),
        (Parallel(tensor_parallel=2), "hf:some/model", "cpu", "model of transformers"),
        (Parallel(tensor_parallel=2), "doom", "cpu:0", "write --device cpu"),
        (FramesShared(sequence_parallel=5), "doom-t2v", "cpu", "6 heads, which 5 GPUs cannot share"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_processes_start(
    options: Any, model: str, device: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diagonal.scale.launch.launch", lambda *_: os.abort())
    share = shared if isinstance(options, Parallel) else shared_frames
    with pytest.raises(ValueError, match=says), share(options, model, device):
        pass


def test_one_gpu_starts_nothing() -> None:
    with shared(Parallel(), "doom", "cpu") as ranks, shared(Parallel(tensor_parallel=1), "doom", "cpu") as other:
        assert ranks is None and other is None
