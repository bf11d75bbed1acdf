"""SkyReels-V2 against diffusers at a tiny size: transformer, folded frame rate, and the pipeline in every mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import diagonal
from diagonal import Request, Weights
from diagonal.checkpoints.filling import load, rename
from diagonal.engine.attention import Full
from diagonal.engine.chunks.denoise import windowed
from diagonal.engine.chunks.denoisers import Guidance, Windowed
from diagonal.engine.chunks.masks import block_causal, dense
from diagonal.engine.chunks.rollout import cache_of, settings_of, window_of
from diagonal.engine.chunks.segments import segmented
from diagonal.generation.video import VideoModel
from diagonal.models.skyreels import PROJECTION, VARIANTS, fold
from diagonal.models.wan import DIFFUSERS
from diagonal.planning.presets import Preset, find

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "num_attention_heads": 4,
    "attention_head_dim": 24,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 48,
    "freq_dim": 32,
    "ffn_dim": 192,
    "num_layers": 2,
    "rope_max_seq_len": 64,
}
MOST = 1e-5  # of latents of size 4; measured: 3e-6


def words(seed: int) -> Tensor:
    return torch.randn(1, 16, 48, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The transformer of diffusers with weights of normal(0, 0.05), and an embedding of the frame rate."""
    from diffusers import SkyReelsV2Transformer3DModel

    torch.manual_seed(0)
    model: Any = SkyReelsV2Transformer3DModel(**SIZES, inject_sample_info=True)  # its classes are untyped
    model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(0, 0.05)
    return model


@pytest.fixture(scope="module")
def ours(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    """The same weights, from a folder as diffusers writes it."""
    folder = tmp_path_factory.mktemp("skyreels")
    theirs.save_pretrained(folder / "transformer")
    return loaded(folder)


def loaded(folder: Path) -> VideoModel:
    model = diagonal.load("skyreels/tiny", Weights(folder, vae="none"))
    assert isinstance(model, VideoModel)
    return model


@pytest.fixture
def pipeline(theirs: Any) -> Iterator[Callable[..., Tensor]]:
    """Latents (F, C, rows, cols) of diffusers' pipeline. A block size sticks to its transformer: it is put back."""
    from diffusers import SkyReelsV2DiffusionForcingPipeline, UniPCMultistepScheduler

    def run(steps: int, frames: int, **more: Any) -> Tensor:
        theirs._set_ar_attention(1)
        solver = UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=8.0
        )
        parts = {"tokenizer": None, "text_encoder": None, "vae": None}
        made: Any = SkyReelsV2DiffusionForcingPipeline(transformer=theirs, scheduler=solver, **parts)
        made.set_progress_bar_config(disable=True)
        out = made(
            prompt=None,
            prompt_embeds=words(0),
            negative_prompt_embeds=words(1),
            height=32,
            width=32,
            num_frames=frames,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(7),
            output_type="latent",
            return_dict=False,
            **more,
        )[0]
        return out[0].transpose(0, 1)  # type: ignore[no-any-return]

    yield run
    theirs._set_ar_attention(1)


def noise(*frames: int) -> list[Tensor]:
    """What diffusers' pipeline starts from, window after window: (1, F, C, rows, cols)."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(1, 16, count, 4, 4, generator=generator).transpose(1, 2) for count in frames]


def close(one: Tensor, other: Tensor) -> None:
    assert one.shape == other.shape and other.abs().max() > 1
    assert (one - other).abs().max() <= MOST


def asked(preset: str | Preset, frames: int, **more: Any) -> Request:
    return Request(
        prompt_embeds=words(0), negative_prompt=words(1), preset=preset, num_frames=frames, height=32, width=32, **more
    )


# The transformer


@pytest.mark.parametrize("block", [None, 5])
def test_a_call_with_a_level_for_each_frame_is_theirs(theirs: Any, ours: VideoModel, block: int | None) -> None:
    model: Any = ours.model
    x = torch.randn(1, 10, 16, 4, 4, generator=torch.Generator().manual_seed(3))
    level = torch.tensor([[0.0] * 5 + [800.0] * 5])
    theirs._set_ar_attention(block or 1)
    call = {"timestep": level, "enable_diffusion_forcing": True, "fps": [1]}
    expected = theirs(x.transpose(1, 2), encoder_hidden_states=words(0), return_dict=False, **call)[0].transpose(1, 2)
    theirs._set_ar_attention(1)
    memory = Full() if block is None else dense(block_causal(10, block), 4)
    flow = model(x, level, model.embed_text(words(0)), model.rope(torch.arange(10), 2, 2), memory)
    assert (flow - expected).abs().max() <= MOST and expected.std() > 0.1


def test_the_frame_rate_counts(theirs: Any, ours: VideoModel) -> None:
    x = torch.randn(1, 16, 2, 4, 4, generator=torch.Generator().manual_seed(3))
    call = {"timestep": torch.tensor([[800.0, 800.0]]), "enable_diffusion_forcing": True, "return_dict": False}
    slow, fast = (theirs(x, encoder_hidden_states=words(0), fps=[rate], **call)[0] for rate in (0, 1))
    assert (slow - fast).abs().max() > 1e-3


# The pipeline


@pytest.mark.parametrize(("steps", "lag"), [(30, 5), (12, 2), (4, 9)])
def test_the_cached_wave_is_their_asynchronous_run(ours: VideoModel, pipeline: Any, steps: int, lag: int) -> None:
    """154 chunks in calls over a cache give what 250 give without one."""
    request = asked("skyreels", 97, schedule=f"forcing:steps={steps},lag={lag}", latents=noise(25)[0][0])
    clip = ours.generate(request, output_type="latent")
    close(clip.latents, pipeline(steps, 97, ar_step=lag, causal_block_size=5))
    assert clip.calls == 2 * (steps + 4 * min(lag, steps))


def test_all_latents_in_every_call_is_their_run_without_a_block_size(ours: VideoModel, pipeline: Any) -> None:
    """There the blocks are single latent frames, and nothing is masked."""
    full = find("skyreels-full")
    single = replace(full, chunk_frames=1)
    request = asked(single, 33, schedule="forcing:steps=8,lag=2", latents=noise(9)[0][0])
    close(ours.generate(request, output_type="latent").latents, pipeline(8, 33, ar_step=2))


def test_all_at_once_is_their_synchronous_run(ours: VideoModel, pipeline: Any) -> None:
    """Any length: 121 frames are 31 latents, which no blocks of 5 hold."""
    request = asked("skyreels-sync", 121, num_inference_steps=5, latents=noise(31)[0][0])
    close(ours.generate(request, output_type="latent").latents, pipeline(5, 121, base_num_frames=121))


@pytest.mark.parametrize(("frames", "windows"), [(137, (25, 15)), (257, (25, 25, 25))])
def test_long_videos_are_their_windows(ours: VideoModel, pipeline: Any, frames: int, windows: tuple[int, ...]) -> None:
    """Shown clean: their noise over what is known is drawn anew in every call, outside of the generator."""
    model, preset = ours.model, find("skyreels").with_schedule("forcing:steps=6,lag=2")
    chunks = [part for place, one in enumerate(noise(*windows)) for part in one[:, 5 * (place > 0) :].split(5, 1)]
    settings = settings_of(preset, lambda chunk, step, shape: chunks[chunk], (4, 4))

    def begin() -> Windowed:
        one, other = (cache_of(model, window_of(preset, 25), (4, 4), 1, CPU, torch.float32) for _ in range(2))
        return windowed(model, one, settings, Guidance(6.0, words(1), other))

    text, total = words(0), 1 + (frames - 1) // 4
    made = list(segmented(begin, settings, lambda chunk: text, preset.cut.segments(total), 0.0))
    assert [(chunk.index, chunk.start) for chunk in made] == [(place, 5 * place) for place in range(total // 5)]
    theirs = pipeline(6, frames, ar_step=2, causal_block_size=5, overlap_history=17)
    close(torch.cat([chunk.latents for chunk in made], 1)[0], theirs)


def test_the_solver_keeps_what_their_pipelines_overwrite(ours: VideoModel) -> None:
    """In place it is another video, as it was published; the first step is the same."""
    request = asked("skyreels", 17, schedule="forcing:steps=4,lag=4", latents=noise(5)[0][0])
    kept = replace(request, preset=replace(find("skyreels"), solver="unipc"))
    one, other = (ours.generate(each, output_type="latent").latents for each in (request, kept))
    assert 1e-3 < (one - other).abs().max() < 1
    first = [ours.generate(replace(each, schedule="1"), output_type="latent").latents for each in (request, kept)]
    assert torch.equal(*first)


def test_a_cached_wave_is_not_full_attention(ours: VideoModel) -> None:
    clips = [
        ours.generate(asked(name, 97, schedule="4", latents=noise(25)[0][0]), output_type="latent").latents
        for name in ("skyreels", "skyreels-full")
    ]
    assert (clips[0] - clips[1]).abs().max() > 1e-2


# Files


@pytest.mark.parametrize(
    ("name", "size", "rate", "tensors"),
    [
        ("1.3b", {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}, True, 830),
        ("14b", {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40}, False, 1095),
    ],
)
def test_every_published_name_and_shape_has_its_place(
    name: str, size: dict[str, int], rate: bool, tensors: int
) -> None:
    """At true size, on the meta device: tensors have shapes there, and no memory."""
    from diffusers import SkyReelsV2Transformer3DModel

    config: Any = VARIANTS[name].config
    published = {"attention_head_dim": 128, "text_dim": 4096, "freq_dim": 256, "inject_sample_info": rate}
    with torch.device("meta"):
        theirs: Any = SkyReelsV2Transformer3DModel(**published, **size)
        ours: Any = config.build()
    state = theirs.state_dict()
    assert len(state) == tensors
    for names in (state, original(state)):
        load(ours, fold(config, rename(names, DIFFUSERS)), name)


def original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of the authors."""
    back = {theirs[0]: ours for ours, theirs in DIFFUSERS.items()} | {
        theirs: ours for ours, theirs in PROJECTION.items()
    }
    found = {}
    for key, value in state.items():
        for form, name in back.items():
            match = re.fullmatch(re.escape(form).replace(r"\{\}", "(.+)"), key)
            if match is not None:
                key = name.format(*match.groups())
                break
        found[key] = value.contiguous()
    return found


def test_the_layout_of_the_authors_loads_too_and_what_is_saved_is_folded(
    theirs: Any, ours: VideoModel, tmp_path: Path
) -> None:
    names = original(theirs.state_dict())
    assert "blocks.1.self_attn.q.weight" in names and "fps_projection.2.bias" in names
    (tmp_path / "authors").mkdir()
    save_file(names, tmp_path / "authors" / "model.safetensors")
    same = loaded(tmp_path / "authors")
    ours.save_pretrained(tmp_path / "saved")
    again = loaded(tmp_path / "saved")
    for key, value in ours.model.state_dict().items():
        torch.testing.assert_close(same.model.state_dict()[key], value, atol=1e-6, rtol=0)
        assert torch.equal(again.model.state_dict()[key], value)


def test_the_bias_holds_the_frame_rate_and_nothing_else_changed(theirs: Any, ours: VideoModel) -> None:
    ours_state, names = ours.model.state_dict(), original(theirs.state_dict())
    added = ours_state["time_projection.1.bias"] - names["time_projection.1.bias"]
    projected = theirs.fps_projection(theirs.fps_embedding.weight[1])
    assert (added - projected).abs().max() < 1e-6 and added.abs().max() > 1e-3
    assert torch.equal(ours_state["head.head.weight"], names["head.head.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fps_projection.2.bias": None}, r"of its frame rate fps_projection.2.bias is missing"),
        ({"fps_embedding.weight": torch.zeros(2, 95)}, "fps_embedding.weight is missing or of another shape"),
        ({"time_projection.1.bias": None}, r"time_projection.1.bias is missing"),
        ({"img_emb.proj.0.weight": torch.zeros(4)}, "an image-to-video model of SkyReels-V2"),
        ({"fps_projection.4.bias": torch.zeros(4)}, "1 unexpected: fps_projection.4.bias"),
        ({"blocks.1.norm3.bias": None}, "1 missing: blocks.1.norm3.bias"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    theirs: Any, tmp_path: Path, change: dict[str, Tensor | None], message: str
) -> None:
    state: dict[str, Any] = {**original(theirs.state_dict()), **change}
    save_file({key: value for key, value in state.items() if value is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('{"num_layers": 40}', "is not skyreels/tiny by its config.json: layers is 40, not 2"),
        (
            '{"in_channels": 36, "num_layers": 2}',
            "an image-to-video model, which is none that runs here: channels is 36",
        ),
        ('{"num_heads": 12, "ffn_dim": 8960}', "heads is 12, not 4; ffn is 8960, not 192"),
    ],
)
def test_a_folder_of_another_model_is_refused_before_its_weights_are_read(
    tmp_path: Path, said: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(said)
    (tmp_path / "model.safetensors").write_text("not read")
    with pytest.raises(ValueError, match=re.escape(message)):
        loaded(tmp_path)


@pytest.mark.parametrize("said", ["nonsense", "[]", '{"num_layers": "40"}', "{}"])
def test_a_config_that_says_nothing_leaves_it_to_the_weights(theirs: Any, tmp_path: Path, said: str) -> None:
    save_file(original(theirs.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(said)
    assert loaded(tmp_path).weights == str(tmp_path)
