"""What the wgmma GEMM computes in both orientations: on a CPU, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.cuda import wgmma_gemm
from diagonal.engine.linear import FusedLinear
from tests.cuda_on_cpu import Machine
from tests.gpu import poisoned
from tests.linears import check_linear, random, random_linear


@dataclass(frozen=True)
class Case:
    kind: str
    tokens: int
    rows: int
    depth: int
    processors: int
    stages: int = 0  # tiles in flight, 0 for as many as there is room for

    def config(self) -> wgmma_gemm.KernelConfig:
        linear = FusedLinear(torch.empty(self.rows, self.depth, device="meta"))
        linear = replace(linear, act="silu" if "silu" in self.kind else None)
        found = wgmma_gemm.configure(self.tokens, linear, self.processors)
        assert found is not None, self
        return found

    def k_tiles(self) -> int:
        """Of a thread block's depth."""
        found = self.config()
        return self.depth // (found.SPAN * found.SPLIT_K * wgmma_gemm.DEEP)


TOKENS_M = [
    Case("plain", 9, 200, 1280, 8, stages=2),  # rows that are no whole tiles
    Case("biased residual", 9, 112, 384, 3, stages=2),
    Case("silu", 31, 224, 640, 4, stages=2),
    Case("biased silu", 31, 96, 512, 4),
    Case("gelu", 48, 300, 448, 2, stages=3),
    Case("bias", 48, 96, 2560, 4, stages=2),
    Case("biased gelu", 64, 144, 256, 2),
    Case("residual", 64, 200, 256, 8),
]
WEIGHTS_M = [
    Case("plain", 65, 250, 1280, 8, stages=2),
    Case("biased residual", 65, 256, 256, 4),
    Case("residual", 80, 192, 320, 3, stages=2),
    Case("silu", 80, 240, 256, 2),
    Case("biased gelu", 96, 384, 192, 3, stages=2),
    Case("biased silu", 96, 512, 320, 2, stages=2),
    Case("bias", 120, 500, 640, 4, stages=2),
    Case("gelu", 120, 768, 128, 3),
    Case("residual", 72, 160, 256, 4),  # the last tiles of thread blocks are not full
    Case("silu", 96, 448, 192, 2),
    Case("biased residual", 88, 270, 384, 6, stages=2),
    Case("biased silu", 70, 256, 192, 2),  # tokens that are no multiple of 16
    Case("biased gelu", 100, 280, 320, 2),
    Case("plain", 9, 250, 1280, 8, stages=2),  # few tokens, of which the other orientation would compute more
    Case("biased residual", 9, 256, 1280, 8),
    Case("silu", 24, 448, 192, 2),
    Case("biased gelu", 40, 480, 256, 8),
    Case("residual", 40, 128, 256, 4),
]


@pytest.fixture(autouse=True)
def any_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles may be as empty as they like."""
    monkeypatch.setattr(tuning.HOPPER.wgmma, "least_fill", 0)


def run_both(machine: Machine, x: Tensor, linear: FusedLinear, found: wgmma_gemm.KernelConfig) -> Tensor:
    """With everything at once and with everything late: the results are the same."""
    made = []
    for machine.late in (0, 1, 2):
        own = linear if linear.residual is None else replace(linear, residual=linear.residual.clone())
        machine.fresh = [x] if own.residual is None else [x, own.residual]
        with poisoned():
            made.append(wgmma_gemm.run(x, own, found))
    assert all(torch.equal(made[0], one) for one in made)
    return made[0]


@pytest.mark.parametrize("case", [*TOKENS_M, *WEIGHTS_M], ids=str)
def test_layers_of_many_tokens_agree_with_float64(case: Case, machine: Machine) -> None:
    torch.manual_seed(case.tokens)
    linear = random_linear(case.kind, case.tokens, case.rows, case.depth, "cpu")
    x = random(case.tokens, case.depth, device="cpu") + 0.5
    found = wgmma_gemm.configure(case.tokens, linear, case.processors)
    assert found is not None
    if case.stages:
        found = replace(found, W_STAGES=case.stages, X_STAGES=case.stages)
    check_linear(run_both(machine, x, linear, found), x, linear)


def test_these_are_all_kinds_of_configurations() -> None:
    few, more = [case.config() for case in TOKENS_M], [case.config() for case in WEIGHTS_M]
    assert {(one.SPLIT_K, one.SPAN) for one in few} == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)}
    shapes = {(one.GROUPS, one.M_TILES, one.SPLIT_K) for one in more}
    assert shapes == {(1, 1, 2), (1, 1, 1), (1, 2, 2), (1, 2, 1), (2, 2, 2), (2, 2, 1)}
    assert {one.ROWS for one in more} >= {80, 96, 144, 224}
    assert {one.SPAN for one in more} == {1, 2}
    assert {one.WEIGHTS_M for one in few} == {False} and {one.WEIGHTS_M for one in more} == {True}
    again = [case for case in (*TOKENS_M, *WEIGHTS_M) if case.stages and case.k_tiles() > 2 * case.stages]
    assert len(again) >= 6  # stages are used more than twice: both parities of their mbarriers
