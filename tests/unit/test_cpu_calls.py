"""Steps of the C++ library for a CPU: they are their references, and recorded they do again what they did."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from diagonal import Sampling
from diagonal.engine.kernels import reference, select
from diagonal.engine.kernels.cpu import calls, library, steps
from diagonal.engine.tokens.captures import Captures
from diagonal.engine.tokens.decode import decode
from diagonal.engine.tokens.graphs import Graphs, exact
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import NEVER, make_plan
from tests.live import Ring, frame_of, random_rows, step_tensors
from tests.tiny import build, new_cache, random_prompt, sampler, tiny_config

pytestmark = pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")
CPU = torch.device("cpu")


@pytest.mark.parametrize("ring", [Ring(0, 6, 30), Ring(5, 40, 4), Ring(3, 13, 1), Ring(0, 1, 64)], ids=str)
@pytest.mark.parametrize(("batch", "inputs"), [(1, 1), (5, 12)])
def test_steps_are_taken_in_the_rings_of_all_samples(ring: Ring, batch: int, inputs: int) -> None:
    torch.manual_seed(ring.unit)
    frame, rows = frame_of(ring, batch), random_rows(ring, inputs)
    tokens = torch.randint(1000, (batch + 4, frame.unused + 2))[:, : frame.unused + 1]
    cursor, others = torch.zeros(2, 2, dtype=torch.long)
    for _ in range(len(rows)):
        found = steps.live_step(rows, cursor, frame, tokens, inputs)
        wanted = reference.live_step(rows, others, frame, tokens, inputs)
        for one, other in zip(step_tensors(found), step_tensors(wanted), strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)
    assert cursor.tolist() == others.tolist() == [len(rows), 0]


def test_steps_of_a_plan_are_taken_one_after_the_other() -> None:
    fed = torch.randint(0, 9, (100,), dtype=torch.int32)
    fed[::7] = NEVER
    rows, tokens = torch.randint(0, 90, (8, 16)), torch.randint(1000, (3, 101))
    cursor, others = torch.zeros(2, 2, dtype=torch.long)
    for _ in range(len(rows)):
        found = steps.next_step(rows, cursor, fed, tokens, 5)
        wanted = reference.next_step(rows, others, fed, tokens, 5)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_taken_from_tables(dtype: torch.dtype) -> None:
    tables, ids = torch.randn(2, 50, 33).to(dtype), torch.tensor([3, 49, 0, -1, 3])
    assert torch.equal(steps.gather_rows(tables, ids), tables[:, ids])
    assert steps.gather_rows(tables, torch.tensor([50, -51])).isnan().all()


@pytest.mark.parametrize("shape", [(1,), (2, 33)], ids=str)
def test_positions_are_rotations_however_far_they_are(shape: tuple[int, ...]) -> None:
    positions = torch.randint(10**9, shape) // 10 ** torch.randint(9, shape)
    found, wanted = steps.rope_1d(positions, 96, 10000.0), reference.rope_1d(positions, 96, 10000.0)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == (*shape, 96) and (one - other).abs().max() < 1e-6


class _Layer(nn.Module):
    """Looks tokens up and turns positions, by the library alone, into a place that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 16), requires_grad=False)
        self.ids, self.found = torch.zeros(3, dtype=torch.long), torch.zeros(0)

    def step(self) -> None:
        self.found = select.embed(self.weight, self.ids)


@pytest.fixture
def layer() -> _Layer:
    torch.manual_seed(0)
    return _Layer()


def _recorded(layer: _Layer) -> calls.Recording:
    with torch.inference_mode():
        made = calls.record(layer.step, calls.Space())
    assert made is not None
    return made


def test_a_recording_does_again_what_was_done_with_what_is_there_now(layer: _Layer) -> None:
    recording = _recorded(layer)
    assert len(recording.calls) == 1 and torch.equal(layer.found, layer.weight[[0, 0, 0]])
    layer.ids.copy_(torch.tensor([4, 9, 1]))
    recording.replay()
    assert torch.equal(layer.found, layer.weight[[4, 9, 1]])


@pytest.mark.parametrize("other", ["adds", "takes memory", "writes", "looks"])
def test_a_step_that_asks_pytorch_for_something_is_not_recorded(layer: _Layer, other: str) -> None:
    def run() -> None:
        layer.step()
        if other == "adds":
            layer.found + 1
        elif other == "takes memory":
            torch.empty(3)
        elif other == "writes":
            layer.found.add_(1)
        else:
            layer.found.view(-1)[2:].t()

    with torch.inference_mode():
        assert (calls.record(run, calls.Space()) is None) == (other != "looks")


def test_calls_of_another_thread_are_not_noted(layer: _Layer) -> None:
    other = threading.Thread(target=torch.inference_mode()(_Layer().step))

    def both() -> None:
        layer.step()
        other.start()
        other.join()

    with torch.inference_mode():
        made = calls.record(both, calls.Space())
    assert made is not None and len(made.calls) == 1


def test_results_of_a_step_share_no_memory_and_those_of_the_next_use_it_again() -> None:
    space = calls.Space()
    shapes = [(3, 5), (1,), (700, 500), (2, 2)]
    first = [space.take(shape, torch.float32).fill_(number) for number, shape in enumerate(shapes)]
    assert all(
        torch.equal(one, torch.full(shape, float(n))) for n, (one, shape) in enumerate(zip(first, shapes, strict=True))
    )
    assert all(one.data_ptr() % calls.LINE == 0 for one in first)
    space.rewind()
    assert [space.take(shape, torch.float32).data_ptr() for shape in shapes] == [one.data_ptr() for one in first]


@pytest.mark.parametrize("change", ["in place", "another place", "threads"])
def test_what_was_recorded_goes_when_weights_change(layer: _Layer, change: str) -> None:
    captures, threads = Captures(layer, CPU), torch.get_num_threads()
    with torch.inference_mode():
        for _ in range(2):
            captures.begin()
            captures.run("a", layer.step)
        assert len(captures) == 1
    if change == "in place":
        layer.weight.add_(1)
    elif change == "another place":
        layer.weight.data = layer.weight * 2
    else:
        torch.set_num_threads(threads + 1)
    try:
        with torch.inference_mode():
            captures.begin()
            assert len(captures) == 0
            captures.run("a", layer.step)
            assert len(captures) == 1 and torch.equal(layer.found, layer.weight[[0, 0, 0]])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["doom/tiny", "mcar/tiny", "cosmos/tiny", "wham/tiny"])
def test_recorded_steps_decode_the_same_tokens(name: str) -> None:
    config = tiny_config(name)
    model = build(config)
    plan = make_plan(
        Layout(Grid(4, config.rows, config.cols), len(config.prefix_ids), config.suffix), "diagonal:k=1", 1
    )
    chosen = sampler(config, plan, Sampling(top_p=0.9), [3, 4])
    results = []
    for capture in (False, True):
        graphs = Graphs(model, new_cache(model, plan, 2), chosen, select.decode_attention, capture, exact)
        for _ in range(2):  # the second time replays
            prompt = random_prompt(config, plan, batch=2)
            results.append(torch.cat([frame.tokens for frame in decode(graphs, plan, prompt)]))
    assert all(torch.equal(one, results[0]) for one in results[1:])
    if name in ("doom/tiny", "mcar/tiny"):
        assert graphs._captures is not None and len(graphs._captures)
