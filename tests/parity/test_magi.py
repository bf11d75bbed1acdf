"""MAGI-1's transformer, autoencoder, schedule and published names against recordings (tests/golden/magi)."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.engine.pipeline.memory import Call, Finished, Seen
from diagonal.models.magi import VARIANTS
from diagonal.planning.denoising.quadratic import Quadratic
from diagonal.planning.passes import is_late
from diagonal.tokenizers import magi as vae
from tests.conftest import golden, golden_json
from tests.magi import CASES, CHUNK, chunks_of, recorded_model

LAYER = re.compile(r"(videodit_blocks\.layers)\.1\.")


def _forward(model: Any, data: dict[str, Tensor], name: str, memory: Call) -> Tensor:
    call = next(one for one in CASES["dit_forward"]["calls"] if one["name"] == name)
    texts = [model.embed_text(rows) for rows in data[f"{name}.y"].split(call["text_tokens"])]
    places = torch.tensor([one.chunk for one in memory.seen])[:, None] * CHUNK + torch.arange(CHUNK)
    rope = model.rope(places, 2, 3)
    table = torch.cat([rope[1], rope[0]], dim=-1)[:, 0].flatten(0, 1)
    torch.testing.assert_close(table, data[f"{name}.rope"], atol=1e-6, rtol=0)
    condition = model.condition(data[f"{name}.t"][0], call["dropped"])
    torch.testing.assert_close(condition, data[f"{name}.condition"][0], atol=1e-5, rtol=0)
    out: Tensor = model(chunks_of(data[f"{name}.x"]), condition, texts, rope, memory)
    return out


def test_a_forward_is_the_reference_s_without_a_cache_while_it_writes_one_and_over_it() -> None:
    model, data, finished = recorded_model(), golden("magi/dit_forward.safetensors"), Finished()
    calls = {
        "first": Call(Finished(), (Seen(0, 0), Seen(1, 0))),
        "clean": Call(finished, (Seen(0, 0), Seen(1, 0), Seen(2, 0)), put=frozenset({0})),
    }
    for name, memory in calls.items():
        out = _forward(model, data, name, memory)
        torch.testing.assert_close(out, chunks_of(data[f"{name}.out"]), atol=3e-5, rtol=0)
    for layer, (k, v) in enumerate(finished.chunks[0]):
        recorded = data[f"clean.kv.{layer}"].transpose(0, 1)[None].chunk(2, dim=-1)
        torch.testing.assert_close((k, v), recorded, atol=3e-5, rtol=0)
    out = _forward(model, data, "next", Call(finished, (Seen(1, 0), Seen(2, 0))))
    torch.testing.assert_close(out, chunks_of(data["next.out"]), atol=3e-5, rtol=0)


def test_the_text_and_the_blocks_are_the_reference_s() -> None:
    """Layer by layer, so that a difference says where it comes from."""
    model, data = recorded_model(), golden("magi/dit_forward.safetensors")
    states = torch.nn.functional.silu(model.text_in(data["first.y"]))
    torch.testing.assert_close(states, data["first.text_states"], atol=1e-6, rtol=0)
    hidden: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, out: hidden.append(out.flatten(0, 1)))
    _forward(model, data, "first", Call(Finished(), (Seen(0, 0), Seen(1, 0))))
    for index, found in enumerate(hidden):
        torch.testing.assert_close(found, data[f"first.hidden.{index}"], atol=1e-5, rtol=0)


# The autoencoder


def _vae(tiles: bool) -> Any:
    sizes = golden_json("magi/golden.json")["vae_tiny"]["ddconfig"]
    config = vae.Config(
        width=sizes["embed_dim"],
        depth=sizes["depth"],
        heads=sizes["num_heads"],
        side=sizes["video_size"],
        frames=sizes["video_length"],
        tile_frames=8 if tiles else 12,
        patch=sizes["patch_size"],
        latent=sizes["z_chans"],
        mlp=int(sizes["mlp_ratio"]),
    )
    module = config.build()
    state = {key: value for key, value in golden("magi/vae_tiny.safetensors").items() if key.startswith("model.")}
    checkpoints.load(module, state, "the recorded autoencoder")
    return module.eval().requires_grad_(False)


@pytest.mark.parametrize("name", ["native", "resized"])
def test_one_tile_is_the_reference_s(name: str) -> None:
    codec, data = _vae(tiles=False), golden("magi/vae_tiny.safetensors")
    torch.testing.assert_close(codec.encoder(data[f"{name}.video"]), data[f"{name}.moments"], atol=4e-6, rtol=0)
    torch.testing.assert_close(codec.decoder(data[f"{name}.z"]), data[f"{name}.recon"], atol=4e-6, rtol=0)


def test_pictures_and_tiles_are_the_reference_s() -> None:
    """Twelve frames in tiles of eight are three latents, and these are nine frames: a lone latent gives one."""
    codec, data = _vae(tiles=True), golden("magi/vae_tiny.safetensors")
    for name in ("image", "tiled"):
        torch.testing.assert_close(codec.means(data[f"{name}.video"]), data[f"{name}.z"], atol=4e-6, rtol=0)
        torch.testing.assert_close(codec.pixels(data[f"{name}.z"]), data[f"{name}.recon"], atol=4e-6, rtol=0)
    assert data["tiled.video"].shape[2] == 12 and data["tiled.recon"].shape[2] == 9


# The schedule

TABLES = golden_json("magi/schedule.json")["tables"]


def _schedule(table: dict[str, Any]) -> Quadratic:
    skip = "first" if table["shortcut_mode"] == "8,16,16" else "last"
    return Quadratic(table["num_steps"], table["num_steps"] // table["window_size"], skip)


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_levels_and_sizes_of_steps_are_the_reference_s(table: dict[str, Any]) -> None:
    schedule = _schedule(table)
    times = [1 - level / 1000 for level in schedule.levels(0)] + [1.0]
    assert times == pytest.approx(table["t"], abs=1.5e-7)
    if table["num_steps"] == 12:
        assert list(schedule.sizes()) == [8 / interval for interval in table["interval"]]
    else:
        assert set(schedule.sizes()) == {table["num_steps"] / 2}
    late = [is_late(step, schedule.steps) for step in range(schedule.steps)]
    assert late == [t > 0.3 - 1e-6 for t in table["t"][:-1]]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_a_copy_is_added_when_the_oldest_live_chunk_is_late(table: dict[str, Any]) -> None:
    """By its step, which is what the recorded flag says; and not by its time, which is 0.3 but for rounding."""
    for row in table["rows"]:
        if isinstance(row, list):
            assert is_late(row[4][0], table["num_steps"]) == bool(row[7])


# Published names


def _published(size: str) -> dict[str, Tensor]:
    """The manifest lists the first layer, the second and the last: those between are like the second."""
    listed = golden_json(f"magi/manifest_{size}.json")
    layers = max(int(key.split(".")[2]) for key in listed if key.startswith("videodit_blocks.layers."))
    between = {
        LAYER.sub(rf"\1.{layer}.", key): form
        for layer in range(1, layers)
        for key, form in listed.items()
        if LAYER.match(key)
    }
    return {key: torch.empty(shape, device="meta") for key, (shape, _) in (listed | between).items()}


@pytest.mark.parametrize(
    ("name", "size", "keys", "parameters"),
    [("4.5b", "4.5B", 898, 4_459_898_128), ("24b", "24B", 1262, 23_899_281_936)],
)
def test_published_keys_load_strictly(name: str, size: str, keys: int, parameters: int) -> None:
    state = _published(size)
    assert len(state) == keys
    with torch.device("meta"):
        module = VARIANTS[name].config.build()
    checkpoints.load(module, state, name)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    with pytest.raises(ValueError, match="1 missing"):
        checkpoints.load(module, dict(list(state.items())[:-1]), name)
    with pytest.raises(ValueError, match="1 unexpected"):
        checkpoints.load(module, state | {"rope.more": torch.empty(1)}, name)


def test_the_published_autoencoder_has_the_inferred_names() -> None:
    with torch.device("meta"):
        module = vae.VARIANTS["vae"].build()
    listed = golden_json("magi/manifest_vae_inferred.json")
    assert {key: list(value.shape) for key, value in module.state_dict().items()} == {
        key: shape for key, (shape, _) in listed.items()
    }
