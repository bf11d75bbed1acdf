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
    fours: int = 0

    def cut(self) -> wide.Cut:
        found = self.cut_of(random_product(self.kind, self.tokens, self.rows, self.depth, "meta"))
        assert found is not None, self
        return found

    def cut_of(self, product: Product) -> wide.Cut | None:
        """Blocks may be as empty as they like; but four programs share rows only where those of two would be."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wide, "FULL", wide.FULL if self.fours else 0)
            return wide.cut(self.tokens, product, self.processors, self.fours)

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
FOUR = [
    Case("residual", 72, 352, 512, 8, fours=2),  # the last program finishes no token
    Case("biased residual", 120, 300, 1792, 8, stages=3, fours=2),  # rows end within a block, and within a program
    Case("biased gelu", 80, 282, 1280, 8, stages=2, fours=2),
    Case("plain", 88, 270, 512, 8, fours=2),
    Case("residual", 128, 170, 768, 5, stages=2, fours=1),
    Case("bias", 65, 104, 2560, 4, stages=2, fours=1),
    Case("gelu", 96, 100, 1024, 4, fours=1),
    Case("biased residual", 104, 872, 768, 21, fours=4),
]


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


@pytest.mark.parametrize("case", [*WIDE, *WIDER, *FOUR], ids=str)
def test_products_of_many_tokens_agree_with_float64(case: Case, machine: Machine) -> None:
    torch.manual_seed(case.tokens)
    product = random_product(case.kind, case.tokens, case.rows, case.depth, "cpu")
    x = random(case.tokens, case.depth, device="cpu") + 0.5
    found = case.cut_of(product)
    assert found is not None
    if case.stages:
        found = replace(found, W_STAGES=case.stages, X_STAGES=case.stages)
    check_product(run_both(machine, x, product, found), x, product)


def test_these_are_all_kinds_of_cuts() -> None:
    few, more, four = ([case.cut() for case in cases] for cases in (WIDE, WIDER, FOUR))
    assert {(one.SPLIT, one.SPAN) for one in few} == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)}
    shapes = {(one.GROUPS, one.BLOCKS, one.SPLIT) for one in more}
    assert shapes == {(1, 1, 2), (1, 1, 1), (1, 2, 2), (1, 2, 1), (2, 2, 2), (2, 2, 1)}
    assert {one.ROWS for one in more} >= {80, 96, 144, 224}
    assert {one.SPAN for one in more} == {1, 2}
    assert {one.file for one in few} == {"wide.cu"} and {one.file for one in more} == {"wider.cu"}
    assert {(one.GROUPS, one.BLOCKS, one.SPLIT) for one in four} == {(1, 2, 4), (3, 1, 4), (2, 2, 4)}
    assert {one.SPAN for one in four} == {1, 2} and {one.TOKENS // 8 % 4 for one in four} == {0, 1, 2, 3}
    assert {one.TOKENS // 8 % 2 for one in more if one.SPLIT == 2} == {0, 1}  # not all finish as many
    again = [case for case in (*WIDE, *WIDER, *FOUR) if case.stages and case.blocks() > 2 * case.stages]
    assert len(again) >= 6  # stages are used more than twice: both parities of their barriers
    assert len([case for case in again if case.fours]) >= 2
