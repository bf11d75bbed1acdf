"""The command as people use it, run for real."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from diagonal.catalog.names import find, listing
from diagonal.generation.load import load
from diagonal.generation.world import World
from diagonal.media import draw, video
from diagonal.media.video import VideoArray
from tests.e2e.conftest import call

COMMAND = str(Path(sys.executable).with_name("diagonal"))
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
ENVIRONMENT.pop("FORCE_COLOR", None)
SIZE = (224, 384)
pytestmark = pytest.mark.usefixtures("forked")


def run(folder: Path, *arguments: str) -> str:
    """What the command prints; it must succeed."""
    done = call(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def generate(folder: Path, *arguments: str) -> tuple[dict[str, Any], VideoArray]:
    """The numbers `generate --json` prints, and the clip it writes."""
    numbers = json.loads(run(folder, "generate", "--model", "mcar/tiny", "--dtype", "float32", "--json", *arguments))
    return numbers, video.read(folder / numbers["out"])


def difference(first: VideoArray, second: VideoArray) -> float:
    return float(np.abs(first.astype(float) - second.astype(float)).mean())


def encoded(frames: VideoArray, folder: Path) -> VideoArray:
    """Frames as they come back from a file."""
    with video.writer(folder / "encoded.mp4", 20) as file:
        file.write(frames)
    return video.read(folder / "encoded.mp4")


@pytest.fixture(scope="module")
def world() -> World:
    return load("mcar/tiny")


@pytest.fixture(scope="module")
def prompt(tmp_path_factory) -> Path:
    """A clip of six frames beside its recording, as the VPT dataset has them."""
    folder: Path = tmp_path_factory.mktemp("prompt")
    with video.writer(folder / "clip.mp4", 20) as file:
        for index in range(6):
            file.write(np.roll(draw.test_card(*SIZE)[0], 9 * index, axis=1))
    mouse = {"x": 0, "y": 0, "dx": 40.0, "dy": 0.0, "buttons": [], "newButtons": []}
    record = {"mouse": mouse, "keyboard": {"keys": ["key.keyboard.w"]}, "hotbar": 0, "tick": 0}
    (folder / "clip.jsonl").write_text((json.dumps(record) + "\n") * 6)
    return folder / "clip.mp4"


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[dict[str, Any], VideoArray]:
    """One frame with every option at its default."""
    return generate(tmp_path_factory.mktemp("plain"), "--frames", "1")


# plan


def test_the_plan_of_the_papers_example_has_its_steps(tmp_path):
    numbers = json.loads(run(tmp_path, "plan", "--grid", "3x40x64", "--schedule", "diagonal:k=2,d=10", "--json"))
    assert numbers["steps"] == 162 == 2 * 10 + (40 - 1) * 2 + 64
    assert numbers["tokens"] == 7680 == 3 * 40 * 64
    assert numbers["mean_width"] == numbers["speedup"] == pytest.approx(7680 / 162)
    assert numbers["max_width"] >= numbers["mean_width"]
    assert numbers["schedule"] == "diagonal:k=2,d=10" and numbers["grid"] == "3x40x64"
    assert os.listdir(tmp_path) == []


def test_raster_decodes_one_token_a_step(tmp_path):
    numbers = json.loads(run(tmp_path, "plan", "--grid", "2x4x6", "--schedule", "raster", "--json"))
    assert (numbers["steps"], numbers["max_width"], numbers["speedup"]) == (48, 1, 1)


def test_known_frames_and_given_tokens_are_fed_not_decoded(tmp_path):
    arguments = ["--prefix", "3", "--suffix", "11", "--known-frames", "2", "--json"]
    numbers = json.loads(run(tmp_path, "plan", "--grid", "3x4x6", *arguments))
    assert numbers["tokens"] == 4 * 6
    assert numbers["steps"] == 4 - 1 + 6
    assert numbers["prompt_inputs"] == 3 + 2 * (4 * 6 + 11)


def test_a_known_frame_needs_no_prefix(tmp_path):
    numbers = json.loads(run(tmp_path, "plan", "--grid", "2x4x6", "--known-frames", "1", "--json"))
    assert numbers["prompt_inputs"] == 4 * 6


def test_a_plan_is_shown_as_a_wave_with_its_numbers(tmp_path):
    lines = run(tmp_path, "plan", "--grid", "2x4x6").splitlines()
    frames = [line.split("  ") for line in lines[:4]]
    assert all(len(left) == len(right) == 6 for left, right in frames)
    assert frames[0][0][0] == "0" and frames[3][1][5] == "Z"
    table = {line.rsplit("  ", 1)[0].strip(): line for line in lines[5:]}
    text = "\n".join(lines[5:])
    assert len(table) == 5
    for words in (
        "steps",
        "18",
        "tokens decoded",
        "48",
        "4 tokens decoded",
        "2.67 tokens per step",
        "2.67x fewer steps",
    ):
        assert words in text


def test_a_plan_can_be_drawn(tmp_path):
    numbers = json.loads(run(tmp_path, "plan", "--grid", "2x4x6", "--picture", "wave.png", "--json"))
    assert numbers["picture"] == "wave.png"
    with Image.open(tmp_path / "wave.png") as image:
        assert image.format == "PNG" and image.width >= 400
    assert os.listdir(tmp_path) == ["wave.png"]


def test_the_plan_of_a_model_is_that_of_its_window_with_its_memory(tmp_path):
    numbers = json.loads(run(tmp_path, "plan", "--model", "cosmos/12b", "--schedule", "diagonal:k=2,d=10", "--json"))
    assert (numbers["grid"], numbers["steps"], numbers["prompt_inputs"]) == ("5x40x64", 162, 2 * 40 * 64)
    assert (numbers["model"], numbers["dtype"], numbers["batch"], numbers["slots"]) == (
        "cosmos/12b",
        "bfloat16",
        1,
        12800,
    )
    assert (round(numbers["weights_gb"], 2), round(numbers["cache_gb"], 2)) == (23.12, 2.10)
    parts = ("weights_gb", "tokenizer_gb", "cache_gb", "activations_gb")
    assert numbers["peak_gb"] == pytest.approx(sum(numbers[part] for part in parts))
    assert numbers["fits"] == {"24": False, "40": True, "48": True, "80": True, "96": True, "141": True}


def test_a_model_is_planned_for_the_frames_the_batch_and_the_card_at_hand(tmp_path):
    arguments = ["--frames", "40", "--dtype", "float32", "--batch", "2", "--card", "24.5", "--json"]
    numbers = json.loads(run(tmp_path, "plan", "--model", "cosmos/4b", "--schedule", "diagonal:k=2,d=10", *arguments))
    assert (numbers["windows"], numbers["all_steps"]) == (2, 162 + 152)  # 24 frames, then 16
    assert round(numbers["weights_gb"], 2) == round(2 * 8.028176, 2)
    assert round(numbers["cache_gb"], 2) == round(2 * 2 * 0.838861, 2)
    assert numbers["fits"] == {"24.5": numbers["peak_gb"] <= 24.5}


def test_known_frames_of_a_model_can_be_given(tmp_path):
    numbers = json.loads(
        run(tmp_path, "plan", "--model", "mcar/tiny", "--known-frames", "1", "--frames", "3", "--json")
    )
    assert (numbers["grid"], numbers["prompt_inputs"], numbers["tokens"]) == ("4x14x24", 14 * 24 + 11, 3 * 14 * 24)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["23.12 GB in bfloat16", "2.10 GB for 12800 tokens", "40, 48, 80, 96, 141 GB", "does not fit"]),
        (["--card", "24"], ["on 24 GB", "does not fit: 2.21 GB too much"]),
        (["--card", "80"], ["on 80 GB", "fits, 53.79 GB to spare"]),
        (
            ["--frames", "48", "--batch", "2"],
            ["windows", "2 one after the other", "4.19 GB for 12800 tokens of 2 clips"],
        ),
    ],
)
def test_memory_is_shown_with_the_plan(tmp_path, arguments, words):
    text = run(tmp_path, "plan", "--model", "cosmos/12b", *arguments)
    assert all(word in text for word in ["steps", "peak memory", *words])


# --help

HEAVY = ("torch", "diffusers", "av", "PIL", "huggingface_hub", "safetensors", "transformers")
QUICK = f"""
import sys
from diagonal.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(" ".join(name for name in {HEAVY!r} if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--help"],
            ["plan", "models", "convert", "generate", "video", "record", "train", "finetune", "evaluate", "bench"],
        ),
        (
            ["plan", "--help"],
            [
                "--grid",
                "--model",
                "--dtype",
                "--batch",
                "--card",
                "--schedule",
                "--prefix",
                "--suffix",
                "--known-frames",
                "--picture",
                "--json",
            ],
        ),
        (["models", "--help"], ["--json"]),
        (["convert", "--help"], ["--model", "--weights", "--tokenizer", "--dtype", "--out", "--json"]),
        (["generate", "--help"], ["--model", "--weights", "--prompt", "--actions", "--frames", "--compare", "--out"]),
        (["video", "--help"], ["--model", "--prompt", "--prompt-frames", "--preset", "--num-frames", "--capture"]),
        (["distill", "--help"], ["--teacher", "--prompts", "--method", "--schedule", "--plan", "--recipe"]),
        (["--version"], ["diagonal"]),
        (["record", "--help"], ["--world", "--scenario", "--frames", "--seed", "--workers", "--episode-frames"]),
        (["train", "--help"], ["all", "tokenizer", "judge", "world"]),
        (["train", "all", "--help"], ["--recipe", "--lpips", "--device", "--workers", "--tensorboard", "--json"]),
        (["train", "world", "--help"], ["--recipe", "--data", "--tokenizer", "--out"]),
        (["finetune", "--help"], ["--recipe", "--data", "--weights", "--schedule", "--steps", "--out"]),
        (["evaluate", "--help"], ["--data", "--judge", "--lpips", "--schedule", "--clips", "--seeds", "--context"]),
        (["bench", "--help"], ["--model", "--schedule", "--known", "--repeat", "--compare", "--picture"]),
        (["plan", "--grid", "2x4x6"], ["steps"]),
    ],
)
def test_help_and_plans_answer_without_the_heavy_libraries(tmp_path, arguments, words):
    command = [sys.executable, "-c", QUICK, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    assert all(word in done.stdout for word in words)


def test_the_heavy_libraries_would_be_noticed(tmp_path):
    """`models` builds every model: the same check must see torch there."""
    command = [sys.executable, "-c", QUICK, "models", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert "torch" in done.stderr.split()


# models


def test_all_models_are_listed_with_licence_and_source(tmp_path):
    models = {model["name"]: model for model in json.loads(run(tmp_path, "models", "--json"))}
    assert list(models) == listing("models")
    assert models["mcar/tiny"]["grid"] == "16x14x24"
    assert models["wan/1.3b"]["parameters"] == 1_418_996_800
    assert models["mcar/tiny"]["parameters"] == sum(
        p.numel() for p in find("models", "mcar/tiny").config.build().parameters()
    )
    assert 600e6 < models["mcar/700m"]["parameters"] < 800e6
    assert all(model["licence"] and model["source"] and model["actions"] for model in models.values())


# generate


def test_a_clip_is_continued_with_its_recording(tmp_path, prompt):
    arguments = ["--prompt", str(prompt), "--prompt-frames", "2", "--actions", str(prompt.with_suffix(".jsonl"))]
    numbers, frames = generate(tmp_path, *arguments, "--frames", "2", "--schedule", "diagonal:k=2,d=10")
    assert frames.shape == (2, *SIZE, 3)
    assert numbers["model"] == "mcar/tiny" and numbers["out"] == "out.mp4"
    assert numbers["schedule"] == "diagonal:k=2,d=10"
    assert numbers["calls"] == 10 + (14 - 1) * 2 + 24
    assert numbers["tokens_per_second"] == pytest.approx(2 * 14 * 24 / numbers["seconds"])
    assert numbers["frames"] == 2 and numbers["seconds"] > 0
    assert numbers["ms_per_frame"] == pytest.approx(1000 * numbers["seconds"] / 2)
    assert numbers["fps"] == pytest.approx(2 / numbers["seconds"])
    assert os.listdir(tmp_path) == ["out.mp4"]


def test_actions_in_words_make_one_frame_each(tmp_path, prompt):
    arguments = ["--prompt", str(prompt), "--actions", "forward,left+jump,yaw=15", "--out", "clip[bold].mp4"]
    text = run(tmp_path, "generate", "--model", "mcar/tiny", *arguments)
    assert video.read(tmp_path / "clip[bold].mp4").shape == (3, *SIZE, 3)
    for words in ("diagonal:k=1", str(3 * 37), "ms per frame", "FPS", "3 frames of mcar/tiny (random weights)"):
        assert words in text
    assert "in clip[bold].mp4" in text and "tokens per s" in text
    assert "speed-up" not in text  # of one schedule over itself


def test_the_command_makes_the_clip_the_library_makes(tmp_path, prompt, world):
    """Same prompt, actions and seed; other actions would show, though noise is the same."""
    _, frames = generate(tmp_path, "--prompt", str(prompt), "--actions", "attack+yaw=30,forward", "--seed", "5")
    clip = video.read(prompt, most=1)
    same = world.generate(clip, world.actions.parse("attack+yaw=30,forward"), seed=5).frames
    other = world.generate(clip, world.actions.parse("noop*2"), seed=5).frames
    np.testing.assert_array_equal(frames, encoded(same, tmp_path))
    assert difference(frames, encoded(other, tmp_path)) > 0.5


def test_one_seed_gives_one_clip_and_another_seed_another(tmp_path, plain):
    _, again = generate(tmp_path, "--frames", "1", "--seed", "0")
    np.testing.assert_array_equal(again, plain[1])
    _, other = generate(tmp_path, "--frames", "1", "--seed", "1")
    assert difference(other, plain[1]) > 2


def test_a_saved_model_gives_the_clip_of_the_model_it_was(tmp_path, world, plain):
    world.save_pretrained(tmp_path / "saved")
    Image.fromarray(draw.test_card(*SIZE)[0]).save(tmp_path / "card.png")
    numbers, frames = generate(tmp_path, "--frames", "1", "--weights", "saved", "--prompt", "card.png")
    assert (plain[0]["weights"], numbers["weights"]) == ("random", "saved")
    np.testing.assert_array_equal(frames, plain[1])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_quantised_weights_make_the_clip_the_library_makes(tmp_path, plain, kind):
    numbers, frames = generate(tmp_path, "--frames", "1", "--quantize", kind)
    world = load("mcar/tiny").quantize(kind)
    assert (plain[0]["quantize"], numbers["quantize"]) == ("none", kind)
    np.testing.assert_array_equal(
        frames, encoded(world.generate(draw.test_card(*SIZE), frames=1, schedule="diagonal:k=1").frames, tmp_path)
    )


def test_two_schedules_are_compared_side_by_side(tmp_path, world, plain):
    numbers, frames = generate(tmp_path, "--frames", "1", "--compare", "raster")
    assert (numbers["calls"], numbers["compare"]["calls"]) == (37, 14 * 24)
    assert (numbers["schedule"], numbers["compare"]["schedule"]) == ("diagonal:k=1", "raster")
    assert numbers["compare"].keys() >= {"frames", "seconds", "ms_per_frame", "fps"}
    assert numbers["speedup"] == pytest.approx(numbers["compare"]["seconds"] / numbers["seconds"])
    assert frames.shape == (1, 224 + 32, 2 * 384 + 8, 3)
    assert os.listdir(tmp_path) == ["out.mp4"]
    # The slow one stands on the left. Encoders blur noise, so the nearer of the two is the one.
    left, right, diagonal = frames[:, 32:, :384], frames[:, 32:, -384:], plain[1]
    raster = encoded(world.generate(draw.test_card(*SIZE), frames=1, schedule="raster").frames, tmp_path)
    assert difference(left, raster) < 0.9 * difference(left, diagonal)
    assert difference(right, diagonal) < 0.9 * difference(right, raster)


def test_lossless_frames_have_the_tokens_of_raster(tmp_path):
    numbers, _ = generate(tmp_path, "--frames", "1", "--schedule", "lossless:window=32", "--compare", "raster")
    assert numbers["compare"]["tokens_equal"] == 1
    assert 14 * 24 / 32 <= numbers["calls"] < numbers["compare"]["calls"] == 14 * 24
    halves = ("--dtype", "bfloat16", "--strict", "48")
    numbers, _ = generate(tmp_path, "--frames", "1", "--schedule", "lossless", "--compare", "raster", *halves)
    assert numbers["compare"]["tokens_equal"] == 1 and numbers["calls"] < numbers["compare"]["calls"] == 14 * 24


def test_a_dash_streams_the_clip_to_stdout(tmp_path, plain):
    command = [COMMAND, "generate", "--model", "mcar/tiny", "--dtype", "float32", "--frames", "2", "--out", "-"]
    command += ["--unsigned"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=120)
    assert done.returncode == 0 and os.listdir(tmp_path) == []
    with av.open(io.BytesIO(done.stdout), "r") as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(np.uint8)
    assert frames.shape == (2, *SIZE, 3)
    assert difference(frames[:1], plain[1]) < 0.7 * difference(frames[1:], plain[1])


def test_an_interrupted_run_leaves_no_file(tmp_path):
    command = [COMMAND, "generate", "--model", "mcar/tiny", "--schedule", "raster", "--frames", "100"]

    def listen() -> None:
        """Tests that run in the background may have inherited that interrupts are ignored."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, preexec_fn=listen
    ) as process:
        deadline = time.monotonic() + 60
        while not os.listdir(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert os.listdir(tmp_path)  # it is writing, under another name
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in text
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_request_to_end_that_comes_in_a_destructor_is_not_lost(tmp_path, name, code):
    """Python only reports exceptions that arise there, and in callbacks, and then goes on."""
    program = f"""
import signal, sys, time
from diagonal import cli

class Last:
    def __del__(self):
        signal.raise_signal(signal.{name})

@cli.app.command()
def wait():
    last = Last()
    del last
    time.sleep(300)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["diagonal", "wait"]
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code and "Traceback" not in done.stderr
