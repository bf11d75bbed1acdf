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

from diagonal import Order, Sampling, Snapshot
from diagonal.cli import main
from diagonal.cli.game import ACT, SCHEDULE, Move, Replay
from diagonal.generation import load as loading
from diagonal.media import video


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("inputs")
    with video.writer(folder / "clip.mp4", 16) as file:
        file.write(np.full((12, 64, 96, 3), 90, np.uint8))
    (folder / "noise.mp4").write_bytes(b"no video at all")
    save_file({"prompt_embeds": torch.ones(3, 5)}, folder / "narrow.safetensors")
    units = torch.zeros(1, 193, dtype=torch.long)
    here = Snapshot("doom/tiny", "0", "roll", Order.of("raster"), Sampling(), 0, 0, units, 1, ())
    here.save(folder / "here.json")
    Replay(here, [Move(ACT, "forward")]).save(folder / "replay.json")
    Replay(here, [Move(ACT, "sneeze")]).save(folder / "sneeze.json")
    Replay(here, [Move(SCHEDULE, "diagonal:k=1,d=2")]).save(folder / "overlap.json")
    whole = (folder / "replay.json").read_text()
    (folder / "cut.json").write_text(whole[: len(whole) // 2])
    (folder / "kind.json").write_text(whole.replace('"act"', '"jump"'))
    (folder / "often.json").write_text(whole.replace('"times": 1', '"times": 1.5'))
    (folder / "other.json").write_text(whole.replace("diagonal replay", "a song"))
    (folder / "newer.json").write_text(whole.replace('"version": 1', '"version": 2'))
    (folder / "beginning.json").write_text(whole.replace('"given": 1', '"given": 2'))
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
    "strict calls without room": ([*MCAR, "--strict", "12"], "mcar/tiny needs at least 13"),
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
PLAY = ("play", "--model", "doom/tiny", "--script", "forward")
PLAYED = {
    "no terminal": (["play"], "stdin is no terminal, so nobody can play; run it in one, or give --script"),
    "nothing to play by": (["play", "--draw", "none"], "--draw none shows nothing to play by"),
    "two things on stdout": ([*PLAY, "--draw", "blocks", "--json"], "--json and --draw blocks both write to stdout"),
    "a video on stdout": ([*PLAY, "--out", "-"], "name a file"),
    "a video nowhere": ([*PLAY, "--out", "none/play.mp4"], "the folder none does not exist"),
    "a video by another name": ([*PLAY, "--out", "play.txt"], ".mp4"),
    "a snapshot by another name": ([*PLAY, "--save", "here.txt"], "must end in .json"),
    "a replay nowhere": ([*PLAY, "--replay", "none/replay.json"], "the folder none does not exist"),
    "no such start": ([*PLAY, "--start", "moon"], "lamps, gate"),
    "no such schedule": ([*PLAY, "--schedule", "zigzag"], "'zigzag'"),
    "frames that overlap": ([*PLAY, "--schedule", "diagonal:k=1,d=2"], "frames overlap in the schedule"),
    "an order that forgets": ([*PLAY, "--stand-in", "prompt_frame"], "which a live video forgets"),
    "no such context": ([*PLAY, "--context", "slide"], "context 'slide' is not known; known: roll, refill"),
    "positions that end": (
        ["play", "--model", "wham/tiny", "--script", "b0", "--context", "roll"],
        "wham/tiny has learned positions",
    ),
    "unknown actions": ([*PLAY, "--script", "sneeze"], "unknown action 'sneeze'"),
    "a seed below 0": ([*PLAY, "--seed=-1"], "seed -1 given"),
    "impossible sampling": ([*PLAY, "--top-p", "0"], "top_p=0"),
    "a world that only watches": (["play", "--model", "cosmos/tiny", "--script", "noop"], "cannot be played"),
    "a diffusion model": (["play", "--model", "doom-t2v", "--script", "noop"], "has no tokens"),
    "no weights": (["play", "--model", "mcar/700m", "--script", "noop"], "mcar/700m needs weights"),
    "no such device": ([*PLAY, "--device", "abacus"], "abacus"),
    "no such snapshot": ([*PLAY, "--resume", "none.json"], "none.json"),
    "a damaged snapshot": ([*PLAY, "--resume", "{}/cut.json"], "is no snapshot, or a part of one"),
    "a replay as a snapshot": ([*PLAY, "--resume", "{}/replay.json"], "is no snapshot of a session"),
    "a snapshot and a start": (
        [*PLAY, "--resume", "{}/here.json", "--start", "hall"],
        "--start cannot go with --resume",
    ),
    "a snapshot and a seed": (
        [*PLAY, "--resume", "{}/here.json", "--seed", "3", "--context", "roll"],
        "--context, --seed cannot go with --resume",
    ),
    "a snapshot of another world": (
        ["play", "--model", "mcar/tiny", "--resume", "{}/here.json", "--script", "noop"],
        "--model mcar/tiny given, but the snapshot is of doom/tiny",
    ),
    "a replay that is asked for more": (
        ["play", "--script", "{}/replay.json", "--schedule", "raster", "--temperature", "0"],
        "--schedule, --temperature cannot go with a replay",
    ),
    "a damaged replay": (["play", "--script", "{}/cut.json"], "is no replay, or a part of one"),
    "an unknown move": (["play", "--script", "{}/kind.json"], "unknown move 'jump'; known: act, schedule"),
    "a move and a half": (["play", "--script", "{}/often.json"], "1.5 is no whole number"),
    "something else": (["play", "--script", "{}/other.json"], "is no replay; diagonal play --replay writes them"),
    "a snapshot as a replay": (["play", "--script", "{}/here.json"], "is no replay"),
    "a replay of tomorrow": (["play", "--script", "{}/newer.json"], "reads version 1"),
    "a replay with a damaged beginning": (["play", "--script", "{}/beginning.json"], "its beginning, is damaged"),
    "unknown actions in a replay": (["play", "--script", "{}/sneeze.json"], "unknown action 'sneeze'"),
    "a replay of frames that overlap": (["play", "--script", "{}/overlap.json"], "frames overlap"),
}
WAN = ("video", "--model", "wan/tiny", "--num-frames", "9", "--prompt", "a cat")
MAGI = ("video", "--model", "magi/tiny", "--num-frames", "48", "--prompt", "a cat")
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
    "frames that fill no chunk": ([*MAGI, "--num-frames", "50"], "the nearest is 48 or 72"),
    "steps that no window divides": ([*MAGI, "--schedule", "10"], "steps=10 given; it must be a multiple of 4"),
    "a preset of others": ([*MAGI, "--preset", "self-forcing"], "magi/tiny runs under magi, magi-24b, magi-distilled"),
    "a long text of many": ([*MAGI, "--prompt", "abcd " * 20], "has 20 tokens; 16 are allowed"),
    "a preview of none": ([*MAGI, "--decoder", "preview"], "magi/tiny has no preview"),
    "no weights of many": (["video", "--model", "magi/4.5b", "--prompt", "a cat"], "magi/4.5b needs weights"),
    "no VAE": ([*WAN, "--vae", "none"], "it is what decodes to frames"),
    "no weights": (["video", "--model", "wan/1.3b", "--prompt", "a cat"], "wan/1.3b needs weights"),
    "no such weights": ([*WAN, "--quantize", "int8"], "'int8' is not known; write 'fp8'"),
    "bench of a width": (["bench", "--model", "wan/tiny", "--width", "50"], "multiple of 16"),
}


@pytest.mark.parametrize("case", WORLDS)
def test_worlds_are_not_loaded_in_vain(case: str, refused, inputs: Path) -> None:
    arguments, words = WORLDS[case]
    assert words in refused(*(argument.format(inputs) for argument in arguments))


@pytest.mark.parametrize("case", PLAYED)
def test_worlds_to_play_are_not_loaded_in_vain(case: str, refused, inputs: Path) -> None:
    arguments, words = PLAYED[case]
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
    with pytest.raises(AssertionError, match="a model was loaded"):
        refused(*PLAY)
