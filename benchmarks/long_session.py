"""Does a session that never ends need more and more? Memory and pace of a world that is played for very many frames.

    python benchmarks/long_session.py --frames 100000 --out benchmarks/results/NAME.json [--model doom/tiny]

Frames have two cells, so that many of them fit into an hour; a session keeps the same things of larger ones. The memory
is what the process holds (resident set), and what a snapshot takes as JSON, after each twentieth of all. The pace
is that of the machine on that day; that it does not fall is what counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diagonal import World
from diagonal.catalog.names import find
from diagonal.media.files import atomic

PAGE = 4096  # bytes
PARTS = 20
ROWS, COLS, LAYERS = 1, 2, 1  # cells of a frame, and blocks of the model


def resident() -> float:
    """MB that this process holds in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE / 1e6


def main() -> None:
    """Play, look, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="doom/tiny")
    parser.add_argument("--schedule", default="diagonal:k=1")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    variant = find("models", given.model)
    config = replace(variant.config, rows=ROWS, cols=COLS, layers=LAYERS)
    world = World(given.model, replace(variant, config=config), find("tokenizers", variant.tokenizer), "random", "cpu")
    prompt = torch.randint(1, config.codebook, (2, ROWS, COLS))
    session = world.play(prompt, world.actions.parse("forward"), schedule=given.schedule, seed=0)
    actions = world.actions.parse("forward*8,left*4,forward*5,right*6")
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for number in range(1, given.frames + 1):
        session.step(actions[number % len(actions)])
        if number % max(1, given.frames // PARTS) == 0:
            gc.collect()
            row = {
                "frames": number,
                "resident_mb": round(resident(), 1),
                "snapshot_kb": round(len(json.dumps(session.snapshot().as_json())) / 1000, 1),
                "fps": round(max(1, given.frames // PARTS) / (time.perf_counter() - began), 1),
            }
            rows.append(row)
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            began = time.perf_counter()
    result = {
        "command": " ".join(["python", *sys.argv]),
        "model": given.model,
        "schedule": given.schedule,
        "rows": rows,
    }
    with atomic(given.out) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
