"""What a benchmark reports, on a clock whose times are known and on the real one; the table and picture of results."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import table
from diagonal.evaluation.speed import machine
from diagonal.evaluation.speed import world as speed
from diagonal.evaluation.speed.floor import Traffic, step_bytes
from diagonal.evaluation.speed.world import DEFINITION, Case, WorldSettings, cut, measure
from diagonal.generation.clock import Clock
from diagonal.generation.load import load
from diagonal.generation.world import World
from diagonal.media import draw
from diagonal.planning.plan import Order

GIVEN = WorldSettings(frames=8, tokenizer=False)


@pytest.fixture(scope="module")
def world() -> World:
    return load("cosmos/tiny")


def case(world: World, schedule: str = "diagonal:k=1") -> Case:
    return Case(world, Order.of(schedule))


@pytest.fixture
def slow_first(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock and a memory with known speeds. Every run of cosmos/tiny's 9 steps of a frame has a first step of 100 ms
    and then steps of 1 to 8 ms; but in the first run, the warm-up, all take a second."""
    steps = [float(i) for i in range(1, 9)]

    def times() -> Iterator[float]:
        now = 0.0
        for run in range(10):
            yield now
            for ms in [100.0, *steps]:
                now += 1.0 if run == 0 else ms / 1e3
                yield now

    values = times()
    monkeypatch.setattr(Clock, "mark", lambda clock: next(values))
    monkeypatch.setattr(speed, "bandwidth", lambda device: 1e9)
    return steps


def test_the_first_step_and_the_first_run_are_apart(world: World, slow_first: list[float]) -> None:
    (numbers,) = measure([case(world)], GIVEN)
    assert numbers["steps"] == 9 and numbers["measured_steps"] == 8 and not numbers["derived"]
    assert numbers["ms_per_step"] == pytest.approx(4.5)
    assert numbers["mean_ms"] == pytest.approx(4.5)
    assert numbers["p95_ms"] == pytest.approx(np.percentile(slow_first * 3, 95))
    assert numbers["prefill_ms"] == pytest.approx(100)
    assert numbers["first_frame_ms"] == pytest.approx(100 + sum(slow_first))
    assert numbers["fps"] == pytest.approx(8 / (9 * 4.5e-3))
    assert numbers["mean_ms_by_repeat"] == pytest.approx([4.5] * 3)
    assert numbers["tokens_per_step"] == pytest.approx(24 / 9) and numbers["max_tokens_per_step"] == 4
    assert numbers["tokens_per_second"] == pytest.approx(24 / (9 * 4.5e-3))
    assert numbers["bandwidth_gbs"] == 1


def test_the_floor_is_bytes_over_bandwidth_without_the_first_step(world: World, slow_first: list[float]) -> None:
    (numbers,) = measure([case(world)], GIVEN)
    plan = world.stream(torch.zeros(2, 4, 6, dtype=torch.long), frames=8, schedule="diagonal:k=1").windows[0][1]
    read = step_bytes(Traffic.of(world.model, torch.float32), [plan])[1:].mean()
    assert numbers["floor_ms"] == pytest.approx(1e3 * read / 1e9)
    assert numbers["floor_ratio"] == pytest.approx(4.5 / numbers["floor_ms"])


class Counted:
    """A model that counts its calls."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache_spec, self.calls = model, model.cache_spec, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.model(*arguments)


def test_fewer_steps_are_run_and_said_to_be_derived(world: World) -> None:
    other = world.at(*world.size)
    other.runner = counted = Counted(other.model)
    settings = WorldSettings(frames=16, known=1, steps=5, repeat=2, warmup=1, tokenizer=False)
    (numbers,) = measure([case(other, "raster")], settings)
    assert counted.calls == (1 + 2) * (1 + 1 + 5)  # the prompt, the first step, and those that are measured
    assert numbers["derived"] and numbers["measured_steps"] == 5 and numbers["steps"] == 48
    assert numbers["first_frame_ms"] is None and numbers["known"] == 1
    assert numbers["fps"] == pytest.approx(16e3 / (48 * numbers["mean_ms"]))
    whole = WorldSettings(frames=16, steps=47, repeat=1, tokenizer=False)
    assert not measure([case(other, "raster")], whole)[0]["derived"]


def test_a_plan_is_cut_across_windows(world: World) -> None:
    windows = world.stream(torch.zeros(2, 4, 6, dtype=torch.long), frames=48, schedule="diagonal:k=1").windows
    lengths = [len(plan.steps) for _, plan in windows]
    assert len(lengths) > 1
    assert cut(windows, None) == windows
    assert [len(plan.steps) for _, plan in cut(windows, 4)] == [5]
    assert [len(plan.steps) for _, plan in cut(windows, lengths[0] - 1)] == lengths[:1]
    assert [len(plan.steps) for _, plan in cut(windows, lengths[0])] == [lengths[0], 1]
    assert [len(plan.steps) for _, plan in cut(windows, 10**6)] == lengths


def test_cases_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = speed._run

    def noted(one: Case, settings: WorldSettings) -> speed.TimedRun:
        seen.append(str(one.order))
        return run(one, settings)

    monkeypatch.setattr(speed, "_run", noted)
    cases = [case(world, "raster"), case(world)]
    counts: list[int] = []
    results = measure(cases, WorldSettings(frames=8, repeat=2, tokenizer=False), lambda: counts.append(1))
    assert seen == ["raster", "diagonal:k=1"] * 3 and len(counts) == 6
    assert [one["schedule"] for one in results] == ["raster", "diagonal:k=1"]


def test_rates_with_pixels_are_of_the_streamed_run_or_else_of_the_sum() -> None:
    facts = {"batch": 1, "steps": 10, "measured_steps": 9, "frames": 8, "tokens_per_step": 3.0}
    alone, added, streamed = (speed._rates(facts, 2.0, *times) for times in ((None, None), (5.0, None), (5.0, 30.0)))
    assert alone["fps"] == added["fps"] == streamed["fps"] == 400.0 and alone["tokens_per_second"] == 1500.0
    # The streamed run is timed from the end of its first step on.
    assert [one["fps_with_tokenizer"] for one in (alone, added, streamed)] == [None, 320.0, 250.0]
    assert not alone["derived"] and speed._rates(facts | {"measured_steps": 4}, 2.0, None, None)["derived"]
    three = speed._rates(facts | {"batch": 3}, 2.0, 5.0, 30.0)
    for rate in ("fps", "fps_with_tokenizer", "tokens_per_second"):
        assert three[rate] == pytest.approx(3 * streamed[rate])


def test_a_batch_counts_the_frames_tokens_and_bytes_of_all_prompts(world: World, slow_first: list[float]) -> None:
    (numbers,) = measure([case(world)], WorldSettings(frames=8, batch=3, tokenizer=False))
    assert numbers["batch"] == 3 and numbers["frames"] == 8 and numbers["steps"] == 9
    assert numbers["tokens_per_step"] == pytest.approx(24 / 9)
    assert numbers["fps"] == pytest.approx(3 * 8 / (9 * 4.5e-3))
    assert numbers["tokens_per_second"] == pytest.approx(3 * 24 / (9 * 4.5e-3))
    plan = world.stream(torch.zeros(2, 4, 6, dtype=torch.long), frames=8, schedule="diagonal:k=1").windows[0][1]
    one, three = (Traffic.of(world.model, torch.float32, batch) for batch in (1, 3))
    assert numbers["floor_ms"] == pytest.approx(1e3 * step_bytes(three, [plan])[1:].mean() / 1e9)
    assert numbers["floor_ms"] > 1e3 * step_bytes(one, [plan])[1:].mean() / 1e9


def test_the_prompts_of_a_batch_differ_and_the_first_is_that_of_a_batch_of_one(world: World) -> None:
    one, three = (speed.decoding(case(world), WorldSettings(frames=8, batch=batch)) for batch in (1, 3))
    prompts = three.video.units_BTU[:, : three.known]
    assert len(three.video.units_BTU) == 3 and len(prompts.unique(dim=0)) == 3
    assert torch.equal(prompts[:1], one.video.units_BTU[:, : one.known])
    assert three.frames == one.frames and three.calls == one.calls


def test_each_prompt_of_a_batch_has_a_text_of_its_own() -> None:
    world = load("cosmos/tiny-text")
    (numbers,) = measure([case(world)], WorldSettings(frames=8, batch=2, repeat=1))
    assert numbers["batch"] == 2 and numbers["fps_with_tokenizer"] > 0 and numbers["tokenizer_ms"] > 0
    guided = speed.with_text(world, 2)
    assert {len(part) for pair in guided.runner.text for part in pair} == {2}
    traffic = Traffic.of(world.model, torch.float32, 2)
    plan = world.stream(torch.zeros(2, 4, 6, dtype=torch.long), frames=8, schedule="diagonal:k=1").windows[0][1]
    read = step_bytes(traffic, [plan], text_rows=512)[1:].mean()
    assert numbers["floor_ms"] == pytest.approx(1e3 * read / (1e9 * numbers["bandwidth_gbs"]))


@pytest.mark.parametrize("name", ["mcar/tiny", "cosmos/tiny-text"])
def test_real_numbers_agree_with_each_other(name: str) -> None:
    world = load(name, dtype=torch.bfloat16, seed=1)
    (numbers,) = measure([case(world)], WorldSettings(frames=8, steps=20, repeat=2))
    new = 8 // world.tokenizer.stride
    assert numbers["model"] == name and numbers["dtype"] == "bfloat16" and numbers["weights"] == "random"
    assert numbers["parameters"] == sum(p.numel() for p in world.model.parameters())
    assert numbers["fps"] == pytest.approx(numbers["frames"] / (numbers["steps"] * numbers["mean_ms"] / 1e3))
    both = numbers["steps"] * numbers["mean_ms"] + numbers["tokenizer_ms"]
    if numbers["derived"]:
        assert numbers["fps_with_tokenizer"] == pytest.approx(1e3 * numbers["frames"] / both)
    else:
        assert numbers["fps_with_tokenizer"] > 0  # timed in a run of its own
    assert numbers["floor_ratio"] == pytest.approx(numbers["ms_per_step"] / numbers["floor_ms"])
    assert np.mean(numbers["mean_ms_by_repeat"]) == pytest.approx(numbers["mean_ms"])
    # A frame of tokens takes its share of the tokenizer's time, and comes after the prefill.
    if not numbers["derived"]:
        assert numbers["first_frame_ms"] > numbers["prefill_ms"] + numbers["tokenizer_ms"] / new
    assert numbers["ms_per_step"] <= numbers["p95_ms"]
    assert numbers["warmup_s"] > 0 and numbers["peak_gb"] is None and numbers["driver"] is None
    json.dumps(numbers)


def test_a_model_with_text_reads_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "bandwidth", lambda device: 1e9)
    world = load("cosmos/tiny-text")
    (numbers,) = measure([case(world)], WorldSettings(frames=8, repeat=1, tokenizer=False))
    plan = world.stream(torch.zeros(2, 4, 6, dtype=torch.long), frames=8, schedule="diagonal:k=1").windows[0][1]
    read = step_bytes(Traffic.of(world.model, torch.float32), [plan], text_rows=512)[1:].mean()
    assert numbers["floor_ms"] == pytest.approx(1e3 * read / 1e9)
    guided = speed.with_text(world)
    assert guided.runner.text[0][0].shape[2] == 512 and world.runner is world.model


def test_every_number_that_needs_words_has_them(world: World) -> None:
    (numbers,) = measure([case(world)], WorldSettings(frames=8, repeat=1))
    named = {word.strip("():;,.") for word in DEFINITION.split()}
    timed = {key for key in numbers if key.startswith(("ms_", "fps", "floor", "peak")) or key.endswith(("_ms", "_s"))}
    assert timed | {"batch", "derived", "bandwidth_gbs", "measured_steps", "tokens_per_second"} <= named


@pytest.mark.parametrize("wrong", [{"repeat": 0}, {"warmup": 0}, {"steps": 0}, {"known": 0}, {"batch": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, int]) -> None:
    ((name, _),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}=0 given"):
        WorldSettings(**wrong)  # type: ignore[arg-type]


def test_a_plan_of_one_step_cannot_be_measured(world: World) -> None:
    with pytest.raises(ValueError, match="all in its first step; measure more frames"):
        measure([case(world.at(16, 16))], GIVEN)


def test_a_device_without_a_clock_is_refused() -> None:
    for measured in (machine.check_timed, machine.bandwidth):
        with pytest.raises(ValueError, match="'meta' has no clock here; times are taken on cpu and cuda"):
            measured(torch.device("meta"))


def test_a_copy_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read and written; the best of the copies counts. Here they take 4, 3, 2, 5, ... seconds."""
    moments = iter(np.cumsum([0, 4, 3, 2, *[5] * 7]).tolist())
    monkeypatch.setattr(Clock, "mark", lambda clock: next(moments))
    monkeypatch.setitem(machine.COPY_BYTES, "cpu", 1000)
    assert machine.bandwidth(torch.device("cpu")) == pytest.approx(2 * 1000 / 2)


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert machine.commit(package) is None
    git("init", "-q")
    assert machine.commit(package) is None  # inside a checkout that does not know it
    git("add", ".")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "--short", "HEAD")
    assert machine.commit(package) == head
    (tmp_path / "elsewhere.py").write_text("1")
    assert machine.commit(package) == head
    (package / "__init__.py").write_text("1")
    assert machine.commit(package) == f"{head}-dirty"


# The table


def result(schedule: str, fps: float, steps: int, **changes: Any) -> dict[str, Any]:
    facts = {"model": "m", "device": "d", "dtype": "bfloat16", "weights": "random", "frames": 24, "known": 2}
    times = {"ms_per_step": 2.0, "mean_ms": 2.5, "floor_ms": 1.0, "floor_ratio": 2.0, "fps_with_tokenizer": None}
    rest = {"derived": False, "peak_gb": 9.871, "commit": "abc"}
    return facts | times | rest | {"schedule": schedule, "fps": fps, "steps": steps} | changes


def test_the_table_has_a_row_for_every_case_and_speed_ups_over_raster(tmp_path: Path) -> None:
    slow, fast = result("raster", 0.5, 7680, derived=True), result("diagonal:k=2,d=10", 20.0, 162)
    other = result("diagonal:k=1", 3.0, 309, dtype="float32", fps_with_tokenizer=2.5, peak_gb=None)
    (tmp_path / "a.json").write_text(json.dumps({"kind": "bench", "cases": [fast, other]}))
    (tmp_path / "b.json").write_text(json.dumps({"kind": "bench", "cases": [slow]}))
    (tmp_path / "c.json").write_text(json.dumps({"rows": []}))
    cases = table.read(tmp_path)
    assert cases == [fast, other, slow]
    lines = table.markdown(cases).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    heading, _, first, second, third = rows
    assert {len(row) for row in rows} == {len(heading)}
    named = [dict(zip(heading, row, strict=True)) for row in (first, second, third)]
    assert [row["schedule"] for row in named] == ["`raster`", "`diagonal:k=2,d=10`", "`diagonal:k=1`"]
    assert [row["speed-up"] for row in named] == ["1.00x\\*", "40.00x\\*", ""]
    assert [row["FPS"] for row in named] == ["0.50\\*", "20.00", "3.00"]
    assert [row["FPS with tokenizer"] for row in named] == ["", "", "2.50"]
    assert [row["peak GB"] for row in named] == ["9.87", "9.87", ""]
    assert "derived" in lines[-1]


def test_of_a_video_case_that_several_files_have_the_newest_is_shown(tmp_path: Path) -> None:
    about = {"preset": "p", "decoder": "none", "width": 832, "height": 480, "first_frame_ms": 1.0}
    cases = [
        result("2", fps, 17, **about | {"decoder": decoder}) for fps, decoder in ((1, "none"), (2, "vae"), (3, "none"))
    ]
    for day, some in (("15", cases[:2]), ("16", cases[2:])):
        (tmp_path / f"2026-11-{day}.json").write_text(json.dumps({"kind": "bench", "cases": some}))
    assert _video_rows(tmp_path) == ["3.0", "2.0"]
    newer = [result("2", 4, 17, **about | {"decoder": "preview", "text_rows": 128})]
    (tmp_path / "2026-11-17.json").write_text(json.dumps({"kind": "bench", "cases": newer}))
    assert _video_rows(tmp_path) == ["4.0", "2.0"]  # what it says of latents alone is newer too


def _video_rows(folder: Path) -> list[str]:
    lines = table.markdown(table.read(folder)).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    fps = [cell.strip() for cell in lines[0].split("|")].index("FPS")
    return [line.split("|")[fps].strip() for line in lines[2:]]


def test_of_a_token_case_that_several_files_have_the_newest_with_and_without_pixels_is_shown(tmp_path: Path) -> None:
    old = [result("raster", 1, 90), result("raster", 2, 90, fps_with_tokenizer=1.5)]
    for day, some in (("15", old), ("16", [result("raster", 3, 90)])):
        (tmp_path / f"2026-11-{day}.json").write_text(json.dumps({"kind": "bench", "cases": some}))
    shown = [line.split("|")[11].strip() for line in table.markdown(table.read(tmp_path)).splitlines()[2:4]]
    assert sorted(shown) == ["2.00", "3.00"]


def test_batches_are_cases_of_their_own_and_compared_with_their_own_raster() -> None:
    cases = [result("raster", 1, 90), result("diagonal:k=1", 4, 9), result("diagonal:k=1", 12, 9, batch=8)]
    rows = [line.split("|")[1:-1] for line in table.markdown(cases).splitlines()[2:]]
    assert sorted((row[5].strip(), row[12].strip()) for row in rows) == [
        ("24", "1.00x"),
        ("24", "4.00x"),
        ("8 x 24", ""),
    ]


def test_the_table_goes_between_its_marks_and_can_be_renewed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
    for content in ("first", "second"):
        table.insert(page, content)
        assert page.read_text() == f"before\n<!-- bench -->\n{content}\n<!-- /bench -->\nafter\n"
    for wrong in ("none", "<!-- /bench --><!-- bench -->", "<!-- bench --><!-- bench --><!-- /bench -->"):
        page.write_text(wrong)
        with pytest.raises(ValueError, match="must have one line <!-- bench -->"):
            table.insert(page, "new")
        assert page.read_text() == wrong


def test_a_table_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results of kind 'bench'"):
        table.markdown(table.read(tmp_path))


# The picture


def test_the_picture_shows_every_case_below_the_floor(tmp_path: Path) -> None:
    cases = [result("raster", 0.5, 7680), result("diagonal:k=2", 9.0, 426), result("diagonal:k=1,d=1", 30.0, 105)]
    draw.save_speed(cases, tmp_path / "speed.png", "m on d")
    pixels = np.asarray(Image.open(tmp_path / "speed.png"))
    for colour in (draw._POINT, draw._FLOOR):
        rows, columns = np.nonzero((pixels == colour).all(-1))
        assert len(rows) > 100
        # Fewer steps, to the left, are faster: higher up.
        assert rows[columns.argmin()] < rows[columns.argmax()]
    highest = [np.nonzero((pixels == colour).all(-1))[0].min() for colour in (draw._POINT, draw._FLOOR)]
    assert highest[1] < highest[0]
    draw.save_speed(cases[:1], tmp_path / "one.png", "m on d")
    draw.save_speed([cases[0], cases[0] | {"dtype": "float32"}], tmp_path / "two.png", "m on d")
    one, two = (np.asarray(Image.open(tmp_path / name)) for name in ("one.png", "two.png"))
    assert (two == draw.INK).all(-1).sum() > (one == draw.INK).all(-1).sum()  # dtypes are named where they differ
    with pytest.raises(ValueError, match=r"must end in \.png"):
        draw.save_speed(cases, tmp_path / "speed.jpg", "m on d")


def test_an_axis_is_logarithmic() -> None:
    axis = draw._Axis(1, 100)
    assert [axis.share(value) for value in (1, 10, 100)] == pytest.approx([0, 0.5, 1])
    assert axis.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert draw._Axis.over([3, 3]).share(3) == pytest.approx(0.5)
