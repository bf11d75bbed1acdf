"""What needs no model to be refused is refused before one is loaded: here loading itself is an error."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from diagonal.cli import main
from diagonal.generation import load as loading
from diagonal.media import video


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("inputs")
    with video.writer(folder / "clip.mp4", 16) as file:
        file.write(np.full((12, 64, 96, 3), 90, np.uint8))
    (folder / "noise.mp4").write_bytes(b"no video at all")
    save_file({"prompt_embeds": torch.ones(3, 5)}, folder / "narrow.safetensors")
    return folder


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """What a command says last, which must end with an error of use and never load a model."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(loading, "load_video_model", load)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["diagonal", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert end.value.code == 2 and not said.out and os.listdir(tmp_path) == []
        return " ".join(said.err.split())

    return run


COSMOS = ("generate", "--model", "cosmos/tiny")
MCAR = ("generate", "--model", "mcar/tiny", "--frames", "1")
WORLDS = {
    "frames that do not divide": ([*COSMOS, "--frames", "20"], "makes 8 at a time: write 24"),
    "prompt frames that do not divide": (
        [*COSMOS, "--prompt", "{}/clip.mp4", "--prompt-frames", "10"],
        "10 prompt frames given; cosmos/tiny takes 1 + 8n: 9 or 17",
    ),
    "actions of a world without": ([*COSMOS, "--actions", "left"], "this model takes none"),
    "unknown actions": (["generate", "--model", "mcar/tiny", "--actions", "sneeze"], "unknown action 'sneeze'"),
    "actions it cannot choose": ([*MCAR, "--actions", "model"], "mcar/tiny chooses no actions"),
    "actions of another number": ([*MCAR, "--actions", "forward*3"], "3 actions and --frames asks for 1"),
    "frames that overlap": (
        ["generate", "--model", "wham/tiny", "--actions", "model", "--schedule", "diagonal:k=1,d=2"],
        "frames overlap",
    ),
    "a text nobody reads": ([*COSMOS, "--text", "rain"], "cosmos/tiny takes no text"),
    "embeddings nobody reads": ([*COSMOS, "--text-embeds", "{}/narrow.safetensors"], "cosmos/tiny takes no text"),
    "a file as a text": (
        ["generate", "--model", "cosmos/tiny-text", "--text", "{}/clip.mp4"],
        "is a file or folder, and this is a text",
    ),
    "a prompt that is no video": ([*COSMOS, "--prompt", "{}/noise.mp4"], "cannot be read as video"),
    "a prompt nowhere": ([*COSMOS, "--prompt", "none.mp4"], "none.mp4 does not exist"),
    "a prompt of another size": ([*MCAR, "--prompt", "{}/clip.mp4"], "height 224 and width 384"),
    "a size in words": ([*COSMOS, "--size", "big"], "--size 'big' is not HEIGHTxWIDTH"),
    "a negative size": ([*COSMOS, "--size=-32x48"], "--size '-32x48' is not HEIGHTxWIDTH"),
    "a size that does not divide": ([*COSMOS, "--size", "30x48"], "both sides must be multiples of 16"),
    "a size of learned positions": (
        ["generate", "--model", "wham/tiny", "--size", "90x160"],
        "wham/tiny has learned positions of its own frames, (90, 150)",
    ),
    "a schedule beyond the frame": ([*MCAR, "--schedule", "diagonal:d=99"], "d=99"),
    "an impossible comparison": ([*MCAR, "--compare", "diagonal:d=99"], "d=99"),
    "a seed below 0": ([*MCAR, "--seed=-1"], "seed -1 given"),
    "impossible sampling": ([*MCAR, "--top-p", "0"], "top_p=0"),
    "no such device": ([*MCAR, "--device", "abacus"], "abacus"),
    "no such dtype": ([*MCAR, "--dtype", "int3"], "'int3'"),
    "no such weights": ([*MCAR, "--quantize", "int3"], "'int3'"),
    "no weights": (["generate", "--model", "mcar/700m"], "mcar/700m needs weights"),
    "nothing to continue": (["generate", "--model", "mcar/700m", "--weights", "x.ckpt"], "give --prompt"),
    "actions of a world that its checkpoint decides on": (
        ["generate", "--model", "wham/200m", "--weights", "x.ckpt", "--prompt", "{}/clip.mp4", "--actions", "jump"],
        "unknown action 'jump'",
    ),
    "no such start": (["generate", "--start", "moon"], "lamps, gate"),
    "bench of half a token frame": (["bench", "--model", "cosmos/tiny", "--frames", "7"], "makes 8 at a time"),
}
WAN = ("video", "--model", "wan/tiny", "--num-frames", "9", "--prompt", "a cat")
SMALL = ("--height", "64", "--width", "96")
VIDEOS = {
    "a width that does not divide": ([*WAN, "--width", "50"], "multiple of 16: 48 or 64"),
    "frames that do not divide": ([*WAN, "--num-frames", "80"], "the nearest is 69 or 81"),
    "no text": ([*WAN, "--prompt", " "], "the prompt is empty"),
    "a long text": ([*WAN, "--prompt", "abcd " * 2000], "has 2000 tokens; 16 are allowed"),
    "unknown words": (["video", "--prompt", "a red cat"], "cat"),
    "a long text later": ([*WAN, "--num-frames", "33", "--prompt-at", "1:" + "a " * 30], "has 30 tokens"),
    "a prompt after the end": ([*WAN, "--prompt-at", "3:a dog"], "a prompt at chunk 3"),
    "a file as a prompt": ([*WAN, "--prompt", "{}/clip.mp4"], "--image or --video begins with a file"),
    "embeddings of another model": (
        ["video", "--model", "wan/tiny", "--prompt-embeds", "{}/narrow.safetensors", "--num-frames", "9"],
        "prompt_embeds of shape (1, 3, 5) given; wan/tiny takes (rows, 48)",
    ),
    "a clip of another size": ([*WAN, "--video", "{}/clip.mp4"], "height 480 and width 832 is needed. Resize them"),
    "a clip that does not divide": ([*WAN, *SMALL, "--video", "{}/clip.mp4"], "--prompt-frames 9"),
    "a clip that is as long": (
        [*WAN, *SMALL, "--video", "{}/clip.mp4", "--prompt-frames", "9"],
        "num_frames=9 given; 3 latent frames of 4 frames",
    ),
    "a clip that is no video": ([*WAN, "--video", "{}/noise.mp4"], "cannot be read as video"),
    "a picture nowhere": ([*WAN, "--image", "none.png"], "none.png does not exist"),
    "a teacher that begins": ([*WAN, *SMALL, "--preset", "wan", "--image", "{}/clip.mp4"], "image given; all frames"),
    "no such preset": ([*WAN, "--preset", "none"], "no preset is called 'none'"),
    "no such schedule": ([*WAN, "--schedule", "x"], "unknown schedule 'x'"),
    "no such decoder": ([*WAN, "--decoder", "eyes"], "decoder 'eyes' is not known"),
    "no preview at all": (["video", "--prompt", "a maze", "--decoder", "preview"], "doom-t2v has no preview"),
    "no preview given": (
        ["video", "--model", "wan/1.3b", "--weights", "x", "--prompt", "a cat", "--decoder", "preview"],
        "wan/1.3b came without 'preview'; name it in Weights(preview=...), --preview: TAEHV's file",
    ),
    "no VAE": ([*WAN, "--vae", "none"], "it is what decodes to frames"),
    "no weights": (["video", "--model", "wan/1.3b", "--prompt", "a cat"], "wan/1.3b needs weights"),
    "no such weights": ([*WAN, "--quantize", "int8"], "'int8' is not known; write 'fp8'"),
    "bench of a width": (["bench", "--model", "wan/tiny", "--width", "50"], "multiple of 16"),
}


@pytest.mark.parametrize("case", WORLDS)
def test_worlds_are_not_loaded_in_vain(case: str, refused, inputs: Path) -> None:
    arguments, words = WORLDS[case]
    assert words in refused(*(argument.format(inputs) for argument in arguments))


@pytest.mark.parametrize("case", VIDEOS)
def test_diffusion_models_are_not_loaded_in_vain(case: str, refused, inputs: Path) -> None:
    arguments, words = VIDEOS[case]
    assert words in refused(*(argument.format(inputs) for argument in arguments))


def test_loading_would_be_noticed(refused) -> None:
    with pytest.raises(AssertionError, match="a model was loaded"):
        refused(*MCAR)
    with pytest.raises(AssertionError, match="a model was loaded"):
        refused(*WAN)
