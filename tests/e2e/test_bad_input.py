"""What a user can get wrong: each ends with exit code 2, one line that helps, no traceback and no file."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from diagonal import checkpoints
from diagonal.generation.load import load
from diagonal.media import video
from tests.e2e.conftest import ENVIRONMENT

COMMAND = str(Path(sys.executable).with_name("diagonal"))

# A disk that is full after a thousand bytes: limits and ignored signals outlive exec.
FULL_DISK = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
os.execv(sys.argv[1], sys.argv[1:])
"""


def run(folder: Path, *arguments: str, before: tuple[str, ...] = (), stdout: Any = subprocess.PIPE):
    command = [*before, COMMAND, *arguments]
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120
    )


def assert_refused(done: subprocess.CompletedProcess[str], folder: Path, *words: str) -> None:
    """One line, at the end, with these words; nothing printed and nothing written besides."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2, done.stderr
    lines = done.stderr.rstrip().splitlines()
    assert [line.startswith("error: ") for line in lines].index(True) == len(lines) - 1, done.stderr
    for word in words:
        assert word in lines[-1]
    assert not done.stdout
    assert os.listdir(folder) == []


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder of inputs, most of them wrong in one way each."""
    folder: Path = tmp_path_factory.mktemp("inputs")
    frames = np.full((6, 224, 384, 3), 120, dtype=np.uint8)
    with video.writer(folder / "clip.mp4", 20) as file:
        file.write(frames)
    whole = (folder / "clip.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(frames[0, :90, :160]).save(folder / "small.png")
    (folder / "two.jsonl").write_text('{"forward": 1}\n' * 2)
    (folder / "broken.jsonl").write_text('{"forward": 1}\n{"forward"\n')

    state = checkpoints.read(load("mcar/tiny").save_pretrained(folder / "good"))
    key = "transformer.norm.weight"
    save_file({name: value for name, value in state.items() if name != key}, folder / "missing.safetensors")
    save_file(state | {"transformer.surplus": torch.zeros(1)}, folder / "extra.safetensors")
    save_file(state | {"optimizer.step": torch.zeros(1)}, folder / "stranger.safetensors")
    save_file(state | {key: torch.zeros(3)}, folder / "shape.safetensors")
    save_file(
        {name: value for name, value in state.items() if name.startswith("transformer.")}, folder / "model.safetensors"
    )
    torch.save({"state_dict": state | {"hook": Trap(folder / "sprung")}}, folder / "evil.ckpt")
    (folder / "raw.ckpt").write_bytes(pickle.dumps(Trap(folder / "sprung")))
    return folder


# Without a model: these answer at once.

PLANS = {
    "grid of two sides": (["--grid", "3x40"], ["'3x40'", "FRAMESxROWSxCOLS", "3x40x64"]),
    "grid of words": (["--grid", "axbxc"], ["'axbxc'", "FRAMESxROWSxCOLS"]),
    "grid with minus": (["--grid", "3x-4x4"], ["'3x-4x4'", "FRAMESxROWSxCOLS"]),
    "grid without rows": (["--grid", "3x0x4"], ["3x0x4", "rows=0", "at least 1"]),
    "grid without frames": (["--grid", "0x4x4"], ["frames=0", "at least 1"]),
    "grid beyond memory": (["--grid", "999999x999999x999999"], ["999999x999999x999999"]),
    "k=0": (["--grid", "3x4x4", "--schedule", "diagonal:k=0"], ["k=0", "at least 1"]),
    "d=0": (["--grid", "3x4x4", "--schedule", "diagonal:d=0"], ["d=0", "at least 1"]),
    "d beyond the frame": (["--grid", "3x4x4", "--schedule", "diagonal:k=1,d=8"], ["d=8", "1 to 7", "4x4"]),
    "window of 0": (["--grid", "3x4x4", "--schedule", "window:s=0"], ["s=0", "at least 1"]),
    "window without s": (["--grid", "3x4x4", "--schedule", "window"], ["lacks s", "window:s=1"]),
    "unknown schedule": (
        ["--grid", "3x4x4", "--schedule", "zigzag"],
        ["'zigzag'", "diagonal, lossless, raster, window"],
    ),
    "unknown field": (["--grid", "3x4x4", "--schedule", "diagonal:q=1"], ["'q=1'", "k=..., d=..."]),
    "field of raster": (["--grid", "3x4x4", "--schedule", "raster:k=1"], ["'k=1'", "no fields"]),
    "number in words": (["--grid", "3x4x4", "--schedule", "diagonal:k=two"], ["'two'", "whole number"]),
    "broken number": (["--grid", "3x4x4", "--schedule", "diagonal:k=1.5"], ["'1.5'", "whole number"]),
    "nothing before": (["--grid", "3x4x4", "--prefix", "0"], ["prefix of at least 1", "known frames"]),
    "negative prefix": (["--grid", "3x4x4", "--prefix=-1"], ["prefix=-1", "negative"]),
    "negative suffix": (["--grid", "3x4x4", "--suffix=-1"], ["suffix=-1", "negative"]),
    "all frames known": (["--grid", "3x4x4", "--known-frames", "3"], ["3 of 3 frames", "0 to 2"]),
    "more than all known": (["--grid", "3x4x4", "--known-frames", "7"], ["7 of 3 frames", "0 to 2"]),
    "stand-in without frame": (["--grid", "3x4x4", "--stand-in", "prompt_frame"], ["prompt_frame", "known frame"]),
    "picture not png": (["--grid", "3x4x4", "--picture", "wave.jpg"], ["wave.jpg", ".png"]),
    "nothing to plan": ([], ["--grid", "--model", "one of the two"]),
    "grid and model": (["--grid", "3x4x4", "--model", "doom"], ["--grid", "--model", "one of the two"]),
    "card without model": (["--grid", "3x4x4", "--card", "24"], ["--card", "--grid"]),
    "batch and frames without model": (["--grid", "3x4x4", "--batch", "2", "--frames", "8"], ["--frames, --batch"]),
    "suffix of a model": (["--model", "doom", "--suffix", "2"], ["--suffix", "--model"]),
    "unknown model": (["--model", "nonsense"], ["'nonsense'", "known: "]),
    "half a token frame": (["--model", "cosmos/4b", "--frames", "20"], ["--frames 20", "8 at a time", "24"]),
    "model without a start": (["--model", "cosmos/4b", "--known-frames", "0"], ["known frames"]),
    "unknown dtype": (["--model", "doom", "--dtype", "int3"], ["'int3'", "bfloat16"]),
    "picture nowhere": (["--grid", "3x4x4", "--picture", "no/wave.png"], ["no/wave.png", "does not exist"]),
}


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_that_cannot_be_made_says_why(tmp_path, case):
    arguments, words = PLANS[case]
    assert_refused(run(tmp_path, "plan", *arguments), tmp_path, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--grid", "3x4x4", "--suffix", "few"], ["--suffix", "integer"]),
        (["plan", "--grid", "3x4x4", "--stand-in", "left"], ["--stand-in", "previous_frame"]),
        (["generate", "--frames", "0"], ["--frames", "1"]),
        (["generate", "--prompt-frames", "0"], ["--prompt-frames", "1"]),
        (["generate", "--top-p", "most"], ["--top-p", "number"]),
        (["generate", "--colour", "red"], ["No such option", "--colour"]),
        (["draw"], ["No such command", "draw"]),
    ],
)
def test_an_option_that_cannot_be_read_is_named(tmp_path, arguments, words):
    done = run(tmp_path, *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--schedule", "zigzag"], ["'zigzag'", "diagonal, lossless, raster, window"]),
        (["--compare", "diagonal:k=0"], ["k=0", "at least 1"]),
        (["--out", "-", "--json"], ["--out -", "--json"]),
        (["--out", "-", "--compare", "raster"], ["--out -", "--compare"]),
    ],
)
def test_options_of_generate_that_contradict_answer_before_a_model_is_loaded(tmp_path, arguments, words):
    assert_refused(run(tmp_path, "generate", "--model", "mcar/tiny", *arguments), tmp_path, *words)


# With a model

PROMPT = ("--prompt", "{}/clip.mp4")  # without one, weights of a world without start views are not even read
RUNS = {
    "unknown family": (["--model", "gpt/2"], ["'gpt/2'", "mcar/tiny"]),
    "unknown variant": (["--model", "mcar/7b"], ["'7b'", "mcar/700m", "mcar/tiny"]),
    "no weights": (["--model", "mcar/700m"], ["mcar/700m needs weights", "microsoft/mineworld", "random"]),
    "weights nowhere": ([*PROMPT, "--weights", "nowhere.ckpt"], ["'nowhere.ckpt'", "do not exist", "hub id"]),
    "weights not on the hub": ([*PROMPT, "--weights", "nobody/nothing"], ["'nobody/nothing'", "no local path", "hub"]),
    "missing key": (
        [*PROMPT, "--weights", "{}/missing.safetensors"],
        ["does not fit mcar/tiny", "1 missing", "norm.weight"],
    ),
    "extra key": (
        [*PROMPT, "--weights", "{}/extra.safetensors"],
        ["does not fit mcar/tiny", "1 unexpected", "surplus"],
    ),
    "key of no part": ([*PROMPT, "--weights", "{}/stranger.safetensors"], ["belong to no part", "optimizer.step"]),
    "wrong shape": ([*PROMPT, "--weights", "{}/shape.safetensors"], ["norm.weight is (3,), not (64,)"]),
    "no tokenizer": ([*PROMPT, "--weights", "{}/model.safetensors"], ["no tokenizer", "--tokenizer"]),
    "code in a checkpoint": ([*PROMPT, "--weights", "{}/evil.ckpt"], ["evil.ckpt", "never run"]),
    "code in a bare pickle": ([*PROMPT, "--weights", "{}/raw.ckpt"], ["raw.ckpt", "never run"]),
    "weights but no prompt": (["--weights", "{}/good"], ["--prompt"]),
    "prompt of another size": (["--prompt", "{}/small.png"], ["(1, 90, 160, 3)", "224", "384", "--resize"]),
    "cut prompt": (["--prompt", "{}/cut.mp4"], ["cut.mp4", "truncated"]),
    "prompt nowhere": (["--prompt", "nowhere.mp4"], ["nowhere.mp4", "does not exist"]),
    "prompt too short": (["--prompt", "{}/clip.mp4", "--prompt-frames", "7"], ["6 frames", "asks for 7"]),
    "too many actions": (["--actions", "forward*3"], ["3 actions", "--frames asks for 1"]),
    "unknown action": (["--actions", "forwards"], ["'forwards'", "noop", "forward"]),
    "recording too short": (["--actions", "{}/two.jsonl", "--frames", "3"], ["2 actions", "3 new frames need 3"]),
    "broken recording": (["--actions", "{}/broken.jsonl"], ["broken.jsonl, line 2", "not JSON"]),
    "recording nowhere": (["--actions", "nowhere.jsonl"], ["nowhere.jsonl"]),
    "top-p 0": (["--top-p", "0"], ["top_p=0", "above 0"]),
    "top-k 0": (["--top-k", "0"], ["top_k=0", "at least 1"]),
    "temperature -1": (["--temperature=-1"], ["temperature=-1", "0 (greedy) or from 0.0001 up"]),
    "d beyond the frame": (["--schedule", "diagonal:d=99"], ["d=99", "14x24", "1 to 37"]),
    "unknown device": (["--device", "abacus"], ["abacus", "cpu"]),
    "out nowhere": (["--out", "nowhere/out.mp4"], ["nowhere/out.mp4", "does not exist"]),
    "out not a video": (["--out", "out.gif"], ["out.gif", ".mp4"]),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_clip_that_cannot_be_made_says_why(tmp_path, inputs, forked, case):
    given, words = RUNS[case]
    frames = [] if "--frames" in given else ["--frames", "1"]
    done = forked(
        tmp_path, "generate", "--model", "mcar/tiny", *frames, *(argument.format(inputs) for argument in given)
    )
    assert_refused(done, tmp_path, *words)
    assert not (inputs / "sprung").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test says is missing")
def test_a_device_this_machine_lacks_is_named(tmp_path, forked):
    assert_refused(
        forked(tmp_path, "generate", "--model", "mcar/tiny", "--frames", "1", "--device", "cuda"), tmp_path, "cuda"
    )


def test_a_recording_shorter_than_the_prompt_is_counted_in_words_that_make_sense(tmp_path, inputs, forked):
    arguments = ["--prompt", f"{inputs}/clip.mp4", "--prompt-frames", "6", "--actions", f"{inputs}/two.jsonl"]
    done = forked(tmp_path, "generate", "--model", "mcar/tiny", *arguments)
    assert_refused(done, tmp_path, "two.jsonl has 2 actions", "6 prompt")
    assert "-3 new frames" not in done.stderr


def test_a_temperature_next_to_zero_does_not_crash(tmp_path, forked):
    """It may be refused or taken as greedy."""
    done = forked(tmp_path, "generate", "--model", "mcar/tiny", "--frames", "1", "--temperature", "1e-44")
    assert "Traceback" not in done.stderr and done.returncode in (0, 2)


def test_a_prompt_of_another_size_is_taken_with_resize(tmp_path, inputs, forked):
    arguments = ["--frames", "1", "--prompt", f"{inputs}/small.png", "--resize", "--json"]
    done = forked(tmp_path, "generate", "--model", "mcar/tiny", *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frames"] == 1
    assert video.read(tmp_path / "out.mp4").shape == (1, 224, 384, 3)


# Disks that are full


def test_a_disk_that_fills_up_while_a_clip_is_written_leaves_nothing(tmp_path):
    done = run(tmp_path, "generate", "--model", "mcar/tiny", "--frames", "1", before=(sys.executable, "-c", FULL_DISK))
    assert_refused(done, tmp_path, "File too large")


def test_a_disk_that_fills_up_while_a_picture_is_written_leaves_nothing(tmp_path):
    arguments = ["plan", "--grid", "3x40x64", "--picture", "wave.png"]
    done = run(tmp_path, *arguments, before=(sys.executable, "-c", FULL_DISK))
    assert_refused(done, tmp_path, "File too large")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--grid", "3x4x4", "--json"],
        ["plan", "--grid", "3x4x4"],
        ["generate", "--model", "mcar/tiny", "--frames", "1", "--out", "-", "--unsigned"],
    ],
)
def test_output_to_a_device_without_space_is_an_error(tmp_path, arguments):
    with open("/dev/full", "w") as full:
        done = run(tmp_path, *arguments, stdout=full)
    assert_refused(done, tmp_path, "No space left on device")
