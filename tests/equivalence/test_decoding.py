"""Fast = slow: what the engine does step by step is what plain, obvious computations give."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal import Grid, Layout, Order, Plan, Sampling, StandIn, make_plan
from diagonal.engine.attention import Dense
from diagonal.engine.tokens.decode import Span, Video, decode, plans, rollout, spans
from diagonal.engine.tokens.masks import dense_mask, flex, mask_mod
from diagonal.engine.tokens.runner import Eager
from diagonal.planning.decoding import parse
from diagonal.planning.plan import NONE
from tests.tiny import GREEDY, PLAIN, TINY, build, naive, new_cache, random_prompt, run, sampler, tiny_config

SCHEDULES = [
    "raster",
    *["diagonal:k=1", "diagonal:k=2", "diagonal:k=5", "diagonal:k=6", "diagonal:k=9"],
    *["diagonal:k=1,d=1", "diagonal:k=1,d=4", "diagonal:k=2,d=3", "diagonal:k=2,d=12", "diagonal:k=4,d=1"],
    *["window:s=1", "window:s=2", "window:s=6", "window:s=2,overlap_first_row=true"],
]
LAYOUTS = [(1, 0, "own"), (2, 3, "own"), (0, 2, "none")]  # known frames, prefix, suffix as the model has it or none


def _plan(config: Any, order: Order | str, known: int = 1, prefix: int = 0, suffix: str = "own") -> Plan:
    grid = Grid(known + 3, config.rows, config.cols)
    return make_plan(Layout(grid, prefix, config.suffix if suffix == "own" else 0), order, known)


def _teacher_forced(model: Any, plan: Plan, tokens: Tensor, memory: Any) -> Tensor:
    """One forward over all entries of the plan, with the true tokens: logits in the order of the entries."""
    entries = plan.entries
    logits: Tensor = model(tokens[:, entries.read], torch.from_numpy(entries.position), memory)
    return logits


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("spec", "stand_in"), list(itertools.product(SCHEDULES, StandIn)))
def test_teacher_forcing_under_the_plans_mask_gives_the_engines_logits(name: str, spec: str, stand_in: StandIn) -> None:
    """Training sees exactly what decoding saw: every schedule, stand-in, re-feeding and layout."""
    config = tiny_config(name)
    model = build(config)
    for (known, prefix, suffix), refeed in itertools.product(LAYOUTS, (True, False)):
        if stand_in is StandIn.PROMPT_FRAME and known == 0:
            continue
        plan = _plan(config, Order(parse(spec), stand_in, refeed), known, prefix, suffix)
        tokens, stepwise = run(model, plan, random_prompt(config, plan))
        at_once = _teacher_forced(model, plan, tokens, Dense(dense_mask(plan.entries)))
        written = np.concatenate([step.write[step.write != NONE] for step in plan.steps])
        entry = {int(cell): index for index, cell in enumerate(plan.entries.write) if cell != NONE}
        order = torch.tensor([entry[int(cell)] for cell in written])
        torch.testing.assert_close(at_once[:, order], stepwise, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1", "diagonal:k=2,d=3", "window:s=2"])
def test_flex_attention_sees_what_the_dense_mask_shows(spec: str) -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(tiny_config("mcar/tiny"), spec)
    entries = plan.entries
    index = torch.arange(len(entries))
    mod = mask_mod(entries)(torch.tensor(0), torch.tensor(0), index[:, None], index[None, :])
    assert torch.equal(mod, dense_mask(entries))
    tokens, _ = run(model, plan, random_prompt(config, plan))
    with torch.inference_mode():
        dense = _teacher_forced(model, plan, tokens, Dense(dense_mask(entries)))
        blocks = _teacher_forced(model, plan, tokens, flex(entries))
    torch.testing.assert_close(blocks, dense, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", PLAIN)
def test_the_raster_plan_is_the_naive_token_loop(name: str) -> None:
    """Token for token, against a loop that knows neither plans nor caches."""
    config = tiny_config(name)
    model, plan = build(config), _plan(config, "raster")
    prompt = random_prompt(config, plan)
    planned, _ = run(model, plan, prompt)
    assert torch.equal(planned, naive(model, plan, prompt))


@pytest.mark.parametrize("name", TINY)
def test_cached_logits_are_uncached_logits(name: str) -> None:
    config = tiny_config(name)
    model, plan = build(config), _plan(config, "raster")
    tokens, cached = run(model, plan, random_prompt(config, plan))
    last = plan.layout.length - config.suffix
    causal = Dense(torch.ones(last, last, dtype=torch.bool).tril())
    uncached = model(tokens[:, :last], torch.arange(last), causal)
    cells = torch.from_numpy(plan.layout.positions()[plan.known :].ravel())
    torch.testing.assert_close(cached, uncached[:, cells - 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spec", ["diagonal:k=6", "diagonal:k=99", "window:s=6", "window:s=50"])
def test_a_lag_of_a_whole_row_decodes_as_raster(spec: str) -> None:
    config = tiny_config("mcar/tiny")
    model, prompt = build(config), random_prompt(config, _plan(config, "raster"))
    raster, _ = run(model, _plan(config, "raster"), prompt)
    lagged, _ = run(model, _plan(config, spec), prompt)
    assert torch.equal(raster, lagged)


@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1", "diagonal:k=2,d=3"])
def test_a_batch_of_three_is_three_singles(spec: str) -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, spec)
    prompts = random_prompt(config, plan, batch=3)
    sampling = Sampling(temperature=0.9, top_p=0.95, top_k=40)
    together, _ = run(model, plan, prompts, sampling, seeds=[7, 8, 9])
    for index, seed in enumerate((7, 8, 9)):
        alone, _ = run(model, plan, prompts[index : index + 1], sampling, seeds=[seed])
        assert torch.equal(alone[0], together[index])


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others() -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, "diagonal:k=1")
    prompt = random_prompt(config, plan)
    first, again, other = (run(model, plan, prompt, Sampling(), seeds=[seed])[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_schedules_with_the_same_seed_share_their_noise() -> None:
    """A lag of a whole row sees what raster sees, in other steps: the same numbers give the same tokens."""
    config = tiny_config("mcar/tiny")
    model, prompt = build(config), random_prompt(config, _plan(config, "raster"))
    raster, lagged = (
        run(model, _plan(config, spec), prompt, Sampling(), seeds=[3])[0] for spec in ("raster", "diagonal:k=6,d=24")
    )
    assert torch.equal(raster, lagged)
    together, _ = run(model, _plan(config, "diagonal:k=1,d=1"), prompt, Sampling(), seeds=[3])
    first = _plan(config, "raster").layout.frame(1).start  # both draw it from the prompt
    assert raster[0, first] == together[0, first]


@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1", "diagonal:k=1,d=1", "diagonal:k=2,d=3"])
def test_a_frame_is_yielded_in_the_very_step_that_completes_it(spec: str) -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, spec)
    tokens, ran, seen = random_prompt(config, plan), [], []

    runner = Eager(model, new_cache(model, plan), sampler(config, plan, GREEDY, [0]))
    for frame in decode(runner, plan, tokens, lambda: ran.append(1)):
        seen.append((frame.index, len(ran) - 1))
        assert (frame.tokens >= 0).all()
        later = tokens[0, plan.layout.frame(frame.index + 1)] if frame.index + 1 < plan.layout.grid.frames else None
        if later is not None:
            assert (later == -1).any()  # the next frame is still being made
    assert seen == [(plan.known + index, int(step)) for index, step in enumerate(plan.completed)]


def test_stale_contents_of_a_used_cache_change_nothing() -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, "diagonal:k=1,d=4")
    prompt = random_prompt(config, plan)
    fresh, _ = run(model, plan, prompt)
    cache = new_cache(model, plan)
    cache.k.normal_(std=100)
    cache.v.normal_(std=100)
    tokens = prompt.clone()
    for _ in decode(Eager(model, cache, sampler(config, plan, GREEDY, [0])), plan, tokens):
        pass
    assert torch.equal(tokens, fresh)


def test_a_cache_that_is_too_small_is_refused() -> None:
    config = tiny_config("mcar/tiny")
    model, plan = build(config), _plan(config, "raster")
    small = new_cache(model, _plan(config, "raster", suffix="none"))
    with pytest.raises(ValueError, match="cache slots"):
        runner = Eager(model, small, sampler(config, plan, GREEDY, [0]))
        next(iter(decode(runner, plan, random_prompt(config, plan))))


def test_refeeding_changes_what_later_rows_see() -> None:
    """The ablation is real: without re-feeding the same prompt decodes to other tokens."""
    config = tiny_config("mcar/tiny")
    model = build(config)
    on, off = (_plan(config, Order(parse("diagonal:k=1"), refeed=refeed)) for refeed in (True, False))
    prompt = random_prompt(config, on)
    assert len(on.steps) == len(off.steps)
    assert not torch.equal(run(model, on, prompt)[0], run(model, off, prompt)[0])


@pytest.mark.parametrize(
    ("frames", "known", "window", "reference", "expected"),
    [
        (4, 1, 5, 2, [(0, 5, 1)]),
        (5, 1, 5, 2, [(0, 5, 1), (3, 6, 2)]),
        (9, 1, 5, 2, [(0, 5, 1), (3, 8, 2), (6, 10, 2)]),
        (3, 7, 5, 2, [(5, 10, 2)]),  # a prompt longer than the window: its newest frames
        (2, 5, 5, 2, [(3, 7, 2)]),
        (2, 1, 10, 9, [(0, 3, 1)]),
        (3, 10, 10, 9, [(1, 11, 9), (2, 12, 9), (3, 13, 9)]),  # a window that slides by one
    ],
)
def test_windows_keep_the_newest_reference_frames(
    frames: int, known: int, window: int, reference: int, expected: list[tuple[int, int, int]]
) -> None:
    made = spans(frames, known, window, reference)
    assert [(span.start, span.stop, span.known) for span in made] == expected
    decoded = [frame for span in made for frame in range(span.start + span.known, span.stop)]
    assert decoded == list(range(known, known + frames))  # each new frame once, none skipped


def test_a_window_must_keep_something_and_drop_something() -> None:
    for reference in (0, 5):
        with pytest.raises(ValueError, match="1 to 4"):
            spans(9, 1, 5, reference)


def test_a_rollout_is_its_windows_one_after_the_other() -> None:
    config = tiny_config("mcar/tiny")
    model, order = build(config), Order(parse("diagonal:k=1"))
    layout = Layout(Grid(9, config.rows, config.cols), 0, config.suffix)
    units = torch.randint(config.codebook, (1, 9, layout.unit), generator=torch.Generator().manual_seed(0))
    units[:, 1:, : layout.grid.frame_tokens] = -1
    windows = spans(8, 1, 5, 2)
    paired = list(zip(windows, plans(layout, windows, order), strict=True))
    video = Video(layout, torch.empty(1, 0, dtype=torch.long), units.clone())
    longest = paired[0][1]
    chosen = sampler(config, longest, GREEDY, [0])
    rolled = [frame.index for frame in rollout(Eager(model, new_cache(model, longest), chosen), video, paired)]
    assert rolled == list(range(1, 9))

    by_hand = units.clone()
    for start, stop, known in ((0, 5, 1), (3, 8, 2), (6, 9, 2)):
        grid = Grid(stop - start, config.rows, config.cols)
        plan = make_plan(Layout(grid, 0, config.suffix), order, known)
        tokens, _ = run(model, plan, by_hand[:, start:stop].flatten(1))
        by_hand[:, start:stop] = tokens.unflatten(1, (stop - start, -1))
    assert torch.equal(video.units_BTU, by_hand)
    assert windows[0] == Span(0, 5, 1)
