"""What the kernels for products of many tokens compute: on a CPU, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import wide
from diagonal.engine.product import Product
from tests.cuda_on_cpu import Machine
from tests.gpu import poisoned
from tests.products import check_product, random, random_product


@dataclass(frozen=True)
class Case:
    kind: str
    tokens: int
    rows: int
    depth: int
    processors: int
    stages: int = 0  # blocks under way, 0 for as many as there is room for

    def cut(self) -> wide.Cut:
        product = Product(torch.empty(self.rows, self.depth, device="meta"))
        product = replace(product, act="silu" if "silu" in self.kind else None)
        found = wide.cut(self.tokens, product, self.processors)
        assert found is not None, self
        return found

    def blocks(self) -> int:
        """Of a program's depth."""
        found = self.cut()
        return self.depth // (found.SPAN * found.SPLIT * wide.DEEP)


WIDE = [
    Case("plain", 9, 200, 1280, 8, stages=2),  # rows that are no whole tiles
    Case("biased residual", 9, 112, 384, 3, stages=2),
    Case("silu", 31, 224, 640, 4, stages=2),
    Case("biased silu", 31, 96, 512, 4),
    Case("gelu", 48, 300, 448, 2, stages=3),
    Case("bias", 48, 96, 2560, 4, stages=2),
    Case("biased gelu", 64, 144, 256, 2),
    Case("residual", 64, 200, 256, 8),
]
WIDER = [
    Case("plain", 65, 250, 1280, 8, stages=2),
    Case("biased residual", 65, 256, 256, 4),
    Case("residual", 80, 192, 320, 3, stages=2),
    Case("silu", 80, 240, 256, 2),
    Case("biased gelu", 96, 384, 192, 3, stages=2),
    Case("biased silu", 96, 512, 320, 2, stages=2),
    Case("bias", 120, 500, 640, 4, stages=2),
    Case("gelu", 120, 768, 128, 3),
    Case("residual", 72, 160, 256, 4),  # the last blocks of programs are not full
    Case("silu", 96, 448, 192, 2),
    Case("biased residual", 88, 270, 384, 6, stages=2),
    Case("biased silu", 70, 256, 192, 2),  # tokens that are no multiple of 16
    Case("biased gelu", 100, 280, 320, 2),
    Case("plain", 9, 250, 1280, 8, stages=2),  # few tokens, of which wide.cu would compute more
    Case("biased residual", 9, 256, 1280, 8),
    Case("silu", 24, 448, 192, 2),
    Case("biased gelu", 40, 480, 256, 8),
    Case("residual", 40, 128, 256, 4),
]


@pytest.fixture(autouse=True)
def any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks may be as empty as they like."""
    monkeypatch.setattr(wide, "FULL", 0)


def run_both(machine: Machine, x: Tensor, product: Product, found: wide.Cut) -> Tensor:
    """With everything at once and with everything late: the results are the same."""
    made = []
    for machine.late in (0, 1, 2):
        own = product if product.residual is None else replace(product, residual=product.residual.clone())
        machine.fresh = [x] if own.residual is None else [x, own.residual]
        with poisoned():
            made.append(wide.run(x, own, found))
    assert all(torch.equal(made[0], one) for one in made)
    return made[0]


@pytest.mark.parametrize("case", [*WIDE, *WIDER], ids=str)
def test_products_of_many_tokens_agree_with_float64(case: Case, machine: Machine) -> None:
    torch.manual_seed(case.tokens)
    product = random_product(case.kind, case.tokens, case.rows, case.depth, "cpu")
    x = random(case.tokens, case.depth, device="cpu") + 0.5
    found = wide.cut(case.tokens, product, case.processors)
    assert found is not None
    if case.stages:
        found = replace(found, W_STAGES=case.stages, X_STAGES=case.stages)
    check_product(run_both(machine, x, product, found), x, product)


def test_these_are_all_kinds_of_cuts() -> None:
    few, more = [case.cut() for case in WIDE], [case.cut() for case in WIDER]
    assert {(one.SPLIT, one.SPAN) for one in few} == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)}
    shapes = {(one.GROUPS, one.BLOCKS, one.SPLIT) for one in more}
    assert shapes == {(1, 1, 2), (1, 1, 1), (1, 2, 2), (1, 2, 1), (2, 2, 2), (2, 2, 1)}
    assert {one.ROWS for one in more} >= {80, 96, 144, 224}
    assert {one.SPAN for one in more} == {1, 2}
    assert {one.file for one in few} == {"wide.cu"} and {one.file for one in more} == {"wider.cu"}
    again = [case for case in (*WIDE, *WIDER) if case.stages and case.blocks() > 2 * case.stages]
    assert len(again) >= 6  # stages are used more than twice: both parities of their barriers
