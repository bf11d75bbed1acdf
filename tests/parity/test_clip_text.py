"""CLIP's words and its text tower against their references, in a small size."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from diagonal.evaluation.metrics import Setting, UnfitError, Video, clip_score
from diagonal.evaluation.metrics.clip_score import ClipScore
from diagonal.networks import clip
from diagonal.networks.opening import filled
from diagonal.text import clip_words
from tests import made_weights
from tests.conftest import golden, golden_json

FACTS = golden_json("metrics/clip_text.json")


@pytest.fixture(scope="module")
def merges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of merges in the published form."""
    path = tmp_path_factory.mktemp("clip") / "bpe_simple_vocab_16e6.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(["#version", *FACTS["merges"]]) + "\n")
    return path


def tower() -> clip.TextTower:
    state = made_weights.weights(FACTS["manifest"], FACTS["weights"]["rules"])
    assert made_weights.crc32(state) == FACTS["weights"]["check"]
    others = {"visual.conv1.weight": torch.ones(3), "logit_scale": torch.ones(()), "vocab_size": torch.tensor(3)}
    return filled(clip.TextConfig(**FACTS["sizes"]).build, state | others, "made")


def test_texts_are_cut_as_the_reference_cuts_them(merges: Path) -> None:
    words = clip_words.load(merges)
    for text, expected in zip(FACTS["texts"], FACTS["tokens"], strict=True):
        assert words.encode(text) == [*expected, *[0] * (77 - len(expected))], text
    with pytest.raises(ValueError, match="a text of 80 tokens; CLIP reads 75"):
        words.encode("! " * 80)


def test_features_of_texts_are_those_of_the_reference(merges: Path) -> None:
    numbers = torch.tensor([clip_words.load(merges).encode(text) for text in FACTS["texts"]])
    with torch.inference_mode():
        found = tower()(numbers)
    expected = golden("metrics/clip_text.safetensors")["features"]
    torch.testing.assert_close(found, expected, atol=FACTS["tolerance"], rtol=0)


@pytest.mark.parametrize("name", ["b32", "l14"])
def test_the_published_towers_have_these_sizes(name: str) -> None:
    sizes = FACTS["true_size"]
    config = {"b32": clip.B32, "l14": clip.L14}[name].text
    assert (config.width, config.features) == (sizes[name]["width"], sizes[name]["features"])
    assert (config.layers, config.words, config.length) == (sizes["layers"], sizes["words"], sizes["length"])


def test_the_score_is_the_cosine_of_frame_and_prompt(merges: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file holds both towers; nothing of it is run."""
    text = FACTS["manifest"]
    small = clip.Config(width=64, layers=1, patch=112, features=32, text=clip.TextConfig(**FACTS["sizes"]))
    picture = {f"visual.{key}": list(value.shape) for key, value in small.build().state_dict().items()}
    rules = FACTS["weights"]["rules"]
    path = merges.with_name("ViT-B-32.pt")
    torch.save(made_weights.weights(text | picture, [["norm|ln_", "uniform", 1.0, 0.1], *rules]), path)
    monkeypatch.setitem(clip_score.TOWERS, "b32", (small, ClipScore.about.own_files["b32"][0]))
    metric = ClipScore(Setting("b32", merges.parent))
    video = Video(made_weights.clip("clip:score", 3, 40, 56), prompt="a cat on a skateboard")
    scores = metric.look(video, None)
    assert scores.shape == (3,) and (scores >= 0).all() and (scores <= 100).all()
    with torch.inference_mode():
        ids = torch.tensor([metric.words.encode("a cat on a skateboard")])
        one = torch.nn.functional.normalize(metric.texts(ids), dim=-1)
    torch.testing.assert_close(metric.feature("a cat on a skateboard"), one[0])
    with pytest.raises(UnfitError, match="CLIP reads 75"):
        metric.look(Video(video.frames_TCHW, prompt="! " * 80), None)


def test_what_is_no_file_of_merges_is_refused(tmp_path: Path) -> None:
    for name, content in (("a.txt.gz", b"plain"), ("b.txt", b"#version\none two\nthree\n"), ("c.txt", b"#version\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="is no file of merges"):
            clip_words.load(tmp_path / name)
