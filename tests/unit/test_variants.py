"""What `benchmarks/variants.py` sets, and that it sets it back."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.variants import compare, settings_of
from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.device import SWITCH
from diagonal.engine.tokens import runner
from diagonal.evaluation.speed.world import WorldSettings


def test_a_variant_is_constants_of_modules_and_tables() -> None:
    table = "engine.kernels.tuning.HOPPER.wgmma"
    found = settings_of(f"engine.tokens.runner.NARROW=16 {table}.least_fill=0.6 {table}.weight_bytes=64<<10")
    tuned = tuning.HOPPER.wgmma
    assert found == [(runner, "NARROW", 16), (tuned, "least_fill", 0.6), (tuned, "weight_bytes", 64 << 10)]
    assert settings_of("") == []


@pytest.mark.parametrize(
    "text",
    [
        "tuning.HOPPER=16",
        "engine.kernels.tuning.HOPPER.wgmma.none=16",
        "engine.tokens.runner.NARROW",
        "engine.tokens.runner.NARROW=x",
    ],
)
def test_what_is_no_number_of_a_module_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no variant; write the place of a number"):
        settings_of(text)


def test_variants_take_turns_and_leave_the_code_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    make = runner.make_runner

    def noted(*given: Any) -> runner.Runner:
        seen.append(runner.NARROW)
        return make(*given)

    monkeypatch.setattr(runner, "make_runner", noted)
    monkeypatch.setenv(SWITCH, "0")  # eager runners are made anew for each video
    usual = runner.NARROW
    how = WorldSettings(frames=2, known=1, repeat=2, steps=3, tokenizer=False)
    first, second = compare("mcar/tiny", "diagonal:k=1", ["engine.tokens.runner.NARROW=1"], how, "cpu")
    assert seen[:6] == [usual, 1] * 3 and usual == runner.NARROW
    assert first["variant"] == "as it is" and first["times_as_fast"] == [1.0, 1.0]
    assert second["variant"] == "engine.tokens.runner.NARROW=1" and len(second["times_as_fast"]) == 2
