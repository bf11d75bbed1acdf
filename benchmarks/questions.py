"""Answers one of the papers' open questions (docs/questions.md), or goes on where that was stopped:

    python benchmarks/questions.py 3 --size cpu --work RUN --lpips alex.safetensors
    python benchmarks/questions.py 2 --size full --work RUN --device cuda --together 4 --lpips alex.safetensors

`--plan` prints the jobs with what they are predicted to take, and does nothing. `--size smoke` takes seconds and says
nothing about worlds, `cpu` is what a laptop answers, `full` is for one H200. Every job is kept in RUN when it is done,
with its checkpoints, and its results are written to `--out` after each: a dated JSON file and a Markdown table.
`--together` runs so many jobs at once, each in a process of its own: small models fill a GPU together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import torch

from diagonal.evaluation import report
from diagonal.evaluation.speed.machine import describe
from diagonal.media.files import atomic
from diagonal.recipes.questions import QUESTIONS, find
from diagonal.recipes.questions.jobs import SIZES, Job, Question, Setting, table


def finish(number: int, setting: Setting, name: str) -> str:
    """Run one job of a question, in whatever process this is."""
    (job,) = [job for job in find(number, setting).jobs() if job.name == name]
    job.finish(setting.work)
    return name


def finished(jobs: Sequence[Job], number: int, setting: Setting, together: int) -> Iterator[str]:
    """Run all jobs that are not done, each after what it needs; yields the name of each when it is."""
    left = {job.name: job for job in jobs if job.result(setting.work) is None}
    if together == 1:
        for name, job in left.items():
            job.finish(setting.work)
            yield name
        return
    running: dict[Future[str], str] = {}
    with ProcessPoolExecutor(together, mp_context=get_context("spawn")) as pool:
        waiting = dict(left)
        while waiting or running:
            for name, job in list(waiting.items()):
                if not any(need in left for need in job.needs):
                    running[pool.submit(finish, number, setting, name)] = name
                    del waiting[name]
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                del left[running.pop(future)]
                yield future.result()


def plan(question: Question, setting: Setting, together: int) -> str:
    """What there is to do, and what it is predicted to take."""
    jobs = question.jobs()
    left = [job for job in jobs if job.result(setting.work) is None]
    lines = [question.asked, "", "| job | after | minutes | |", "|---|---|---|---|"]
    for job in jobs:
        lines.append(f"| {job.name} | {', '.join(job.needs)} | {job.minutes:.1f} | {'' if job in left else 'done'} |")
    minutes = sum(job.minutes for job in left)
    where = "one H200" if setting.size == "full" else "one CPU core"
    lines += ["", f"{len(left)} of {len(jobs)} jobs to do: {minutes:.0f} minutes of {where}, {together} at once"]
    return "\n".join(lines) + "\n"


def keep(number: int, question: Question, setting: Setting, out: Path) -> str:
    """Write the results that are there, as JSON and as a table."""
    rows, done = question.rows(), [job.name for job in question.jobs() if job.result(setting.work) is not None]
    about = {"question": number, "asked": question.asked, "size": setting.size, "command": " ".join(sys.argv)}
    about |= describe(torch.device(setting.device)) | {"jobs": len(question.jobs()), "done": done}
    shown = table(rows) if rows else "No row is complete yet.\n"
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("result.json", report.as_json(about | {"rows": [report.plain(row) for row in rows]})),
        ("table.md", shown),
    ):
        with atomic(out / name) as temporary:
            temporary.write_text(text)
    return shown


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, choices=sorted(QUESTIONS), help="of the question")
    parser.add_argument("--size", choices=SIZES, default="cpu")
    parser.add_argument("--work", type=Path, required=True, help="folder of recordings, checkpoints and finished jobs")
    parser.add_argument("--out", type=Path, help="benchmarks/results/DATE-DEVICE-question-N if it is not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lpips", type=Path, help="LPIPS (alex) weights; without them there is no such column")
    parser.add_argument("--together", type=int, default=1, help="jobs at once, each in a process")
    parser.add_argument("--workers", type=int, default=1, help="processes that record")
    parser.add_argument("--only", action="append", help="this job alone, and not what it needs; may be given again")
    parser.add_argument("--plan", action="store_true", help="print what there is to do, and do nothing")
    return parser.parse_args(given)


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv)
    setting = Setting(
        given.size, given.work / f"question-{given.number}-{given.size}", given.device, given.lpips, given.workers
    )
    question = find(given.number, setting)
    if given.plan:
        sys.stdout.write(plan(question, setting, given.together))
        return
    device = torch.device(given.device).type if given.device == "cpu" else "h200"
    out = given.out or Path("benchmarks/results") / f"{date.today()}-{device}-question-{given.number}"
    jobs, began = question.jobs(), time.perf_counter()
    if given.only:
        unknown = set(given.only) - {job.name for job in jobs}
        if unknown:
            raise SystemExit(f"question {given.number} has no job {', '.join(sorted(unknown))}; --plan lists them")
        jobs = [job for job in jobs if job.name in given.only]
    for name in finished(jobs, given.number, setting, given.together):
        keep(given.number, question, setting, out)
        sys.stderr.write(f"[{time.perf_counter() - began:7.1f} s] {name}\n")
    sys.stdout.write(keep(given.number, question, setting, out))


if __name__ == "__main__":
    main()
