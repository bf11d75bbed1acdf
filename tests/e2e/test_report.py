"""The papers' tables: printed as they are, filled from files of results, empty where nothing was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant, Variant
from diagonal.cli.report import PAPERS, Reported
from diagonal.evaluation import metrics
from diagonal.evaluation.papers import Paper, Table, diagonal_decoding, diagonal_distillation
from diagonal.evaluation.papers.measured import SPEEDS, Results
from diagonal.evaluation.papers.page import blocks, html, markdown
from tests.e2e.conftest import numbers_of
from tests.e2e.test_evaluate_folders import diagonal

BENCH = {"weights": "random", "dtype": "bfloat16", "quantize": "none", "device": "NVIDIA H200", "derived": False}
TOKENS = BENCH | {"model": "cosmos/4b", "schedule": "diagonal:k=2,d=10", "frames": 24, "tokens_per_second": 17751.0}
VIDEO = BENCH | {"model": "wan/1.3b", "preset": "diagonal-distillation", "frames": 81, "first_frame_ms": 144.0}
VIDEO |= {"schedule": "diagonal:steps=4322222,context=100,shift=5.0", "decoder": "vae", "derived": None}
DECODING, DISTILLATION = diagonal_decoding.PAPER, diagonal_distillation.PAPER
DOCS = Path(__file__).parents[2] / "docs" / "papers" / "diagonal-decoding.md"


def bench(folder: Path, name: str, *cases: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"kind": "bench", "command": f"diagonal {name}", "cases": cases}))


def table(paper: Paper, number: str) -> Table:
    return next(one for one in paper.tables if one.number == number)


def cell(results: Results, paper: Paper, number: str, label: str, source: str) -> Any:
    one = table(paper, number)
    return results.cell(one, next(row for row in one.rows if row.label == label), source)


def test_every_row_names_what_the_library_has() -> None:
    for paper in (DECODING, DISTILLATION):
        for one in paper.tables:
            for row in one.rows:
                assert len(row.printed) == len(one.columns)
                kind = DiffusionVariant if row.preset else Variant
                assert not row.model or isinstance(find("models", row.model), kind)
            for column in one.columns:
                known = column.source in ("", "calls", *SPEEDS) or column.source.startswith("vbench:")
                assert known or metrics.find(column.source)
    assert [one.number for one in DECODING.tables] == ["1", "2", "3", "4", "5", "6", "7", "10", "11"]
    assert [one.number for one in DISTILLATION.tables] == ["1", "2", "3", "Figure 5", "Figure 8"]
    assert (DECODING.key, DISTILLATION.key) == PAPERS


def test_printed_steps_are_those_of_the_page_about_the_paper() -> None:
    """Two transcriptions, made at different times, of the same column."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in DOCS.read_text().splitlines()]
    told: dict[str, list[str]] = {}
    for line in (line for line in lines if len(line) == 7 and line[3].startswith("k=")):
        for number in re.findall(r"\d+", line[0]):
            told.setdefault(number, []).append(line[5])
    assert told
    for number, steps in told.items():
        ours = [row.printed[-1] for row in table(DECODING, number).rows if row.schedule.startswith("diagonal:")]
        assert set(steps) <= set(ours), number


def test_speed_is_that_of_the_newest_run_with_its_file(tmp_path: Path) -> None:
    bench(tmp_path, "2026-01-02-new", TOKENS | {"fps": 55.5})
    bench(tmp_path, "2026-01-01-old", TOKENS | {"fps": 44.4})
    bench(tmp_path / "2026-01-02-trial", "other", TOKENS | {"fps": 66.6})
    results = Results.of([tmp_path])
    found = cell(results, DECODING, "1", "4B k=2,d=10", "fps")
    assert found.text == "55.5 (NVIDIA H200; random weights)" and found.value == 55.5
    assert found.run == f"{tmp_path}/2026-01-02-new.json: `diagonal 2026-01-02-new`"
    assert cell(results, DECODING, "1", "4B k=2,d=10", "tokens_per_second").text.startswith("17,751")
    assert cell(results, DECODING, "1", "4B NTP", "fps") is None
    assert cell(results, DECODING, "1", "12B k=2,d=10", "fps") is None


@pytest.mark.parametrize("other", [{"dtype": "float32"}, {"quantize": "fp8"}, {"batch": 8}])
def test_other_numbers_and_batches_do_not_count(tmp_path: Path, other: dict[str, Any]) -> None:
    bench(tmp_path, "a", TOKENS | {"fps": 1.0} | other)
    assert cell(Results.of([tmp_path]), DECODING, "1", "4B k=2,d=10", "fps") is None


def test_another_length_is_told(tmp_path: Path) -> None:
    short = TOKENS | {"model": "wham/1.6b", "schedule": "diagonal:k=1", "frames": 10, "fps": 9.84, "derived": True}
    bench(tmp_path, "a", short)
    found = cell(Results.of([tmp_path]), DECODING, "2", "1.6B k=1", "fps")
    assert found.text == "9.84 (NVIDIA H200; 10 frames, derived, random weights)"


def test_videos_count_with_their_pixels_and_speedups_only_between_such(tmp_path: Path) -> None:
    teacher = VIDEO | {"preset": "wan", "schedule": "teacher:steps=50,shift=8.0", "fps": 1.5}
    alone = {"fps": 108.0, "fps_with_tokenizer": None, "decoder": "none"}
    bench(tmp_path, "a", VIDEO | alone, VIDEO | {"fps": 103.0, "fps_with_tokenizer": 54.0})
    bench(tmp_path, "b", teacher | {"fps_with_tokenizer": None, "decoder": "none"})
    found = Results.of([tmp_path])
    assert cell(found, DISTILLATION, "1", "DiaDistill", "fps").value == 54.0
    assert cell(found, DISTILLATION, "3", "4322222", "latency").value == pytest.approx(0.144)
    assert cell(found, DISTILLATION, "3", "4222222", "latency") is None
    assert "latents alone" in cell(found, DISTILLATION, "1", "Wan2.1", "fps").text
    assert cell(found, DISTILLATION, "1", "DiaDistill", "speedup") is None
    bench(tmp_path, "b", teacher | {"fps_with_tokenizer": 1.2})
    assert cell(Results.of([tmp_path]), DISTILLATION, "1", "DiaDistill", "speedup").text == "45.0x"


def scores(data: str, trained: str = "file") -> dict[str, Any]:
    value = {"mean": 152.4, "low": 140.0, "high": 170.0}
    return {
        "run": {"model": "cosmos/4b", "trained": trained, "data": data},
        "speed": {"diagonal-k=2-d=10": {"schedule": "diagonal:k=2,d=10"}},
        "scores": [{"metric": "fvd:cd-fvd", "folder": "diagonal-k=2-d=10", "clips": 100, "value": value}],
        "folders": {"diagonal-k=2-d=10": {}},
    }


def test_quality_is_of_the_data_set_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text(json.dumps(scores("RealEstate10K-test", "random")))
    found = Results.of([tmp_path])
    made = cell(found, DECODING, "1", "4B k=2,d=10", "fvd")
    assert made.text == "152 [140, 170] (fvd:cd-fvd, 100 clips, random weights)"
    assert cell(found, DECODING, "5", "4B k=2,d=10", "fvd") is None
    assert cell(found, DECODING, "1", "4B NTP", "fvd") is None


def test_totals_are_those_of_vbench(tmp_path: Path) -> None:
    content = scores("x") | {"run": {}, "speed": {}, "scores": []}
    run = {"model": "wan/1.3b", "preset": "diagonal-distillation", "schedule": VIDEO["schedule"]}
    content |= {"folders": {"made": {"run": run}}}
    content["vbench"] = {"made": {"totals": {"total": 0.8448, "quality": 0.8526, "semantic": 0.8173}}}
    (tmp_path / "scores.json").write_text(json.dumps(content))
    found = Results.of([tmp_path])
    assert cell(found, DISTILLATION, "1", "DiaDistill", "vbench:total").text == "84.48"
    assert cell(found, DISTILLATION, "1", "Self Forcing", "vbench:total") is None
    content["vbench"]["made"]["totals"] = None
    (tmp_path / "scores.json").write_text(json.dumps(content))
    assert cell(Results.of([tmp_path]), DISTILLATION, "1", "DiaDistill", "vbench:total") is None


def test_steps_are_counted_and_need_no_run() -> None:
    assert cell(Results(), DECODING, "1", "4B k=2,d=10", "calls").text == "0.162"
    assert cell(Results(), DECODING, "1", "14B Diffusion", "calls") is None


def test_every_number_of_ours_has_its_run_and_every_empty_cell_its_reason(tmp_path: Path) -> None:
    bench(tmp_path, "a", TOKENS | {"fps": 55.5})
    made = list(blocks(DECODING, Results.of([tmp_path])))
    page = markdown(DECODING, made)
    first = made[0]
    assert (first.filled, first.cells) == (2 + 9, 70)
    ours = [cells for here, cells in first.lines if here]
    for cells in ours:
        assert all(re.search(r" \[\d+\]$", one) or one == "–" for one in cells[2:])
    numbers = {int(number) for cells in ours for one in cells for number in re.findall(r" \[(\d+)\]$", one)}
    assert numbers == {int(number) for line in first.below for number in re.findall(r"^\[(\d+)\]", line)}
    labels = [row.label for row in table(DECODING, "1").rows]
    for label, cells in zip(labels, ours, strict=True):
        told = [line.partition(": ")[0] for line in first.below if line.startswith(f"– {label}, ")]
        headings = [heading for one in told for heading in one.removeprefix(f"– {label}, ").split(", ")]
        empty = [heading for heading, one in zip(first.headings[2:], cells[2:], strict=True) if one == "–"]
        assert sorted(headings) == sorted(heading.rstrip(" ↑↓") for heading in empty)
    assert "| 4B k=2,d=10 | paper | 137 | 0.978 | 0.599 | 0.46 | 3.41 | 1097 | 0.15 |" in page
    assert f"{tmp_path}/a.json: `diagonal a`" in page
    assert "needs weights of cosmos/4b, and `diagonal evaluate --model cosmos/4b" in page
    shown = html([(DECODING, made)])
    assert shown.count("<table>") == 9 and "<td>55.5 (NVIDIA H200; random weights) [" in shown


def test_what_is_no_result_is_left_aside_or_named(tmp_path: Path) -> None:
    (tmp_path / "note.json").write_text("[1]")
    assert Results.of([tmp_path]).others == [tmp_path / "note.json"]
    (tmp_path / "note.json").write_text("{")
    with pytest.raises(ValueError, match=r"note\.json is no JSON"):
        Results.of([tmp_path])
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        Results.of([tmp_path / "nowhere"])


def test_the_command_writes_the_pages_of_the_project_s_own_results(tmp_path: Path) -> None:
    results = str(Path(__file__).parents[2] / "benchmarks" / "results")
    done = diagonal(tmp_path, "report", "--results", results, "--out", "report", "--json")
    found = numbers_of(done)
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "diagonal-decoding.md",
        "diagonal-distillation.md",
        "report.html",
    }
    filled = found["filled"]["diagonal-decoding"]["Table 1: Cosmos on RealEstate10K, 24 frames after 9"]
    assert filled[0] >= 19 and filled[1] == 70
    assert "without Diagonal Forcing" in (tmp_path / "report" / "diagonal-distillation.md").read_text()


def test_other_papers_are_refused() -> None:
    with pytest.raises(ValueError, match="--paper other is not known; known: diagonal-decoding, diagonal-distillation"):
        Reported(results=[Path()], out_path=Path(), paper="other")
