"""A world is trained by two processes as by one: the same losses, and a run that any number of processes goes on with.

Run as a program it is one of these processes: it trains every case and leaves what came out in a folder.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagonal import checkpoints
from diagonal.catalog.names import find as find_named
from diagonal.media import video
from diagonal.models import mcar
from diagonal.planning.plan import Order
from diagonal.recipes import find
from diagonal.training.batch import at_once
from diagonal.training.data.recordings import TokenData
from diagonal.training.loop import CHECKPOINT, POINTER, RunConfig, fit
from diagonal.training.parallel import Sharing, gathered, processes, shard_world
from diagonal.training.stages import MODEL, build, last_line, run
from diagonal.training.tokens.stages import Beside, stages
from diagonal.training.tokens.world import WorldTask
from tests.processes import launch

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"rows": 2, "cols": 3, "frames": 3, "reference_frames": 1}
STEPS, HALF = 6, 3


@dataclass(frozen=True)
class Case:
    """How a world is trained."""

    model: str = "mcar/tiny"
    muon_lr: float | None = None
    accumulate: int = 1


# Muon's rotation is computed in bfloat16, which makes large differences of small ones.
CASES = {
    "adam": Case(),
    "accumulated": Case(accumulate=2),
    "muon": Case(muon_lr=0.02),
    "wham": Case("wham/tiny"),
    "cosmos": Case("cosmos/tiny"),
}


def data(config: Any, seed: int) -> TokenData:
    random = torch.Generator().manual_seed(seed)
    cells = torch.randint(config.codebook, (40, config.rows * config.cols), generator=random)
    actions = torch.randint(
        config.codebook, max(config.vocab, config.codebook + 1), (40, config.suffix), generator=random
    )
    return TokenData(torch.cat([cells, actions], 1).int(), torch.arange(40) // 20)


def task(case: Case, sharing: Sharing) -> WorldTask:
    config = replace(find_named("models", case.model).config, **SMALL)
    module = build(config, 3, CPU)
    if sharing.group is not None and sharing.world > 1:
        shard_world(module, sharing.group.mesh)
    return WorldTask(
        module,
        data(config, 1),
        data(config, 2),
        [(Order.of("raster"), 1.0), (Order.of("diagonal:k=1"), 1.0)],
        batch=4,
        seed=5,
        lr=3e-4,
        muon_lr=case.muon_lr,
        corruption=0.1,
        shard=sharing.batch_shard(4),
    )


def config(steps: int, save_every: int = HALF) -> RunConfig:
    return RunConfig(steps, warmup=0, decay_from=1.0, ema=0.9, log_every=1, evaluate_every=STEPS, save_every=save_every)


def trained(case: Case, folder: Path, steps: int, sharing: Sharing, save_every: int = HALF) -> dict[str, torch.Tensor]:
    one = task(case, sharing)
    for _ in fit(one, config(steps, save_every), folder, sharing.group):
        pass
    if sharing.group is None:
        return {name: value.detach() for name, value in one.module.named_parameters()}
    return gathered(one.module)


def train(folder: Path) -> None:
    """What every process does."""
    torch.set_num_threads(1)
    with processes(CPU) as group:
        for name, case in CASES.items():
            weights = trained(case, folder / name, STEPS, Sharing(group, case.accumulate), save_every=STEPS)
            if group.writes:
                torch.save(weights, folder / name / "weights.pt")
        # The second half of a run that one process began, which was a group.
        trained(CASES["adam"], folder / "alone-first", STEPS, Sharing(group))
        chain(folder / "chain", folder / "recordings", Sharing(group))
        for line in fit(task(CASES["adam"], Sharing(group)), config(STEPS), folder / "killed", group):
            if line["step"] == HALF + 1:
                group.wait()
                os._exit(0)  # in the middle of a step, with nothing ended


def recordings(folder: Path) -> None:
    """Clips of VPT's kind, 32x48 pixels."""
    for part, count in (("train", 4), ("held-out", 2)):
        (folder / part).mkdir(parents=True)
        for number in range(count):
            frames = np.random.default_rng(number).integers(256, size=(16, 32, 48, 3), dtype=np.uint8)
            with video.writer(folder / part / f"{number}.mp4", 20) as file:
                file.write(frames)
            lines = [json.dumps({"forward": 1, "camera": [0, index]}) for index in range(16)]
            (folder / part / f"{number}.jsonl").write_text("\n".join(lines))


def chain(folder: Path, recorded: Path, sharing: Sharing) -> dict[str, dict[str, Any]]:
    """All stages of `train all --recipe mcar:tiny`, on a grid of 2x3 tokens."""
    whole = mcar.VARIANTS["tiny"]
    mcar.VARIANTS["tiny"] = replace(whole, config=replace(whole.config, **SMALL))  # type: ignore[type-var]
    try:
        made = stages(find("mcar:tiny"), folder, CPU, Beside(recorded, sharing=sharing))
        for _ in run(made):
            pass
        return {stage.name: last_line(stage.folder) for stage in made}
    finally:
        mcar.VARIANTS["tiny"] = whole


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what two processes trained."""
    folder = tmp_path_factory.mktemp("processes")
    recordings(folder / "recordings")
    with processes(CPU) as group:
        trained(CASES["adam"], folder / "alone-first", HALF, Sharing(group))
    launch("tests.equivalence.test_world_training", 2, folder)
    return folder


def curve(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


def same_losses(ours: Path, one: Path, within: float) -> None:
    lines, others = curve(ours), curve(one)
    assert [line["step"] for line in lines] == [line["step"] for line in others] == [*range(1, STEPS + 1)]
    for line, other in zip(lines, others, strict=True):
        for key in line.keys() & other.keys() - {"steps_per_second"}:
            # A norm is moved by the smallest gradients, which the optimizer enlarges.
            near = within if key != "grad_norm" else 20 * within
            assert line[key] == pytest.approx(other[key], rel=near), (line["step"], key)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_losses_of_one(both: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    weights = trained(case, tmp_path, STEPS, Sharing())
    same_losses(both / name, tmp_path, 1e-6 if case.muon_lr is None else 1e-3)
    found = torch.load(both / name / "weights.pt", weights_only=True)
    assert found.keys() == weights.keys()
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, atol=1e-4 if case.muon_lr is None else 1e-2, rtol=1e-4, msg=key)


def test_a_run_of_two_processes_that_was_killed_is_gone_on_with_by_one(both: Path) -> None:
    assert json.loads((both / "killed" / POINTER).read_text())["step"] == HALF
    assert len(curve(both / "killed")) == HALF + 1
    with processes(CPU) as group:
        trained(CASES["adam"], both / "killed", STEPS, Sharing(group))
    same_losses(both / "killed", both / "adam", 1e-6)


def test_a_run_of_one_process_is_gone_on_with_by_two(both: Path) -> None:
    same_losses(both / "alone-first", both / "adam", 1e-6)


def test_a_run_without_a_group_is_not_begun_again_by_one(tmp_path: Path) -> None:
    """Its state has another form: to begin at step 0 in its folder would lose it."""
    trained(CASES["adam"], tmp_path, HALF, Sharing())
    assert (tmp_path / CHECKPOINT).exists()
    with processes(CPU) as group, pytest.raises(ValueError, match="begun by one process without torchrun"):
        trained(CASES["adam"], tmp_path, STEPS, Sharing(group))


def test_the_chain_of_mcar_from_recordings_to_a_fine_tuned_world(both: Path, tmp_path: Path) -> None:
    """The VQ-VAE, the world from scratch and its fine-tuning: two processes together, and one."""
    lines = chain(tmp_path, both / "recordings", Sharing())
    assert [*lines] == ["tokenizer", "base", "finetune"]
    for name, line in lines.items():
        other = last_line(both / "chain" / name)
        assert line["step"] == other["step"] == 4
        assert other["loss"] == pytest.approx(line["loss"], rel=1e-3)
        state, theirs = (checkpoints.read(where / name / MODEL) for where in (tmp_path, both / "chain"))
        assert {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in theirs.items()}
    assert "codes" in lines["tokenizer"] and "val_psnr" in lines["tokenizer"]


def test_recordings_and_a_trained_tokenizer_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"learns from vpt.*--data"):
        stages(find("mcar:700m"), tmp_path, CPU)
    with pytest.raises(ValueError, match=r"lacks train/"):
        stages(find("mcar:700m"), tmp_path, CPU, Beside(tmp_path))
    recordings(tmp_path)
    with pytest.raises(ValueError, match=r"fine-tunes a tokenizer .*--tokenizer"):
        stages(find("mcar:700m"), tmp_path, CPU, Beside(tmp_path))
    with pytest.raises(ValueError, match="records by itself"):
        stages(find("smoke"), tmp_path, CPU, Beside(tmp_path))


def test_a_batch_that_processes_cannot_share_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a batch of 4 given for 3 processes in 2 parts each; it must be a multiple of 6"
    ):
        at_once(4, 3, 2)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
