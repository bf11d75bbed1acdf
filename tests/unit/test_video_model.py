"""A diffusion model in Python: loading, streaming, prompts that change, what a video begins with, what is refused."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import diagonal
from diagonal import Request, VideoModel, Weights, checkpoints
from diagonal.catalog.names import find
from diagonal.generation.ahead import ahead
from diagonal.planning import presets
from diagonal.text.encoders import ENCODERS, embed
from tests.conftest import golden, golden_json
from tests.wan import sample_whole

SIZE: dict[str, Any] = {"height": 32, "width": 48}
PLAIN = Request(prompt="a red cat", num_frames=33, **SIZE)


@pytest.fixture(scope="module")
def model() -> VideoModel:
    return diagonal.load("wan/tiny")


def latents(model: VideoModel, request: Request) -> Tensor:
    return model.generate(request, output_type="latent").latents


# Streams


def test_a_stream_yields_what_generate_collects(model: VideoModel) -> None:
    stream = model.stream(PLAIN)
    chunks, clip = list(stream), model.generate(PLAIN)
    assert [(chunk.index, len(chunk.frames), chunk.calls) for chunk in chunks] == [(0, 9, 4), (9, 12, 3), (21, 12, 2)]
    assert (stream.frames, stream.calls) == (33, 9)
    assert clip.frames.shape == (33, 32, 48, 3) and clip.frames.dtype == np.uint8 and clip.calls == 9
    np.testing.assert_array_equal(np.concatenate([chunk.frames for chunk in chunks]), clip.frames)
    assert torch.equal(torch.cat([chunk.latents for chunk in chunks]), clip.latents)
    assert all(chunk.model_seconds > 0 and chunk.decode_seconds > 0 for chunk in chunks)


@pytest.mark.parametrize("decoder", ["vae", "preview"])
def test_frames_decoded_chunk_by_chunk_are_those_decoded_together(model: VideoModel, decoder: str) -> None:
    clip = model.generate(replace(PLAIN, decoder=decoder))
    codec = model.vae if decoder == "vae" else model.preview
    whole = codec.decode(clip.latents[None], {})[0].permute(0, 2, 3, 1).numpy()
    assert clip.frames.shape == whole.shape
    assert np.abs(np.asarray(clip.frames).astype(int) - whole).max() <= 1


def test_the_forms_of_the_result(model: VideoModel) -> None:
    array, tensor, raw = (model.generate(PLAIN, output_type=kind) for kind in ("np", "pt", "latent"))
    assert isinstance(tensor.frames, Tensor) and tensor.frames.shape == (33, 3, 32, 48)
    np.testing.assert_array_equal(tensor.frames.permute(0, 2, 3, 1).numpy(), array.frames)
    assert raw.frames is raw.latents and torch.equal(raw.latents, array.latents)
    assert [len(chunk.frames) for chunk in model.stream(PLAIN, decoder="none")] == [0, 0, 0]


def test_a_seed_gives_one_video_and_another_seed_another(model: VideoModel) -> None:
    first, again, other = (latents(model, replace(PLAIN, seed=seed)) for seed in (7, 7, 8))
    assert torch.equal(first, again) and (first - other).abs().max() > 0.1
    assert torch.equal(model.generate(PLAIN, seed=7, output_type="latent").latents, first)
    drawn = [
        latents(model, replace(PLAIN, generator=torch.Generator().manual_seed(seed), num_frames=9))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_a_video_without_end_begins_like_one_with_an_end(model: VideoModel) -> None:
    endless = model.stream(replace(PLAIN, num_frames=None))
    some = torch.cat([chunk.latents for chunk in islice(endless, 6)])
    endless.close()
    assert torch.equal(some, latents(model, replace(PLAIN, num_frames=69)))


def test_memory_does_not_grow_with_the_video(model: VideoModel) -> None:
    stream = model.stream(replace(PLAIN, num_frames=None, preset="infinity", schedule="1"))
    sizes = []
    for _ in islice(stream, 12):
        held = stream._decoder._state.values()
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in held))
    assert len(set(sizes[1:])) == 1


def test_noise_may_be_given(model: VideoModel) -> None:
    noise = torch.randn(9, 16, 4, 6, generator=torch.Generator().manual_seed(5))
    one_step = replace(PLAIN, schedule="1", latents=noise)
    first, other_seed = latents(model, one_step), latents(model, replace(one_step, seed=4))
    assert torch.equal(first[:3], other_seed[:3])  # later chunks read a cache that was noised by the seed
    assert not torch.equal(first[:3], latents(model, replace(one_step, latents=-noise))[:3])
    with pytest.raises(ValueError, match=r"shape \(8, 16, 4, 6\) given to start from; \(9, 16, 4, 6\) is needed"):
        model.stream(replace(one_step, latents=noise[1:]))


# Batches


BOTH = ["a red cat", "a blue dog"]


def test_a_batch_of_prompts_is_each_prompt_alone(model: VideoModel) -> None:
    together = model.generate(replace(PLAIN, prompt=BOTH, seed=7))
    assert together.frames.shape == (2, 33, 32, 48, 3) and together.latents.shape == (2, 9, 16, 4, 6)
    for index, prompt in enumerate(BOTH):
        alone = model.generate(replace(PLAIN, prompt=prompt, seed=7 + index))
        torch.testing.assert_close(together.latents[index], alone.latents, atol=1e-4, rtol=1e-4)
        assert np.abs(together.frames[index].astype(int) - alone.frames).max() <= 1
        assert together.calls == alone.calls
    seeded = model.generate(replace(PLAIN, prompt=BOTH, seed=[7, 8]), output_type="pt")
    assert seeded.frames.shape == (2, 33, 3, 32, 48) and torch.equal(seeded.latents, together.latents)


def test_pieces_of_a_batch_have_all_samples(model: VideoModel) -> None:
    pieces = list(model.stream(replace(PLAIN, prompt=BOTH)))
    assert [(piece.index, piece.new, piece.frames.shape[:2]) for piece in pieces] == [
        (0, 9, (2, 9)),
        (9, 12, (2, 12)),
        (21, 12, (2, 12)),
    ]
    nothing = next(model.stream(replace(PLAIN, prompt=BOTH, decoder="none")))
    assert nothing.frames.shape == (2, 0, 32, 48, 3) and nothing.latents.shape == (2, 3, 16, 4, 6)


def test_a_batch_may_begin_with_one_picture_or_one_each_and_change_its_prompts(model: VideoModel) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), dtype=np.uint8)
    whole = replace(PLAIN, prompt=BOTH, num_frames=25, image=pictures, prompt_at={1: ["a fish", "a bird"]})
    together = latents(model, whole)
    for index, (prompt, later) in enumerate(zip(BOTH, ["a fish", "a bird"], strict=True)):
        one = replace(whole, prompt=prompt, seed=index, image=pictures[index], prompt_at={1: later})
        torch.testing.assert_close(together[index], latents(model, one), atol=1e-4, rtol=1e-4)
    shared = latents(model, replace(whole, image=pictures[0]))
    torch.testing.assert_close(shared[0], together[0], atol=1e-4, rtol=1e-4)
    assert torch.equal(shared[0, :1], shared[1, :1]) and not torch.equal(together[0, :1], together[1, :1])


def test_a_batch_is_made_whole_by_the_teacher_too(model: VideoModel) -> None:
    how = replace(PLAIN, preset="wan", num_inference_steps=2, num_frames=9)
    together = latents(model, replace(how, prompt=BOTH))
    alone = latents(model, replace(how, prompt=BOTH[1], seed=1))
    torch.testing.assert_close(together[1], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": []}, "an empty list of prompts"),
        ({"prompt": ["a", " "]}, "the prompt is empty"),
        ({"prompt": BOTH, "seed": [1]}, "1 seeds given for 2 prompts"),
        ({"prompt": BOTH, "prompt_at": {1: ["a"]}}, "1 prompts given at chunk 1 for 2 videos"),
        ({"prompt_at": {1: ["a", "b"]}}, "2 prompts given at chunk 1 for 1 videos"),
        ({"prompt": BOTH, "seed": -1}, "seed -1 given"),
    ],
)
def test_batches_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLAIN, **change)


# Prompts that change


def test_an_update_is_a_run_whose_prompts_switch_there(model: VideoModel) -> None:
    planned = model.stream(replace(PLAIN, prompt_at={2: "a blue dog"}))
    expected = [chunk.latents for chunk in planned]
    stream = model.stream(PLAIN)
    made = [next(stream), next(stream)]
    receipt = stream.update("a blue dog")
    assert (receipt.requested_at, receipt.applied_at) == (1, None)
    made += list(stream)
    assert (receipt.requested_at, receipt.applied_at, receipt.prompt) == (1, 2, "a blue dog")
    assert stream.changes == [receipt] and [change.applied_at for change in planned.changes] == [2]
    for chunk, theirs in zip(made, expected, strict=True):
        assert torch.equal(chunk.latents, theirs)
    assert made[2].calls == 2 + 1  # the window is computed again
    assert not torch.equal(made[2].latents, latents(model, PLAIN)[6:])


def test_embeddings_may_take_the_place_of_any_prompt(model: VideoModel) -> None:
    cat, dog = embed(["a red cat", "a blue dog"], ENCODERS["hash"], device="cpu")
    words = latents(model, replace(PLAIN, prompt_at={1: "a blue dog"}))
    request = replace(PLAIN, prompt=None, prompt_embeds=cat, prompt_at={1: dog[None]})
    assert torch.equal(latents(model, request), words)
    stream = model.stream(replace(request, prompt_at={}))
    begun = [next(stream)]
    assert stream.update(prompt_embeds=dog).prompt is None
    assert torch.equal(torch.cat([chunk.latents for chunk in (*begun, *stream)]), words)


def test_zeros_behind_a_prompt_may_be_given_or_not(model: VideoModel) -> None:
    (cat,) = embed(["a red cat"], ENCODERS["hash"], device="cpu")
    assert cat[:3].any(1).all() and not cat[3:].any()
    whole, *cut = (latents(model, replace(PLAIN, prompt=None, prompt_embeds=cat[:rows])) for rows in (16, 7, 3))
    assert all(torch.equal(one, whole) for one in cut)


def test_of_several_updates_the_last_counts_and_before_the_first_chunk_it_is_the_prompt(model: VideoModel) -> None:
    stream = model.stream(PLAIN)
    changes = [stream.update(prompt) for prompt in ("a fox", "a blue dog")]
    made = torch.cat([chunk.latents for chunk in stream])
    assert [change.applied_at for change in changes] == [None, 0]
    assert torch.equal(made, latents(model, replace(PLAIN, prompt="a blue dog")))


def test_an_update_may_come_from_another_thread_at_any_time(model: VideoModel) -> None:
    stream = model.stream(replace(PLAIN, num_frames=None))
    receipts, newest = [], -1
    thread = threading.Thread(target=lambda: receipts.append(stream.update("a blue dog")))
    for newest, _ in enumerate(stream):
        if newest == 0:
            thread.start()
        if receipts and receipts[0].applied_at is not None:
            break
        time.sleep(0.01)
        assert newest < 500
    thread.join()
    assert receipts[0].applied_at == newest > receipts[0].requested_at >= 0


# What a video begins with


def test_a_picture_begins_the_video(model: VideoModel) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    clip = model.generate(replace(PLAIN, image=picture, num_frames=25))
    given = model.vae.encode(torch.from_numpy(picture).permute(2, 0, 1)[None, None])
    assert clip.frames.shape == (25, 32, 48, 3) and clip.calls == 1 + 4 + 3
    assert torch.equal(clip.latents[:1], given[0])
    np.testing.assert_array_equal(clip.frames[0], model.vae.decode(given, {})[0, 0].permute(1, 2, 0))
    plain = model.generate(replace(PLAIN, image=255 - picture, num_frames=25))
    assert (clip.latents[1:] - plain.latents[1:]).abs().max() > 1e-3


def test_a_clip_goes_on(model: VideoModel) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (17, 32, 48, 3), dtype=np.uint8)
    stream = model.stream(replace(PLAIN, video=frames, num_frames=29))
    (chunk,) = stream
    assert (chunk.index, len(chunk.frames), len(chunk.latents), chunk.calls) == (0, 29, 8, 2 + 4)
    assert (chunk.given, chunk.new, stream.frames, stream.calls) == (17, 12, 12, 6)
    whole = model.vae.encode(torch.from_numpy(frames).permute(0, 3, 1, 2)[None])
    torch.testing.assert_close(chunk.latents[:5], whole[0], atol=1e-5, rtol=1e-5)


# Presets


@pytest.mark.parametrize(
    ("preset", "schedule", "frames", "forwards"),
    [
        ("diagonal-distillation", None, 81, 17),
        ("diagonal-distillation", "5432222", 81, 20),
        ("self-forcing", None, 81, 35),
        ("self-forcing", "2", 33, 9),
        ("causvid", None, 21, 8),
        ("frame-wise", None, 13, 4 + 2 * 3 + 4),
        ("infinity", None, 69, 24),
    ],
)
def test_presets_take_the_calls_that_they_are_known_for(
    model: VideoModel, preset: str, schedule: str | None, frames: int, forwards: int
) -> None:
    clip = model.generate(PLAIN, preset=preset, schedule=schedule, num_frames=frames, output_type="latent")
    assert clip.calls == forwards and len(clip.latents) == 1 + (frames - 1) // 4


def test_the_teacher_sees_all_frames_at_once(model: VideoModel) -> None:
    noise = torch.randn(4, 16, 4, 6, generator=torch.Generator().manual_seed(5))
    request = replace(
        PLAIN,
        preset="wan",
        num_frames=13,
        num_inference_steps=3,
        guidance_scale=2.0,
        negative_prompt="bad",
        latents=noise,
    )
    clip = model.generate(request)
    assert clip.frames.shape == (13, 32, 48, 3) and clip.calls == 6
    words, bad = (embed([text], ENCODERS["hash"], device="cpu") for text in ("a red cat", "bad"))
    exact = sample_whole(model.model, 3, (words, bad), 2.0, noise[None])
    assert torch.equal(clip.latents, exact[0])
    as_rows = model.generate(replace(request, negative_prompt=bad[0]), output_type="latent")
    assert torch.equal(as_rows.latents, clip.latents)
    with pytest.raises(ValueError, match=r"prompt_embeds of shape \(2, 7\) given"):
        model.stream(replace(request, negative_prompt=torch.zeros(2, 7)))
    with pytest.raises(ValueError, match="the prompt cannot change"):
        model.stream(request).update("a dog")


def test_a_yaml_file_is_a_preset_and_what_else_it_says_is_told(model: VideoModel, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "denoising_step_list: [1000, 500]\nwarp_denoising_step: true\nnum_frame_per_block: 1\ntimestep_shift: 5.0\n"
        "seed: 3\n"
    )
    with pytest.warns(UserWarning, match="also gives seed"):
        clip = model.generate(PLAIN, preset=path, num_frames=9, output_type="latent")
    assert clip.calls == 9  # three chunks of one latent frame: two steps and a clean pass


# Loading


def recorded() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of a transformer and of a VAE under their original names."""
    vae = golden("wan/tiny_vae.safetensors")
    return golden("wan/tiny_weights.safetensors"), {
        key.removeprefix("w."): value for key, value in vae.items() if key.startswith("w.")
    }


def same(first: Any, second: Any) -> bool:
    other = second.state_dict()
    return all(torch.equal(value, other[key]) for key, value in first.state_dict().items())


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """The folder of Wan's authors."""
    folder = tmp_path / "original"
    folder.mkdir()
    transformer, vae = recorded()
    save_file(transformer, folder / "diffusion_pytorch_model.safetensors")
    torch.save(vae, folder / "Wan2.1_VAE.pth")
    return folder


def test_the_folders_of_both_publishers_are_the_same_model(original: Path, tmp_path: Path) -> None:
    transformer, vae = recorded()
    keymap = golden_json("wan/keymap_tiny_orig_to_diffusers.json")
    for name in ("transformer", "vae"):
        (tmp_path / "pipeline" / name).mkdir(parents=True)
    renamed = {keymap[key]: value for key, value in transformer.items()}
    save_file(renamed, tmp_path / "pipeline" / "transformer" / "diffusion_pytorch_model.safetensors")
    save_file(vae, tmp_path / "pipeline" / "vae" / "diffusion_pytorch_model.safetensors")
    first, second = diagonal.load("wan/tiny", original), diagonal.load("wan/tiny", tmp_path / "pipeline")
    assert same(first.model, second.model) and same(first.vae, second.vae)
    assert first.preview is None and first.encoder.folders == ("", "")
    assert second.encoder.source == str(tmp_path / "pipeline")
    assert second.encoder.folders == ("tokenizer", "text_encoder")
    with pytest.raises(ValueError, match=r"came without 'preview'; name it in Weights\(preview="):
        first.stream(PLAIN, decoder="preview")


def test_a_generator_file_takes_its_vae_from_elsewhere(original: Path, tmp_path: Path) -> None:
    transformer, _ = recorded()
    torch.save({"generator": {f"model.{key}": value for key, value in transformer.items()}}, tmp_path / "sf.pt")
    with pytest.raises(ValueError, match=r"sf.pt holds no VAE; give one too \(Weights\(vae=...\), --vae\)"):
        diagonal.load("wan/tiny", tmp_path / "sf.pt")
    whole = diagonal.load("wan/tiny", original)
    for place in (original, original / "Wan2.1_VAE.pth"):
        made = diagonal.load("wan/tiny", Weights(tmp_path / "sf.pt", vae=place))
        assert same(made.model, whole.model) and same(made.vae, whole.vae)
    alone = diagonal.load("wan/tiny", Weights(tmp_path / "sf.pt", vae="none"))
    assert len(list(alone.stream(PLAIN, decoder="none"))) == 3
    with pytest.raises(ValueError, match="came without 'vae'"):
        alone.stream(PLAIN)


def test_what_is_saved_loads_again(model: VideoModel, tmp_path: Path) -> None:
    again = diagonal.load("wan/tiny", model.save_pretrained(tmp_path / "new"))
    assert same(model.model, again.model) and same(model.vae, again.vae)
    assert checkpoints.settings(tmp_path / "new") == {"model": "wan/tiny"}
    torch.testing.assert_close(latents(again, PLAIN), latents(model, PLAIN), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("naming", ["original", "diffusers"])
def test_a_lora_is_merged_whatever_names_it_has(original: Path, tmp_path: Path, naming: str) -> None:
    up, down = torch.randn(96, 2), torch.randn(2, 96)
    name = "blocks.1.self_attn.k" if naming == "original" else "transformer.blocks.1.attn1.to_k"
    save_file({f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, tmp_path / "lora.safetensors")
    plain = diagonal.load("wan/tiny", original)
    merged = diagonal.load("wan/tiny", Weights(original, lora=[tmp_path / "lora.safetensors"], lora_scale=0.5))
    change = merged.model.blocks[1].self_attn.qkv.weight - plain.model.blocks[1].self_attn.qkv.weight
    torch.testing.assert_close(change[96:192], 0.5 * up @ down, atol=1e-5, rtol=1e-5)
    assert not change[:96].any() and not change[192:].any()
    assert same(merged.model.blocks[0], plain.model.blocks[0])


def test_random_weights_are_those_of_the_seed() -> None:
    first, again, other = (diagonal.load("wan/tiny", "random", seed=seed) for seed in (3, 3, 4))
    assert same(first.model, again.model) and same(first.vae, again.vae) and not same(first.model, other.model)
    torch.manual_seed(3)
    assert same(first.model, find("models", "wan/tiny").config.build())
    small = [diagonal.load("wan/tiny", dtype=torch.bfloat16, seed=seed) for seed in (3, 3, 4)]
    assert same(small[0].model, small[1].model) and not same(small[0].model, small[2].model)
    assert small[0].generate(PLAIN).frames.shape == (33, 32, 48, 3)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("wan/1.3b", None, "needs weights: give a file, a folder or a hub id"),
        ("wan/tiny", Weights("random", lora=["x"]), "lora given, but the weights are random"),
        ("wan/tiny", "nowhere.pt", "do not exist"),
        ("mcar/tiny", Weights("random", vae="none"), "Weights with vae given; mcar/tiny is a token model"),
        ("mcar/tiny", Weights("random", special_tokens="x"), "Weights with special_tokens given; .* is a token model"),
    ],
)
def test_what_cannot_be_loaded_is_refused(name: str, given: Any, words: str) -> None:
    with pytest.raises((ValueError, OSError), match=words):
        diagonal.load(name, given)


def test_a_tokenizer_is_no_part_of_a_diffusion_model() -> None:
    name: str = "wan/tiny"
    with pytest.raises(ValueError, match="has a VAE in its place"):
        diagonal.load(name, tokenizer="x")
    with pytest.raises(ValueError, match="it must be a list of files"):
        Weights("x", lora="file")


# Bad requests


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_frames": 82}, "num_frames=82 given; .* the nearest is 81 or 93"),
        ({"num_frames": 5}, "the nearest is 9"),
        ({"num_frames": 33, "image": np.zeros((32, 48, 3), np.uint8)}, "after 1 given .* the nearest is 25 or 37"),
        ({"width": 40}, "width=40 given; it must be a multiple of 16.* 32 or 48"),
        ({"height": 8}, "height=8 given; it must be a multiple of 16.* 16 or 32"),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"prompt_at": {1: ""}}, "the prompt is empty"),
        ({"prompt_at": {3: "a"}}, "a prompt at chunk 3 given; this video has the chunks 0 to 2"),
        ({"prompt_at": {0: "a"}}, "a prompt at chunk 0 given"),
        ({"prompt": "word " * 2000}, "has 2000 tokens; 16 are allowed"),
        ({"prompt": None}, "one of the two"),
        ({"prompt": None, "prompt_embeds": torch.zeros(3, 47)}, r"shape \(3, 47\) given; wan/tiny takes \(rows, 48\)"),
        ({"prompt": None, "prompt_embeds": torch.zeros(17, 48)}, "with 1 to 16 rows"),
        ({"prompt": None, "prompt_embeds": torch.zeros(2, 17, 48)}, "with 1 to 16 rows"),
        ({"preset": "nonsense"}, "no preset is called 'nonsense'; known: diagonal-distillation"),
        ({"schedule": "nonsense"}, "unknown schedule 'nonsense'"),
        ({"schedule": "4302"}, "steps '4302' given"),
        ({"decoder": "nonsense"}, "decoder 'nonsense' is not known; known: vae, preview, none"),
        ({"seed": -1}, "seed -1 given"),
        ({"guidance_scale": 3.0}, "only the presets wan, skyreels, skyreels-full, skyreels-sync have guidance"),
        ({"num_frames": None, "preset": "self-forcing"}, "of diagonal-distillation, infinity"),
        ({"num_frames": None, "preset": "wan"}, "num_frames is needed"),
        ({"preset": "wan", "schedule": "diagonal"}, "take a number of steps"),
        ({"preset": "wan", "prompt_at": {1: "a"}}, "prompt_at given; all frames at once"),
        ({"image": np.zeros((32, 32, 3), np.uint8)}, "uint8 RGB of height 32 and width 48 is needed"),
        ({"image": np.zeros((32, 48, 3))}, "frames of float64"),
        ({"video": np.zeros((6, 32, 48, 3), np.uint8)}, "6 frames given to begin with; .* 5 or 9"),
        ({"video": np.zeros((0, 32, 48, 3), np.uint8)}, "0 frames given to begin with"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_before_anything_runs(
    model: VideoModel, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        model.stream(replace(PLAIN, **change))


def test_other_calls_that_are_refused(model: VideoModel) -> None:
    with pytest.raises(ValueError, match="num_frames=0 given; 3 latent frames"):
        model.generate(replace(PLAIN, num_frames=0))
    with pytest.raises(ValueError, match="output_type 'pil' is not known; known: np, pt, latent"):
        model.generate(PLAIN, output_type="pil")
    stream = model.stream(PLAIN)
    with pytest.raises(ValueError, match="one of the two"):
        stream.update()
    with pytest.raises(ValueError, match="one of the two"):
        stream.update("a", prompt_embeds=torch.zeros(3, 48))
    with pytest.raises(ValueError, match="the prompt is empty"):
        stream.update("")
    assert len(list(stream)) == 3 and not stream.changes


def test_damaged_weights_are_noticed_in_their_chunk() -> None:
    damaged = diagonal.load("wan/tiny")
    damaged.model.head.head.weight[0] = torch.nan
    with pytest.raises(ValueError, match=r"chunk 0 \(latent frames 0 to 2\) came out as NaN"):
        damaged.generate(PLAIN)


# Ahead


def test_one_item_is_made_ahead_in_another_thread() -> None:
    made: list[tuple[int, int]] = []

    def items():
        for index in range(3):
            made.append((index, threading.get_ident()))
            yield index

    seen = []
    for item in ahead(items()):
        deadline = time.monotonic() + 10
        while len(made) < min(item + 2, 3) and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append((item, len(made)))
    assert seen == [(0, 2), (1, 3), (2, 3)]
    assert {thread for _, thread in made} != {threading.get_ident()} and len({thread for _, thread in made}) == 1


def test_an_error_ahead_arrives_with_its_item() -> None:
    def items():
        yield 1
        raise ValueError("broken")

    coming = ahead(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="broken"):
        next(coming)


def test_presets_that_roll_are_those_with_a_window() -> None:
    assert [name for name, one in presets.PRESETS.items() if one.window_frames] == ["diagonal-distillation", "infinity"]
