"""`diagonal evaluate DIR --vbench PYTHON`: VBench is given the videos and their prompts, and its result is read back.

VBench is not here: a script stands for its Python, which writes down what it is given and answers in VBench's form.
"""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from diagonal.cli.evaluate_folders import Run, Videos
from diagonal.evaluation import manifest
from diagonal.evaluation.folders import Folder
from diagonal.evaluation.vbench_itself import DIMENSIONS, OF_ANY_VIDEO, Environment, Scored, run
from diagonal.media.video import writer
from tests import made_weights
from tests.conftest import golden_json
from tests.e2e.test_evaluate_folders import evaluate

PYTHON = f"""#!{sys.executable}
import json, sys
from pathlib import Path

assert Path(sys.argv[1]).name == "vbench_runner.py" and len(sys.argv) == 3
job = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
here = Path(__file__).parent
with (here / "calls.txt").open("a") as file:
    file.write(job["name"] + "\\n")
print("told", sys.argv)
if (here / "broken").exists() and job["name"] == (here / "broken").read_text():
    raise SystemExit("CUDA out of memory")
scores = json.loads((here / "scores.json").read_text())
(dimension,) = job["dimensions"]
made = {{dimension: [scores[dimension], [{{"video_path": "x", "video_results": 1.0}}]]}}
out = Path(job["out"])
(out / (job["name"] + "_eval_results.json")).write_text(json.dumps(made))
(out / (job["name"] + "_versions.json")).write_text(json.dumps({{"vbench": "0.1.5"}}))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Ten videos of two prompts, and the script."""
    (tmp_path / "made").mkdir()
    for prompt in ("a cat, front view", "a dog"):
        for index in range(5):
            with writer(tmp_path / "made" / f"{prompt}-{index}.mp4", 8) as file:
                file.write(made_weights.clip(prompt, 2, 32, 48).permute(0, 2, 3, 1).numpy())
    scores = golden_json("metrics/formulas.json")["totals"][0]["scores"]
    (tmp_path / "scores.json").write_text(json.dumps({name.replace(" ", "_"): s for name, s in scores.items()}))
    info = [{"prompt_en": prompt, "dimension": ["color"]} for prompt in ("a cat, front view", "a dog")]
    (tmp_path / "info.json").write_text(json.dumps(info))
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def score(place: Path, info: str | None = None) -> dict[str, Any]:
    """What the library finds, as the command's JSON has it."""
    environment = Environment(place / "python", place / "out", None if info is None else place / info, "cpu")
    folders = [Folder.of(place / "made")]
    environment.check(folders)
    *steps, found = run(environment, folders)
    assert steps == [("made", dimension) for dimension in environment.dimensions]
    assert isinstance(found, Scored)
    return found.content()


def calls(place: Path) -> list[str]:
    return (place / "calls.txt").read_text().split()


def test_all_sixteen_dimensions_and_their_totals(place: Path) -> None:
    found = score(place, "info.json")
    expected = golden_json("metrics/formulas.json")["totals"][0]
    assert set(found["scores"]) == set(DIMENSIONS) and len(DIMENSIONS) == 16
    assert found["totals"] == {name: pytest.approx(expected[name]) for name in ("quality", "semantic", "total")}
    assert found["versions"] == {"vbench": "0.1.5"} and not found["missing"]
    job = json.loads((place / "out" / "vbench" / "made" / "color.json").read_text())
    assert job["mode"] == "vbench_standard" and job["videos"] == str(place / "made")
    assert job["info"] == str(place / "info.json") and job["prompts"] == [] and job["device"] == "cpu"
    assert "vbench_runner.py" in (place / "out" / "vbench" / "made" / "color.log").read_text()


def test_own_prompts_are_given_and_have_no_totals(place: Path) -> None:
    manifest.add(place / "made", "a dog-0", {"prompt": "a large dog"})
    done = evaluate(place, "made", "--metrics", "frozen", "--out", "out", "--vbench", "python")
    assert done.returncode == 0, done.stderr
    job = json.loads((place / "out" / "vbench" / "made" / "dynamic_degree.json").read_text())
    assert job["mode"] == "custom_input"
    assert job["prompts"]["a dog-0.mp4"] == "a large dog" and job["prompts"]["a dog-1.mp4"] == "a dog"
    assert calls(place) == list(OF_ANY_VIDEO)
    assert "no totals: temporal flickering" in done.stdout
    found = json.loads((place / "out" / "scores.json").read_text())["vbench"]["made"]
    assert set(found["scores"]) == set(OF_ANY_VIDEO) and found["totals"] is None


def test_what_was_scored_stays_when_a_later_dimension_fails(place: Path) -> None:
    (place / "broken").write_text("dynamic_degree")
    with pytest.raises(ValueError, match=r"dynamic_degree\.log:(.|\n)*CUDA out of memory"):
        score(place)
    assert calls(place) == list(OF_ANY_VIDEO[:4])
    (place / "broken").unlink()
    score(place)
    assert calls(place) == [*OF_ANY_VIDEO[:4], *OF_ANY_VIDEO[3:]]
    shutil.copy(place / "made" / "a dog-0.mp4", place / "made" / "a cat, front view-0.mp4")
    score(place)  # other videos: all is scored anew
    assert len(calls(place)) == 7 + len(OF_ANY_VIDEO)


def test_a_result_without_a_score_is_refused(place: Path) -> None:
    score(place)
    (place / "out" / "vbench" / "made" / "imaging_quality_eval_results.json").write_text("{}")
    with pytest.raises(ValueError, match="has no score of imaging_quality"):
        score(place)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vbench_info": Path("info.json")}, "needs --vbench"),
        ({"vbench": Path("python"), "first": 1}, "--first 1 cannot go with --vbench"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Videos(**options)
    with pytest.raises(ValueError, match="--vbench needs --out"):
        Run("cpu", None, None, False, vbench=Path("python")).environment()


def test_what_vbench_would_miss_is_named_before_it_is_run(place: Path) -> None:
    folders = [Folder.of(place / "made")]
    with pytest.raises(FileNotFoundError, match="there is no such Python"):
        Environment(place / "nowhere", place).check(folders)
    (place / "made" / "a dog-3.mp4").unlink()
    with pytest.raises(ValueError, match="lacks 1 videos that VBench looks for, such as 'a dog-3'"):
        score(place, "info.json")
    assert not (place / "calls.txt").exists()
