"""Steps on the device, padded to a few widths, are the eager steps: what is captured on a GPU, run without capture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal import Grid, Layout, Plan, Sampling, make_plan
from diagonal.engine.kernels.cpu import library
from diagonal.engine.kernels.visibility import BLOCK, NOWHERE, attend_reference, whole_blocks
from diagonal.engine.tokens.decode import Video, decode, plans, rollout, spans
from diagonal.engine.tokens.graphs import WIDTHS, Graphs, padded, tables
from diagonal.engine.tokens.runner import Eager, make_runner
from diagonal.planning.plan import NONE, Order
from tests.tiny import GREEDY, TINY, build, new_cache, random_prompt, sampler, tiny_config

SCHEDULES = ["raster", "diagonal:k=1", "diagonal:k=2,d=3", "diagonal:k=1,d=1", "window:s=2"]


def _plan(config: Any, spec: str, known: int = 1) -> Plan:
    grid = Grid(known + 3, config.rows, config.cols)
    return make_plan(Layout(grid, len(config.prefix_ids), config.suffix), spec, known)


def _graphs(model: Any, plan: Plan, chosen: Any, batch: int = 1) -> Graphs:
    return Graphs(model, new_cache(model, plan, batch), chosen, attend_reference, capture=False)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("spec", SCHEDULES)
def test_padded_steps_decode_the_same_tokens(name: str, spec: str) -> None:
    config = tiny_config(name)
    model, plan = build(config), _plan(config, spec)
    for sampling in (GREEDY, Sampling(temperature=0.9, top_p=0.9)):
        results = []
        for make in (Eager, Graphs):
            prompt, chosen = random_prompt(config, plan, batch=2), sampler(config, plan, sampling, [3, 4])
            cache = new_cache(model, plan, 2)
            extra = () if make is Eager else (attend_reference, False)
            frames = list(decode(make(model, cache, chosen, *extra), plan, prompt))
            results.append((prompt, [frame.tokens for frame in frames]))
        assert torch.equal(results[0][0], results[1][0])
        assert all(torch.equal(one, two) for one, two in zip(results[0][1], results[1][1], strict=True))


def test_windows_of_several_plans_share_one_runner() -> None:
    """Cursors begin anew with each window; a plan that comes again is not uploaded again."""
    config = tiny_config("doom/tiny")
    model = build(config)
    layout = Layout(Grid(15, config.rows, config.cols), 0, config.suffix)
    windows = spans(14, 1, config.frames, config.reference_frames)
    made = plans(layout, windows, Order.of("diagonal:k=1"))
    results = []
    for kind in ("eager", "graphs"):
        units = random_prompt(config, make_plan(layout, "raster", 1)).unflatten(1, (15, -1))
        video = Video(layout, torch.zeros(1, 0, dtype=torch.long), units)
        longest = max(made, key=lambda plan: plan.layout.length)
        chosen = sampler(config, longest, GREEDY, [0])
        runner: Any = Eager(model, new_cache(model, longest), chosen)
        if kind == "graphs":
            runner = _graphs(model, longest, chosen)
        results.append([frame.tokens for frame in rollout(runner, video, list(zip(windows, made, strict=True)))])
    assert len(results[0]) == 14
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


class Indifferent:
    """A model to which all ids are equally likely, so that its tokens are their noise."""

    def __init__(self, model: Any) -> None:
        self.cache_spec, self.ids = model.cache_spec, model.config.codebook

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: Any, keep: Tensor | None = None) -> Tensor:
        return torch.zeros(len(tokens_BS), len(slots_S) if keep is None else len(keep), self.ids)


def test_windows_that_slide_go_on_in_the_noise_of_the_video() -> None:
    """However long a window is and whatever it keeps; and a runner that is kept goes on with other seeds."""
    config = tiny_config("doom/tiny")
    model: Any = Indifferent(build(config))
    layout = Layout(Grid(12, config.rows, config.cols), 0, config.suffix)
    plan = make_plan(layout, "raster", 1)
    kept: Any = None
    made = []
    for window, reference, order, seeds in (
        (12, 2, "raster", [5, 6]),
        (6, 2, "raster", [5, 6]),
        (6, 3, "diagonal:k=1", [5, 6]),
        (5, 4, "diagonal:k=2", [7, 5]),
    ):
        windows = spans(11, 1, window, reference)
        paired = list(zip(windows, plans(layout, windows, Order.of(order)), strict=True))
        chosen = sampler(config, plan, Sampling(), seeds)
        kept = kept or _graphs(model, plan, chosen, batch=2)
        kept.adopt(chosen)
        for runner in (Eager(model, new_cache(model, plan, 2), chosen), kept):
            units = random_prompt(config, plan, batch=2).unflatten(1, (12, -1))
            frames = rollout(runner, Video(layout, torch.zeros(2, 0, dtype=torch.long), units), paired)
            made.append(torch.stack([frame.tokens for frame in frames], dim=1))
    assert all(torch.equal(one, made[0]) for one in made[:6])
    assert all(torch.equal(one[1], made[0][0]) and not torch.equal(one[0], made[0][0]) for one in made[6:])


@pytest.mark.parametrize("spec", SCHEDULES)
def test_tables_hold_every_step_once_at_its_width(spec: str) -> None:
    plan = _plan(tiny_config("mcar/tiny"), spec)
    found, fed = tables(plan, torch.device("cpu")), torch.from_numpy(plan.first_fed)
    numbers, most = [], 0
    places = torch.arange(plan.layout.length)[None]  # a token that says where it is
    for width, table in found.items():
        assert width in WIDTHS
        for row in table.rows:
            (read,), write, seen = table.next(fed, places)
            slot, number = seen.slots_S, int(row[-1])
            step = plan.steps[number]
            size = len(step.read)
            numbers.append(number)
            assert read[:size].tolist() == step.read.tolist() and (read[size:] == step.read[0]).all()
            assert slot[:size].tolist() == step.slot.tolist() and (slot[size:] == step.slot[0]).all()
            assert [NONE if one == plan.layout.length else one for one in write[:size].tolist()] == step.write.tolist()
            assert padded(size) == width == len(write)
            written = plan.first_fed <= number
            assert (seen.needed_L.numpy() == np.where(written, np.arange(len(written)), NOWHERE)).all()
            assert int(seen.extent) == int(np.flatnonzero(written)[-1]) // BLOCK + 1
            ends = [BLOCK * (one + 1) for one in range(whole_blocks(plan.layout.length) // BLOCK)]
            before = plan.first_fed < number
            before[step.slot] = False  # attention may read whole blocks before the step has written its own
            wholly = [end <= len(before) and before[:end].all() and end <= min(step.slot) for end in ends]
            assert int(seen.whole) == sum(wholly)
            most = max(most, int(seen.whole))
        assert table.cursor.tolist() == [len(table.rows), 0]
    assert most > 0
    assert sorted(numbers) == list(range(1, len(plan.steps)))


def test_widths_are_rounded_up() -> None:
    assert [padded(width) for width in (1, 3, 8, 9, 17, 94, 120, 128, 129, 300)] == [
        1, 4, 8, 10, 24, 96, 120, 128, 256, 384
    ]  # fmt: skip


def test_a_cache_that_is_too_short_is_refused() -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, "raster")
    chosen = sampler(config, plan, GREEDY, [0])
    runner = _graphs(model, _plan(config, "raster", known=0) if config.prefix_ids else plan, chosen)
    longer = make_plan(Layout(Grid(9, config.rows, config.cols), 0, config.suffix), "raster", 1)
    with pytest.raises(ValueError, match=r"the plan needs \d+ cache slots, the cache has \d+"):
        runner.begin(longer, torch.zeros(1, longer.layout.length, dtype=torch.long), 0)


def test_without_kernels_steps_are_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, "raster")
    for switch, kind in (("1", Graphs if library.available() else Eager), ("0", Eager)):
        monkeypatch.setenv("DIAGONAL_KERNELS", switch)
        assert type(make_runner(model, new_cache(model, plan), sampler(config, plan, GREEDY, [0]))) is kind
