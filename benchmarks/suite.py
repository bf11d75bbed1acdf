"""All results behind the tables of token models, in one command on a GPU:

    python benchmarks/suite.py --out benchmarks/results [--only mcar-700m wham-1.6b]

Each is a file of `diagonal bench`, DATE-DEVICE-NAME.json, which has the command for it alone. They are made one after
the other in one process. Where one fails the others go on, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import traceback
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from diagonal import cli
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


def run(names: Sequence[str], device: str, dtype: str, out: Path) -> list[str]:
    """Make the results of these names in a folder; those that failed."""
    what = re.sub(r"\W+", "-", describe(torch.device(device))["device"].lower().removeprefix("nvidia ")).strip("-")
    target = {name: out / f"{date.today()}-{what}-{name}.json" for name in names}
    common = ("--device", device, "--dtype", dtype)
    return [name for name in names if bench([*CASES[name].split(), *common, "--out", str(target[name])])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    if not given.out.is_dir():
        parser.error(f"--out {given.out} is no folder; make it first")
    failed = run(given.only, given.device, given.dtype, given.out)
    if failed:
        sys.exit(f"{', '.join(failed)} failed, as said above")


if __name__ == "__main__":
    main()
