"""Energy is mean power times time, and nothing where no meter is."""

from __future__ import annotations

import time

import pytest

from diagonal.evaluation.speed.energy import Energy, gpu_watts


def test_energy_is_power_over_time() -> None:
    began = time.perf_counter()
    with Energy(lambda: 50.0) as used:
        time.sleep(0.25)
    assert used.joules is not None
    assert 50 * 0.25 <= used.joules <= 50 * (time.perf_counter() - began)


def test_without_a_meter_there_is_no_number() -> None:
    with Energy(lambda: None) as used:
        pass
    assert used.joules is None


def test_what_fails_inside_is_heard_and_the_meter_is_put_away() -> None:
    used = Energy(lambda: 1.0)
    with pytest.raises(ValueError, match="no"), used:
        raise ValueError("no")
    assert not used._thread.is_alive()


@pytest.mark.parametrize(("said", "watts"), [("123.45\n", 123.45), ("[N/A]\n", None), ("", None)])
def test_the_gpu_is_asked_for_its_power(said: str, watts: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        stdout = said

    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: Done)
    assert gpu_watts() == watts
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert gpu_watts() is None
