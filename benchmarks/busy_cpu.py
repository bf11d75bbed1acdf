"""How much slower is a world on a CPU that is also busy elsewhere, by how long OpenMP's threads spin at a barrier?

    python benchmarks/busy_cpu.py --out benchmarks/results/NAME.json [--rounds 5] [--dtype bfloat16]

A sample is a process of its own with two threads: it loads `doom`, makes a frame, and then times the next ones by
`diagonal:k=1`. Settings take turns in every round, first with nothing beside them, then beside each neighbour. Nothing
else may run on the machine. Ratios mean something, times are those of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FRAMES = 3
# What is set before OpenMP is loaded; the library's own default is what `import diagonal` sets.
SETTINGS = {
    "300,000 spins (OpenMP's default)": {"GOMP_SPINCOUNT": "300000"},
    "10,000 spins": {"GOMP_SPINCOUNT": "10000"},
    "5,000 spins": {"GOMP_SPINCOUNT": "5000"},
    "3,000 spins": {"GOMP_SPINCOUNT": "3000"},
    "2,000 spins": {"GOMP_SPINCOUNT": "2000"},
    "1,000 spins": {"GOMP_SPINCOUNT": "1000"},
    "100 spins": {"GOMP_SPINCOUNT": "100"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}
SAMPLE = f"""
import sys, time, torch, diagonal
torch.set_num_threads(2)
world = diagonal.load("doom", dtype=getattr(torch, sys.argv[1]))
prompt, between = world.actions.start("hall")
session = world.stream(prompt, between + world.actions.parse("forward*{FRAMES + 1}"), schedule="diagonal:k=1")
next(session)
began = time.perf_counter()
list(session)
print((time.perf_counter() - began) / {FRAMES})
"""
# Small matrix products, as of a model that decodes: two threads that meet at a barrier all the time.
TORCH = """
import torch
torch.set_num_threads(2)
a, b = torch.randn(384, 384), torch.randn(384, 12)
print("ready", flush=True)
while True:
    torch.relu(a @ b)
"""
LOOP = "print('ready', flush=True)\nwhile True: pass"
NEIGHBOURS: dict[str, list[tuple[str, dict[str, str]]]] = {
    "nothing": [],
    "two threads of PyTorch, OpenMP's default": [(TORCH, {"GOMP_SPINCOUNT": "300000"})],
    "two threads of PyTorch, the same setting": [(TORCH, {})],
    "two busy loops": [(LOOP, {}), (LOOP, {})],
}


def environment(setting: dict[str, str]) -> dict[str, str]:
    """This process's, with one setting of OpenMP and no other."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    return kept | setting


@contextmanager
def beside(name: str, setting: dict[str, str]) -> Iterator[None]:
    """Neighbours that work all the time."""
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment(own or setting), stdout=subprocess.PIPE)
        for code, own in NEIGHBOURS[name]
    ]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def sample(setting: dict[str, str], dtype: str) -> float:
    """Seconds a frame."""
    command = [sys.executable, "-c", SAMPLE, dtype]
    done = subprocess.run(command, env=environment(setting), capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--neighbours", nargs="+", choices=NEIGHBOURS, default=list(NEIGHBOURS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    given = parser.parse_args()
    ms: dict[str, dict[str, list[float]]] = {one: {name: [] for name in given.settings} for one in given.neighbours}
    for neighbour, found in ms.items():
        for _ in range(given.rounds):
            for name in given.settings:
                with beside(neighbour, SETTINGS[name]):
                    found[name].append(1e3 * sample(SETTINGS[name], given.dtype))
        for name, values in found.items():
            sys.stdout.write(f"{neighbour}: {name}: {statistics.median(values):.0f} ms {[round(v) for v in values]}\n")
            sys.stdout.flush()
    result = {"command": " ".join(["python", *sys.argv]), "dtype": given.dtype, "cores": os.cpu_count(), "ms": ms}
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
