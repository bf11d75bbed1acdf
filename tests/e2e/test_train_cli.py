"""From an empty folder to a judged world, with the command alone: record, train, finetune, generate, evaluate."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from diagonal import checkpoints
from diagonal.cli import main
from diagonal.cli.train import follow
from diagonal.evaluation.rollouts import cut, roll
from diagonal.generation.load import load
from diagonal.media import video
from diagonal.planning.plan import Order
from diagonal.recipes import find
from diagonal.training.data.recordings import frames
from diagonal.training.stages import Stage
from diagonal.worlds import vizdoom
from tests.e2e.conftest import killed

COMMAND = str(Path(sys.executable).with_name("diagonal"))
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
ENVIRONMENT.pop("FORCE_COLOR", None)
STAGES = ("tokenizer", "judge", "base", "finetune", "diagonal")


def run(folder: Path, *arguments: str, environment: dict[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


def succeed(folder: Path, *arguments: str) -> str:
    """What the command prints."""
    done = run(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refuse(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line that helps, and nothing else."""
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and not done.stdout
    assert all(word in done.stderr for word in words), done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """The smoke recipe's folder and what the command said; made once, however many processes run the tests."""
    base: Path = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "smoke.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = shared / "smoke.json"
        if not said.exists():
            said.write_text(succeed(shared, "train", "all", "--recipe", "smoke", "--out", "smoke", "--json"))
        return shared / "smoke", json.loads(said.read_text())


def stage(trained: tuple[Path, dict[str, Any]], recipe: str = "smoke") -> list[str]:
    """The options that every later stage takes."""
    folder = trained[0]
    return ["--recipe", recipe, "--data", str(folder / "data"), "--tokenizer", str(folder / "tokenizer")]


# record


def test_a_recording_is_the_same_whoever_makes_it(tmp_path):
    arguments = ["--frames", "2148", "--seed", "3", "--episode-frames", "50"]
    numbers = json.loads(succeed(tmp_path, "record", *arguments, "--out", "one", "--json"))
    assert {"world": "vizdoom", "scenario": "my_way_home", "seed": 3, "out": "one"}.items() <= numbers.items()
    assert (numbers["frames"], numbers["shards"]) == (2148, 2) and numbers["seconds"] > 0
    assert numbers["episodes"] >= 2148 / 50
    assert list(numbers["actions"]) == list(vizdoom.ACTIONS)
    assert sum(numbers["actions"].values()) == pytest.approx(1)
    text = succeed(tmp_path, "record", *arguments, "--out", "two", "--workers", "2")
    for words in ("forward+left", "2148 frames in", "my_way_home (seed 3)", "2 files in two"):
        assert words in text
    for number, count in enumerate((2048, 100)):
        one, two = (load_file(tmp_path / name / f"shard-{number:05d}.safetensors") for name in ("one", "two"))
        assert one["frames"].shape == (count, 96, 128, 3)
        for key in one:
            np.testing.assert_array_equal(one[key], two[key])


def test_a_recording_goes_on_but_never_mixes_with_another(tmp_path):
    def record(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(tmp_path, "record", "--out", "here", *arguments)

    assert record("--frames", "20").returncode == 0
    path = tmp_path / "here" / "shard-00000.safetensors"
    before = path.stat().st_mtime_ns
    assert record("--frames", "20").returncode == 0 and path.stat().st_mtime_ns == before
    refuse(record("--frames", "20", "--seed", "1"), "another recording (seed 0)", "asked for", "seed 1")
    refuse(record("--frames", "20", "--scenario", "basic"), "scenario my_way_home", "scenario basic")
    refuse(record("--frames", "20", "--episode-frames", "10"), "episode_frames 200", "episode_frames 10")
    refuse(record("--frames", "30"), "(frames 20)", "frames 30")
    save_file({"other": np.zeros(1)}, tmp_path / "here" / "other.safetensors")
    refuse(record("--frames", "20"), "other.safetensors", "not part of a recording of 20 frames")
    assert path.stat().st_mtime_ns == before


def test_worlds_and_scenarios_that_do_not_exist_are_named(tmp_path):
    refuse(run(tmp_path, "record", "--frames", "9", "--out", "x", "--world", "chess"), "'chess'", "vizdoom")
    refuse(run(tmp_path, "record", "--frames", "9", "--out", "x", "--scenario", "hell"), "'hell'", "my_way_home")
    assert os.listdir(tmp_path) == []


def test_without_vizdoom_only_playing_is_refused(tmp_path, trained):
    (tmp_path / "hidden" / "vizdoom").mkdir(parents=True)
    (tmp_path / "hidden" / "vizdoom" / "__init__.py").write_text('raise ImportError("there is no ViZDoom")\n')
    without = ENVIRONMENT | {"PYTHONPATH": str(tmp_path / "hidden")}
    message = ["ViZDoom", "pip install 'diagonal[worlds]'"]
    refuse(run(tmp_path, "record", "--frames", "9", "--out", "x", environment=without), *message)
    refuse(run(tmp_path, "train", "all", "--recipe", "smoke", "--out", "x", environment=without), *message)
    assert os.listdir(tmp_path) == ["hidden"]
    # What is recorded can be used: every stage is finished, so this only looks.
    again = ["train", "all", "--recipe", "smoke", "--out", str(trained[0]), "--json"]
    done = run(tmp_path, *again, environment=without)
    assert done.returncode == 0, done.stderr
    assert [one["loss"] for one in json.loads(done.stdout)["stages"]] == [one["loss"] for one in trained[1]["stages"]]


# train


def test_a_recipe_makes_every_stage(trained):
    folder, said = trained
    recipe = find("smoke")
    assert (said["recipe"], said["stage"], said["out"]) == ("smoke", "all", "smoke") and said["seconds"] > 1
    assert [one["stage"] for one in said["stages"]] == list(STAGES)
    for one in said["stages"]:
        assert one["step"] == one["steps"] and np.isfinite(one["loss"])
        assert (folder / one["stage"] / "model.safetensors").is_file()
        last = json.loads((folder / one["stage"] / "curve.jsonl").read_text().splitlines()[-1])
        assert last.items() <= one.items()
    numbers = {one["stage"]: one for one in said["stages"]}
    assert numbers["tokenizer"]["val_psnr"] > 12
    assert 0 <= numbers["judge"]["val_accuracy"] <= 1
    assert numbers["base"]["val_nats raster"] < np.log(64) / 2
    assert {"val_nats diagonal:k=1", "val_nats raster"} <= numbers["diagonal"].keys()
    shards = {part: load_file(folder / "data" / part / "shard-00000.safetensors") for part in ("train", "held-out")}
    assert len(shards["train"]["frames"]) == recipe.frames
    assert len(shards["held-out"]["frames"]) == recipe.held_out_frames


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, trained):
    command = ["train", "world", *stage(trained), "--out", "world"]
    checkpoint, result = tmp_path / "world" / "checkpoint.pt", tmp_path / "world" / "model.safetensors"
    killed(tmp_path, 20, *command)
    assert checkpoint.exists() and not result.exists()
    done = run(tmp_path, *command)
    assert done.returncode == 0 and "going on from its checkpoint" in done.stderr
    for words in ("base", "nats raster", "world/model.safetensors", "recipe smoke"):
        assert words in done.stdout
    assert result.read_bytes() == (trained[0] / "base" / "model.safetensors").read_bytes()
    # The curve has every line once.
    steps = [json.loads(line)["step"] for line in (tmp_path / "world" / "curve.jsonl").read_text().splitlines()]
    assert steps == [10, 20, 30]


@pytest.mark.parametrize("name", ["tokenizer", "judge"])
def test_a_finished_stage_is_reported_not_trained_again(trained, name):
    folder, said = trained
    before = (folder / name / "model.safetensors").read_bytes()
    arguments = ["--recipe", "smoke", "--data", "data", "--out", name, "--json"]
    again = json.loads(succeed(folder, "train", name, *arguments))
    expected = next(one for one in said["stages"] if one["stage"] == name)
    assert again.items() >= (expected | {"recipe": "smoke", "out": name}).items()
    assert (folder / name / "model.safetensors").read_bytes() == before


def test_a_world_is_trained_from_scratch_by_other_schedules(tmp_path, trained):
    schedules = ["--schedule", "diagonal", "--schedule", "raster"]
    made = json.loads(succeed(tmp_path, "train", "world", *stage(trained), "--out", "world", *schedules, "--json"))
    assert (made["stage"], made["step"]) == ("base", find("smoke").base.run.steps)
    assert made["schedules"] == ["diagonal:k=1", "raster"]
    assert {f"val_nats {name}" for name in made["schedules"]} <= made.keys()
    assert json.loads((tmp_path / "world" / "settings.json").read_text())["mixture"] == [
        ["diagonal:k=1", 1.0],
        ["raster", 1.0],
    ]
    assert checkpoints.read(tmp_path / "world").keys() == checkpoints.read(trained[0] / "base").keys()
    refuse(run(tmp_path, "train", "world", *stage(trained), "--out", "x", "--schedule", "zigzag"), "'zigzag'", "raster")


# finetune, generate, evaluate


def test_a_world_is_finetuned_shown_and_judged(tmp_path, trained):
    folder, _ = trained
    given = ["--weights", str(folder / "base"), "--steps", "3", "--out", "fine"]
    schedules = ["--schedule", "diagonal:k=2", "--schedule", "raster"]
    tuned = json.loads(succeed(tmp_path, "finetune", *stage(trained), *given, *schedules, "--json"))
    assert (tuned["recipe"], tuned["stage"], tuned["steps"], tuned["step"]) == ("smoke", "finetune", 3, 3)
    assert tuned["schedules"] == ["diagonal:k=2", "raster"] and tuned["out"] == "fine"
    assert {f"val_nats {name}" for name in tuned["schedules"]} <= tuned.keys()
    base, fine = checkpoints.read(folder / "base"), checkpoints.read(tmp_path / "fine")
    assert base.keys() == fine.keys() and any(not base[key].equal(fine[key]) for key in base)
    # A curriculum of adapters, with a seed of its own.
    ways = [
        "--schedule",
        "diagonal:k=4",
        "--then",
        "diagonal:k=2",
        "--then",
        "diagonal:k=1",
        "--lora",
        "2",
        "--seed",
        "9",
    ]
    given_too = ["--weights", str(folder / "base"), "--steps", "3", "--out", "adapted", "--json"]
    adapted = json.loads(succeed(tmp_path, "finetune", *stage(trained), *given_too, *ways))
    assert {f"val_nats diagonal:k={k}" for k in (4, 2, 1)} <= adapted.keys()
    settings = json.loads((tmp_path / "adapted" / "settings.json").read_text())
    assert (settings["lora"], settings["seed"]) == (2, 9)
    assert [begin for begin, _ in settings["later"]] == [1 / 3, 2 / 3]
    assert all("lora" in key for key in checkpoints.read(tmp_path / "adapted" / "lora" / "adapter.safetensors"))
    # Another run has no business in this folder.
    other = run(tmp_path, "finetune", *stage(trained), *given, "--schedule", "diagonal:k=1")
    assert other.returncode == 2 and "was begun with mixture" in other.stderr.splitlines()[-1]

    recording = folder / "data" / "held-out"
    first = load_file(recording / "shard-00000.safetensors")["frames"][0]
    Image.fromarray(first).save(tmp_path / "first.png")
    world = ["--model", "doom/tiny", "--weights", "fine", "--tokenizer", str(folder / "tokenizer")]
    arguments = ["--prompt", "first.png", "--actions", "forward,left", "--schedule", "diagonal:k=2", "--json"]
    shown = json.loads(succeed(tmp_path, "generate", *world, *arguments))
    assert (shown["weights"], shown["frames"]) == ("fine", 2)
    assert video.read(tmp_path / "out.mp4").shape == (2, 288, 384, 3)

    arguments = ["--data", str(recording), "--judge", str(folder / "judge"), "--clips", "3", "--seeds", "2"]
    window = ["--context", "2", "--frames", "2"]
    judged = json.loads(
        succeed(tmp_path, "evaluate", "--model", "doom/tiny", *world, *arguments, *window, "--out", "judged", "--json")
    )
    rows = judged.pop("rows")
    settings = {"model": "doom/tiny", "weights": "fine", "clips": 3, "seeds": 2, "context": 2, "frames": 2}
    assert settings.items() <= judged.items()
    assert [row["schedule"] for row in rows] == ["", "", "raster", "diagonal:k=1"]
    assert [row["steps"] for row in rows] == [0, 0, 2 * 12 * 16, 2 * (12 - 1 + 16)]
    for row in rows:
        assert len(row["psnr_by_frame"]) == 2 and row["psnr"]["low"] <= row["psnr"]["mean"] <= row["psnr"]["high"]
        assert row["psnr"]["mean"] == pytest.approx(np.mean(row["psnr_by_frame"]))
        assert 0 <= row["actions_obeyed"]["mean"] <= 1 and row["frechet_idm"] >= -1e-6
    saved = json.loads((tmp_path / "judged" / "table.json").read_text())
    assert saved["rows"] == rows
    assert (tmp_path / "judged" / "table.md").read_text().count("\n") == 2 + len(rows)
    with Image.open(tmp_path / "judged" / "sheet.png") as sheet:
        assert sheet.size == (2 * 128, (1 + len(rows)) * 96)


def test_the_table_of_an_evaluation_shows_how_quality_falls(trained):
    arguments = ["--weights", "base", "--tokenizer", "tokenizer", "--data", "data/held-out", "--judge", "judge"]
    text = succeed(
        trained[0],
        "evaluate",
        "--model",
        "doom/tiny",
        *arguments,
        "--clips",
        "2",
        "--seeds",
        "1",
        "--frames",
        "1",
        "--schedule",
        "diagonal",
    )
    for words in ("PSNR", "Frechet", "diagonal", "last frame repeated", "PSNR by frame", "2 clips, 1 seeds"):
        assert words in text
    assert "LPIPS" not in text


def test_rollouts_do_not_depend_on_how_many_are_made_at_a_time(trained):
    folder = trained[0]
    world = load("doom/tiny", folder / "base", tokenizer=folder / "tokenizer")
    clips = cut(frames(folder / "data" / "held-out", world.size, "cpu"), 2, 2, 1)
    whole, few, single = (
        roll(world, clips, Order.of("diagonal:k=1"), world.variant.sampling, 2, batch).videos for batch in (None, 3, 1)
    )
    assert whole.shape == (2, 2, 1, 3, 96, 128)
    for other in (few, single):  # convolutions round a little differently
        assert (whole.int() - other.int()).abs().max() <= 1
    assert (whole[:, 0].int() - whole[:, 1].int()).abs().max() > 1  # each sample has a seed of its own


# TensorBoard


def test_tensorboard_is_asked_for_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        follow([Stage("judge", 2, tmp_path / "judge", iter)], iter([]), tensorboard=True)
    assert os.listdir(tmp_path) == []


def test_tensorboard_gets_every_number(tmp_path, monkeypatch):
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            written.append(folder)

        def add_scalar(self, key: str, value: float, step: int) -> None:
            written.append((key, value, step))

        def close(self) -> None:
            written.append("closed")

    fake = types.ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(fake, "SummaryWriter", SummaryWriter, raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    stages = [Stage("record train", 8, tmp_path / "data", iter), Stage("judge", 2, tmp_path, iter)]
    lines: list[tuple[str, dict[str, Any]]] = [
        ("record train", {"step": 8}),
        ("judge", {"step": 1, "loss": 0.5}),
        ("judge", {"step": 2, "loss": 0.25, "val_accuracy": 0.75}),
    ]
    follow(stages, iter(lines), tensorboard=True)
    assert written == [str(tmp_path), ("loss", 0.5, 1), ("loss", 0.25, 2), ("val_accuracy", 0.75, 2), "closed"]


# What a user can get wrong

WRONG = {
    "unknown recipe": (["train", "all", "--recipe", "soup", "--out", "x"], ["'soup'", "doom", "smoke"]),
    "unknown device": (["train", "all", "--recipe", "smoke", "--out", "x", "--device", "abacus"], ["abacus", "cpu"]),
    "recipe without a game": (["train", "all", "--recipe", "mcar:300m", "--out", "x"], ["mcar/300m", "vpt"]),
    "no recording": (
        ["train", "tokenizer", "--recipe", "smoke", "--data", "{}/judge", "--out", "x"],
        ["judge/train holds no recording"],
    ),
    "no judge": (["train", "judge", "--recipe", "mcar", "--data", "{}/data", "--out", "x"], ["mcar", "no judge"]),
    "no tokenizer to train": (
        ["train", "tokenizer", "--recipe", "mcar", "--data", "{}/data", "--out", "x"],
        ["mcar/300m", "--tokenizer"],
    ),
    "lpips nowhere": (
        ["train", "tokenizer", "--recipe", "smoke", "--data", "{}/data", "--out", "x", "--lpips", "none.safetensors"],
        ["none.safetensors"],
    ),
    "tokenizer nowhere": (
        ["train", "world", "--recipe", "smoke", "--data", "{}/data", "--tokenizer", "none", "--out", "x"],
        ["--tokenizer none", "model.safetensors"],
    ),
    "tokenizer of another kind": (
        ["train", "world", "--recipe", "smoke", "--data", "{}/data", "--tokenizer", "{}/base", "--out", "x"],
        ["does not fit fsq/tiny"],
    ),
    "no such part": (
        ["finetune", "{stage}", "--weights", "{}/base", "--out", "x", "--only", "norms,ears"],
        ["ears cannot be learnt alone", "norms, embeddings, head"],
    ),
    "both ways": (
        ["finetune", "{stage}", "--weights", "{}/base", "--out", "x", "--only", "norms", "--lora", "2"],
        ["leave out either lora or only"],
    ),
    "weights nowhere": (["finetune", "{stage}", "--weights", "none", "--out", "x"], ["--weights none"]),
    "unknown schedule": (
        ["finetune", "{stage}", "--weights", "{}/base", "--out", "x", "--schedule", "zigzag"],
        ["'zigzag'", "raster"],
    ),
    "schedule beyond the frame": (
        ["finetune", "{stage}", "--weights", "{}/base", "--out", "x", "--schedule", "diagonal:d=99"],
        ["d=99", "12x16"],
    ),
    "too many clips": (
        [
            "evaluate",
            "--model",
            "doom/tiny",
            "{world}",
            "--data",
            "{}/data/held-out",
            "--judge",
            "{}/judge",
            "--out",
            "x",
        ],
        ["18 places for clips of 16 frames", "256 are needed"],
    ),
    "no clips": (
        ["evaluate", "--model", "doom/tiny", "{world}", "--data", "{}/data", "--judge", "{}/judge"],
        ["data holds no recording"],
    ),
    "not a recording": (
        ["evaluate", "--model", "doom/tiny", "{world}", "--data", "{}/base", "--judge", "{}/judge"],
        ["no shard", "frames"],
    ),
    "not a judge": (
        ["evaluate", "--model", "doom/tiny", "{world}", "--data", "{}/data/held-out", "--judge", "{}/base"],
        ["the checkpoint does not fit InverseDynamics"],
    ),
    "judge of another game": (
        ["evaluate", "--model", "mcar/700m", "--data", "x", "--judge", "x"],
        ["mcar/700m", "vpt"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_trained_or_judged_says_why(tmp_path, trained, case, monkeypatch, capsys):
    """Called in this process: importing torch would be most of the time."""
    given, words = WRONG[case]
    folder = trained[0]
    long = {
        "{stage}": stage(trained),
        "{world}": ["--weights", str(folder / "base"), "--tokenizer", str(folder / "tokenizer")],
    }
    arguments = [part for one in given for part in long.get(one, [one.replace("{}", str(folder))])]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["diagonal", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    refuse(subprocess.CompletedProcess(arguments, int(str(end.value.code)), said.out, said.err), *words)
    assert os.listdir(tmp_path) == []


def test_without_a_recording_held_out_episodes_are_played(tmp_path):
    arguments = ["--model", "doom/tiny", "--clips", "2", "--seeds", "1", "--context", "2", "--frames", "2", "--json"]
    numbers = json.loads(succeed(tmp_path, "evaluate", *arguments, "--schedule", "diagonal:k=1"))
    assert numbers["data"] == "played" and numbers["clips"] == 2
    assert [row["schedule"] for row in numbers["rows"]] == ["", "", "diagonal:k=1"]
    assert not list(tmp_path.iterdir())
