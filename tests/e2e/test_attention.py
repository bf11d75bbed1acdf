"""`diagonal attention` and `diagonal plan --mask` as people use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from diagonal.media.video import writer
from tests import made_weights
from tests.e2e.conftest import call, numbers_of

pytestmark = pytest.mark.usefixtures("forked")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "data").mkdir()
    for name in ("one", "two", "three"):
        with writer(folder / "data" / f"{name}.mp4", 8) as file:
            file.write(made_weights.clip(name, 10, 64, 96).permute(0, 2, 3, 1).numpy())
    return folder


@pytest.mark.parametrize("model", ["doom/tiny", "mcar/tiny", "cosmos/tiny", "wham/tiny", "videogpt/tiny-sparse"])
def test_every_token_world_shows_its_attention_without_data(place: Path, model: str) -> None:
    found = numbers_of(call(place, "attention", "--model", model, "--frame", "2", "--json"))
    assert (found["clips"], found["frame"], found["data"]) == (1, 2, "made by the model")
    assert sum(one["mean"] for one in found["places"].values()) == pytest.approx(1, abs=1e-4)
    assert list(found["schedules"]) == ["diagonal:k=1", "diagonal:k=2"]
    assert (
        found["schedules"]["diagonal:k=1"]["missed"]["mean"] > found["schedules"]["diagonal:k=2"]["missed"]["mean"] > 0
    )


def test_clips_give_intervals_a_table_and_a_picture(place: Path) -> None:
    options = ("--data", "data", "--clips", "3", "--schedule", "diagonal:k=1,d=4", "--out", "out")
    done = call(place, "attention", "--model", "cosmos/tiny", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "out" / "attention.json").read_text())
    assert (found["clips"], found["weights"], len(found["data"])) == (3, "random", 3)
    above = found["places"]["above"]
    assert above["low"] <= above["mean"] <= above["high"] and len(above["layers"]) == found["layers"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("above"))
    assert f"{above['mean']:.1%} [{above['low']:.1%}, {above['high']:.1%}]" in line
    with Image.open(place / "out" / "attention.png") as image:
        assert image.width >= 640


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("attention", "--model", "cosmos/tiny", "--frame", "5"), "--frame 5 given; cosmos/tiny sees 5 frames at once"),
        (("attention", "--model", "doom-t2v"), "this needs a token model"),
        (("attention", "--model", "cosmos/4b"), "cosmos/4b needs weights"),
        (("attention", "--clips", "3"), "--clips cannot go with no --data"),
        (("attention", "--schedule", "diagonal:k=1,d=99"), "d=99 given"),
        (("attention", "--model", "cosmos/tiny", "--data", "data", "--clips", "9"), "room for 3 clips of 9 frames"),
        (("attention", "--model", "videogpt/tiny", "--data", "data"), "makes whole clips, from nothing: leave it out"),
        (("plan", "--grid", "9x12x16", "--mask", "mask.png"), "up to 512 can be read"),
        (("plan", "--model", "doom-t2v", "--mask", "mask.png"), "--mask cannot go with doom-t2v"),
    ],
)
def test_what_cannot_be_shown_is_told_in_one_line(place: Path, options: tuple[str, ...], message: str) -> None:
    done = call(place, *options)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_plan_draws_its_mask(place: Path) -> None:
    found = numbers_of(call(place, "plan", "--grid", "2x4x6", "--mask", "mask.png", "--picture", "wave.png", "--json"))
    assert (found["mask"], found["picture"]) == ("mask.png", "wave.png")
    assert all((place / name).stat().st_size > 500 for name in ("mask.png", "wave.png"))
