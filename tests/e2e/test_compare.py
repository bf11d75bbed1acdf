"""`diagonal compare` as people use it: a page of two folders, then the votes of two people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagonal.media.video import writer
from tests import made_weights
from tests.e2e.conftest import call, numbers_of

pytestmark = pytest.mark.usefixtures("forked")
MAKE = ("compare", "raster", "fast", "--seed", "7", "--twice", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    for run in ("raster", "fast"):
        (folder / run).mkdir()
        for name in ("one", "two"):
            with writer(folder / run / f"{name}.mp4", 8) as file:
                file.write(made_weights.clip(run + name, 3, 32, 48).permute(0, 2, 3, 1).numpy())
    return folder


def vote(folder: Path, study: Path, voter: str, wanted: str) -> str:
    """A file as the page saves it, by somebody who can tell one run from the other; and who ties on the second pair."""
    key = json.loads((study / "key.json").read_text())
    votes = [
        {"trial": number, "question": asked, "choice": choice, "seconds": 2.5, "played": True}
        for number, trial in enumerate(key["trials"])
        for asked in key["questions"]
        for choice in ["tie" if trial["pair"] == "two" else "left" if trial["left"] == wanted else "right"]
    ]
    (folder / f"{voter}.json").write_text(json.dumps({"study": key["study"], "voter": voter, "votes": votes}))
    return f"{voter}.json"


def test_a_study_is_made_and_two_voters_are_merged(place: Path) -> None:
    made = numbers_of(call(place, *MAKE, "--questions", "overall,motion", "--out", "study", "--json"))
    assert (made["trials"], made["twice"], made["page"]) == (3, 1, "study/page/index.html")
    assert {path.name for path in (place / "study").iterdir()} == {"page", "key.json"}
    files = [vote(place, place / "study", voter, wanted) for voter, wanted in (("ada", "a"), ("bob", "b"))]
    count = ("compare", "--pairs", "study", *(part for file in files for part in ("--votes", file)))
    found = numbers_of(call(place, *count, "--json"))
    overall = found["questions"]["overall"]
    assert (overall["a"], overall["b"], overall["tie"], overall["score"]["mean"]) == (1, 1, 2, 0.5)
    assert found["between_voters"]["rate"] == 0.5 and found["same_again"]["mean"] == 1
    assert json.loads((place / "study" / "result.json").read_text()) == found
    table = call(place, *count).stdout
    assert "raster wins" in table and "50% [9%, 91%]" in table and "ada: 6 votes" in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("compare",), "give two folders of videos and --out"),
        (("compare", "raster", "--out", "x"), "give two folders of videos and --out"),
        (("compare", "raster", "raster", "--out", "x"), "hold the same videos"),
        (("compare", "raster", "absent", "--out", "x"), "absent is no folder of videos"),
        (("compare", "raster", "fast", "--out", "x", "--questions", "control"), "no manifest.json says the prompt"),
        (("compare", "--pairs", "x"), "belong together; give both"),
        (("compare", "raster", "fast", "--votes", "x"), "cannot go with --votes"),
        (("compare", "--pairs", "raster", "--votes", "x"), "--pairs names the folder that compare wrote"),
    ],
)
def test_what_cannot_be_compared_is_told_in_one_line(place: Path, options: tuple[str, ...], message: str) -> None:
    done = call(place, *options)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (place / "x").exists()
