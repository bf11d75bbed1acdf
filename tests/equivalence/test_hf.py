"""Token models of transformers under our engine, against their own attention: tiny ones with random weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import diagonal
from diagonal import Sampling, World
from diagonal.engine.attention import Dense
from diagonal.engine.tokens.masks import dense_mask
from diagonal.planning.plan import NONE, make_plan
from tests.tiny import GREEDY

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'diagonal[text]'")
tokenizers = pytest.importorskip("tokenizers")

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXT |= {"intermediate_size": 48, "max_position_embeddings": 256}
WORDS = ["<pad>", "<bos>", "a", "red", "blue", "cat", "*", *(str(number) for number in range(10))]
SCHEDULES = ["raster", "diagonal:k=1", "diagonal:k=2", "window:s=2"]


def words(folder: Path, vocabulary: dict[str, int]) -> None:
    """A tokenizer that knows these words, character by character where they are numbers."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"<[^>]*>|[a-z]+|\d|\*"), "isolated")
    made.pre_tokenizer = split
    special = {"bos_token": "<bos>", "pad_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)


def emu3(folder: Path) -> None:
    names = [*WORDS, "<|image start|>", "<|image token|>", "<|extra_200|>", "<image>"]
    names += [f"<|visual token {code:06d}|>" for code in range(32)]
    vocabulary = {name: index for index, name in enumerate(names)}
    vq: dict[str, Any] = {
        "codebook_size": 32,
        "embed_dim": 4,
        "latent_channels": 4,
        "base_channels": 32,
        "num_res_blocks": 1,
    }
    vq |= {"channel_multiplier": [1, 1], "attn_resolutions": [], "hidden_size": 32, "temporal_downsample_factor": 2}
    config = transformers.Emu3Config(
        vq_config=vq, text_config=TEXT | {"vocab_size": len(names), "pad_token_id": 0}, vocabulary_map=vocabulary
    )
    save(transformers.Emu3ForConditionalGeneration(config), folder, vocabulary)


def chameleon(folder: Path) -> None:
    letters = "ABCDEFGHIJ"
    pictures = [f"IMGIMG{''.join(letters[int(digit)] for digit in str(code))}Z" for code in range(32)]
    vocabulary = {name: index for index, name in enumerate([*WORDS, "<racm3:break>", "<image>", *pictures])}
    vq = {"num_embeddings": 32, "embed_dim": 8, "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1}
    vq |= {"latent_channels": 8, "resolution": 16}
    config = transformers.ChameleonConfig(
        vocab_size=len(vocabulary), vocabulary_map=vocabulary, vq_config=vq, **(TEXT | {"num_key_value_heads": 4})
    )
    save(transformers.ChameleonForConditionalGeneration(config), folder, vocabulary)


def janus(folder: Path) -> None:
    vocabulary = {name: index for index, name in enumerate([*WORDS, "<begin_of_image>", "<image>"])}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 2}
    vision |= {"num_image_tokens": 16, "projection_dim": 32, "mlp_ratio": 2}
    vq = {"num_embeddings": 32, "embed_dim": 8, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1}
    vq |= {"latent_channels": 8, "num_patches": 4, "projection_dim": 32, "image_token_embed_dim": 32}
    text = TEXT | {"model_type": "llama", "vocab_size": len(vocabulary), "pad_token_id": 0}
    config = transformers.JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=18)
    save(transformers.JanusForConditionalGeneration(config), folder, vocabulary)


def save(model: Any, folder: Path, vocabulary: dict[str, int]) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # logits of some size: a wrong mask shows
    model.save_pretrained(folder)
    words(folder, vocabulary)


MODELS = {"emu3": emu3, "chameleon": chameleon, "janus": janus}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    place = tmp_path_factory.mktemp("hf")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, make in MODELS.items():
            make(place / name)
    yield {name: place / name for name in MODELS}


def small(folders: dict[str, Path], name: str, scale: float | None = 1) -> World:
    """A world of 4x5 codes behind a text."""
    world = diagonal.load(f"hf:{folders[name]}")
    world = world.at(4 * world.tokenizer.patch, 5 * world.tokenizer.patch)
    return (
        world.guided("a red cat", "blue", scale) if name == "emu3" else world.guided("a red cat", guidance_scale=scale)
    )


def stock(world: World, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Logits by transformers' own attention under a mask (S, S)."""
    model, family = world.model.model, world.variant.config.family  # type: ignore[attr-defined]
    base = family.base(model)
    base.config._attn_implementation = "sdpa"
    try:
        inputs = family.embed(model, tokens, positions >= len(world.variant.config.prefix_ids))
        added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]
        hidden = base(inputs_embeds=inputs, position_ids=positions[None], attention_mask=added, use_cache=False)
        logits: Tensor = family.head(model, hidden.last_hidden_state)
        return logits
    finally:
        base.config._attn_implementation = "diagonal"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_one_masked_forward_by_transformers(
    folders: dict[str, Path], name: str, schedule: str
) -> None:
    world = small(folders, name)
    variant = world.variant
    plan = make_plan(variant.layout(1), schedule)
    tokens = torch.cat([torch.tensor(variant.config.prefix_ids), drawn(world, schedule)])[None]
    entries = plan.entries
    logits = stock(world, tokens[:, entries.read], torch.from_numpy(entries.position), dense_mask(entries))
    low, high = variant.config.ids  # type: ignore[attr-defined]
    for index, target in enumerate(entries.write):
        if target != NONE:
            assert logits[0, index, low:high].argmax() + low == tokens[0, target]
    ours = world.runner(tokens[:, entries.read], torch.from_numpy(entries.position), Dense(dense_mask(entries)))
    torch.testing.assert_close(ours, logits, atol=1e-4, rtol=1e-4)


def drawn(world: World, schedule: str) -> Tensor:
    """The ids of a picture, greedily."""
    (frame,) = world.stream(None, frames=1, schedule=schedule, sampling=GREEDY).token_frames()
    return frame.tokens.flatten()


@pytest.mark.parametrize("name", ["emu3", "janus"])
def test_guidance_is_that_of_two_passes_with_texts_of_their_own_length(folders: dict[str, Path], name: str) -> None:
    """The shorter text is padded at its left, unseen; positions are relative, so it is as if it stood alone."""
    world = small(folders, name, scale=3.0)
    cells = drawn(world, "raster")
    assert not torch.equal(cells, drawn(small(folders, name), "raster"))
    other = world.runner.other_P
    shorter = other[other >= 0]
    assert (len(shorter) < len(other)) is (name == "emu3")
    with_text, without = (
        behind(world, prefix, cells) for prefix in (world.variant.config.prefix_ids, shorter.tolist())
    )
    logits = without + 3.0 * (with_text - without)
    low, high = world.variant.config.ids  # type: ignore[attr-defined]
    sampled = (cells >= low) & (cells < high)
    assert torch.equal(logits[sampled, low:high].argmax(-1) + low, cells[sampled])


def behind(world: World, prefix: Sequence[int], cells: Tensor) -> Tensor:
    """Logits (cells, V) by transformers' own attention, behind a text that stands alone."""
    sequence = torch.cat([torch.tensor(prefix), cells])[None]
    length = sequence.shape[1]
    alone = copy(world)
    alone.variant = replace(world.variant, config=replace(cast(Any, world.variant.config), prefix_ids=tuple(prefix)))
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return stock(alone, sequence, torch.arange(length), causal)[0, len(prefix) - 1 : -1]


def test_emu3_pictures_have_pixels_and_row_ends(folders: dict[str, Path]) -> None:
    world = small(folders, "emu3", None)
    clip = world.generate(None, frames=1, schedule="diagonal:k=1", sampling=Sampling(top_k=8), seed=1)
    assert clip.calls == 4 + 5 - 1
    assert set(clip.tokens[..., -1].flatten().tolist()) == {world.variant.row_end}
    patch = world.tokenizer.patch
    assert clip.frames.shape == (1, 4 * patch, 5 * patch, 3) and world.size == (4 * patch, 5 * patch)
    model = world.model.model.model
    expected = model.vqmodel.decode(model.vocabulary_mapping.convert_bpe2img(clip.tokens).long())
    shown = ((expected.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
    assert torch.equal(torch.from_numpy(clip.frames), shown)


def test_janus_pictures_have_pixels(folders: dict[str, Path]) -> None:
    world = diagonal.load(f"hf:{folders['janus']}").guided("a red cat")
    clip = world.generate(None, frames=1, schedule="window:s=2", seed=[0, 1])
    assert clip.frames.shape[:2] == (2, 1) and clip.tokens.max() < 32


def test_what_cannot_be_drawn_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    emu = diagonal.load(f"hf:{folders['emu3']}")
    transformers.LlamaConfig(**TEXT).save_pretrained(tmp_path / "llama")
    for act, words_ in (
        (lambda: emu.generate(None), "no text given"),
        (lambda: emu.guided("cat", "a red cat"), "negative text is longer"),
        (lambda: emu.guided(torch.zeros(3, 4)), "reads texts as tokens"),
        (lambda: diagonal.load(f"hf:{tmp_path / 'llama'}"), "is a llama, of which nobody has said"),
        (lambda: diagonal.load(f"hf:{folders['emu3']}", "x"), "leave them out"),
        (lambda: small(folders, "chameleon").generate(None, frames=1), "has no decoder of this model's pictures"),
        (lambda: diagonal.load("doom/tiny").guided("x"), "takes no text"),
    ):
        with pytest.raises(ValueError, match=re.escape(words_)):
            act()
    ids = [frame.tokens for frame in small(folders, "chameleon").stream(None, frames=1).token_frames()]
    assert ids[0].shape == (1, 4, 5)
