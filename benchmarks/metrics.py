"""What every metric says of itself as Markdown tables, on stdout or into a page:

    python -m benchmarks.metrics [--into docs/evaluation.md]

The page must have the lines `<!-- metrics -->`, `<!-- /metrics -->`, `<!-- files -->` and `<!-- /files -->`; what is
between them is replaced.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.table import insert
from diagonal.evaluation import metrics
from diagonal.evaluation.metrics import Beside, Better, Reference

BETTER = {Better.HIGHER: "↑", Better.LOWER: "↓", Better.NEITHER: ""}
AGAINST = {Reference.NONE: "", Reference.PAIR: "true video of the same name", Reference.SET: "set of real videos"}


def table() -> str:
    """A row for each metric."""
    lines = ["| metric | what it is | better | against | variants | needs | from |", "|---" * 7 + "|"]
    for name in metrics.names():
        kind, _ = metrics.find(name)
        about = kind.about
        what = (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        against = AGAINST[about.reference]
        variants = ", ".join(f"`{one}`" for one in about.variants)
        cells = [f"`{name}`", what, BETTER[about.better], against, variants, needs(name), about.citation]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def needs(name: str) -> str:
    """What a metric asks of videos, and the files."""
    about = metrics.find(name)[0].about
    asked = [f"{about.clips} clips"] if about.clips > 1 else []
    asked += [f"{about.frames} frames"] if about.frames > 1 else []
    asked += [f"sides of {about.side} pixels"] if about.side > 1 else []
    asked += [] if about.beside is Beside.NOTHING else [about.beside.value]
    asked += [f"`{file.name}`" for file in about.files]
    asked += [f"`{file.name}` ({', '.join(of)})" for file, of in _own(name).items()]
    return "; ".join(asked)


def _own(name: str) -> dict[metrics.WeightsFile, list[str]]:
    """Files of single variants, and which."""
    found: dict[metrics.WeightsFile, list[str]] = {}
    for variant, files in metrics.find(name)[0].about.own_files.items():
        for file in files:
            found.setdefault(file, []).append(variant)
    return found


def files() -> str:
    """A row for each file of weights."""
    used: dict[metrics.WeightsFile, list[str]] = {}
    for name in metrics.names():
        for file in (*metrics.find(name)[0].about.files, *_own(name)):
            used.setdefault(file, []).append(f"`{name}`")
    lines = ["| file | for | where its authors publish it |", "|---|---|---|"]
    lines += [
        f"| `{one.name}` | {', '.join(used[one])} | {one.where} |" for one in sorted(used, key=lambda one: one.name)
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, help="a page")
    given = parser.parse_args()
    if given.into is None:
        sys.stdout.write(f"{table()}\n\n{files()}\n")
        return
    for name, made in (("metrics", table()), ("files", files())):
        insert(given.into, made, name)


if __name__ == "__main__":
    main()
