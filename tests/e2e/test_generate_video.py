"""Videos from prompts through the command, run for real with the tiny model: to mp4 and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import diagonal
from diagonal import Request
from diagonal.media import video
from tests.conftest import golden
from tests.e2e.conftest import ENVIRONMENT, numbers_of

SMALL = ("--height", "32", "--width", "48", "--dtype", "float32")
MODEL = ("video", "--model", "wan/tiny", *SMALL, "--no-watermark")  # which takes seconds, and has tests of its own


def encoded(frames: Any, folder: Path) -> Any:
    """Frames as they come back from a file."""
    with video.writer(folder / "encoded.mp4", 16) as file:
        file.write(frames)
    return video.read(folder / "encoded.mp4")


def test_a_prompt_becomes_an_mp4_and_the_numbers_say_how(tmp_path: Path, forked) -> None:
    arguments = ["--prompt", "a red cat", "--num-frames", "33", "--schedule", "322", "--seed", "4"]
    numbers = numbers_of(
        forked(tmp_path, *MODEL, "--json", *arguments, "--prompt-at", "2:a blue dog", "--out", "cat.mp4")
    )
    frames = video.read(tmp_path / "cat.mp4")
    assert frames.shape == (33, 32, 48, 3) and os.listdir(tmp_path) == ["cat.mp4"]
    assert numbers.pop("seconds") > 0 and numbers.pop("fps") > 0 and numbers.pop("first_chunk_ms") > 0
    assert numbers == {
        "model": "wan/tiny",
        "weights": "random",
        "preset": "diagonal-distillation",
        "schedule": "diagonal:steps=322,context=100,shift=5.0",
        "decoder": "vae",
        "seed": 4,
        "height": 32,
        "width": 48,
        "scale": 1,
        "calls": 3 + 2 + 2 + 1,
        "frames": 33,
        "given_frames": 0,
        "out": "cat.mp4",
        "credentials": "local certificate, untrusted",
        "watermark": False,
        "watermark_seconds": 0.0,
        "changes": [{"prompt": "a blue dog", "requested_at": 0, "applied_at": 2}],
    }
    request = Request(
        prompt="a red cat", num_frames=33, schedule="322", seed=4, prompt_at={2: "a blue dog"}, height=32, width=48
    )
    model = diagonal.load("wan/tiny")
    same, other = (encoded(model.generate(request, seed=seed).frames, tmp_path) for seed in (4, 5))
    # Processes may round differently, by which a byte and then its block in the file may change.
    assert np.abs(frames.astype(int) - same).mean() < 0.5 < 5 < np.abs(frames.astype(int) - other).mean()


def test_a_picture_begins_the_video_and_what_was_made_is_shown(tmp_path: Path, forked) -> None:
    Image.fromarray(np.full((50, 60, 3), 200, np.uint8)).save(tmp_path / "start.png")
    arguments = ["--prompt", "a cat", "--image", "start.png", "--crop", "--num-frames", "13", "--decoder", "preview"]
    done = forked(tmp_path, *MODEL, *arguments, "--prompt-at", "0:[bold]")
    assert done.returncode == 2 and "a prompt at chunk 0" in done.stderr
    done = forked(tmp_path, *MODEL, *arguments)
    assert done.returncode == 0, done.stderr
    assert len(video.read(tmp_path / "out.mp4")) == 13
    assert "12 frames of wan/tiny (random weights) behind 1 given in out.mp4; diagonal-distillation" in done.stdout


def test_a_clip_goes_on_and_the_teacher_has_guidance(tmp_path: Path, forked) -> None:
    with video.writer(tmp_path / "clip.mp4", 16) as file:
        file.write(np.full((5, 32, 48, 3), 90, np.uint8))
    clip = ("--prompt", "a cat", "--video", "clip.mp4", "--num-frames", "17")
    numbers = numbers_of(forked(tmp_path, *MODEL, "--json", *clip))
    # What was given is in the file, but it was not made.
    assert (numbers["frames"], numbers["given_frames"], len(video.read(tmp_path / "out.mp4"))) == (12, 5, 17)
    assert numbers["fps"] == pytest.approx(12 / numbers["seconds"])
    arguments = ["--preset", "wan", "--num-inference-steps", "2", "--guidance-scale", "3", "--num-frames", "9"]
    numbers = numbers_of(
        forked(tmp_path, *MODEL, "--json", "--prompt", "a cat", "--negative-prompt", "a dog", *arguments)
    )
    assert (numbers["calls"], numbers["schedule"]) == (4, "teacher:steps=2,shift=8.0")


def test_a_clip_that_does_not_divide_is_trimmed_to_its_last_frames(tmp_path: Path, forked) -> None:
    with video.writer(tmp_path / "clip.mp4", 16) as file:
        for index in range(12):
            file.write(np.full((32, 48, 3), 20 * index, np.uint8))
    clip = ("--prompt", "a cat", "--video", "clip.mp4", "--num-frames", "21")
    done = forked(tmp_path, *MODEL, *clip)
    assert done.returncode == 2 and "12 frames given" in done.stderr and "9 or 13" in done.stderr
    assert "--prompt-frames 9" in done.stderr
    for count, words in (("10", "9 or 13"), ("13", "clip.mp4 has 12 frames; --prompt-frames asks for 13")):
        done = forked(tmp_path, *MODEL, *clip, "--prompt-frames", count)
        assert done.returncode == 2 and words in done.stderr
    numbers = numbers_of(forked(tmp_path, *MODEL, "--json", *clip, "--prompt-frames", "9"))
    assert (numbers["frames"], numbers["given_frames"]) == (12, 9)
    trimmed = video.read(tmp_path / "out.mp4")
    with video.writer(tmp_path / "last.mp4", 16) as file:
        file.write(video.read(tmp_path / "clip.mp4")[-9:])
    numbers_of(forked(tmp_path, *MODEL, "--json", *clip[:2], "--video", "last.mp4", *clip[4:]))
    assert np.abs(video.read(tmp_path / "out.mp4").astype(int) - trimmed).mean() < 1


def test_the_call_from_before_still_works_and_names_its_command(tmp_path: Path, forked) -> None:
    old = ("generate", *MODEL[1:], "--prompt", "a red cat", "--num-frames", "9", "--json")
    done = forked(tmp_path, *old)
    assert json.loads(done.stdout)["frames"] == 9 and len(video.read(tmp_path / "out.mp4")) == 9
    assert "`diagonal video --model wan/tiny ...`" in done.stderr
    assert "diagonal video" not in forked(tmp_path, *MODEL, *old[-5:]).stderr
    done = forked(tmp_path, "video", "--model=mcar/tiny", "--prompt", "a red cat")
    assert done.returncode == 2 and "mcar/tiny is a token world; write `diagonal generate" in done.stderr


def test_a_yaml_file_and_embeddings_from_a_file(tmp_path: Path, forked) -> None:
    (tmp_path / "family.yaml").write_text(
        "denoising_step_list: [1000, 500]\nwarp_denoising_step: true\nnum_frame_per_block: 3\ntimestep_shift: 5.0\n"
        "guidance_scale: 3.0\n"
    )
    save_file({"prompt_embeds": torch.ones(3, 48)}, tmp_path / "words.safetensors")
    arguments = ["--prompt-embeds", "words.safetensors", "--preset", "family.yaml", "--num-frames", "9"]
    done = forked(tmp_path, *MODEL, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    assert "family.yaml also gives guidance_scale" in done.stderr and json.loads(done.stdout)["calls"] == 3


def test_the_video_streams_to_stdout(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("diagonal")), *MODEL, "--prompt", "a cat", "--num-frames", "9"]
    done = subprocess.run(
        [*command, "--out", "-", "--unsigned"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "piped.mp4").write_bytes(done.stdout)
    assert len(video.read(tmp_path / "piped.mp4")) == 9


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generators as people have them: whole, damaged, and none at all."""
    folder: Path = tmp_path_factory.mktemp("files")
    state = {f"model.{key}": value for key, value in golden("wan/tiny_weights.safetensors").items()}
    vae = golden("wan/tiny_vae.safetensors")
    torch.save({"generator": state}, folder / "whole.pt")
    torch.save({"generator": state | {"model.head.head.bias": torch.full((64,), torch.nan)}}, folder / "damaged.pt")
    torch.save({"critic": state}, folder / "critic.pt")
    torch.save({key.removeprefix("w."): one for key, one in vae.items() if key.startswith("w.")}, folder / "vae.pth")
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--weights", "{}/damaged.pt", "--vae", "{}/vae.pth"], "chunk 0 (latent frames 0 to 2) came out as NaN"),
        (["--weights", "{}/critic.pt"], "holds no state dict of tensors"),
        (["--weights", "{}/whole.pt"], "holds no VAE; give one too"),
        (["--num-frames", "80"], "the nearest is 69 or 81"),
        (["--width", "50"], "it must be a multiple of 16: 48 or 64"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "abcd " * 2000], "has 2000 tokens; 16 are allowed"),
        (["--preset", "none"], "no preset is called 'none'"),
        (["--schedule", "x"], "unknown schedule 'x'"),
        (["--decoder", "other"], "decoder 'other' is not known"),
        (["--decoder", "none"], "makes no frames to write"),
        (["--prompt-at", "dog"], "is not CHUNK:text"),
        (["--prompt-at", "1:a", "--prompt-at", "1:b"], "names chunk 1 twice"),
        (["--temperature", "0", "--start", "hall"], "--start, --temperature cannot go with wan/tiny"),
        (["--vae", "none"], "it is what decodes to frames"),
        (["--prompt-frames", "5"], "--prompt-frames 5 needs --video"),
        (["--prompt", "{}/vae.pth"], "--image or --video begins with a file. If it is the text, write a space before"),
        (["--image", "nowhere.png"], "nowhere.png does not exist"),
        (["--out", "cat.gif"], "the name must end in"),
    ],
)
def test_what_cannot_be_made_is_refused_and_leaves_no_file(
    tmp_path: Path, forked, files: Path, arguments: list[str], words: str
) -> None:
    given = [argument.format(files) for argument in arguments]
    done = forked(tmp_path, *MODEL, "--prompt", "a cat", "--num-frames", "9", *given)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert words in done.stderr.splitlines()[-1] and not done.stdout and os.listdir(tmp_path) == []


def test_token_models_take_no_options_of_diffusion_models(tmp_path: Path, forked) -> None:
    done = forked(tmp_path, "generate", "--model", "mcar/tiny", "--preset", "wan", "--height", "32")
    assert done.returncode == 2 and "--height, --preset cannot go with mcar/tiny, which has tokens" in done.stderr


def test_a_plan_shows_the_chunks_and_the_memory(tmp_path: Path, forked) -> None:
    arguments = ("plan", "--model", "wan/1.3b", "--schedule", "4322222", "--num-frames", "81")
    numbers = json.loads(forked(tmp_path, *arguments, "--json").stdout)
    assert [chunk["calls"] for chunk in numbers["chunks"]] == [4, 3, 2, 2, 2, 2, 2] and numbers["calls"] == 17
    assert [chunk["keys"] for chunk in numbers["chunks"]] == [4680, 9360, 14040] + [18720] * 4
    assert numbers["chunks"][0]["levels"] == [1000, 933, 733, 357] and numbers["chunks"][0]["latents"] == [0, 2]
    assert round(numbers["cache_gb"], 2) == 3.45 and round(numbers["transformer_gb"], 2) == 2.84
    text = forked(tmp_path, *arguments).stdout
    assert all(words in text for words in ("1000, 933, 733, 357", "18,720", "3.45 GB", "81 frames, 17 model calls"))
    done = forked(tmp_path, *arguments, "--card", "24")
    assert done.returncode == 2 and "--card cannot go with wan/1.3b" in done.stderr


def test_a_generator_is_converted_with_its_vae_or_alone(tmp_path: Path, forked, files: Path) -> None:
    base = ("convert", "--model", "wan/tiny", "--weights", str(files / "whole.pt"), "--json")
    done = forked(tmp_path, *base, "--vae", str(files / "vae.pth"), "--out", "both")
    assert done.returncode == 0, done.stderr
    alone = forked(tmp_path, *base, "--vae", "none", "--out", "alone", "--dtype", "bfloat16")
    assert alone.returncode == 0 and json.loads(alone.stdout)["dtype"] == "bfloat16"
    state = load_file(tmp_path / "both" / "model.safetensors")
    assert {key.partition(".")[0] for key in state} == {"transformer", "tokenizer"}
    assert json.loads(done.stdout)["parameters"] == sum(value.numel() for value in state.values())
    numbers = numbers_of(
        forked(tmp_path, *MODEL, "--json", "--weights", "both", "--prompt", "a cat", "--num-frames", "9")
    )
    assert numbers["frames"] == 9 and numbers["weights"] == "both"
