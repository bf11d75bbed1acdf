"""Whoever writes a video signs it, and `diagonal verify` says what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagonal.media.provenance import credentials
from diagonal.media.provenance.origin import hash_told
from tests.e2e.conftest import ENVIRONMENT, numbers_of
from tests.signers import SECRET, write_pair

GENERATE = ("generate", "--model", "doom/tiny", "--start", "lamps", "--actions", "left*2,noop")
PLAY = ("play", "--model", "doom/tiny", "--start", "hall", "--script", "forward*2,left")
PROMPT = "walking forward through a brick corridor"
VIDEO = ("video", "--model", "doom-t2v/tiny", "--prompt", PROMPT, "--num-frames", "11")


@pytest.fixture(scope="module")
def made(forked, tmp_path_factory) -> Path:
    """A file of every command that writes one, signed by a pair of ours."""
    folder: Path = tmp_path_factory.mktemp("made")
    write_pair(folder)
    signer = ("--sign-key", "signer.key", "--sign-certificate", "signer.pem", "--json")
    numbers_of(forked(folder, *GENERATE, *signer, "--out", "generate.mp4"))
    numbers_of(forked(folder, *GENERATE, *signer, "--compare", "raster", "--out", "compare.mp4", "--private"))
    numbers_of(forked(folder, *PLAY, *signer, "--out", "play.mp4"))
    said = numbers_of(forked(folder, *VIDEO, *signer, "--out", "video.mp4"))
    assert said["credentials"].startswith("CN=signer") and said["watermark"]
    numbers_of(forked(folder, *VIDEO, "--json", "--out", "local.mp4", "--no-watermark"))
    numbers_of(forked(folder, *VIDEO, "--json", "--out", "plain.mp4", "--unsigned", "--no-watermark"))
    return folder


def verify(run, folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run(folder, "verify", *arguments, "--json")
    return done.returncode, {one["file"]: one for one in json.loads(done.stdout)["files"]}


def test_every_writer_says_what_it_made(made):
    for name in ("generate", "compare", "play", "video", "local"):
        found = credentials.read(made / f"{name}.mp4")
        assert found.state == credentials.VALID and found.by_machine, name
        assert found.statement["weights"]["source"] == "random"
    said = credentials.read(made / "generate.mp4").statement
    assert said["told"]["start"] == "lamps" and said["told"]["actions"].endswith("left*2,noop")
    assert said["schedule"] == "diagonal:k=1" and said["seed"] == "0" and said["frames"] == 3
    said = credentials.read(made / "play.mp4").statement
    assert said["told"]["moves"] == "forward*2,left" and said["told"]["start"] == "hall" and said["frames"] == 3
    said = credentials.read(made / "video.mp4").statement
    assert said["told"] == {"prompt": PROMPT} and said["watermark"]["family"] == "doom-t2v"
    assert credentials.read(made / "local.mp4").statement["watermark"] == "switched off"


def test_private_files_say_no_words(made):
    said = credentials.read(made / "compare.mp4").statement
    hashed = said["told_hashed"]
    assert "told" not in said and hashed["sha256"]["start"] == hash_told(hashed["salt"], "lamps")
    assert said["schedule"] == "diagonal:k=1 beside raster"


def test_exit_codes_say_what_is_wrong(forked, made):
    data = bytearray((made / "video.mp4").read_bytes())
    data[len(data) // 2] ^= 1
    (made / "changed.mp4").write_bytes(data)
    write_pair(made, "foreign")
    states: dict[tuple[int, str], str] = {}
    for code, *arguments in (
        (0, "generate.mp4", "local.mp4"),
        (1, "generate.mp4", "changed.mp4", "plain.mp4"),
        (3, "plain.mp4", "play.mp4"),
        (0, "play.mp4", "--trust", "signer-root.pem"),
        (4, "play.mp4", "--trust", "foreign-root.pem"),
    ):
        found, files = verify(forked, made, *arguments)
        assert found == code, arguments
        states |= {(code, name): one["credentials"]["state"] for name, one in files.items()}
    assert states[1, "changed.mp4"] == "invalid" and states[3, "plain.mp4"] == "not_present"
    assert states[0, "play.mp4"] == "trusted" and states[4, "play.mp4"] == "valid"


def test_the_table_says_it_in_words(forked, made):
    done = forked(made, "verify", "plain.mp4", "generate.mp4")
    assert "not_present" in done.stdout and "whom nothing here vouches for" in done.stdout and done.returncode == 3
    done = forked(made, "verify", "none.mp4")
    assert done.returncode == 2 and "none.mp4 is no file" in done.stderr


def test_what_a_file_says_cannot_steer_a_terminal(forked, made):
    """A prompt may hold anything; the table shows it as it is safe to show."""
    numbers_of(forked(made, *GENERATE, "--json", "--sign-key", "signer.key", "--sign-certificate", "signer.pem"))
    data = (made / "out.mp4").read_bytes()
    (made / "odd.mp4").write_bytes(data.replace(b"doom/tiny", b"d\x1b[2Jtiny"))
    done = forked(made, "verify", "odd.mp4")
    assert done.returncode == 1 and "\x1b" not in done.stdout and SECRET not in done.stdout + done.stderr


REFUSED = {
    "a stream": (["--out", "-"], "a stream has no credentials"),
    "a container without a place for them": (["--out", "out.mkv"], "name a .mp4 or .mov file, or give --unsigned"),
    "a key alone": (["--sign-key", "signer.key"], "a key to sign with was given, and no certificate"),
    "a key of somebody else": (
        ["--sign-key", "signer.key", "--sign-certificate", "foreign.pem"],
        "is not of the key",
    ),
    "two wishes": (["--unsigned", "--private"], "--private is about credentials"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_signed_is_refused_before_the_model_is_loaded(forked, made, case):
    arguments, why = REFUSED[case]
    write_pair(made, "foreign")
    done = forked(made, *GENERATE, *arguments)
    assert done.returncode == 2 and why in done.stderr and "random weights" not in done.stderr


WITHOUT = "import sys; sys.modules[{!r}] = None; from diagonal.cli import main; main()"


@pytest.mark.parametrize(
    ("missing", "command", "advice"),
    [
        ("c2pa", GENERATE, "or give --unsigned for a file without them"),
        ("onnxruntime", VIDEO, "or give --no-watermark"),
        ("c2pa", ("verify", "x.mp4"), "pip install 'diagonal[provenance]'"),
    ],
)
def test_without_the_extra_nothing_is_written_unasked(tmp_path, missing, command, advice):
    code = WITHOUT.format(missing)
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "pip install 'diagonal[provenance]'" in done.stderr and advice in done.stderr
    assert os.listdir(tmp_path) == []


def test_without_the_extra_an_unsigned_file_can_be_asked_for(tmp_path):
    code = "import sys; sys.modules['onnxruntime'] = None; " + WITHOUT.format("c2pa")
    command = [sys.executable, "-c", code, *VIDEO, "--unsigned", "--no-watermark", "--out", "out.mp4"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert credentials.read(tmp_path / "out.mp4").state == credentials.NOT_PRESENT


def test_the_environment_names_the_signer(tmp_path):
    key, chain, _ = write_pair(tmp_path, "named")
    environment = ENVIRONMENT | {"DIAGONAL_SIGN_KEY": str(key), "DIAGONAL_SIGN_CERTIFICATE": str(chain)}
    command = [sys.executable, "-m", "diagonal", *PLAY, "--out", "out.mp4", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["credentials"] == "CN=named,O=diagonal"
    assert credentials.read(tmp_path / "out.mp4").signer.startswith("named")
