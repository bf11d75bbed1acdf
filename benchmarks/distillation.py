"""The tables of docs/distillation.md, one command each:

    python benchmarks/distillation.py --work RUN --table 1 --device cuda --out benchmarks/results/NAME/table-1.json

RUN is the folder of a text-to-video recipe. Students that a table needs and RUN lacks are trained first; `--only SPEC`
trains one of them and measures nothing, so that several processes can share the work. Then clips are made of held-out
prompts and measured: a table on the terminal, all numbers with their intervals in the JSON file, a picture beside it.

    1  the teacher and four methods, with speed       2  ours without each of its parts
    3  schedules, and steps that begin again          4  the noise of the context, the weight of the flow loss
    5  drift over minutes                            6  4 as wide as in the paper's Figure 5, with two steps a chunk

Ours is Diagonal Distillation from prompts alone; `--method diagonal-distillation` is the one with regressions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from diagonal.evaluation import report, tables
from diagonal.evaluation.clips import evenly
from diagonal.evaluation.distilled import (
    Asked,
    References,
    Seen,
    StudentPipeline,
    TeacherPipeline,
    TextToVideoJudges,
    compare,
    decode,
    endless,
    look,
)
from diagonal.evaluation.drift import drift
from diagonal.evaluation.speed import video as video_speed
from diagonal.evaluation.speed.machine import describe
from diagonal.generation.clock import Clock
from diagonal.generation.load import load_video_model
from diagonal.generation.request import Request
from diagonal.media import draw
from diagonal.media.draw import Panel
from diagonal.media.files import atomic
from diagonal.networks import lpips
from diagonal.networks.caption_reader import Answers
from diagonal.planning.denoising.noise import CLEAN
from diagonal.planning.presets import Preset
from diagonal.recipes import find_video
from diagonal.training.data.captioned import Captioned
from diagonal.training.data.latents import Solving
from diagonal.training.judges import stages as networks
from diagonal.training.judges.stages import ReaderRecipe
from diagonal.training.latents.stages import distill_name, distill_stage, export
from diagonal.training.latents.work import Work
from diagonal.training.loop import RunConfig
from diagonal.training.recipe import JudgeRecipe
from diagonal.training.stages import Gate, last_line, run

PROMPTS, VIDEOS = "diagonal-distillation-prompts", "diagonal-distillation"  # without and with the two regressions
SELF = "self-forcing"
TEACHER_STEPS = 50
SHOWN = 4  # clips of each row in the sheet
SCHEDULES = ("5433333", "5432222", "5333333", "4333333", "4322222", "4222222", "4444444", "5422222")
CYCLES = ("4322222", "4322")  # begun again whenever they end: after a video's length, after a window's
CONTEXTS = (CLEAN, "t20", "t50", "t100", "t200", "100", "200")
FLOWS = ("0", "0.2", "0.5", "1", "2")
# Lists of three and more steps have 733 in them, below which the context must lie; lists of two take any.
TWO, WIDE_CONTEXTS = "2222222", (CLEAN, "100", "300", "500", "700", "900")
WIDE_FLOWS = ("0", "0.25", "0.5", "0.75", "1", "1.25", "1.5", "2")
USUAL = {"schedule": "4322222", "context": "100", "flow": "1"}  # what the method is without being told


def changed(method: str, **changes: str) -> str:
    """The spec of a method with changes; those that change nothing are left out, so that nothing is trained twice."""
    told = ",".join(f"{key}={value}" for key, value in changes.items() if USUAL[key] != value)
    return f"{method}:{told}" if told else method


def compared(method: str) -> dict[int, dict[str, str]]:
    """Labels and specs of the students of each table. `method` is the one whose parts are taken away and changed."""
    beside = {"with regressions": VIDEOS} if method == PROMPTS else {"without regressions": PROMPTS}
    ours = {"Diagonal Distillation": method} | beside
    return {
        1: {"CausVid": "causvid", "Self Forcing": SELF} | ours,
        2: {
            "without Diagonal Forcing": changed(method, context=CLEAN),
            "without flow loss": changed(method, flow="0"),
            "without diagonal denoising": changed(method, schedule="4444444"),
        }
        | beside
        | {"as it is": method},
        3: {steps: changed(method, schedule=steps) for steps in SCHEDULES},
        4: {f"context {one}": changed(method, context=one) for one in CONTEXTS}
        | {f"flow {one}": changed(method, flow=one) for one in FLOWS},
        5: ours | {"Self Forcing": SELF},
        6: {f"context {one}": changed(method, schedule=TWO, context=one) for one in WIDE_CONTEXTS}
        | {f"flow {one}": changed(method, flow=one) for one in WIDE_FLOWS},
    }


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    clips: int
    long_clips: int
    batch: int
    seconds: int


@dataclass(frozen=True)
class Bench:
    """What all tables share. Students are where they were trained, everything else is in the run's folder."""

    work: Work
    students: Work
    sizes: Sizes
    judges: TextToVideoJudges
    method: str

    @cached_property
    def data(self) -> Captioned:
        return self.work.clips("held-out")

    @cached_property
    def halves(self) -> tuple[list[int], list[int]]:
        """Held-out clips whose prompts are used, and others that are compared with: of each scenario the first and the
        second half, so that no episode is in both."""
        return halves([one.scenario for one in self.data.facts], self.sizes.clips)

    @cached_property
    def codec(self) -> Any:
        return self.work.load_codec()

    @cached_property
    def told(self) -> Answers:
        return Answers.of([self.data.facts[clip] for clip in self.halves[0]], self.work.device)

    @cached_property
    def asked(self) -> Asked:
        chosen = [clip * self.data.ways for clip in self.halves[0]]
        return Asked(self.data.text_MLC[chosen].float(), range(len(chosen)), self.work.shape, self.sizes.batch)

    @cached_property
    def long_asked(self) -> Asked:
        few = min(self.sizes.long_clips, len(self.asked.seeds))
        chosen = evenly(len(self.asked.seeds), few)
        return replace(self.asked, text_NLC=self.asked.text_NLC[chosen], seeds=[self.asked.seeds[i] for i in chosen])

    def real(self, half: int) -> Seen:
        return look(decode(self.codec, self.data.latents_NFCHW[self.halves[half]]), self.judges)

    @cached_property
    def references(self) -> References:
        return References(self.real(1), look(self.teacher.videos(self.asked), self.judges))

    @cached_property
    def teacher(self) -> TeacherPipeline:
        how, chunk = self.work.recipe.trajectories, self.work.method(self.method).preset.chunk_frames
        sigmas = Solving(self.work.shape, (), TEACHER_STEPS, how.shift, how.guidance_scale).sigmas()
        model = self.load(self.work, "teacher")
        return TeacherPipeline(model, self.codec, sigmas, how.guidance_scale, self.work.negative, chunk or 1)

    def load(self, work: Work, stage: str) -> Any:
        """A trained model in the precision that it is used in."""
        return work.load(stage, work.recipe.model).to(work.dtype)

    def student(self, spec: str) -> StudentPipeline:
        return StudentPipeline(
            self.load(self.students, distill_name(spec)), self.codec, self.students.method(spec).preset
        )

    def tokens(self, frames: int) -> int:
        """Of a call with so many latent frames."""
        _, _, rows, cols = self.work.shape
        side = self.work.variant.config.patch
        return frames * (rows // side) * (cols // side)


def halves(scenarios: Sequence[str], count: int) -> tuple[list[int], list[int]]:
    """Numbers of `count` clips, as many of each scenario and evenly spread, of the first halves and of the second."""
    names = sorted(set(scenarios))
    each = count // len(names)
    chosen: tuple[list[int], list[int]] = ([], [])
    for name in names:
        own = [index for index, one in enumerate(scenarios) if one == name]
        middle = len(own) // 2
        for half, part in zip(chosen, (own[:middle], own[len(own) - middle :]), strict=True):
            if not 1 <= each <= len(part):
                raise ValueError(
                    f"{count} clips asked for, {each} of each scenario; half of the held-out clips of {name} are "
                    f"{len(part)}: give --clips of {len(names)} to {len(names) * len(part)}"
                )
            half.extend(part[index] for index in evenly(len(part), each).tolist())
    return chosen


def say(text: str, began: float = time.perf_counter()) -> None:
    sys.stderr.write(f"[{time.perf_counter() - began:6.1f} s] {text}\n")


def shortened(work: Work, steps: int | None, seed: int | None = None) -> Work:
    """Where students are trained, with a gate that lets all pass: what an ablation breaks is a result too. Students of
    another length or seed have a folder of their own, which shares all earlier stages."""
    how = work.recipe.distill
    steps, seed = how.run.steps if steps is None else steps, how.run.seed if seed is None else seed
    run = replace(how.run, steps=steps, seed=seed)
    recipe = replace(work.recipe, distill=replace(how, run=run, gate=Gate(how.gate.number)))
    other = ([f"steps-{steps}"] if steps != how.run.steps else []) + ([f"seed-{seed}"] if seed != how.run.seed else [])
    if not other:
        return replace(work, recipe=recipe)
    folder = work.folder / "-".join(other)
    folder.mkdir(exist_ok=True)
    for stage in work.folder.iterdir():
        link = folder / stage.name
        if stage.is_dir() and not stage.name.startswith(("distill-", "steps-", "seed-")) and not link.is_symlink():
            link.symlink_to(stage.resolve(), target_is_directory=True)
    return replace(work, recipe=recipe, folder=folder)


def train(work: Work, specs: Sequence[str]) -> None:
    for spec in dict.fromkeys(specs):
        for _, line in run([distill_stage(work, spec)]):
            say(f"{spec}: step {line['step']}, loss {line['loss']:.4f}")


def load_judges(work: Work, steps: int, lpips_file: Path | None) -> TextToVideoJudges:
    """The networks that measure; those that are missing are trained, for `steps` steps each."""
    how = RunConfig(steps=steps, seed=6, evaluate_every=max(1, steps // 4), save_every=steps)
    reader, judge = ReaderRecipe(how, batch=64, clips=4096, held_out=1024), JudgeRecipe(how, batch=256)
    for stage, line in run(networks.missing(work, reader, judge, most=8192)):
        say(f"{stage}: {line}")
    return TextToVideoJudges(
        *networks.load_judges(work), None if lpips_file is None else lpips.load(lpips_file, work.device)
    )


def rows(bench: Bench, specs: dict[str, str]) -> Iterator[tuple[dict[str, Any], Seen]]:
    """The numbers of each row, and its clips: the ceiling, the teacher, then every student."""
    real = bench.real(0)
    alone = References(bench.references.real)  # neither has clips of a teacher's to be compared with
    yield {"label": "real clips, through the codec"} | compare(real, bench.told, alone, bench.judges), real
    teacher = bench.references.teacher
    assert teacher is not None
    frames = bench.work.shape[0]
    about = {"label": f"teacher, {TEACHER_STEPS} steps", "forwards": bench.teacher.calls}
    about |= {"tokens": bench.tokens(frames)}
    yield about | compare(teacher, bench.told, alone, bench.judges), teacher
    for label, spec in specs.items():
        student = bench.student(spec)
        made = look(student.videos(bench.asked), bench.judges)
        about = {"label": label, "spec": spec, "forwards": student.calls(frames)}
        about |= {"tokens": bench.tokens(student.preset.chunk_frames or frames), "context": context(student.preset)}
        yield about | compare(made, bench.told, bench.references, bench.judges), made


def context(preset: Preset) -> float:
    """The timestep at which later chunks see the chunks before them; 0 is clean."""
    schedule = preset.schedule
    level = schedule.context_level(0)
    return schedule.levels(0)[-1] if level is None else level


def speed(bench: Bench, row: dict[str, Any]) -> dict[str, Any]:
    """Frames per second and the time to the first ones of one video, on the device and on a CPU."""
    devices = dict.fromkeys((bench.work.device, torch.device("cpu")))
    found: dict[str, Any] = {}
    for device in devices:
        before = "" if device == bench.work.device else f"{device.type}_"
        found |= {before + name: value for name, value in _speed(bench, row.get("spec"), device).items()}
    return found


def _speed(bench: Bench, spec: str | None, device: torch.device) -> dict[str, float]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if spec is None:
        return _teacher_speed(bench, device, dtype)
    text, frames = bench.asked.text_NLC[0].cpu(), bench.work.recipe.clip
    request = Request(prompt_embeds=text, num_frames=frames, preset=bench.students.method(spec).preset)
    with tempfile.TemporaryDirectory() as folder:
        world = load_video_model(
            bench.work.recipe.model, export(bench.students, spec, Path(folder)), device=device, dtype=dtype
        )
    numbers = video_speed.measure(world, video_speed.VideoSettings(request))
    return {"fps": numbers["fps_with_tokenizer"], "first_frame_ms": numbers["first_frame_ms"]}


def _teacher_speed(bench: Bench, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """All frames come at once."""
    teacher = replace(
        bench.teacher,
        model=bench.work.load("teacher", bench.work.recipe.model).to(device, dtype),
        codec=bench.work.load_codec().to(device, dtype),
        negative_1LC=bench.work.negative.to(device),
    )
    one = replace(bench.asked, text_NLC=bench.asked.text_NLC[:1].to(device), seeds=[0])
    clock = Clock(device)
    teacher.videos(one)
    began = clock.mark()
    teacher.videos(one).cpu()
    milliseconds = clock.milliseconds([began, clock.mark()])[0]
    return {"fps": 1e3 * bench.work.recipe.clip / milliseconds, "first_frame_ms": milliseconds}


def long_rows(bench: Bench, students: dict[str, StudentPipeline]) -> Iterator[dict[str, Any]]:
    """Drift of each student, and its calls for the whole of it."""
    real, variant = bench.real(1).features_NTF, bench.work.variant
    for label, student in students.items():
        student = replace(student, preset=endless(student.preset, bench.work.shape[0]))
        stream = student.stream(bench.long_asked)
        curves = drift(stream, bench.sizes.seconds, variant.fps, bench.judges.idm, real)
        chunk = student.preset.chunk_frames or 1
        latent = int(bench.sizes.seconds * variant.fps) // bench.codec.stride // chunk * chunk
        yield {"label": label, "forwards": student.calls(latent), "seconds": bench.sizes.seconds, "curves": curves}
        say(f"{label}: {bench.sizes.seconds} s of {len(bench.long_asked.seeds)} videos")


def cycles(bench: Bench) -> dict[str, StudentPipeline]:
    """Our student with the steps as they were trained, and with steps that begin again in a long video."""
    usual = bench.student(bench.method)
    schedule: Any = usual.preset.schedule
    made = {f"{schedule.steps}, the last repeats": usual}
    for steps in CYCLES:
        preset = replace(usual.preset, schedule=replace(schedule, steps=steps, cycle=True))
        made[f"{steps}, begun again"] = replace(usual, preset=preset)
    return made


def picture(number: int, rows: Sequence[dict[str, Any]], long: Sequence[dict[str, Any]], path: Path) -> None:
    """The frontier, the sweeps or the curves of a table."""
    students = [row for row in rows if "spec" in row]
    if number == 3:
        found = [tables.point(row["forwards"], row["frechet_idm"], row["label"]) for row in students]
        lines = {"frontier": tables.frontier(found), "schedules": found}
        panels = [Panel("forwards", "frechet_idm", lines, loose=("schedules",)), *tables.curves(long)]
    elif number in (4, 6):
        panels = [
            sweep(students, kind, name) for kind in ("context", "flow") for name in ("frechet_idm", "flow_distance")
        ]
    else:
        panels = tables.curves(long)
    draw.save_panels(panels, path, f"Table {number}")


def sweep(students: Sequence[dict[str, Any]], kind: str, name: str) -> Panel:
    found = []
    for row in students:
        what, _, value = row["label"].partition(" ")
        if what == kind:
            found.append(tables.point(float(value) if kind == "flow" else row["context"], row[name], value))
    axis = "weight of the flow loss" if kind == "flow" else "timestep of the context (0: clean)"
    return Panel(axis, name, {kind: sorted(found, key=lambda one: one.x)})


def measure(bench: Bench, number: int, path: Path) -> dict[str, Any]:
    """The rows of a table, shown and drawn as they are there; what the JSON file holds of them."""
    console, specs = Console(), compared(bench.method)[number]
    short: list[dict[str, Any]] = []
    videos: list[Tensor] = []
    for row, seen in rows(bench, specs) if number != 5 else ():
        if number == 1 and "forwards" in row:
            row |= speed(bench, row)
        short.append(row)
        videos.append(seen.video_NTCHW[evenly(len(seen.video_NTCHW), SHOWN)].cpu())
        say(f"{row['label']}: frechet_idm {row['frechet_idm']}, first motion {row['first_motion']}")
    many = {3: lambda: cycles(bench), 5: lambda: {label: bench.student(spec) for label, spec in specs.items()}}
    long = list(long_rows(bench, many[number]())) if number in many else []
    if short:
        console.print(*tables.terminal(short))
        with atomic(path.with_suffix(".md")) as temporary:
            temporary.write_text(tables.markdown(short))
        tables.sheet(videos, path.with_name(path.stem + "-clips.png"))
    if long:
        console.print(tables.long_table(long))
    if number > 2:
        picture(number, short, long, path.with_suffix(".png"))
    return {"rows": list(map(tables.plain, short)), "long": list(map(tables.plain, long))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the recipe's run")
    parser.add_argument("--recipe", default="doom_t2v")
    parser.add_argument("--table", type=int, choices=range(1, 7), required=True)
    parser.add_argument("--method", default=PROMPTS, choices=(PROMPTS, VIDEOS), help="whose parts are looked at")
    parser.add_argument("--only", help="train this student of the table, and measure nothing")
    parser.add_argument("--train-steps", type=int, help="of every student; the recipe's own if it is not given")
    parser.add_argument("--seed", type=int, help="that students are trained with; likewise")
    parser.add_argument("--judge-steps", type=int, default=1500, help="of the two networks that measure")
    parser.add_argument("--clips", type=int, default=256)
    parser.add_argument("--long-clips", type=int, default=32, help="videos whose drift is measured, all at once")
    parser.add_argument("--seconds", type=int, help="of drift; 300 in table 5, 60 in table 3")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lpips", type=Path, help="LPIPS (alex) weights; without them there is no such column")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="JSON file; RUN/table-N.json if it is not given")
    given = parser.parse_args()
    work = Work(find_video(given.recipe), given.work, torch.device(given.device))
    trained, specs = shortened(work, given.train_steps, given.seed), list(compared(given.method)[given.table].values())
    if given.only is not None:
        if given.only not in specs:
            parser.error(f"table {given.table} has no student {given.only!r}; it has {', '.join(dict.fromkeys(specs))}")
        train(trained, [given.only])
        return
    judges = load_judges(work, given.judge_steps, given.lpips)
    if judges.lpips is None:
        say("LPIPS is left out: no weights given (--lpips)")
    train(trained, specs)
    seconds = given.seconds or (300 if given.table == 5 else 60)
    sizes = Sizes(given.clips, given.long_clips, given.batch, seconds)
    bench = Bench(work, trained, sizes, judges, given.method)
    path = given.out or given.work / f"table-{given.table}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = measure(bench, given.table, path)
    about = {
        "table": given.table,
        "method": given.method,
        "command": " ".join(sys.argv),
        "recipe": given.recipe,
        "train_steps": trained.recipe.distill.run.steps,
        "train_seed": trained.recipe.distill.run.seed,
        "clips": len(bench.asked.seeds),
        "seeds": list(bench.asked.seeds),
        "lpips": judges.lpips is not None,
        "reader": last_line(work.folder / networks.READER),
        "judge": last_line(work.folder / networks.JUDGE),
    }
    with atomic(path) as temporary:
        temporary.write_text(report.as_json(about | describe(work.device) | made))
    say(f"{path} written")


if __name__ == "__main__":
    main()
