"""Energy of what runs on a GPU: its power, read again and again while something runs, over the time that it took."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

EVERY = 0.1  # seconds between two readings


def gpu_watts() -> float | None:
    """What the first GPU draws now; None where nobody can say."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--id=0", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=10)
    try:
        return float(done.stdout.strip())
    except ValueError:
        return None


class Energy:
    """`with Energy() as used: ...`, then `used.joules`; None where there is no meter. Idle power is in it."""

    def __init__(self, meter: Callable[[], float | None] = gpu_watts) -> None:
        self.joules: float | None = None
        self._meter, self._readings = meter, list[float]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        seconds = time.perf_counter() - self._began
        self._over.set()
        self._thread.join()
        if self._readings:
            self.joules = statistics.mean(self._readings) * seconds

    def _read(self) -> None:
        while True:
            watts = self._meter()
            if watts is None:
                return
            self._readings.append(watts)
            if self._over.wait(EVERY):
                return
