"""What credentials say of a model: hashes of its files, no path of this machine, and what it was told."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

import diagonal
from diagonal.checkpoints import hashes as kept
from diagonal.checkpoints.hashes import hashes
from diagonal.generation.origin import actions_told, frames_told, of_request, of_world
from diagonal.generation.request import Request
from diagonal.planning.plan import Order
from diagonal.planning.sampling import Sampling
from diagonal.worlds.protocols import Free
from diagonal.worlds.script import parse, spell
from tests.signers import noise


def test_hashes_are_those_of_the_files(tmp_path):
    (tmp_path / "a-1.safetensors").write_bytes(b"one")
    (tmp_path / "a-2.safetensors").write_bytes(b"two")
    assert hashes(tmp_path) == {
        f"a-{number}.safetensors": hashlib.sha256(text).hexdigest() for number, text in ((1, b"one"), (2, b"two"))
    }


def test_large_files_are_hashed_once_and_again_when_they_change(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "LARGE", 1)
    path, counted = tmp_path / "a.safetensors", []
    computed = kept._computed

    def count(file):
        counted.append(file)
        return computed(file)

    monkeypatch.setattr(kept, "_computed", count)
    path.write_bytes(b"one")
    assert hashes(path) == hashes(path) and len(counted) == 1
    path.write_bytes(b"other")
    assert hashes(path) == {"a.safetensors": hashlib.sha256(b"other").hexdigest()} and len(counted) == 2
    (tmp_path / "cache" / "diagonal" / "sha256.json").write_text("{")
    assert hashes(path) == {"a.safetensors": hashlib.sha256(b"other").hexdigest()} and len(counted) == 3


def test_a_world_says_its_weights_by_name_and_hash_alone(tmp_path):
    world = diagonal.load("doom/tiny", dtype=torch.float32)
    assert of_world(world, Order.of("raster"), Sampling(), 3, {}).sha256 == {}
    secret = tmp_path / "a secret place" / "mine"
    world.save_pretrained(secret)
    loaded = diagonal.load("doom/tiny", weights=secret)
    made = of_world(loaded, Order.of("diagonal:k=2"), Sampling(top_p=0.8), 3, {"actions": "left"})
    assert made.weights == "mine" and made.schedule == "diagonal:k=2" and made.settings["top_p"] == 0.8
    assert made.sha256 == hashes(secret) and made.sha256
    assert "secret place" not in json.dumps(made.statement(private=False))


def test_a_request_says_its_texts_pictures_and_embeddings():
    model = diagonal.load("doom-t2v/tiny")
    made = of_request(model, Request(prompt="walking forward", prompt_at={2: "turning left"}, num_frames=29, seed=5))
    assert made.told == {"prompt": "walking forward", "prompt_at 2": "turning left"} and made.seed == 5
    assert made.settings["num_frames"] == 29 and made.weights == "random"
    picture = noise(1)[0]
    told = of_request(model, Request(prompt_embeds=torch.ones(3, 64), image=picture, num_frames=5)).told
    assert told["image"] == frames_told(picture) and hashlib.sha256(picture.tobytes()).hexdigest() in told["image"]
    assert told["prompt"].startswith("embeddings (3, 64), sha256 of float32 ")


@pytest.mark.parametrize("text", ["left", "forward*8,left*4", "forward+left*2,noop"])
def test_spelled_actions_are_read_as_the_same(text):
    assert spell(parse(text, str)) == text


def test_actions_that_the_model_chooses_are_said_to_be_so():
    assert actions_told(None) == "none" and actions_told(Free()) == "chosen by the model"
    assert actions_told(Free(["left", "left"])) == "left*2, then chosen by the model"
