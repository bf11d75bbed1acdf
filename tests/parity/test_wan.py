"""Wan against what the peers' own modules recorded (tests/golden/wan): float32, tiny random weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.engine.attention import Full
from diagonal.engine.chunks.cache import WindowSpec
from diagonal.engine.chunks.denoise import DenoiseSettings, denoise
from diagonal.engine.chunks.masks import block_causal, dense, teacher_forcing
from diagonal.engine.kernels import select_latents
from diagonal.models.wan import DIFFUSERS, VARIANTS
from tests.conftest import golden, golden_json
from tests.wan import SIZE, TOKENS, Recorder, Replay, Steps, new_cache, recorded_model, sigma

WARPED4 = (1000.0, 937.5, 833.3333129882812, 625.0)
LAST = 357.1428527832031


@pytest.fixture(scope="module")
def model() -> Any:
    return recorded_model()


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=1e-4)


def rope(model: Any, frames: Any) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = model.rope(torch.as_tensor(frames), 4, 6)
    return both


# One forward


def test_the_bidirectional_forward_and_its_stages_are_the_recorded_ones(model: Any) -> None:
    data = golden("wan/bidirectional.safetensors")
    seen: dict[str, Tensor] = {}

    def keep(name: str, module: Any) -> Any:
        def hook(module: Any, given: Any, out: Any) -> None:
            seen[name] = out[0] if isinstance(out, tuple) else out  # a layer's x, its last sum made

        return module.register_forward_hook(hook)

    block = model.blocks[0]
    stages = {
        "block0_self_attn": block.self_attn.o,
        "block0_cross_attn": block.cross_attn.o,
        "block0": block,
        "block1": model.blocks[1],
        "head": model.head,
        "time_embed": model.time_embedding,
        "time_proj": model.time_projection,
        "text_embed": model.text_embedding,
    }
    hooks = [keep(name, module) for name, module in stages.items()]
    x_BFCHW = data["x"].transpose(1, 2)
    out = model(x_BFCHW, data["t"][:, None], model.embed_text(data["context"]), rope(model, range(6)), Full())
    for hook in hooks:
        hook.remove()
    close(out, data["out"].transpose(1, 2))
    for name in stages:
        close(seen[name].reshape(data[name].shape), data[name])
    tokens = model._patches(x_BFCHW)
    close(tokens.flatten(1, 2), data["patch_embed"].flatten(2).transpose(1, 2), 1e-5)


def test_sums_left_to_the_next_norm_change_nothing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a kernel makes them along with it."""
    data = golden("wan/bidirectional.safetensors")
    given = (data["x"].transpose(1, 2), data["t"][:, None], model.embed_text(data["context"]), rope(model, range(6)))
    early = model(*given, Full())
    left: list[bool] = []
    hook = model.blocks[0].register_forward_hook(lambda module, given, out: left.append(out[1] is not None))
    monkeypatch.setattr(select_latents, "open_sum", lambda x, delta, gate: (x, delta, gate))
    assert torch.equal(model(*given, Full()), early) and left == [True]
    hook.remove()


def test_text_that_is_shorter_than_the_model_takes_is_filled_with_zeros(model: Any) -> None:
    text = golden("wan/bidirectional.safetensors")["context"][:1]
    assert not text[:, 11:].any() and text[:, 10].any()
    for ours, theirs in zip(model.embed_text(text[:, :11]), model.embed_text(text), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_text_ends_with_its_last_row_that_is_not_zero(model: Any) -> None:
    text = torch.randn(4, 16, 48, generator=torch.Generator().manual_seed(0))
    text[1, 5:] = text[2, 3] = text[3] = 0
    text[0, 1:15] = 0
    for layer in model.embed_text(text):
        assert layer[2].tolist() == [16, 5, 16, 0]
    assert model.embed_text(text[1:2, :7])[0][2].tolist() == [5]


def test_one_key_with_the_weight_of_all_padding_is_attended_to_as_all_of_it(model: Any) -> None:
    """What the kernel on a GPU rests on."""
    text = golden("wan/bidirectional.safetensors")["context"][:1]
    q = torch.randn(1, 4, 7, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for layer in model.embed_text(text):
        k, v, rows = layer[0].double(), layer[1].double(), int(layer[2])
        assert rows == 11
        for part in layer[:2]:
            assert torch.equal(part[:, :, rows:], part[:, :, rows : rows + 1].expand(-1, -1, 16 - rows, -1))
        scores = q @ k.mT / 24**0.5
        few = scores[..., : rows + 1].clone()
        few[..., rows] += math.log(16 - rows)
        close(few.softmax(-1) @ v[:, :, : rows + 1], scores.softmax(-1) @ v, 1e-12)


# Training: the whole video at once, a level per frame


def test_the_training_forward_is_the_recorded_one(model: Any) -> None:
    data = golden("wan/causal_train_forward.safetensors")
    mask = block_causal(9, 3)
    assert torch.equal(mask, data["frame_mask_blockcausal"].bool())
    text = model.embed_text(data["context"])
    out = model(data["x"].transpose(1, 2), data["t"], text, rope(model, range(9)), dense(mask, TOKENS))
    close(out, data["out_blockcausal"].transpose(1, 2))


def test_the_teacher_forced_forward_is_the_recorded_one(model: Any) -> None:
    data = golden("wan/causal_train_forward.safetensors")
    mask = teacher_forcing(9, 3)
    assert torch.equal(mask, data["frame_mask_teacher_forcing"].bool())
    both = torch.cat([data["clean_x"], data["x"]], dim=2).transpose(1, 2)
    level = torch.cat([torch.zeros_like(data["t"]), data["t"]], dim=1)
    places = [*range(9), *range(9)]
    out = model(both, level, model.embed_text(data["context"]), rope(model, places), dense(mask, TOKENS))
    close(out[:, 9:], data["out_teacher_forcing"].transpose(1, 2))


# Generation, chunk by chunk

DIAGONAL = Steps(((1000.0, 933.0, 733.0, 357.0), (1000.0, 933.0, 357.0), (1000.0, LAST)))
CASES = {
    "sf_uniform4_global": (Steps((WARPED4,), context=0.0), WindowSpec(9)),
    "dd_4322_win12_sink3": (DIAGONAL, WindowSpec(12, sink=3)),
    "dd_infinity_win9_sink3": (Steps(((1000.0, LAST),)), WindowSpec(9, sink=3, relative=True)),
    "dd_interactive_gsink0": (Steps(((1000.0, 833.3333129882812),), context=0.0), WindowSpec(6, sink=3)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_call_of_a_recorded_run_is_the_same(model: Any, case: str) -> None:
    data, (schedule, window) = golden(f"wan/{case}.safetensors"), CASES[case]
    frames = data["latents"].shape[1]
    first, second = data["context_a"][None], data["context_b"][None]
    switch = 3 if "interactive" in case else frames  # chunk 3 begins at latent frame 9
    recorder, cache = Recorder(model), new_cache(model, window)
    settings = DenoiseSettings(schedule, sigma, Replay(data, schedule), SIZE, keep_sink=False)
    chunks = list(denoise(recorder, cache, settings, lambda index: first if index < switch else second, frames))
    calls = sorted(name for name in data if name.endswith("_x0"))
    assert len(calls) == len(recorder.x0s)
    for name, x0, flow in zip(calls, recorder.x0s, recorder.flows, strict=True):
        close(x0, data[name])
        if name.replace("x0", "flow") in data:
            close(flow, data[name.replace("x0", "flow")])
    close(torch.cat([chunk.latents for chunk in chunks], 1), data["latents"])
    assert [chunk.index for chunk in chunks if chunk.changed] == ([3] if switch < frames else [])
    _same_cache(cache, data, frames)


def _same_cache(cache: Any, data: dict[str, Tensor], frames: int) -> None:
    """The recording shifts what our ring overwrites: the same frames in another order."""
    window = cache.window
    held = list(range(cache.origin, frames))
    if len(held) > window.frames:
        held = [*held[: window.sink], *held[window.sink - window.frames :]]
    places = torch.cat([cache.at(frame, 1).slots_S for frame in held])
    close(cache.v[1][:, places], data["kv_final_v1"][:, : len(places)])
    if not window.relative:  # there the recording keeps keys that are not rotated
        close(cache.k[1][:, places], data["kv_final_k1"][:, : len(places)])


def test_a_wrong_window_or_sink_would_be_noticed(model: Any) -> None:
    data, (schedule, window) = golden("wan/dd_infinity_win9_sink3.safetensors"), CASES["dd_infinity_win9_sink3"]
    for other in (replace(window, relative=False), replace(window, sink=0), replace(window, frames=10)):
        settings = DenoiseSettings(schedule, sigma, Replay(data, schedule), SIZE)
        chunks = denoise(model, new_cache(model, other), settings, lambda index: data["context_a"][None], 15)
        ours = torch.cat([chunk.latents for chunk in chunks], 1)
        assert (ours - data["latents"]).abs().max() > 1e-3


# Checkpoints


@pytest.mark.parametrize("size", ["tiny", "wan1.3b"])
def test_the_names_of_diffusers_are_the_recorded_ones_both_ways(size: str) -> None:
    keymap = golden_json(f"wan/keymap_{size}_orig_to_diffusers.json")
    marks = {key: torch.tensor([float(index)]) for index, key in enumerate(keymap)}
    theirs = {keymap[key]: mark for key, mark in marks.items()}
    assert checkpoints.rename(theirs, DIFFUSERS) == marks
    back = {other: (ours,) for ours, (other,) in DIFFUSERS.items()}
    assert checkpoints.rename(marks, back) == theirs


def _meta(manifest: str, prefix: str = "") -> dict[str, Tensor]:
    tensors = golden_json(f"wan/{manifest}.json")["tensors"]
    return {prefix + key: torch.empty(shape, device="meta") for key, (shape, _) in tensors.items()}


@pytest.mark.parametrize("prefix", ["", "model.", "transformer."])
@pytest.mark.parametrize("layout", ["orig", "diffusers"])
def test_published_keys_load_strictly(layout: str, prefix: str) -> None:
    state = _meta(f"manifest_wan1.3b_{layout}", prefix)
    assert len(state) == 825
    with torch.device("meta"):
        module = VARIANTS["1.3b"].config.build()
    checkpoints.load(module, state, "wan/1.3b")
    assert sum(parameter.numel() for parameter in module.parameters()) == 1_418_996_800
    with pytest.raises(ValueError, match="1 missing"):
        checkpoints.load(module, dict(list(state.items())[:-1]), "wan/1.3b")
    with pytest.raises(ValueError, match="1 unexpected"):
        checkpoints.load(module, state | {prefix + "blocks.99.extra": torch.empty(1)}, "wan/1.3b")
    name = next(key for key in state if key.endswith(("ffn.2.bias", "ffn.net.2.bias")))
    with pytest.raises(ValueError, match="1 of another shape"):
        checkpoints.load(module, state | {name: torch.empty(7)}, "wan/1.3b")


def test_the_larger_model_has_its_published_size() -> None:
    with torch.device("meta"):
        module = VARIANTS["14b"].config.build()
    assert sum(parameter.numel() for parameter in module.parameters()) == 14_288_491_584


def _published(layout: str) -> dict[str, Tensor]:
    state = golden("wan/tiny_weights.safetensors")
    if layout == "orig":
        return state
    keymap = golden_json("wan/keymap_tiny_orig_to_diffusers.json")
    return {keymap[key]: value for key, value in state.items()}


@pytest.mark.parametrize("layout", ["orig", "diffusers"])
def test_both_layouts_give_the_same_model(model: Any, layout: str) -> None:
    other = VARIANTS["tiny"].config.build()
    checkpoints.load(other, _published(layout), "the recorded model")
    for key, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


WRAPPED = [("generator_ema", "_fsdp_wrapped_module."), ("generator", ""), ("model", ""), ("state_dict", "_orig_mod.")]


@pytest.mark.parametrize(("name", "inside"), WRAPPED)
def test_files_of_the_self_forcing_family_load(model: Any, tmp_path: Path, name: str, inside: str) -> None:
    state = {f"model.{inside}{key}": value for key, value in _published("orig").items()}
    content: dict[str, Any] = {name: state, "critic": {"model.x": torch.zeros(1)}, "step": 600}
    if name == "generator_ema":  # the moving average is what is meant to be used
        content["generator"] = {key: value + 1 for key, value in state.items()}
    torch.save(content, tmp_path / "file.pt")
    other = VARIANTS["tiny"].config.build()
    checkpoints.load(other, checkpoints.read(tmp_path / "file.pt"), "the recorded model")
    for key, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


def test_a_file_without_a_generator_is_refused(tmp_path: Path) -> None:
    torch.save({"critic": {"model.x": torch.zeros(1)}, "step": 600}, tmp_path / "critic.pt")
    with pytest.raises(ValueError, match=r"critic\.pt holds no state dict of tensors"):
        checkpoints.read(tmp_path / "critic.pt")
