"""What a session weighs: bytes of its images and of its snapshots.

    python benchmarks/sessions.py --model doom --frames 170 --out benchmarks/results/2026-11-19-cpu-sessions.json

A player that walks and turns by a fixed rule; images as the server sends them. docs/scale.md computes bandwidth and
storage from these numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import diagonal
from diagonal.media.files import atomic
from diagonal.server.images import encode

MOVES = ("forward", "forward", "forward+left", "forward", "right", "forward", "forward+right", "left")
FORMATS = (("jpeg", 85), ("webp", 90))


def measured(model: str, start: str, frames: int) -> dict[str, Any]:
    """The mean image, and a snapshot's size by the number of frames that were played."""
    world = diagonal.load(model)
    session = world.play(start, seed=0)
    sizes: dict[str, list[int]] = {f"{kind} {quality}": [] for kind, quality in FORMATS}
    snapshots = {}
    for number in range(1, frames + 1):
        piece = session.step(MOVES[number // 4 % len(MOVES)])
        for kind, quality in FORMATS:
            sizes[f"{kind} {quality}"].append(len(encode(piece.frame, kind, quality)))
        if number in (1, 16, 64, frames):
            snapshots[str(number)] = len(json.dumps(session.snapshot().as_json()))
    means = {name: round(statistics.mean(values)) for name, values in sizes.items()}
    most = {name: max(values) for name, values in sizes.items()}
    height, width = world.size
    about = {"model": model, "start": start, "frames": frames, "size": [height, width]}
    return about | {"fps": float(world.variant.fps), "image_bytes": means, "largest": most, "snapshot_bytes": snapshots}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="doom")
    parser.add_argument("--start", default="hall")
    parser.add_argument("--frames", type=int, default=170)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with atomic(options.out) as temporary:
        temporary.write_text(json.dumps(measured(options.model, options.start, options.frames), indent=1) + "\n")


if __name__ == "__main__":
    main()
