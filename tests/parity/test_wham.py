"""WHAM against what its own nanoGPT and ViT-VQGAN recorded (tests/golden/wham): float32, tiny random weights."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import diagonal
from diagonal import Grid, Layout, Sampling, World, checkpoints, make_plan
from diagonal.catalog.names import find
from diagonal.engine.attention import Causal
from diagonal.models.wham import ACTION, VARIANTS, Config, fit
from diagonal.tokenizers import wham as tokenizer
from diagonal.worlds import xbox
from tests.conftest import golden, golden_json
from tests.tiny import GREEDY, run, sampler

LAYOUT = Layout(Grid(3, 3, 4), suffix=16)
GPTS = ["gpt_v1_bias", "gpt_v2_nobias"]
VITS = ["vit_vqgan_pad", "vit_vqgan_nopad"]


def _config(name: str) -> Config:
    config: Any = VARIANTS[name].config
    assert isinstance(config, Config)
    return config


def _published(data: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The recorded weights under the names of the checkpoints."""
    return {prefix + key.removeprefix("model."): value for key, value in data.items() if key.startswith("model.")}


def _load(config: Any, state: dict[str, Tensor]) -> Any:
    with torch.device("meta"):
        module = config.build()
    checkpoints.load(module, state, "the recorded model")
    return module.eval().requires_grad_(False)


def _gpt(name: str) -> tuple[Any, dict[str, Tensor]]:
    data = golden(f"wham/{name}.safetensors")
    state = _published(data, "predictor.gpt_model.")
    heads = golden_json("wham/tiny.json")["files"][name]["n_head"]
    return _load(fit(Config(width=32, layers=1, heads=heads, rows=3, cols=4), state), state), data


# The transformer


@pytest.mark.parametrize("name", GPTS)
def test_the_form_of_a_checkpoint_is_found_from_its_keys(name: str) -> None:
    recorded, config = golden_json("wham/tiny.json")["files"][name], _gpt(name)[0].config
    assert (config.layers, config.width, config.version) == tuple(recorded[k] for k in ("n_layer", "n_embd", "version"))
    assert (config.window, config.vocab, config.bias) == tuple(
        recorded[k] for k in ("block_size", "vocab_size", "bias")
    )
    assert (config.codebook, config.frames, config.reference_frames) == (32, 3, 2)


@pytest.mark.parametrize("name", GPTS)
def test_every_stage_of_a_forward_is_the_recorded_one(name: str) -> None:
    model, data = _gpt(name)
    stages: list[Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda module, given: stages.append(given[0]))
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, out: stages.append(out))
    tokens = data["in.tokens_full"]
    logits = model(tokens, torch.arange(LAYOUT.length), Causal())
    for key, stage in zip(("embed", "block0", "block1"), stages, strict=True):
        torch.testing.assert_close(stage, data[f"out.hidden_{key}"], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(logits, data["out.logits_all"], atol=1e-4, rtol=1e-5)
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(losses, data["out.loss_next_token"], atol=1e-4, rtol=1e-5)


def _continued(model: Any, data: dict[str, Tensor], sampling: Sampling) -> Tensor:
    """Two frames with their actions given, the third's cells decoded by the engine; its actions still unknown."""
    tokens = F.pad(data["in.tokens_ctx"], (0, LAYOUT.unit), value=-1)
    return run(model, make_plan(LAYOUT, "raster", known=2), tokens, sampling)[0]


@pytest.mark.parametrize("name", GPTS)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, top_k=1, keep_crossing=False)], ids=str)
def test_a_greedy_frame_and_its_action_are_the_recorded_ones(name: str, sampling: Sampling) -> None:
    """The release's "deterministic" sampling is top-k 1 at temperature 0.9."""
    model, data = _gpt(name)
    tokens = _continued(model, data, sampling)
    assert torch.equal(tokens[:, : LAYOUT.frame(2).stop], data["out.greedy_image"])

    chosen = sampler(model.config, make_plan(LAYOUT, "raster", known=2), sampling, [0, 0])
    chosen.begin(LAYOUT.length, 0)
    for position in range(LAYOUT.length)[LAYOUT.after(2)]:
        logits = model(tokens[:, :position], torch.arange(position), Causal(), torch.tensor([position - 1]))
        tokens[:, position] = chosen(logits, torch.tensor([position]))[:, 0]
    assert torch.equal(tokens, data["out.greedy_image_then_action"])


def test_each_place_takes_the_ids_that_the_release_allows() -> None:
    recorded = golden_json("wham/tiny.json")
    ranges = recorded["image_ranges_inclusive"] + recorded["action_ranges_inclusive"]
    config = Config(width=32, layers=2, heads=2, codebook=32, rows=3, cols=4)
    assert config.valid_ids() == [(low, high + 1) for low, high in ranges]


SIZES = {"WHAM_200M": ("200m", 224_081_920), "WHAM_1.6B_v1": ("1.6b", 1_580_262_912)}


def _meta(manifest: dict[str, list[int]]) -> dict[str, Tensor]:
    return {key: torch.empty(shape, device="meta") for key, shape in manifest.items()}


@pytest.mark.parametrize("size", SIZES)
def test_published_keys_load_strictly_at_both_sizes(size: str) -> None:
    """Without memory for the weights: model and checkpoint both on the meta device."""
    name, count = SIZES[size]
    state, config = _meta(golden_json("wham/manifests.json")[size]["v1_bias"]["keys"]), _config(name)
    assert fit(_config("200m"), state) == fit(_config("1.6b"), state) == config
    module = _load(config, state)
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    head = state.pop("predictor.gpt_model.lm_head.weight")  # with it or without it: it is the embedding
    assert head.shape == module.wte.weight.shape
    _load(config, state)
    with pytest.raises(ValueError, match="1 unexpected"):
        _load(config, state | {"predictor.gpt_model.transformer.h.99.extra": torch.empty(1)})
    del state["predictor.gpt_model.transformer.h.7.mlp.c_fc.bias"]
    with pytest.raises(ValueError, match=r"1 missing: blocks\.7\.mlp\.c_fc\.bias"):
        _load(config, state)


@pytest.mark.parametrize("form", ["v1_bias", "v1_nobias", "v2_bias", "v2_nobias"])
@pytest.mark.parametrize("size", SIZES)
def test_every_form_has_the_parameters_that_the_manifest_counts(size: str, form: str) -> None:
    config = replace(_config(SIZES[size][0]), version=int(form[1]), bias=form.endswith("_bias"))
    with torch.device("meta"):
        module = config.build()
    counted = golden_json("wham/manifests.json")[size][form]["params"]
    assert sum(parameter.numel() for parameter in module.parameters()) == counted
    assert fit(_config("200m"), {f"transformer.{k}": v for k, v in module.state_dict().items()}) == config


# The tokenizer


def _vit(name: str) -> tuple[tokenizer.ViTTokenizer, dict[str, Tensor]]:
    data = golden(f"wham/{name}.safetensors")
    state, sizes = _published(data, "context_encoders.images."), golden_json("wham/tiny.json")["files"][name]
    settings = {
        "context_encoder_args.images.pl_kwargs.model_spec.head_size": sizes["head_size"],
        "context_encoder_args.images.pl_kwargs.image_size_per_x_axis": sizes["image_size_x"],
        "context_encoder_args.images.pl_kwargs.image_size_per_y_axis": sizes["image_size_y"],
    }
    config = tokenizer.VARIANTS["vit"].fit(state, settings)
    assert (config.patch, config.width, config.latent) == (sizes["patch_size"], sizes["transf_dim"], 8)
    assert (config.layers, config.codebook) == (sizes["num_layers"], sizes["vocab_size"])
    assert config.grid == (sizes["grid_h"], sizes["grid_w"])
    return _load(config, state), data


@pytest.mark.parametrize("name", VITS)
def test_encoding_is_the_recorded_one(name: str) -> None:
    vit, data = _vit(name)
    scaled = vit.scale(data["in.images_u8"])
    torch.testing.assert_close(scaled, data["out.preprocessed"], atol=1e-6, rtol=0)
    torch.testing.assert_close(vit.latents(scaled), data["out.z"], atol=1e-5, rtol=0)
    ids = vit.encode(data["in.images_u8"][:, None])
    assert ids.shape == (2, 1, *vit.config.grid)
    assert torch.equal(ids.flatten(1), data["out.indices"])


@pytest.mark.parametrize("name", VITS)
def test_decoding_is_the_recorded_one(name: str) -> None:
    vit, data = _vit(name)
    quantised = F.normalize(vit.codebook(data["out.indices"]), dim=-1)
    torch.testing.assert_close(quantised, data["out.zq"], atol=1e-6, rtol=0)
    torch.testing.assert_close(vit.pixels(data["out.indices"]), data["out.recon"], atol=1e-4, rtol=0)
    pixels = vit.decode(data["out.indices"].reshape(2, 1, *vit.config.grid), {})[:, 0]
    # Bytes are cut off, not rounded: where the value is a whole number but for its last digits, either is right.
    mean, std = (torch.tensor(part)[:, None, None] for part in (tokenizer.MEAN, tokenizer.STD))
    exact = (data["out.recon"] * std + mean) * 255
    sure = (exact - exact.round()).abs() > 1e-3
    assert sure.float().mean() > 0.99
    assert torch.equal(pixels[sure], data["out.recon_u8"][sure])
    assert (pixels.int() - data["out.recon_u8"].int()).abs().max() <= 1


def test_the_tokenizers_published_keys_load_strictly() -> None:
    recorded = golden_json("wham/manifests.json")["vit_vqgan_540"]
    state, config = _meta(recorded["keys"]), tokenizer.VARIANTS["vit"]
    assert config.fit(state) == config and config.grid == (18, 30)
    module = _load(config, state)
    masks = sum(value.numel() for key, value in state.items() if key.endswith("attn_mask"))
    assert masks  # in the file, in no module
    assert sum(parameter.numel() for parameter in module.parameters()) == recorded["params"]
    training = {key.replace("*", "0.weight"): torch.empty(1) for key in recorded["extra_keys_possible"]}
    assert len(training) == 3
    _load(config, state | training)
    with pytest.raises(ValueError, match="1 unexpected"):
        _load(config, state | {"context_encoders.images.encoder.surplus": torch.empty(1)})


# Actions


def test_stick_bins_and_action_tokens_are_the_recorded_ones() -> None:
    recorded = golden_json("wham/actions.json")
    assert recorded["buttons"] == xbox.BUTTONS and recorded["sticks"] == xbox.AXES
    assert recorded["action_vocab"] == xbox.VOCABULARY
    assert list(xbox.EDGES) == recorded["bin_edges"] and list(xbox.CENTRES) == recorded["bin_centres"]
    for value, place in recorded["digitize_cases"]:
        assert xbox.stick_bin(value) == place, value
    *buttons, x0, x1, x2, x3 = recorded["example"]["action"]
    action = xbox.Action(frozenset(i for i, held in enumerate(buttons) if held), (x0, x1, x2, x3))
    assert xbox.tokens([action], 0) == [recorded["example"]["local_tokens"]]
    assert xbox.tokens([action], 16384)[0][0] == 16385


def test_the_model_and_the_gamepad_agree_on_the_ids_of_every_slot() -> None:
    recorded = golden_json("wham/actions.json")
    config = _config("200m")
    slots = config.valid_ids()[config.rows * config.cols :]
    ranges = recorded["token_ranges_local"]
    assert slots == [(config.codebook + low, config.codebook + high + 1) for low, high in ranges]
    assert sum(ACTION) == xbox.VOCABULARY
    none = xbox.Action(sticks=(0,) * xbox.AXES)
    all_of_it = xbox.Action(frozenset(range(xbox.BUTTONS)), (len(xbox.CENTRES) - 1,) * xbox.AXES)
    assert [list(pair) for pair in zip(*xbox.tokens([none, all_of_it], 0), strict=True)] == ranges


# The whole checkpoint


def _checkpoint(world: Any) -> dict[str, Tensor]:
    """A world's weights as the release's file holds them, with all that it holds besides."""
    gpt, images = "predictor.gpt_model.", "context_encoders.images."
    state = {f"{gpt}transformer.{k.replace('blocks.', 'h.')}": v for k, v in world.model.state_dict().items()}
    state[f"{gpt}lm_head.weight"] = world.model.wte.weight.data
    for key, value in world.tokenizer.state_dict().items():
        state[images + key.replace("codebook", "vq_vae._embedding")] = value
    state[f"{images}encoder.vit.0.attn.attn_mask"] = torch.ones(1, 1, 135, 135, dtype=torch.bool)
    state[f"{images}lpips_model.net.0.weight"] = torch.zeros(3)
    return state


@pytest.fixture
def foreign() -> Any:
    """A class whose module is gone when the file is read."""
    module = types.ModuleType("humanmodelling")
    made: Any = type("LightningModuleCreationArgs", (), {"__module__": module.__name__})
    module.LightningModuleCreationArgs = made  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield made
    sys.modules.pop(module.__name__, None)


def test_a_whole_lightning_checkpoint_gives_the_same_world(tmp_path: Path, foreign: Any) -> None:
    world = diagonal.load("wham/tiny", seed=3)
    arguments = foreign()
    arguments.pl_kwargs = {"model_spec": {"head_size": 16}}
    path = tmp_path / "WHAM.ckpt"
    parameters = {"context_encoder_args": {"images": arguments}}
    optimizer = [{"state": {0: {"exp_avg": torch.zeros(1000)}}}]
    torch.save({"state_dict": _checkpoint(world), "hyper_parameters": parameters, "optimizer_states": optimizer}, path)
    del sys.modules["humanmodelling"]

    loaded = diagonal.load("wham/tiny", weights=path)
    for ours, theirs in ((world.model, loaded.model), (world.tokenizer, loaded.tokenizer)):
        for key, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[key]), key
    settings = checkpoints.settings(path)
    assert settings == {"context_encoder_args.images.pl_kwargs.model_spec.head_size": 16}
    state = checkpoints.read(path)
    assert fit(_config("tiny"), state) == _config("tiny")
    assert tokenizer.VARIANTS["tiny"].fit(state, settings) == tokenizer.VARIANTS["tiny"]


def test_other_forms_are_found_from_the_checkpoint(tmp_path: Path, foreign: Any) -> None:
    """Version, biases, vocabulary and layers by the keys; the heads of the ViT by the hyper-parameters."""
    variant = find("models", "wham/tiny")
    form = replace(variant.config, version=2, bias=False, codebook=300, layers=3)
    picture = replace(tokenizer.VARIANTS["tiny"], codebook=300, head_size=8)
    torch.manual_seed(0)
    world = World("wham/tiny", replace(variant, config=form), picture, "random", "cpu")
    arguments = foreign()
    arguments.pl_kwargs = {"model_spec": {"head_size": 8}}
    content = {"state_dict": _checkpoint(world), "hyper_parameters": {"context_encoder_args": {"images": arguments}}}
    torch.save(content, tmp_path / "WHAM.ckpt")
    del sys.modules["humanmodelling"]

    loaded = diagonal.load("wham/tiny", weights=tmp_path / "WHAM.ckpt")
    assert loaded.variant.config == form and loaded.tokenizer.config == picture
    again = diagonal.load("wham/tiny", weights=loaded.save_pretrained(tmp_path / "ours"))
    assert again.variant.config == form and again.tokenizer.config == picture  # no shape tells the heads
    prompt = torch.randint(300, (1, 9, 15), generator=torch.Generator().manual_seed(0))
    clips = [one.generate(prompt, frames=2, sampling=GREEDY) for one in (loaded, again)]
    np.testing.assert_array_equal(clips[0].frames, clips[1].frames)


def test_a_saved_world_loads_again_and_plays_the_same(tmp_path: Path) -> None:
    world = diagonal.load("wham/tiny", seed=3)
    again = diagonal.load("wham/tiny", weights=world.save_pretrained(tmp_path))
    prompt = torch.randint(256, (2, 90, 150, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    actions = xbox.parse("b3+x1=1,noop,x0=-0.6")
    clips = [one.generate(prompt, actions, schedule="diagonal:k=1", seed=5) for one in (world, again)]
    assert torch.equal(clips[0].tokens, clips[1].tokens) and clips[0].calls == 2 * (8 + 15)
    assert clips[0].frames.shape == (2, 90, 150, 3)
    other = world.generate(prompt, xbox.parse("noop*3"), schedule="diagonal:k=1", seed=5)
    assert not torch.equal(other.tokens, clips[0].tokens)
