"""Recorded runs through `diagonal.load` and a request: files of the family in, the recorded latents out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import diagonal
from diagonal import Request, VideoModel, Weights
from diagonal.generation import video as diffusion
from diagonal.planning import presets
from diagonal.planning.denoising.explicit import Explicit
from diagonal.planning.presets import Preset
from tests.conftest import golden
from tests.wan import SIZE, Replay

TWO = Explicit("1000-100", "last")
CASES = {
    "sf_uniform4_global": presets.find("self-forcing"),
    "dd_4322_win12_sink3": presets.find("diagonal-distillation"),
    "dd_infinity_win9_sink3": Preset(TWO, window_frames=9, sink_frames=3, relative_rope=True),
    "dd_interactive_gsink0": Preset(Explicit("1000-500"), window_frames=6, sink_frames=3),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    """A generator as Self-Forcing saves it, and no VAE."""
    folder: Path = tmp_path_factory.mktemp("wan")
    state = {f"model.{key}": value for key, value in golden("wan/tiny_weights.safetensors").items()}
    torch.save({"generator_ema": state, "critic": {"x": torch.zeros(1)}}, folder / "self_forcing.pt")
    return diagonal.load("wan/tiny", Weights(folder / "self_forcing.pt", vae="none"))


@pytest.mark.parametrize("case", CASES)
def test_a_request_gives_the_recorded_latents(model: VideoModel, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    data, preset = golden(f"wan/{case}.safetensors"), CASES[case]
    schedule: Any = preset.schedule
    monkeypatch.setattr(diffusion, "Gaussian", lambda seeds, device: Replay(data, schedule))
    request = Request(
        prompt_embeds=data["context_a"],
        prompt_at={3: data["context_b"]} if "interactive" in case else {},
        num_frames=1 + 4 * (data["latents"].shape[1] - 1),
        height=8 * SIZE[0],
        width=8 * SIZE[1],
        preset=preset,
        keep_sink=False,
    )
    clip = model.generate(request, output_type="latent")
    torch.testing.assert_close(clip.latents, data["latents"][0], atol=1e-4, rtol=1e-4)
    assert clip.calls == sum(name.endswith("_x0") for name in data)


def test_safetensors_of_either_layout_are_the_same_model(model: VideoModel, tmp_path: Path) -> None:
    save_file(golden("wan/tiny_weights.safetensors"), tmp_path / "diffusion_pytorch_model.safetensors")
    other = diagonal.load("wan/tiny", Weights(tmp_path, vae="none"))
    for key, value in model.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[key]), key
