"""Whole runs of MAGI-1's pipeline by the denoising loop against recordings: guided, distilled, from a picture, from a
clip, one chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.chunks.denoise import Chunk, DenoiseSettings, run
from diagonal.engine.chunks.protocols import Shown
from diagonal.engine.chunks.solvers import Euler
from diagonal.engine.pipeline.denoiser import Pipelined, Video
from diagonal.engine.pipeline.texts import SpecialTokens
from diagonal.planning.denoising.noise import FlowTable
from diagonal.planning.denoising.quadratic import Quadratic
from diagonal.planning.lag import Sees
from diagonal.planning.passes import most_kept
from tests.conftest import golden
from tests.magi import CASES, CHUNK, recorded_model

RUNS = [name for name in CASES if name.startswith("generate_")]
SEES = Sees(reach=(5, 4, 3, 2), context_reach=1)
TOLERANCE = 1.5e-5  # of latents up to 6.1
V_TOLERANCE = 6e-5  # of velocities up to 30: guidance multiplies what is rounded by 7.5


def special() -> SpecialTokens:
    tokens = golden("magi/special_tokens.safetensors")
    return SpecialTokens(tokens["duration"], tokens["hq"][0])


def scheduled(runtime: dict[str, Any]) -> Quadratic:
    """So many chunks are under way as the window of the reference holds."""
    return Quadratic(runtime["num_steps"], runtime["num_steps"] // runtime["window_size"])


class Watched(Pipelined):
    """Keeps the velocities and the finished chunks after each call, and what was shown."""

    def velocities(self, shown: Sequence[Shown], carries: bool) -> Sequence[Tensor]:
        made = super().velocities(shown, carries)
        if any(one.part.moves for one in shown):
            self.seen.append([(one.start // CHUNK, one.part.step, one.part.moves) for one in shown])
            self.made.append(torch.cat([v for v, one in zip(made, shown, strict=True) if one.part.moves], dim=1))
            self.kept.append(sorted(self.finished.chunks))
        return made

    def watch(self) -> Watched:
        self.made: list[Tensor] = []
        self.kept: list[list[int]] = []
        self.seen: list[list[tuple[int, int, bool]]] = []
        return self


def play(name: str) -> tuple[Watched, list[Chunk], dict[str, Tensor]]:
    """A recorded run, by the loop."""
    case, data = CASES[name], golden(f"magi/{name}.safetensors")
    schedule = scheduled(case["runtime"])
    noise = data["noise"].transpose(1, 2)
    given = data["prefix"].transpose(1, 2) if "prefix" in data else noise[:, :0]
    whole = given.shape[1] // CHUNK * CHUNK
    left = given[:, whole:]
    chunks = (noise.shape[1] - whole) // CHUNK
    sizes = schedule.sizes() if case["engine"]["distill"] else ()
    denoiser = Watched(recorded_model(), Video(chunks, schedule.steps, 5, sizes, special())).watch()

    def drawn(chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        assert step == 0
        return noise[:, whole + chunk * CHUNK :][:, :CHUNK]

    settings = DenoiseSettings(
        schedule,
        FlowTable(3.0).sigma,
        drawn,
        (noise.shape[3], noise.shape[4]),
        chunk_frames=CHUNK,
        sees=SEES,
        solver=Euler,
        pinned={0: left} if left.shape[1] else {},
    )
    caption = data["caption"][None]
    made = run(denoiser, settings, lambda chunk: caption, noise.shape[1], given[:, :whole] if whole else None)
    return denoiser, list(made), data


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_recorded_one(name: str) -> None:
    denoiser, chunks, data = play(name)
    given = data["prefix"].shape[2] if "prefix" in data else 0
    for chunk in chunks:
        # Of a clip only what is new was recorded; of a picture's chunk all, and so with the drift of the picture.
        new = chunk.latents[:, given - chunk.start :] if given > chunk.start > 0 else chunk.latents
        torch.testing.assert_close(new.transpose(1, 2), data[f"chunk.{chunk.index}"], atol=TOLERANCE, rtol=0)
    for index, velocity in enumerate(denoiser.made):
        if f"velocity.{index}" in data:
            recorded = data[f"velocity.{index}"][:, :, -velocity.shape[1] :]
            torch.testing.assert_close(-velocity.transpose(1, 2), recorded, atol=V_TOLERANCE, rtol=0)
    emitted = [(index, calls) for index, _, calls in CASES[name]["emitted"]]
    ends = [(chunk.index, _finished(denoiser, chunk)) for chunk in chunks]
    assert ends == emitted


def _finished(denoiser: Watched, chunk: Chunk) -> int:
    """Iterations until a chunk is done."""
    number = chunk.start // CHUNK
    return 1 + max(
        index for index, seen in enumerate(denoiser.seen) if any(one == number and moves for one, _, moves in seen)
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_pass_has_the_recorded_chunks(name: str) -> None:
    denoiser, _, _ = play(name)
    recorded = [row for row in CASES[name]["dispatches"] if not row["prefix_pass"]]
    assert len(recorded) == len(denoiser.seen)
    for row, seen in zip(recorded, denoiser.seen, strict=True):
        live = [(chunk, step) for chunk, step, moves in seen if moves]
        assert live == list(zip(row["chunks"], row["steps"], strict=True))
        assert [chunk for chunk, _, moves in seen if not moves] == (
            [live[0][0] - 1] if row["extra_clean_chunk"] else []
        )


@pytest.mark.parametrize("name", RUNS)
def test_no_finished_chunk_is_kept_that_is_not_read_again(name: str) -> None:
    """Of a window of four one is, once four are live."""
    denoiser, chunks, data = play(name)
    runtime, given = CASES[name]["runtime"], data["prefix"].shape[2] // CHUNK if "prefix" in data else 0
    schedule = scheduled(runtime)
    kept = list(map(len, denoiser.kept))
    assert max(kept) == most_kept(schedule, SEES, len(chunks), given)
    if runtime["window_size"] == 4:
        assert kept[-1] <= 1


@pytest.mark.parametrize(("name", "calls"), [("generate_base", 44), ("generate_distill_8", 12), ("generate_v2v", 33)])
def test_passes_that_count_for_no_chunk_are_left_out(name: str, calls: int) -> None:
    """The reference takes three in every dispatch of the base model: 48 of `generate_base`."""
    denoiser, chunks, _ = play(name)
    assert denoiser.calls == calls == sum(chunk.calls for chunk in chunks)
