"""Rows that end with a constant token: it is known beforehand, so rows may start early without a stand-in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from diagonal import Grid, Layout, Order, make_plan
from diagonal.engine.attention import Dense
from diagonal.engine.tokens.masks import dense_mask
from diagonal.planning.decoding import parse
from diagonal.planning.plan import NONE
from tests.tiny import build, run, tiny_config

END = 15  # the id that ends a row
SCHEDULES = ["raster", "diagonal:k=1", "diagonal:k=2", "diagonal:k=1,d=2", "diagonal:k=2,d=1", "window:s=2"]


def layout(frames: int, prefix: int, suffix: int) -> Layout:
    return Layout(Grid(frames, 4, 6), prefix, suffix, row_end=True)


def test_emus_picture_takes_rows_plus_columns() -> None:
    """90x90 codes, 91 tokens a row: 8,100 calls in raster order, 179 along diagonals, and no stand-in."""
    picture = Layout(Grid(1, 90, 91), prefix=20, row_end=True)
    plan = make_plan(picture, "diagonal:k=1")
    assert len(plan.steps) == 179 and len(make_plan(picture, "raster").steps) == 90 * 90 and plan.tokens == 8100
    ends = set(picture.positions()[:, :, -1].ravel().tolist())
    early = plan.entries.until < np.iinfo(np.int32).max
    assert set(plan.entries.position[early].tolist()) <= ends
    assert (plan.entries.read[early] == plan.entries.position[early]).all()  # the true token: no other stands in


@pytest.mark.parametrize("refeed", [True, False])
@pytest.mark.parametrize("spec", SCHEDULES)
def test_training_sees_what_decoding_saw(spec: str, refeed: bool) -> None:
    config = tiny_config("mcar/tiny")
    model = build(config)
    for known, prefix, suffix in ((0, 3, 0), (1, 0, config.suffix), (1, 2, 0)):
        plan = make_plan(layout(known + 2, prefix, suffix), Order(parse(spec), refeed=refeed), known)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(config.codebook, (1, plan.layout.length), generator=generator)
        tokens[:, plan.layout.positions()[known:].ravel()] = -1
        tokens[:, plan.layout.positions()[:, :, -1].ravel()] = END
        tokens, stepwise = run(_Model(model), plan, tokens)
        entries = plan.entries
        at_once = model(tokens[:, entries.read], torch.from_numpy(entries.position), Dense(dense_mask(entries)))
        entry = {int(cell): index for index, cell in enumerate(entries.write) if cell != NONE}
        order = [entry[int(cell)] for step in plan.steps for cell in step.write[step.write != NONE]]
        torch.testing.assert_close(at_once[:, order], stepwise, atol=1e-4, rtol=1e-4)
        assert (tokens[:, plan.layout.positions()[:, :, -1].ravel()] == END).all() and (tokens >= 0).all()


@pytest.mark.parametrize("prefix", [1, 5])
def test_raster_feeds_every_token_before_the_cells_behind_it(prefix: int) -> None:
    """So its logits are those of a causal model over the whole sequence, row ends among it."""
    config = tiny_config("mcar/tiny")
    model, plan = build(config), make_plan(layout(2, prefix, 0), "raster")
    tokens = torch.full((1, plan.layout.length), -1)
    tokens[:, :prefix] = torch.arange(prefix)
    tokens[:, plan.layout.positions()[:, :, -1].ravel()] = END
    tokens, stepwise = run(_Model(model), plan, tokens)
    length = plan.layout.length
    causal = model(tokens, torch.arange(length), Dense(torch.ones(length, length, dtype=torch.bool).tril()))
    cells = plan.layout.positions()[:, :, :-1].ravel()
    torch.testing.assert_close(stepwise, causal[:, cells - 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spec", SCHEDULES)
def test_every_cell_is_decoded_once_and_row_ends_never(spec: str) -> None:
    for known, prefix in ((0, 1), (1, 0)):
        plan = make_plan(layout(known + 2, prefix, 0), spec, known)
        written = np.concatenate([step.write[step.write != NONE] for step in plan.steps])
        assert sorted(written) == plan.layout.positions()[known:, :, :-1].ravel().tolist()
        seen = plan.entries.visible()
        for index, target in enumerate(plan.entries.write):  # what a cell comes after is always fed at its own position
            if target != NONE:
                assert plan.entries.position[index] == target - 1 and seen[index, index]


def test_a_layout_of_row_ends_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="row ends alone"):
        Layout(Grid(1, 4, 1), 1, row_end=True)
    assert replace(layout(1, 1, 0)).drawn == Grid(1, 4, 5)


class _Model:
    """A model whose config allows every id of its codebook, as the grid here is its own."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.cache_spec, self.config = model, model.cache_spec, model.config

    def __call__(self, *arguments: object) -> torch.Tensor:
        logits: torch.Tensor = self.model(*arguments)
        return logits
