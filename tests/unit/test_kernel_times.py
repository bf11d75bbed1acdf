"""What `benchmarks/kernels.py` measures: the products that a model's first layer asks for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import kernels
from diagonal.engine.kernels import select
from diagonal.engine.linear import FusedLinear


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("mcar/700m", [("attention.qkv", 2560, 2048), ("attention.out", 2048, 2048), ("mlp.gate_up", 8192, 2048)]),
        ("cosmos/12b", [("attention.qkv", 6144, 5120), ("attention.out", 5120, 4096), ("mlp.gate_up", 28672, 5120)]),
        ("wham/1.6b", [("attn.c_attn", 6912, 2304), ("attn.c_proj", 2304, 2304), ("mlp.c_fc", 9216, 2304)]),
    ],
)
def test_products_are_those_of_the_first_layer(model: str, wanted: list[tuple[str, int, int]]) -> None:
    found, spec = kernels.kinds_of(model)
    shapes = [(kind.name.removeprefix("blocks.0."), *kind.asked.weight_NK.shape) for kind in found]
    assert shapes[:3] == wanted and len(found) == 4
    assert [kind.asked.residual is not None for kind in found] == [False, True, False, True]
    assert [kind.asked.norm is not None for kind in found] == [True, False, True, False]
    assert found[2].asked.act in ("silu", "gelu") and spec.layers > 1


def test_others_are_asked_and_then_no_more() -> None:
    chosen = select.small_m, select.wgmma
    x, asked = torch.zeros(1), FusedLinear(torch.zeros(1, 1))
    with kernels.others():
        assert select.small_m(x, asked) is None and select.wgmma(x, asked) is None
        assert select.small_m is not chosen[0]
    assert (select.small_m, select.wgmma) == chosen


@pytest.mark.parametrize("step", [1, 7, 13, 20])
def test_queries_see_what_they_see_in_a_step_of_the_plan(step: int) -> None:
    plan = kernels.plan_of("cosmos/tiny", "diagonal:k=2,d=3", known=1)
    found, slots = kernels.seen_in(plan, step, torch.device("cpu")), plan.steps[step].slot
    assert found.slots_S[: len(slots)].tolist() == slots.tolist()
    wanted = (plan.first_fed <= step) & (np.arange(plan.layout.length) <= slots[:, None])
    assert np.array_equal(found.mask()[: len(slots), : plan.layout.length].numpy(), wanted)


def test_a_step_that_the_plan_does_not_have_is_refused() -> None:
    plan = kernels.plan_of("cosmos/tiny", "diagonal:k=2,d=3", known=1)
    for step in (0, len(plan.steps)):
        with pytest.raises(ValueError, match=f"step {step} given; the plan has steps 1 to {len(plan.steps) - 1}"):
            kernels.seen_in(plan, step, torch.device("cpu"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "nothing to measure"),
        ("--tokens 1 --schedule raster", "--schedule goes with --steps"),
        ("--steps 3", "--schedule goes with --steps"),
        ("--schedule raster --steps 3 --keys 100", "--keys with --tokens"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    given: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "times.json"
    asked = ["kernels.py", "--model", "mcar/tiny", "--device", "cpu", "--out", str(out), *given.split()]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit):
        kernels.main()
    assert message in capsys.readouterr().err and not out.exists()


def test_keys_are_all_seen_or_all_looked_at() -> None:
    (one, _), (other, _) = kernels.seen_by_all(3, 100, torch.device("cpu"))
    assert torch.equal(one.mask(), other.mask()) and one.mask().sum() == 3 * 100
    assert (int(one.whole), int(other.whole), int(one.extent)) == (1, 0, 2)


def test_times_are_written_beside_what_reading_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    linear = select.linear

    def noted(x: Tensor, one: FusedLinear) -> Tensor:
        asked.append(x.shape[1])
        return linear(x, one)

    monkeypatch.setattr(select, "linear", noted)
    out = tmp_path / "times.json"
    given = ["kernels.py", "--model", "mcar/tiny", "--tokens", "1", "3", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    kernels.main()
    result = json.loads(out.read_text())
    assert [row["tokens"] for row in result["rows"]] == [1] * 4 + [3] * 4 and set(asked) == {1, 2, 3}
    for row in result["rows"]:
        assert row["us"] > 0 and row["us_others"] > 0
        assert row["us_reading"] == pytest.approx(row["bytes"] / result["bandwidth_gbs"] / 1e3)
    assert result["rows"][0]["bytes"] == 2 * 64 * (4 + 2 * 2) * 16
