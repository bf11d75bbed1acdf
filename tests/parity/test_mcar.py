"""MC-AR against what MineWorld's own code recorded (tests/golden/mcar): float32, tiny random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import diagonal
from diagonal import Diagonal, Grid, Layout, Order, Plan, Raster, StandIn, checkpoints, make_plan
from diagonal.engine.attention import Dense
from diagonal.models.layers import rope_1d
from diagonal.models.mcar import VARIANTS, Config
from diagonal.tokenizers import mcar as tokenizer
from diagonal.worlds import vpt
from tests.conftest import golden, golden_json
from tests.tiny import run

CONFIG = Config(
    width=64,
    layers=2,
    heads=4,
    kv_heads=2,
    mlp=128,
    frames=4,
    reference_frames=2,
    rows=4,
    cols=6,
    suffix=3,
    codebook=48,
    vocab=72,
    head_dim=16,
)
LAYOUT = Layout(Grid(4, 4, 6), suffix=3)


@pytest.fixture(scope="module")
def model() -> Any:
    with torch.device("meta"):
        module = CONFIG.build()
    checkpoints.load(module, golden("mcar/tiny_weights.safetensors"), "the recorded model")
    return module.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    return golden("mcar/tiny_run.safetensors")


def _prompt(recorded: dict[str, Tensor]) -> Tensor:
    tokens = torch.full((1, LAYOUT.length), -1)
    tokens[0, LAYOUT.frame(0)] = recorded["frame0"].long()
    for index, action in enumerate(recorded["actions"].long()):
        tokens[0, LAYOUT.after(index)] = action
    return tokens


def _new_cells(tokens: Tensor) -> Tensor:
    return torch.cat([tokens[0, LAYOUT.frame(frame)] for frame in (1, 2, 3)])


def test_the_rotary_table_is_the_recorded_one(recorded: dict[str, Tensor]) -> None:
    cos, sin = rope_1d(torch.arange(108), 16, 10000.0)
    # The recording rounded its angles to float32: 4e-6 of an angle of 107. Ours are those of float64.
    torch.testing.assert_close(cos, recorded["rope_cos"], atol=2e-6, rtol=0)
    torch.testing.assert_close(sin, recorded["rope_sin"], atol=2e-6, rtol=0)


def test_teacher_forced_logits_are_the_recorded_ones(model: Any, recorded: dict[str, Tensor]) -> None:
    ids, positions = recorded["tf_input_ids"].long(), recorded["tf_position_ids"].long()
    causal = Dense(torch.ones(len(ids), len(ids), dtype=torch.bool).tril())
    logits = model(ids[None], positions, causal)
    torch.testing.assert_close(logits[0], recorded["tf_logits"], atol=1e-5, rtol=1e-5)


CASES = {
    "ntp": Order(Raster()),
    **{f"variant_masked_image_diagd_k{k}": Order(Diagonal(k), StandIn.PROMPT_FRAME, False) for k in (1, 2, 4)},
    # Its frames follow each other after h*k steps.
    **{f"variant_masked_video_diagd_k{k}": Order(Diagonal(k, 4 * k), StandIn.PROMPT_FRAME, False) for k in (1, 2, 4)},
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_forwards_and_logits_are_the_recorded_ones(
    model: Any, recorded: dict[str, Tensor], case: str
) -> None:
    plan = make_plan(LAYOUT, CASES[case], known=1)
    tokens, logits = run(model, plan, _prompt(recorded))
    assert torch.equal(_new_cells(tokens), recorded[f"{case}.tokens"].long())
    assert len(plan.steps) == golden_json("mcar/tiny_run.json")["runs"][case]["forwards"]
    assert [len(step.read) for step in plan.steps] == recorded[f"{case}.trace_sizes"].tolist()
    _same_inputs(plan, tokens, recorded, case)
    keep = np.concatenate([step.write != -1 for step in plan.steps])
    torch.testing.assert_close(logits[0], recorded[f"{case}.trace_logits"][keep], atol=1e-4, rtol=1e-4)


def _same_inputs(plan: Plan, tokens: Tensor, recorded: dict[str, Tensor], case: str) -> None:
    """The same ids at the same positions, forward by forward (the order within one forward is free)."""
    ids = recorded[f"{case}.trace_input_ids"].split(recorded[f"{case}.trace_sizes"].tolist())
    positions = recorded[f"{case}.trace_position_ids"].split(recorded[f"{case}.trace_sizes"].tolist())
    for step, theirs, places in zip(plan.steps, ids, positions, strict=True):
        ours = dict(zip(step.slot.tolist(), tokens[0, step.read].tolist(), strict=True))
        assert ours == dict(zip(places.tolist(), theirs.tolist(), strict=True))


@pytest.mark.parametrize(("case", "k"), [*(("image", k) for k in (1, 2, 3, 4, 5)), *(("video", k) for k in (1, 2, 4))])
def test_without_refeeding_a_plan_feeds_what_mineworld_feeds(recorded: dict[str, Tensor], case: str, k: int) -> None:
    """Positions and forwards of the unmodified reference, whose holes we mask, at every k < cols it recorded."""
    plan = make_plan(
        LAYOUT, Order(Diagonal(k, 4 * k if case == "video" else None), StandIn.PROMPT_FRAME, False), known=1
    )
    sizes = recorded[f"{case}_diagd_k{k}.trace_sizes"].tolist()
    theirs = [sorted(part.tolist()) for part in recorded[f"{case}_diagd_k{k}.trace_position_ids"].split(sizes)]
    assert [sorted(step.slot.tolist()) for step in plan.steps] == theirs


def test_refeeding_costs_no_forward_and_leaves_no_token_unfed() -> None:
    with_it, without = (
        make_plan(LAYOUT, Order(Diagonal(1), StandIn.PROMPT_FRAME, refeed), known=1) for refeed in (True, False)
    )
    assert len(with_it.steps) == len(without.steps)
    assert len(with_it.entries) - len(without.entries) == 3 * 3  # the true ends of 3 rows in 3 frames


@pytest.mark.parametrize(("size", "name"), [("300M", "300m"), ("700M", "700m"), ("1200M", "1200m")])
def test_published_keys_load_strictly_at_every_size(size: str, name: str) -> None:
    """Without memory for the weights: model and checkpoint both on the meta device."""
    manifest = golden_json(f"mcar/manifest_{size}.json")
    state = {key: torch.empty(shape, device="meta") for key, (shape, _) in manifest.items()}
    with torch.device("meta"):
        module = VARIANTS[name].config.build()
    checkpoints.load(module, state, name)
    count = {"300M": 321_049_600, "700M": 725_985_280, "1200M": 1_229_301_760}[size]
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    dropped = dict(list(state.items())[:-1])
    with pytest.raises(ValueError, match="1 missing"):
        checkpoints.load(module, dropped, name)
    with pytest.raises(ValueError, match="1 unexpected"):
        checkpoints.load(module, state | {"transformer.model.layers.99.extra": torch.empty(1)}, name)


def test_the_published_tokenizer_keys_load_strictly() -> None:
    manifest = golden_json("mcar/manifest_vae.json")
    with torch.device("meta"):
        module = tokenizer.VARIANTS["vq"].build()
    for prefix in ("model.", "tokenizer.model."):
        state = {
            prefix + key.removeprefix("model."): torch.empty(shape, device="meta")
            for key, (shape, _) in manifest.items()
        }
        checkpoints.load(module, state, "mcar/vq")
        assert sum(parameter.numel() for parameter in module.parameters()) == sum(v.numel() for v in state.values())


def test_the_tokenizers_config_is_the_assumed_one() -> None:
    with torch.device("meta"):
        ours = tokenizer.VARIANTS["vq"].build().vq.config
    for key, value in golden_json("mcar/vae_config_amused_assumed.json").items():
        if key != "sample_size":  # the network is convolutional: unused
            assert (list(ours[key]) if isinstance(value, list) else ours[key]) == value, key


@pytest.fixture(scope="module")
def vae() -> tokenizer.VQTokenizer:
    sizes = golden_json("mcar/vae_tiny.json")["config"]
    config = tokenizer.Config(
        channels=tuple(sizes["block_out_channels"]),
        groups=sizes["norm_num_groups"],
        codebook=sizes["num_vq_embeddings"],
    )
    state = golden("mcar/vae_tiny.safetensors")
    module = config.build()
    own = {key.removeprefix("weights."): value for key, value in state.items() if key.startswith("weights.")}
    checkpoints.load(module, own, "the recorded VQ-VAE")
    return module.eval().requires_grad_(False)


def test_vq_indices_are_exact(vae: tokenizer.VQTokenizer) -> None:
    recorded = golden("mcar/vae_tiny.safetensors")
    # The recorded pictures are floats in [-1, 1]; encode takes bytes, so its last two stages are compared.
    with torch.inference_mode():
        latents = vae.vq.quant_conv(vae.vq.encoder(recorded["image"]))
    torch.testing.assert_close(latents, recorded["latents"], atol=1e-4, rtol=1e-4)
    assert torch.equal(vae.nearest(recorded["latents"]), recorded["indices"].long())


def test_vq_decoding_is_the_recorded_one(vae: tokenizer.VQTokenizer) -> None:
    recorded = golden("mcar/vae_tiny.safetensors")
    with torch.inference_mode():
        torch.testing.assert_close(vae.pixels(recorded["indices"].long()), recorded["decoded"], atol=1e-4, rtol=1e-4)


def test_decoded_bytes_are_the_recorded_ones(vae: tokenizer.VQTokenizer) -> None:
    recorded = golden("mcar/vae_tiny.safetensors")
    tokens = recorded["token2image.tokens"].long().reshape(1, 1, 14, 24)
    ours = vae.decode(tokens, {})[0, 0].permute(1, 2, 0).int()
    difference = (ours - recorded["token2image.uint8"].int()).abs()
    assert difference.max() <= 1
    assert (difference == 0).float().mean() > 0.999  # truncation may flip a byte at a rounding edge


def test_encode_takes_bytes_as_the_reference_scales_them(vae: tokenizer.VQTokenizer) -> None:
    video = torch.randint(256, (2, 3, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        latents = vae.vq.quant_conv(vae.vq.encoder((video.flatten(0, 1) / 255 - 0.5) / 0.5))
    assert torch.equal(vae.encode(video), vae.nearest(latents).reshape(2, 3, 4, 6))


def test_action_tokens_are_the_recorded_ones() -> None:
    recorded = golden_json("mcar/actions.json")
    assert vpt.tokens([vpt.NOOP], 8192)[0] == recorded["noop"]
    for case in recorded["cases"]:
        pressed = frozenset(name for name, value in case["action"].items() if value)
        action = vpt.Action(pressed, *map(float, case["camera"]))
        assert vpt.tokens([action], 8192)[0] == case["tokens"]


def test_the_action_vocabulary_and_the_camera_curve_are_the_recorded_ones() -> None:
    recorded = golden_json("mcar/actions.json")
    names = [
        *vpt.BUTTONS,
        *(f"cam_{axis}_{index}" for axis in (0, 1) for index in range(21)),
        *("<act_bos>", "<null_act>", "<act_eos>"),
    ]
    assert {name: 8192 + index for index, name in enumerate(names)} == recorded["vocab"]
    assert len(names) == vpt.VOCABULARY
    curve = recorded["camera"]
    assert [vpt.camera_bin(value) for value in curve["values"]] == curve["bins"]


def _published(module: Any) -> dict[str, Tensor]:
    """A model's weights under MineWorld's names: what q, k, v and gate, up were before they were fused."""
    config, state = module.config, {}
    heads = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
    sizes = {"qkv": heads, "gate_up": [config.mlp] * 2}
    for ours, theirs in module.weight_map.keys.items():
        for layer in range(config.layers if "{}" in ours else 1):
            weight = module.state_dict()[ours.format(layer)]
            split = next((size for name, size in sizes.items() if name in ours), [len(weight)])
            for name, part in zip(theirs, weight.split(split), strict=True):
                state["transformer." + name.format(layer)] = part.clone()
    return state


@pytest.mark.parametrize("suffix", [".ckpt", ".bin"])
def test_a_whole_checkpoint_as_mineworld_publishes_it_gives_the_same_world(tmp_path: Path, suffix: str) -> None:
    """Both prefixes in one file: under `state_dict` as .ckpt, flat as .bin."""
    world = diagonal.load("mcar/tiny", seed=3)
    state = _published(world.model)
    state |= {f"tokenizer.model.{key}": value.clone() for key, value in world.tokenizer.vq.state_dict().items()}
    path = tmp_path / f"model{suffix}"
    torch.save({"state_dict": state, "epoch": 3} if suffix == ".ckpt" else state, path)
    loaded = diagonal.load("mcar/tiny", weights=path)
    for ours, theirs in ((world.model, loaded.model), (world.tokenizer, loaded.tokenizer)):
        for key, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[key]), key

    torch.save(state | {"optimizer.step": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"belong to no part of mcar/tiny: optimizer\.step"):
        diagonal.load("mcar/tiny", weights=path)


def test_a_model_and_its_tokenizer_may_come_in_two_files(tmp_path: Path) -> None:
    world = diagonal.load("mcar/tiny", seed=3)
    torch.save(_published(world.model), tmp_path / "model.ckpt")
    torch.save({f"model.{k}": v.clone() for k, v in world.tokenizer.vq.state_dict().items()}, tmp_path / "vae.ckpt")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        diagonal.load("mcar/tiny", weights=tmp_path / "model.ckpt")
    loaded = diagonal.load("mcar/tiny", weights=tmp_path / "model.ckpt", tokenizer=tmp_path / "vae.ckpt")
    assert torch.equal(loaded.tokenizer.vq.quant_conv.weight, world.tokenizer.vq.quant_conv.weight)
