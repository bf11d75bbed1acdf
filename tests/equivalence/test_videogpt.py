"""Clips that begin with nothing: whole ones, of a class, steered by pictures, and with sparse attention."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import diagonal
from diagonal import Sampling, World, checkpoints
from diagonal.catalog.names import find
from diagonal.engine.attention import Causal, Dense
from diagonal.engine.tokens.masks import dense_mask
from diagonal.planning.plan import make_plan
from tests.conftest import golden, golden_json
from tests.parity.test_videogpt import CASES, prior, state, vq_config
from tests.tiny import GREEDY, build, run

NAMES = ["videogpt/tiny", "videogpt/tiny-sparse"]
SCHEDULES = ["raster", "diagonal:k=1", "diagonal:k=2,d=1", "diagonal:k=1,d=3", "window:s=3"]


def forced(world: World, tokens_BTHW: Tensor) -> Tensor:
    """Logits (B, cells, V) of a whole clip in one call, behind true tokens."""
    cells, start = tokens_BTHW.flatten(1), world.variant.config.prefix_ids[0]
    inputs = torch.cat([torch.full((len(cells), 1), start), cells[:, :-1]], dim=1)
    logits: Tensor = world.runner(inputs, torch.arange(cells.shape[1]), Causal())
    return logits


@pytest.mark.parametrize("name", NAMES)
def test_raster_from_nothing_is_what_one_call_over_the_clip_gives(name: str) -> None:
    world = diagonal.load(name)
    clip = world.generate(None, schedule="raster", sampling=GREEDY)
    assert torch.equal(forced(world, clip.tokens[None]).argmax(-1)[0], clip.tokens.flatten())
    assert clip.frames.shape == (16, *world.size, 3) and clip.calls == clip.tokens.numel()
    whole = world.tokenizer.decode(clip.tokens[None], {})
    assert np.array_equal(whole[0].permute(0, 2, 3, 1), clip.frames)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", NAMES)
def test_training_sees_what_decoding_saw_where_attention_is_sparse(name: str, schedule: str) -> None:
    world = diagonal.load(name)
    plan = make_plan(world.layout(4), schedule)
    tokens = torch.full((1, plan.layout.length), -1)
    tokens[:, 0] = world.variant.config.prefix_ids[0]
    tokens, stepwise = run(world.model, plan, tokens)
    entries = plan.entries
    at_once = world.model(tokens[:, entries.read], torch.from_numpy(entries.position), Dense(dense_mask(entries)))
    entry = {int(cell): index for index, cell in enumerate(entries.write) if cell >= 0}
    order = [entry[int(cell)] for step in plan.steps for cell in step.write[step.write >= 0]]
    torch.testing.assert_close(at_once[:, order], stepwise, atol=1e-4, rtol=1e-4)
    made = world.generate(None, schedule=schedule, sampling=GREEDY)
    assert torch.equal(made.tokens.flatten(), tokens[0, 1:])


def test_sparse_attention_hides_what_is_neither_near_nor_at_the_same_place() -> None:
    """Of the eight stripes of a clip the last one sees itself, four before it, and the second one: not the first."""
    world = diagonal.load("videogpt/tiny-sparse")
    clip = torch.randint(32, (1, 4, 8, 8), generator=torch.Generator().manual_seed(0))
    others = {stripe: clip.flatten(1).clone() for stripe in (0, 1, 2, 3)}
    for stripe, cells in others.items():
        cells[:, 32 * stripe : 32 * stripe + 31] = (cells[:, 32 * stripe : 32 * stripe + 31] + 7) % 32
    config = replace(cast(Any, world.variant.config), layers=1)  # more would pass it on
    world.runner = build(config)
    last = forced(world, clip)[:, -31:]
    for stripe, hidden in {0: True, 1: False, 2: True, 3: False}.items():
        changed = forced(world, others[stripe].view_as(clip))[:, -31:]
        assert torch.equal(changed, last) is hidden


def test_seeds_are_a_batch_and_a_clip_can_be_gone_on_with() -> None:
    world = diagonal.load("videogpt/tiny")
    one, two = (world.generate(None, seed=seed) for seed in (3, 9))
    both = world.generate(None, seed=[3, 9])
    assert torch.equal(both.tokens, torch.stack([one.tokens, two.tokens]))
    rest = world.stream(one.tokens[:1], seed=3)
    (piece,) = list(rest)
    assert piece.index == 4 and piece.frames.shape[0] == 12 and piece.tokens.shape[0] == 3


def test_a_class_and_a_picture_change_the_video() -> None:
    world = diagonal.load("videogpt/tiny-class")
    clips = [world.steered(label=label).generate(None, sampling=GREEDY).tokens for label in (0, 4)]
    assert not torch.equal(*clips)
    both = world.steered(label=[0, 4]).generate(None, sampling=GREEDY, seed=[0, 1]).tokens
    assert torch.equal(both, torch.stack(clips))
    world = diagonal.load("videogpt/tiny-picture")
    clip = torch.randint(32, (1, 4, 4, 8), generator=torch.Generator().manual_seed(0))
    pictures = np.random.default_rng(0).integers(256, size=(2, 1, *world.size, 3), dtype=np.uint8)
    one, other = (forced(world.steered(pictures=picture), clip) for picture in pictures)
    assert (one - other).abs().max() > 1e-3
    assert world.steered(pictures=pictures[0]).generate(None).frames.shape == (16, *world.size, 3)


WRONG: dict[str, tuple[Any, str]] = {
    "no class": (lambda: diagonal.load("videogpt/tiny-class").generate(None), "of a class each, and none is given"),
    "no picture": (lambda: diagonal.load("videogpt/tiny-picture").generate(None), "go by pictures, and none are given"),
    "another class": (
        lambda: diagonal.load("videogpt/tiny-class").steered(label=5),
        "class [5] given; this model knows 0 to 4",
    ),
    "class of none": (lambda: diagonal.load("videogpt/tiny").steered(label=1), "this model knows no classes"),
    "other family": (lambda: diagonal.load("doom/tiny").steered(label=1), "goes by no class"),
    "length": (lambda: diagonal.load("videogpt/tiny").generate(None, frames=8), "makes whole clips of 16 alone"),
    "frames": (
        lambda: diagonal.load("videogpt/tiny").generate(np.zeros((4, 16, 32, 3), np.uint8)),
        "from nothing or from",
    ),
    "lossless": (lambda: diagonal.load("videogpt/tiny").generate(None, schedule="lossless"), "begins with nothing"),
    "prompt needed": (lambda: diagonal.load("doom/tiny").generate(None), "doom/tiny continues a clip"),
    "size": (
        lambda: diagonal.load("videogpt/tiny-picture").steered(pictures=np.zeros((1, 8, 8, 3), np.uint8)),
        "goes by uint8 RGB frames of height 16",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_made_is_refused(case: str) -> None:
    act, words = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        act()


def test_one_file_holds_the_prior_and_its_tokenizer(tmp_path: Path) -> None:
    """As the reference's does: sizes follow from shapes, and the clip is the recorded one."""
    data = golden("videogpt/gpt_full.safetensors")
    save_file(state(data), tmp_path / "prior.safetensors")
    variant = find("models", "videogpt/tiny")
    config, vq = variant.fit(
        replace(variant.config, heads=2), find("tokenizers", variant.tokenizer), (state(data), state(data)), {}
    )
    assert (config.width, config.layers, config.frames, config.rows, config.cols) == (24, 2, 2, 4, 4)
    assert vq == vq_config(CASES["gpt_full"]["vqvae_config"])
    assert prior("gpt_full", data).config.codebook == config.codebook
    tokens = data["greedy"]
    found = diagonal.load("videogpt/tiny", tmp_path / "prior.safetensors")  # its heads are others: 4, not 2
    assert found.model.config.width == 24 and found.tokenizer.config == vq
    pixels = found.tokenizer.pixels(tokens).clamp(-0.5, 0.5) + 0.5
    torch.testing.assert_close(pixels, data["greedy_pixels"], atol=2e-6, rtol=0)
    folder = found.save_pretrained(tmp_path / "own")
    again = diagonal.load("videogpt/tiny", folder).generate(None, sampling=Sampling(temperature=0))
    assert torch.equal(again.tokens, found.generate(None, sampling=GREEDY).tokens)


def test_a_trainers_file_says_what_no_shape_tells(tmp_path: Path) -> None:
    """Heads, kind of attention and the size of clips are its arguments; the greedy clip is the recorded one."""
    data, case = golden("videogpt/gpt_full.safetensors"), CASES["gpt_full"]
    arguments = argparse.Namespace(**case["config"], vqvae="ucf101_stride4x4x4")
    torch.save({"state_dict": state(data), "hyper_parameters": {"args": arguments}}, tmp_path / "prior.ckpt")
    world = diagonal.load("videogpt/tiny-sparse", tmp_path / "prior.ckpt")
    assert not world.model.config.sparse and world.model.config.heads == case["config"]["heads"]
    for sample in range(len(data["greedy"])):
        clip = world.generate(None, schedule="raster", sampling=GREEDY)
        assert torch.equal(clip.tokens, data["greedy"][sample])
    shown = torch.from_numpy(clip.frames).permute(3, 0, 1, 2).float() - data["greedy_pixels"][-1] * 255
    assert shown.abs().max() < 1 + 1e-3


@pytest.mark.parametrize("name", ["ucf101_uncond", "bair"])
def test_published_sizes_fit_their_manifest(name: str) -> None:
    """Key by key, at the sizes that were inferred: nothing is missing and nothing left."""
    file = {"ucf101_uncond": "inferred", "bair": "assumed"}[name]
    manifest = golden_json(f"videogpt/manifest_{name}_gpt_{file}.json")
    with torch.device("meta"):
        tensors = {key: torch.empty(shape, dtype=getattr(torch, kind)) for key, (shape, kind) in manifest.items()}
        variant = find("models", f"videogpt/{name.removesuffix('_uncond')}")
        config, vq = variant.fit(variant.config, find("tokenizers", variant.tokenizer), (tensors, tensors), {})
        model, tokenizer = config.build(), vq.build()
    assert config == variant.config and vq == find("tokenizers", variant.tokenizer)
    checkpoints.load(model, tensors, name)
    own = {key: value for key, value in tensors.items() if key.startswith("vqvae.")}
    checkpoints.load(tokenizer, own, name)
