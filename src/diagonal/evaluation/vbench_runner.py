"""Run by the Python of VBench's own environment, which has no diagonal: VBench on the videos that a job names.

    PYTHON vbench_runner.py JOB.json

It imports nothing of this package.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path


def main(path: Path) -> None:
    """VBench writes OUT/NAME_eval_results.json; OUT/NAME_versions.json says what computed it."""
    import torch
    from vbench import VBench

    job = json.loads(path.read_text(encoding="utf-8"))
    bench = VBench(torch.device(job["device"]), job["info"], job["out"])
    bench.evaluate(
        videos_path=job["videos"],
        name=job["name"],
        prompt_list=job["prompts"],
        dimension_list=job["dimensions"],
        local=False,
        read_frame=False,
        mode=job["mode"],
        imaging_quality_preprocessing_mode="longer",
    )
    known = {name: version(name) for name in ("vbench", "torch")}
    (Path(job["out"]) / f"{job['name']}_versions.json").write_text(json.dumps(known), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
