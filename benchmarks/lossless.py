"""How many calls raster's own tokens take, and how fast they come: the tables of docs/lossless.md, in two steps:

    diagonal record --frames 8000 --seed 7000000 --out DATA                    # needs vizdoom: held-out episodes
    python benchmarks/lossless.py --data DATA --out RESULT.json [--device cuda --dtype bfloat16]

Where the recording is not, its clips are enough: `--keep CLIPS.safetensors` writes them as tokens, and
`--data CLIPS.safetensors` takes them.

Every schedule continues the same clips along the actions that were really taken, with the same seeds. `equal` is the
share of tokens that are raster's, over all clips, many at a time. A batch waits for its slowest sample, so calls and
times are of `--alone` clips, one at a time; times are those of tokens, without pixels. Rows that are there are kept:
the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import diagonal
from diagonal import World
from diagonal.evaluation.report import as_json
from diagonal.evaluation.rollouts import cut
from diagonal.media.files import atomic
from diagonal.training.data.recordings import frames as read_frames
from diagonal.worlds import vizdoom

RASTER, DEFAULT = "raster", "lossless"
SCHEDULES = [
    *(RASTER, "diagonal:k=1", "diagonal:k=2", DEFAULT),
    *(f"lossless:window={window}" for window in (2, 4, 8, 16, 32, 64, 128, 192)),
    *(f"lossless:window=64,draft={draft}" for draft in ("above", "repeat", "diagonal")),
    *(f"lossless:window=64,rule={rule}" for rule in ("sjd", "coupled", "gumbel")),
]
STRICT = [RASTER, DEFAULT, "lossless:draft=diagonal"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CONTEXT = 4  # frames of a prompt


@dataclass(frozen=True)
class Bench:
    """What the rows share."""

    world: World
    prompts: Tensor  # (clips, T, rows, cols)
    actions: Tensor  # (clips, frames - 1): the numbers of those that were taken
    alone: int  # clips that are timed
    batch: int

    def decode(self, schedule: str, first: int, last: int) -> tuple[Tensor, int, float]:
        """Tokens (B, T, H, W) of some clips decoded together, the calls and the seconds that they took."""
        names = [[vizdoom.ACTIONS[index] for index in row] for row in self.actions[first:last].tolist()]
        stream = self.world.stream(self.prompts[first:last], names, schedule=schedule, seed=list(range(first, last)))
        calls = 0

        def count() -> None:
            nonlocal calls
            calls += 1

        stream.on_call = count
        began = time.perf_counter()
        tokens = torch.stack([frame.tokens.cpu() for frame in stream.token_frames()], dim=1)
        return tokens, calls, time.perf_counter() - began

    def all_tokens(self, schedule: str) -> Tensor:
        """Tokens (clips, T, H, W) of every clip."""
        count = len(self.prompts)
        parts = [(first, min(first + self.batch, count)) for first in range(0, count, self.batch)]
        return torch.cat([self.decode(schedule, *part)[0] for part in parts])

    def agreement(self, schedule: str, raster: Tensor) -> dict[str, float]:
        """How much of it is raster's."""
        equal = (raster if schedule == RASTER else self.all_tokens(schedule)) == raster
        return {
            "equal": float(equal.double().mean()),
            "frames_equal": float(equal.flatten(2).all(-1).double().mean()),
        }

    def cost(self, schedule: str) -> dict[str, float]:
        """What a schedule takes of one clip at a time."""
        self.decode(schedule, 0, 1)  # set-up: kernels, graphs
        frames = self.actions.shape[1] + 1 - self.prompts.shape[1]
        runs = [self.decode(schedule, index, index + 1) for index in range(self.alone)]
        calls = [run[1] / frames for run in runs]
        milliseconds = statistics.median(run[2] for run in runs) / frames * 1000
        numbers = {"calls": statistics.mean(calls), "fewest": min(calls), "most": max(calls)}
        return numbers | {"ms_per_frame": milliseconds, "fps": 1000 / milliseconds}


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads or torch.get_num_threads())
    world = diagonal.load("doom", device=given.device, dtype=DTYPES[given.dtype])
    world = world if given.strict is None else world.strict(given.strict)
    bench = Bench(world, *clips(given, world), given.alone, given.batch)
    raster: Tensor | None = None
    about = {"command": " ".join(sys.argv), "device": device_name(given.device), "dtype": given.dtype}
    about |= {
        "strict": given.strict,
        "torch": torch.__version__,
        "clips": given.clips,
        "frames": given.frames,
        "alone": given.alone,
    }
    kept = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    rows = {row["schedule"]: row for row in kept}
    parts = ("agreement", "cost") if given.part is None else (given.part,)
    for schedule in given.schedule or (SCHEDULES if given.strict is None else STRICT):
        row = rows.setdefault(schedule, {"schedule": schedule})
        if "agreement" in parts and "equal" not in row:
            raster = bench.all_tokens(RASTER) if raster is None else raster
            row |= bench.agreement(schedule, raster)
        if "cost" in parts and "calls" not in row:
            row |= bench.cost(schedule)
        with atomic(given.out) as temporary:
            temporary.write_text(as_json(about | {"rows": list(rows.values())}))
    sys.stdout.write(table(list(rows.values())))


def clips(given: argparse.Namespace, world: World) -> tuple[Tensor, Tensor]:
    """The prompts as tokens, and all actions: of a recording, or kept from one."""
    if given.data.is_file():
        found = load_file(given.data, device=given.device)
        tokens, actions = found["tokens"].long(), found["actions"].long()
        return tokens[: given.clips], actions[: given.clips, : CONTEXT + given.frames - 1]
    made = cut(read_frames(given.data, world.size, given.device), given.clips, CONTEXT, given.frames)
    prompts = torch.cat([world.tokenizer.encode(part[:, :CONTEXT]) for part in made.frames.split(64)])
    if given.keep is not None:
        with atomic(given.keep) as temporary:
            save_file({"tokens": prompts.to(torch.int16), "actions": made.actions.to(torch.int8)}, temporary)
    return prompts, made.actions


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a held-out recording, or its clips")
    parser.add_argument("--keep", type=Path, help="where the recording's clips go, as tokens and actions")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    parser.add_argument("--schedule", action="append", help="rows; default: all")
    parser.add_argument(
        "--part", choices=("agreement", "cost"), help="half of the numbers, for times on a quiet machine"
    )
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--alone", type=int, default=8, help="clips that are timed, one at a time")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--strict", type=int, help="inputs of every call, raster's too: rows without a window alone")
    return parser.parse_args()


def device_name(device: str) -> str:
    return "cpu" if device == "cpu" else torch.cuda.get_device_name()


def table(rows: list[dict[str, Any]]) -> str:
    """As docs/lossless.md has it; speeds are compared with raster of the same run."""
    lines = ["| schedule | tokens equal | calls a frame | ms a frame | against raster |", "|---|---|---|---|---|"]
    base = next((row["ms_per_frame"] for row in rows if row["schedule"] == RASTER and "calls" in row), None)
    for row in rows:
        equal = share(row["equal"]) if "equal" in row else ""
        cost = ["", ""] if "calls" not in row else [f"{row['calls']:.1f}", f"{row['ms_per_frame']:.0f}"]
        against = f"{base / row['ms_per_frame']:.2f}x" if base and "calls" in row else ""
        lines.append("| " + " | ".join([f"`{row['schedule']}`", equal, *cost, against]) + " |")
    return "\n".join(lines) + "\n"


def share(equal: float) -> str:
    """Rounded, but never to all."""
    return "100 %" if equal == 1 else f"{min(equal, 0.9999):.2%}".replace("%", " %")


if __name__ == "__main__":
    main()
