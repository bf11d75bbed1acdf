"""Noise levels against the recorded schedulers and pipelines of the Self-Forcing family (tests/golden/wan)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal.planning.denoising import ChunkSchedule, parse
from diagonal.planning.denoising.noise import FlowTable
from diagonal.planning.presets import PRESETS
from tests.conftest import golden, golden_json

SHIFTS = (5, 8)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    return golden("wan/scheduler.safetensors")


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_tables_are_the_recorded_ones_to_the_bit(recorded: dict[str, Tensor], shift: int) -> None:
    table = FlowTable(shift)
    assert np.array_equal(table.sigmas, recorded[f"sigmas_shift{shift}"].numpy())
    assert np.array_equal(table.timesteps, recorded[f"timesteps_shift{shift}"].numpy())
    assert table.sigmas.dtype == np.float32


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("indices", [(1000, 750, 500, 250), (1000, 100), (1000, 757, 522)])
def test_warped_steps_are_the_recorded_ones(recorded: dict[str, Tensor], shift: int, indices: tuple[int, ...]) -> None:
    name = f"warp_{'_'.join(map(str, indices))}_shift{shift}"
    assert list(FlowTable(shift).warp(indices)) == recorded[name].tolist()


@pytest.mark.parametrize("shift", SHIFTS)
def test_noised_latents_are_the_recorded_ones(recorded: dict[str, Tensor], shift: int) -> None:
    """Which tests the share of noise at each timestep, 0 among them: there it is the last entry's, not 0."""
    sigma = torch.tensor([FlowTable(shift).sigma(t) for t in recorded["ts"].tolist()]).view(-1, 1, 1, 1)
    noised = (1 - sigma) * recorded["x0"] + sigma * recorded["noise"]
    torch.testing.assert_close(noised, recorded[f"add_noise_shift{shift}"], rtol=0, atol=1e-7)
    nearest = golden_json("wan/descriptor.json")["files"]["scheduler.safetensors"][f"nearest_sigma_shift{shift}"]
    assert {t: FlowTable(shift).sigma(float(t)) for t in nearest} == nearest


def _executed(record: dict[str, Any]) -> dict[int, list[float]]:
    """The timesteps of each chunk's calls, in their order; a pass over the whole window belongs to no chunk."""
    chunks: dict[int, list[float]] = {}
    for call in record["calls"]:
        if call["frames"] == record["chunk_frames"]:
            assert len(set(call["timestep"])) == 1
            chunks.setdefault(call["current_start_frame"] // call["frames"], []).append(call["timestep"][0])
    return chunks


RUNS: list[tuple[str, ChunkSchedule]] = [
    ("sf_uniform4_global", PRESETS["self-forcing"].schedule),
    ("sf_uniform4_global", PRESETS["self-forcing"].with_schedule("4444444").schedule),
    ("sf_uniform4_global", parse("explicit:lists=1000-750-500-250")),
    ("sf_uniform4_win6", parse("even")),
    ("dd_4322_win12_sink3", PRESETS["diagonal-distillation"].schedule),
    ("dd_43222_win9_sink3", parse("4322222")),
    ("dd_43222_win9_sink3", parse("432")),
    ("dd_infinity_win9_sink3", parse("2")),
    ("dd_interactive_gsink1", parse("even:steps=2")),
    ("dd_interactive_gsink0", parse("even:steps=2")),
]


@pytest.mark.parametrize(("name", "schedule"), RUNS)
def test_the_calls_of_the_released_pipelines_are_those_of_the_schedule(name: str, schedule: ChunkSchedule) -> None:
    chunks = _executed(golden_json("wan/descriptor.json")["files"][f"{name}.safetensors"])
    assert len(chunks) >= 3
    for chunk, timesteps in chunks.items():
        context = schedule.context_level(chunk)
        assert [*schedule.levels(chunk), *([] if context is None else [context])] == timesteps


@pytest.mark.parametrize(("steps", "shift"), [(50, 8.0), (20, 3.0), (1, 5.0)])
def test_the_teachers_levels_are_the_solvers_timesteps(steps: int, shift: float) -> None:
    from diffusers import UniPCMultistepScheduler

    solver: Any = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift, num_train_timesteps=1000
    )
    solver.set_timesteps(steps)
    levels = parse(f"teacher:steps={steps},shift={shift}").levels(0)
    assert len(levels) == len(solver.timesteps) == steps
    np.testing.assert_allclose(levels, solver.timesteps, rtol=0, atol=1.01)  # the solver's are rounded down
