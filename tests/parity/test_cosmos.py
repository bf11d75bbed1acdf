"""Cosmos against what NVIDIA's own modules recorded (tests/golden/cosmos): float32, tiny random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import diagonal
from diagonal import Grid, Layout, Sampling, checkpoints, make_plan
from diagonal.engine.attention import Dense
from diagonal.engine.heads import frequencies
from diagonal.engine.sampler import weights as sampling_weights
from diagonal.engine.tokens.decode import decode
from diagonal.engine.tokens.runner import Eager
from diagonal.models.cosmos import VARIANTS, Config, Yarn, rope_3d, sines_3d
from diagonal.tokenizers import cosmos as tokenizer
from tests.conftest import golden, golden_json
from tests.tiny import GREEDY, new_cache, sampler

NAMES = ("ar_base", "ar_base_yarn", "ar_v2w")


@dataclass(frozen=True)
class Recorded:
    """A recorded model: ours with its weights, as the engine takes it, and the data."""

    model: Any
    config: Config
    call: Any  # the model, under the recorded text where it has one
    data: dict[str, Tensor]
    prompt: int

    @property
    def tokens(self) -> Tensor:
        return self.data["tokens"]

    @property
    def layout(self) -> Layout:
        grid = Grid(self.config.frames, self.config.rows, self.config.cols)
        return Layout(grid, len(self.config.prefix_ids), self.config.suffix)


def _config(name: str) -> Config:
    described = golden_json("cosmos/ar.json")[name]
    sizes = described["config"]
    frames, rows, cols = sizes["video_latent_shape"]
    original = sizes["original_latent_shape"]
    return Config(
        width=sizes["dim"],
        layers=sizes["n_layers"],
        heads=sizes["n_heads"],
        kv_heads=sizes["n_kv_heads"],
        head_dim=sizes["head_dim"] or sizes["dim"] // sizes["n_heads"],
        mlp=sizes["ffn_hidden_size"],
        frames=frames,
        rows=rows,
        cols=cols,
        codebook=sizes["vocab_size"],
        theta=sizes["rope_theta"],
        eps=sizes["norm_eps"],
        yarn=Yarn(sizes["yarn_scale"], sizes["yarn_beta_fast"], sizes["yarn_beta_slow"], original[0], original[1])
        if sizes["apply_yarn"]
        else None,
        text=sizes["context_dim"] if sizes["insert_cross_attn"] else 0,
        text_length=described["tensors"]["context"][0][1] if sizes["insert_cross_attn"] else 0,
    )


@pytest.fixture(scope="module", params=NAMES)
def recorded(request: Any) -> Recorded:
    name, config = request.param, _config(request.param)
    with torch.device("meta"):
        model = config.build()
    checkpoints.load(model, golden(f"cosmos/{name}.weights.safetensors"), name)
    model.eval().requires_grad_(False)
    data = golden(f"cosmos/{name}.data.safetensors")
    call = model.bind(data["context"]) if config.text else model
    return Recorded(model, config, call, data, golden_json("cosmos/ar.json")[name]["prompt_len"])


def _causal(size: int) -> Dense:
    return Dense(torch.ones(size, size, dtype=torch.bool).tril())


def _close(ours: Tensor, theirs: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


# The model


def test_start_token_and_embedding_rows_follow_from_the_codebook(recorded: Recorded) -> None:
    start = None if not recorded.config.text else recorded.config.codebook
    described = golden_json("cosmos/ar.json")
    (case,) = (described[name] for name in NAMES if _config(name) == recorded.config)
    assert case["bov_token"] == start
    assert case["embedding_rows"] == recorded.config.vocab == len(recorded.model.embed.weight)
    assert recorded.config.prefix_ids == (() if start is None else (start,))


def test_the_rotary_table_is_the_recorded_one(recorded: Recorded) -> None:
    # The recorded tables of the text models have rows beyond the last cell.
    places, _ = recorded.config.places(torch.arange(recorded.layout.length))
    cos, sin = rope_3d(places, recorded.config)
    _close(cos, recorded.data["rope.cos"][: recorded.layout.length], atol=1e-6)
    _close(sin, recorded.data["rope.sin"][: recorded.layout.length], atol=1e-6)


def test_the_rotary_frequencies_are_the_recorded_ones(recorded: Recorded) -> None:
    config = recorded.config
    for kind, length in (("temporal", 3), ("spatial", 40)):
        theirs = recorded.data[f"rope.inv_freq_{kind}"]
        ours = frequencies(2 * len(theirs), config.theta, torch.device("cpu"))
        ours = ours if config.yarn is None else config.yarn.stretch(ours, length)
        torch.testing.assert_close(ours, theirs, atol=0, rtol=1e-6)


def test_logits_are_the_recorded_ones(recorded: Recorded) -> None:
    logits = recorded.call(recorded.tokens, recorded.data["input_pos"], _causal(recorded.tokens.shape[1]))
    _close(logits, recorded.data["logits"])


def test_the_output_of_every_block_is_the_recorded_one(recorded: Recorded) -> None:
    seen: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: seen.append(out)) for block in recorded.model.blocks]
    recorded.call(recorded.tokens, recorded.data["input_pos"], _causal(recorded.tokens.shape[1]))
    for hook in hooks:
        hook.remove()
    assert len(seen) == recorded.config.layers
    for index, hidden in enumerate(seen):
        _close(hidden, recorded.data[f"hidden.{index}"])


def test_greedy_tokens_by_the_engine_are_the_recorded_ones(recorded: Recorded) -> None:
    plan = make_plan(recorded.layout, "raster", known=2)
    assert plan.layout.frame(2).start == recorded.prompt
    tokens = recorded.tokens.clone()
    tokens[:, recorded.prompt :] = -1  # a read before its time would fail
    chosen = sampler(recorded.config, plan, GREEDY, [0])
    (frame,) = decode(Eager(recorded.call, new_cache(recorded.call, plan), chosen), plan, tokens)
    assert torch.equal(frame.tokens.flatten(1), recorded.data["greedy"])


def test_greedy_tokens_by_plain_forwards_are_the_recorded_ones(recorded: Recorded) -> None:
    tokens = recorded.tokens[:, : recorded.prompt]
    for _ in range(recorded.data["greedy"].shape[1]):
        size = tokens.shape[1]
        logits = recorded.call(tokens, torch.arange(size), _causal(size), torch.tensor([size - 1]))
        tokens = torch.cat([tokens, logits[:, 0].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(tokens[:, recorded.prompt :], recorded.data["greedy"])


def test_tokens_scattered_over_positions_give_the_recorded_logits(recorded: Recorded) -> None:
    """Three inputs in one call that see the prompt, themselves and what was fed before them, and no hole between."""
    data, size = recorded.data, recorded.prompt
    slots = torch.cat([torch.arange(size), data["scatter.pos"]])
    tokens = torch.cat([recorded.tokens[:, :size], data["scatter.tokens"]], dim=1)
    mask = torch.ones(len(slots), len(slots), dtype=torch.bool).tril()
    mask[size:] = data["scatter.mask"].bool()[:, slots]
    logits = recorded.call(tokens, slots, Dense(mask), torch.arange(size, len(slots)))
    _close(logits, data["scatter.logits"])


@pytest.mark.parametrize("rule", ["step", "step_raster"])
def test_diagonal_masks_give_the_recorded_logits(recorded: Recorded, rule: str) -> None:
    mask = Dense(recorded.data[f"diag.{rule}.mask"].bool())
    logits = recorded.call(recorded.tokens, recorded.data["input_pos"], mask)
    _close(logits, recorded.data[f"diag.{rule}.logits"])


def test_a_text_without_its_padding_gives_the_recorded_logits() -> None:
    """The recorded text ends with rows of zeros, and attention to them was recorded too."""
    config, data = _config("ar_v2w"), golden("cosmos/ar_v2w.data.safetensors")
    with torch.device("meta"):
        model = config.build()
    checkpoints.load(model, golden("cosmos/ar_v2w.weights.safetensors"), "ar_v2w")
    length = int(data["context"][0].any(-1).sum())
    assert length == config.text_length - 3 and not data["context"][:, length:].any()
    call, mask = model.bind(data["context"][:, :length]), _causal(data["tokens"].shape[1])
    logits = call(data["tokens"], data["input_pos"], mask)
    _close(logits, data["logits"])
    assert torch.equal(logits, model.bind(data["context"])(data["tokens"], data["input_pos"], mask))


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("top_p_0.8", Sampling(top_p=0.8)), ("temp_0.6_top_p_0.9", Sampling(temperature=0.6, top_p=0.9))],
)
def test_sampling_probabilities_are_the_recorded_ones(recorded: Recorded, name: str, sampling: Sampling) -> None:
    theirs = recorded.data[f"{name}.probs"]
    ours = sampling_weights(recorded.data["logits"][:, -1], sampling)
    ours /= ours.sum(-1, keepdim=True)
    assert torch.equal(ours > 0, theirs > 0)
    _close(ours, theirs, atol=1e-6)


def test_the_absolute_table_is_the_recorded_one_and_zero_for_the_start_token() -> None:
    config, data = _config("ar_v2w"), golden("cosmos/ar_v2w.data.safetensors")
    size = data["tokens"].shape[1]
    places, inside = config.places(torch.arange(size))
    table = sines_3d(places, config.width) * inside[:, None]
    assert not table[0].any()
    _close(table, data["abs_pos_emb_fp32"][:size], atol=1e-6)
    assert torch.equal(table.bfloat16().float(), data["abs_pos_emb_bf16"][:size])


SIZES = {
    "4B": ("4b", 4_014_088_192, 179),
    "5B": ("5b", 4_584_845_312, 291),
    "12B": ("12b", 11_560_975_360, 443),
    "13B": ("13b", 13_323_125_760, 723),
}


@pytest.mark.parametrize("size", SIZES)
def test_published_keys_load_strictly_at_every_size(size: str) -> None:
    """Without memory for the weights: model and checkpoint both on the meta device."""
    name, count, keys = SIZES[size]
    state = _manifest(f"cosmos/manifest_{size}.json")
    assert len(state) == keys
    for prefix in ("", "model."):
        with torch.device("meta"):
            module = VARIANTS[name].config.build()
        # What the training framework keeps for itself is no weight of the model.
        extra = {f"{prefix}layers.0.attention._extra_state": torch.empty(3, dtype=torch.uint8, device="meta")}
        checkpoints.load(module, {prefix + key: value for key, value in state.items()} | extra, name)
        assert sum(parameter.numel() for parameter in module.parameters()) == count
    with pytest.raises(ValueError, match="1 missing"):
        checkpoints.load(module, dict(list(state.items())[1:]), name)
    with pytest.raises(ValueError, match="1 unexpected"):
        checkpoints.load(module, state | {"layers.99.extra": torch.empty(1)}, name)


def _manifest(name: str) -> dict[str, Tensor]:
    return {key: torch.empty(shape, device="meta") for key, (shape, _) in golden_json(name).items()}


# The tokenizer


@pytest.fixture(scope="module")
def coder() -> tokenizer.CosmosTokenizer:
    sizes = golden_json("cosmos/tokenizer.json")["config"]
    config = tokenizer.Config(
        levels=tuple(sizes["levels"]),
        width=sizes["channels"],
        multiples=tuple(sizes["channels_mult"]),
        blocks=sizes["num_res_blocks"],
        latent=sizes["z_channels"],
    )
    assert (config.patch, config.stride) == (sizes["spatial_compression"], sizes["temporal_compression"])
    with torch.device("meta"):
        module = config.build()
    checkpoints.load(module, golden("cosmos/tokenizer.weights.safetensors"), "the recorded tokenizer")
    return module.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def clips() -> dict[str, Tensor]:
    return golden("cosmos/tokenizer.data.safetensors")


def _video(clips: dict[str, Tensor], case: str) -> Tensor:
    return clips[f"{case}.video"].permute(0, 3, 1, 2)[None]


CLIPS = ("a", "b")  # nine frames of 64x64, and one of 32x32


@pytest.mark.parametrize("case", CLIPS)
def test_latents_ids_and_codes_are_the_recorded_ones(
    coder: tokenizer.CosmosTokenizer, clips: dict[str, Tensor], case: str
) -> None:
    _close(coder.latents(_video(clips, case)), clips[f"{case}.z"])
    ids = coder.encode(_video(clips, case))
    assert torch.equal(ids, clips[f"{case}.indices"].long())
    assert torch.equal(coder.ids(clips[f"{case}.z"]), ids)
    assert torch.equal(coder.codes(ids), clips[f"{case}.codes"])


@pytest.mark.parametrize("case", CLIPS)
def test_decoded_pixels_are_the_recorded_ones_whole_and_streamed(
    coder: tokenizer.CosmosTokenizer, clips: dict[str, Tensor], case: str
) -> None:
    ids, theirs = clips[f"{case}.indices"].long(), clips[f"{case}.decoded"].transpose(1, 2)
    _close(coder.pixels(ids, {}), theirs)
    state: dict[str, Tensor] = {}
    _close(torch.cat([coder.pixels(frame, state) for frame in ids.split(1, dim=1)], dim=1), theirs)
    as_bytes = ((theirs.clamp(-1, 1) + 1) * 127.5).round()
    assert (coder.decode(ids, {}) - as_bytes).abs().max() <= 1


def test_the_haar_transform_is_the_recorded_one(clips: dict[str, Tensor]) -> None:
    pixels = _video(clips, "a").permute(0, 1, 3, 4, 2) / 127.5 - 1
    bands_BTHWC = tokenizer.haar(tokenizer.haar(tokenizer.repeat_first(pixels, 3)))
    _close(bands_BTHWC.permute(0, 4, 1, 2, 3), clips["a.patched"], atol=1e-6)


def test_nine_frames_have_the_same_ids_alone_and_before_others(
    coder: tokenizer.CosmosTokenizer, clips: dict[str, Tensor]
) -> None:
    """So a prompt needs no padding to the length that the model was trained on."""
    later = torch.randint(256, (1, 24, 3, 64, 64), generator=torch.Generator().manual_seed(0)).byte()
    ids = coder.encode(torch.cat([_video(clips, "a"), later], dim=1))
    assert ids.shape[1] == 5
    assert torch.equal(ids[:, :2], clips["a.indices"].long())


def test_later_token_frames_leave_the_recorded_pixels_as_they_are(
    coder: tokenizer.CosmosTokenizer, clips: dict[str, Tensor]
) -> None:
    later = torch.randint(coder.config.codebook, (1, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    whole = coder.pixels(torch.cat([clips["a.indices"].long(), later], dim=1), {})
    assert whole.shape[1] == 33
    _close(whole[:, :9], clips["a.decoded"].transpose(1, 2))


def test_the_published_tokenizer_keys_load_strictly() -> None:
    state = _manifest("cosmos/manifest_DV8x16x16.json")
    assert len(state) == 318
    with torch.device("meta"):
        module = tokenizer.VARIANTS["dv8x16x16"].build()
    checkpoints.load(module, state, "cosmos/dv8x16x16")
    count = sum(value.numel() for value in state.values())
    assert sum(parameter.numel() for parameter in module.parameters()) == count == 110_898_294
    with pytest.raises(ValueError, match="1 missing"):
        checkpoints.load(module, dict(list(state.items())[1:]), "cosmos/dv8x16x16")
    with pytest.raises(ValueError, match="1 unexpected"):
        checkpoints.load(module, state | {"decoder.extra": torch.empty(1)}, "cosmos/dv8x16x16")


def test_the_published_codebook_is_that_of_the_models() -> None:
    for name, variant in VARIANTS.items():
        made = tokenizer.VARIANTS[variant.tokenizer.partition("/")[2]]
        assert made.codebook == variant.config.codebook, name


# Both together


def test_published_files_give_the_same_world(tmp_path: Path) -> None:
    """Weights under `model`, as model.pt has them, and the tokenizer in a file of its own."""
    world = diagonal.load("cosmos/tiny-text", seed=3)
    state = _published(world.model)
    torch.save({"model": {f"model.{key}": value for key, value in state.items()}}, tmp_path / "model.pt")
    save_file(
        {key: value.contiguous() for key, value in world.tokenizer.state_dict().items()}, tmp_path / "t.safetensors"
    )
    loaded = diagonal.load("cosmos/tiny-text", weights=tmp_path / "model.pt", tokenizer=tmp_path / "t.safetensors")
    for ours, theirs in ((world.model, loaded.model), (world.tokenizer, loaded.tokenizer)):
        for key, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[key]), key


def _published(module: Any) -> dict[str, Tensor]:
    """A model's weights under NVIDIA's names, q, k, v and gate, up apart."""
    config, own = module.config, module.state_dict()
    heads = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
    parts = {"qkv": heads, "kv": heads[1:], "gate_up": [config.mlp] * 2}
    state = {"norm.weight": own["norm.weight"]}
    for layer in range(config.layers):
        for ours, theirs in module.weight_map.keys.items():
            names = "qk" if ours.count("{}") == 2 else [""]
            for name in names:
                weight = own[ours.format(layer, name)]
                sizes = parts.get(ours.split(".")[-2], [len(weight)])
                for key, part in zip(theirs, weight.split(sizes), strict=True):
                    state[key.format(layer, name)] = part.clone()
    return state
