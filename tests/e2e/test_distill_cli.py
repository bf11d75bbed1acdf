"""Distillation by the command, with the tiny model: a student from prompts, killed and resumed, by two processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import diagonal
from diagonal import recipes
from diagonal.checkpoints import save as save_weights
from diagonal.cli import main
from diagonal.media import video
from tests.e2e.conftest import ENVIRONMENT, killed

COMMAND = str(Path(sys.executable).with_name("diagonal"))
SIZE = ("--height", "32", "--width", "48")
GIVEN = (
    "distill",
    "--model",
    "wan/tiny",
    "--teacher",
    "random",
    "--prompts",
    "prompts.txt",
    *SIZE,
    "--num-frames",
    "9",
)
# Rates so high that a few steps show.
FAST = ("--steps", "8", "--batch", "2", "--lr", "1e-3", "--critic-lr", "1e-3", "--ema-from", "2", "--ema", "0.5")
OFTEN = ("--log-every", "1", "--save-every", "3")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_text("a red cat\na blue dog\n\na red cat\na house by the sea\n")
    return tmp_path


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


def same_curve(one: Path, other: Path, rel: float) -> None:
    """All numbers of all steps but the speed. The generator's terms may be missing after a new start."""
    ours, theirs = curve(one), curve(other)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for mine, yours in zip(ours, theirs, strict=True):
        for key in (mine.keys() & yours.keys()) - {"steps_per_second"}:
            assert mine[key] == pytest.approx(yours[key], rel=rel), (mine["step"], key)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "error: " in done.stderr and not done.stdout
    assert all(word in done.stderr for word in words), done.stderr


def test_prompts_become_a_student_that_generates(folder: Path, forked: Run) -> None:
    done = forked(folder, *GIVEN, *FAST, *OFTEN, "--out", "student", "--json")
    assert done.returncode == 0, done.stderr
    assert "3 prompts; left out: 1 blank, 1 repeated" in done.stderr
    numbers = json.loads(done.stdout)
    assert numbers.pop("seconds") > 0
    said = {"model": "wan/tiny", "method": "diagonal-distillation-prompts", "steps": 8, "step": 8, "out": "student"}
    assert numbers.items() >= (said | {"schedule": "diagonal:steps=4322222,context=100,shift=5.0"}).items()
    lines = curve(folder / "student")
    assert [line["step"] for line in lines] == [*range(1, 9)] and lines[-1].items() <= numbers.items()
    assert {"loss", "grad_norm", "dmd", "flow_dmd", "critic"} <= lines[1].keys()
    first = diagonal.load("wan/tiny").model.state_dict()
    made = weights(folder / "student")
    ours = {key.removeprefix("transformer."): value for key, value in made.items() if key.startswith("transformer.")}
    assert ours.keys() == first.keys() and not torch.equal(ours["head.head.weight"], first["head.head.weight"])
    request = diagonal.Request(prompt="a red cat", num_frames=9, height=32, width=48)
    student, teacher = (
        diagonal.load("wan/tiny", one).generate(request, output_type="latent").latents
        for one in (folder / "student", None)
    )
    assert not torch.allclose(student, teacher, atol=1e-3)
    arguments = (
        "generate",
        "--model",
        "wan/tiny",
        "--weights",
        "student",
        "--prompt",
        "a red cat",
        "--num-frames",
        "9",
    )
    done = forked(folder, *arguments, *SIZE, "--dtype", "float32", "--out", "cat.mp4")
    assert done.returncode == 0 and len(video.read(folder / "cat.mp4")) == 9, done.stderr
    # Started again it needs a word, and other settings are another run.
    refused(forked(folder, *GIVEN, *FAST, "--out", "student"), "student was begun before", "--resume")
    refused(forked(folder, *GIVEN, *FAST, "--out", "student", "--resume", "--batch", "4"), "batch 2, now 4")
    longer = forked(folder, *GIVEN, *FAST, *OFTEN, "--out", "student", "--resume", "--steps", "9")
    assert longer.returncode == 0 and "going on from its checkpoint" in longer.stderr
    assert "student of wan/tiny" in longer.stdout and len(curve(folder / "student")) == 9


def test_a_killed_run_goes_on_to_the_same_student(folder: Path, forked: Run) -> None:
    long = (*GIVEN, *FAST, *OFTEN, "--steps", "14")
    pointer, result = folder / "killed" / "checkpoint.json", folder / "killed" / "model.safetensors"
    killed(folder, 8, *long, "--out", "killed")
    assert json.loads(pointer.read_text())["step"] == 6 and not result.exists()
    assert forked(folder, *long, "--out", "killed", "--resume").returncode == 0
    assert forked(folder, *long, "--out", "whole").returncode == 0
    one, other = weights(folder / "killed"), weights(folder / "whole")
    assert all(torch.equal(one[key], other[key]) for key in other)
    same_curve(folder / "killed", folder / "whole", rel=0)


def test_torchrun_with_two_processes_gives_the_curve_of_one(folder: Path, forked: Run) -> None:
    assert forked(folder, *GIVEN, *FAST, *OFTEN, "--out", "one").returncode == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "--no-python", COMMAND, *GIVEN, *FAST, *OFTEN, "--steps", "5", "--out", "two", "--json"]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 5  # one line: only the first process prints
    # One process takes up what two have begun.
    resumed = forked(folder, *GIVEN, *FAST, *OFTEN, "--out", "two", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    same_curve(folder / "two", folder / "one", rel=2e-4)
    one, two = weights(folder / "one"), weights(folder / "two")
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=2e-4, rtol=1e-3, msg=key)


def test_the_baselines_and_the_whole_objective_learn_from_trajectories(folder: Path, forked: Run) -> None:
    short = (*OFTEN, "--steps", "2", "--batch", "1", "--trajectories", "videos", "--json")
    for method, terms in (
        ("diagonal-distillation", {"dmd", "regression", "flow_dmd", "flow_regression"}),
        ("causvid", {"dmd"}),
    ):
        schedule = ("--schedule", "432", "--context", "t100") if method == "diagonal-distillation" else ()
        videos = f"videos-{method}"
        arguments = [*GIVEN, *short, "--max-prompts", "1", "--method", method, *schedule, "--out", method]
        arguments[arguments.index("videos")] = videos
        done = forked(folder, *arguments)
        assert done.returncode == 0, done.stderr
        assert terms == curve(folder / method)[0].keys() & {"dmd", "regression", "flow_dmd", "flow_regression"}
        assert len(list((folder / videos).glob("*.safetensors"))) == 1
    done = forked(folder, *GIVEN, *OFTEN, "--steps", "2", "--batch", "1", "--method", "self-forcing", "--out", "sf")
    assert done.returncode == 0, done.stderr


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in this process: importing torch would be most of the time."""
    monkeypatch.setattr(sys, "argv", ["diagonal", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(str(end.code or 0))
    said = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, said.out, said.err)


WRONG = {
    "no weights": (["--prompts", "prompts.txt", "--out", "x"], ["--teacher is needed"]),
    "no prompts": (["--teacher", "random", "--out", "x"], ["--prompts is needed"]),
    "no folder": (["--teacher", "random", "--prompts", "prompts.txt"], ["--out is needed"]),
    "missing prompts": (["{}", "--prompts", "nowhere.txt"], ["'nowhere.txt'", "one prompt a line"]),
    "an impossible schedule": (["{}", "--schedule", "4302"], ["4302", "digits of 1 to 9"]),
    "no such schedule": (["{}", "--schedule", "zigzag"], ["zigzag", "diagonal"]),
    "an impossible context": (["{}", "--context", "t950"], ["must fall"]),
    "no such method": (["{}", "--method", "magic"], ["'magic'", "self-forcing"]),
    "no such change": (["{}", "--method", "causvid:steps=4"], ["'steps=4'", "schedule=..."]),
    "a change twice": (["{}", "--method", "causvid:schedule=4", "--schedule", "3"], ["'4'", "'3'", "give it once"]),
    "pixels that are not trained": (["{}", "--lpips", "x"], ["--lpips cannot go with a run without a recipe"]),
    "no such size": (["--recipe", "doom:huge", "--out", "x"], ["no size 'huge'", "full, smoke"]),
    "frames that do not divide": (["{}", "--num-frames", "10"], ["num_frames=10", "9 or 21"]),
    "a size that does not divide": (["{}", "--height", "30"], ["height=30", "16"]),
    "a rollout that is too short": (["{}", "--num-frames", "21", "--max-frames", "9"], ["3 latent frames", "6"]),
    "a switch without room": (["{}", "--switch", "0.5"], ["longer than what is scored"]),
    "no gain at all": (["{}", "--method", "self-forcing", "--flow-weight", "-1"], ["0 or more"]),
    "no videos": (["{}", "--method", "diagonal-distillation"], ["videos of the teacher", "--trajectories"]),
    "no clips": (["{}", "--method", "causvid"], ["videos of the teacher", "--trajectories"]),
    "parts that do not divide": (["{}", "--batch", "3", "--accumulate", "2"], ["batch of 3", "multiple of 2"]),
    "a model of tokens": (["{}", "--model", "mcar/tiny"], ["mcar/tiny", "wan/tiny"]),
    "a decay above 1": (["{}", "--ema", "1.5"], ["impossible run"]),
    "another architecture": (["{}", "--init", "other.safetensors"], ["does not fit wan/tiny", "missing"]),
    "damaged weights": (["{}", "--teacher", "nan.safetensors", "--init", "random"], ["teacher answered NaN"]),
    "--tflops of a run": (["{}", "--tflops", "100"], ["--tflops cannot go with a run"]),
    "a recipe without distillation": (["--recipe", "smoke", "--out", "x"], ["'smoke' distils nothing"]),
    "a recipe and options": (["--recipe", "smoke", "--steps", "3", "--out", "x"], ["--steps cannot go with --recipe"]),
    "a plan with weights": (["--plan", "--teacher", "random"], ["--teacher cannot go with --plan"]),
    "a plan with a folder": (["--plan", "--out", "x"], ["--out cannot go with --plan"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_distilled_says_why(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, words = WRONG[case]
    monkeypatch.chdir(folder)
    save_file({"transformer.blocks.0.norm3.weight": torch.ones(7)}, "other.safetensors")
    if case == "damaged weights":
        model = diagonal.load("wan/tiny")
        model.model.head.head.weight.fill_(float("nan"))
        save_weights({"transformer": model.model, "tokenizer": model.vae}, Path("nan.safetensors"), {})
    full = [*GIVEN[1:], *FAST, "--out", "x"]
    arguments = [part for one in given for part in (full if one == "{}" else [one])]
    refused(in_process(monkeypatch, capsys, "distill", *arguments), *words)
    assert not (folder / "x" / "model.safetensors").exists()


def test_a_run_that_diverges_keeps_its_last_good_state(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    from diagonal.training.latents.distill import DistillTask

    loss = DistillTask.loss

    def diverging(self: DistillTask, step: int) -> Any:
        value, terms = loss(self, step)
        return value * (float("nan") if step == 4 else 1), terms

    with monkeypatch.context() as patched:
        patched.setattr(DistillTask, "loss", diverging)
        done = in_process(patched, capsys, *GIVEN, *FAST, *OFTEN, "--out", "x")
    refused(done, "the loss is nan at step 5", "x keeps the last good state")
    assert json.loads((folder / "x" / "checkpoint.json").read_text())["step"] == 3
    resumed = in_process(monkeypatch, capsys, *GIVEN, *FAST, *OFTEN, "--out", "x", "--resume")
    assert resumed.returncode == 0 and len(curve(folder / "x")) == 8


def test_a_full_disk_leaves_the_state_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For real: from the second state on, no file of this process may grow large enough."""
    monkeypatch.chdir(folder)
    from diagonal.training.parallel import Group

    save, limits = Group.save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def small(self: Group, task: Any, average: Any, place: Path, step: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if step == 6 else limits[0], limits[1]))
        save(self, task, average, place, step)

    with monkeypatch.context() as patched:
        patched.setattr(Group, "save", small)
        try:
            done = in_process(patched, capsys, *GIVEN, *FAST, *OFTEN, "--out", "x")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    refused(done, "the state of step 6 could not be written to x, which keeps the one before it")
    assert [path.name for path in (folder / "x").glob("checkpoint-*")] == ["checkpoint-00000003"]
    resumed = in_process(monkeypatch, capsys, *GIVEN, *FAST, *OFTEN, "--out", "x", "--resume")
    assert resumed.returncode == 0 and len(curve(folder / "x")) == 8


def test_the_plan_is_shown_and_nothing_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    shown = in_process(monkeypatch, capsys, "distill", "--plan")
    for words in ("1.419 B parameters", "32,760 tokens", "53.9 GB", "6.7 GB", "85.8 GB", "38.6 GB", "720 steps"):
        assert words in shown.stdout, shown.stdout
    numbers = json.loads(in_process(monkeypatch, capsys, "distill", "--plan", "--accumulate", "4", "--json").stdout)
    assert [(one["gpus"], one["samples_at_once"]) for one in numbers["plans"]] == [(1, 16), (8, 2)]
    assert numbers["plans"][0]["turn_s"] == pytest.approx(8 * numbers["plans"][1]["turn_s"])
    odd = in_process(monkeypatch, capsys, "distill", "--plan", "--batch", "3")
    assert "a batch of 3 cannot be shared by 8 GPUs" in odd.stderr and odd.returncode == 0
    assert os.listdir(folder) == ["prompts.txt"]


def test_a_recipe_runs_its_stages(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pictures.py").write_text(
        "import json\nfrom diagonal.training.stages import MODEL, Stage\n\n\n"
        "def chain(folder, *others):\n    def train(_):\n        (folder / 'student').mkdir(parents=True)\n"
        "        line = {'step': 2, 'loss': 0.5}\n"
        "        (folder / 'student' / 'curve.jsonl').write_text(json.dumps(line))\n        yield line\n\n"
        "    played = Stage('record', 5, folder / 'data', lambda _: iter([{'step': 5}]))\n"
        "    return [played, Stage('student', 2, folder / 'student', train, leaves=MODEL)]\n\n\n"
        "def distill():\n    return chain\n"
    )
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(folder)])
    monkeypatch.chdir(folder)
    numbers = json.loads(
        in_process(monkeypatch, capsys, "distill", "--recipe", "pictures", "--out", "x", "--json").stdout
    )
    assert numbers.pop("seconds") >= 0
    last = {"stage": "student", "steps": 2, "out": "x/student", "step": 2, "loss": 0.5}
    assert numbers == {"recipe": "pictures", "out": "x", "stages": [last]}
    del sys.modules["diagonal.recipes.pictures"]
