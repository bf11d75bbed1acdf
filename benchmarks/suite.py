"""All results behind the tables of token models, in one command on a GPU:

    python benchmarks/suite.py --out benchmarks/results [--only mcar-700m wham-1.6b]
    python benchmarks/suite.py --out benchmarks/results/papers --papers [--minutes 30] [--list]

Each is a file of `diagonal bench`, DATE-DEVICE-NAME.json, which has the command for it alone. They are made one after
the other in one process. Where one fails the others go on, and the exit code is 1.

`--papers` is every speed that the two papers print, a file for each model and schedule; `diagonal report --results`
puts them into the printed tables. What the folder has of this device is not measured again. `--minutes` starts no
further case after so long; `--list` prints the cases, those that are there, and the least time that the others take.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import torch

from diagonal import cli
from diagonal.evaluation.papers import cases as paper_cases
from diagonal.evaluation.papers.cases import Case
from diagonal.evaluation.speed.machine import describe

# Raster takes too long to be run as a whole: so many steps are measured, and no less than other plans have.
CASES = {
    "cosmos-4b": "--model cosmos/4b --schedule diagonal:k=2,d=10 --schedule diagonal:k=1,d=40 --schedule raster "
    "--steps 400 --repeat 2",
    "cosmos-12b": "--model cosmos/12b --schedule diagonal:k=2,d=10 --schedule diagonal:k=1,d=1 --schedule raster "
    "--no-tokenizer --steps 200 --repeat 2",
    "mcar-300m": "--model mcar/300m --schedule diagonal:k=1 --schedule raster --steps 600 --repeat 2",
    "mcar-700m": "--model mcar/700m --schedule diagonal:k=1 --schedule raster --steps 600 --repeat 2",
    "mcar-1200m": "--model mcar/1200m --schedule diagonal:k=1 --schedule raster --steps 600 --repeat 2",
    "wham-1.6b": "--model wham/1.6b --schedule diagonal:k=1 --schedule raster --frames 10 --steps 600 --repeat 2",
}


def bench(arguments: Sequence[str]) -> int:
    """`diagonal bench` with these arguments: its exit code."""
    before, sys.argv = sys.argv, ["diagonal", "bench", *arguments]
    try:
        cli.main()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # a kernel that does not compile, or too little memory: others may do
        traceback.print_exc()
        return 1
    finally:
        sys.argv = before
        gc.collect()
        torch.cuda.empty_cache()


def named(device: str) -> str:
    """A device as names of files have it."""
    return re.sub(r"\W+", "-", describe(torch.device(device))["device"].lower().removeprefix("nvidia ")).strip("-")


def run(cases: Mapping[str, str], device: str, dtype: str, out: Path, seconds: float = float("inf")) -> list[str]:
    """Make the results of these cases in a folder, starting none after so many seconds; those that failed."""
    what, end, failed = named(device), time.monotonic() + seconds, []
    for name, arguments in cases.items():
        if time.monotonic() >= end:
            sys.stderr.write(f"the time is up; the next case is {name}\n")
            break
        target = out / f"{date.today()}-{what}-{name}.json"
        if bench([*arguments.split(), "--device", device, "--dtype", dtype, "--out", str(target)]):
            failed.append(name)
    return failed


def there(name: str, device: str, out: Path) -> bool:
    """Whether a folder has a case of a device, of whichever day."""
    return any(
        re.fullmatch(r"\d{4}-\d{2}-\d{2}", path.name[:10]) for path in out.glob(f"*-{named(device)}-{name}.json")
    )


def listed(cases: Sequence[Case], device: str, out: Path) -> str:
    """The cases, a line each, and what is left."""
    lines, left = [], [one for one in cases if not there(one.name, device, out)]
    for one in cases:
        least = "" if one.seconds is None else f"at least {one.seconds:.0f} s  "
        lines.append(f"{'left' if one in left else 'done'}  {least}diagonal bench {one.arguments}")
    seconds = sum(one.seconds or 0 for one in left)
    unknown = sum(one.seconds is None for one in left)
    lines.append(
        f"{len(left)} of {len(cases)} are left: {seconds / 60:.0f} minutes at least for reading weights on an H200, "
        f"beside loading, compiling and {unknown} cases of diffusion models"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--papers", action="store_true", help="the papers' tables instead")
    parser.add_argument("--list", action="store_true", help="print the papers' cases and run none")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no case after so long")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    if not given.out.is_dir():
        parser.error(f"--out {given.out} is no folder; make it first")
    if given.list and not given.papers:
        parser.error("--list is for --papers")
    cases = {name: CASES[name] for name in given.only}
    if given.papers:
        every = paper_cases.cases()
        sys.stdout.write(listed(every, given.device, given.out) + "\n")
        cases = {one.name: one.arguments for one in every if not there(one.name, given.device, given.out)}
    failed = [] if given.list else run(cases, given.device, given.dtype, given.out, 60 * given.minutes)
    if failed:
        sys.exit(f"{', '.join(failed)} failed, as said above")


if __name__ == "__main__":
    main()
