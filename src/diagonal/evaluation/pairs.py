"""A blind comparison by people: pairs of videos of two runs, as a page that works from a file.

    OUT/page/index.html   what a voter opens: no names, no key; question after question by keyboard; votes as a file
    OUT/page/trials.js    what is shown, in which order
    OUT/page/videos       copies that every browser plays, named by trial and side
    OUT/key.json          which run is on which side of which trial: to be kept from voters, and read by `votes`

Sides are a seeded coin's, and so is the order. Some pairs come twice, the second time among the later ones: how often a
voter says the same again is how far the votes can be trusted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np

from diagonal.evaluation import manifest
from diagonal.evaluation.folders import Folder, check_pairs
from diagonal.evaluation.manifest import Note
from diagonal.media.files import atomic
from diagonal.media.video import enlarge, read, to_be_seen, writer

QUESTIONS = {
    "overall": "Which video is better, all in all?",
    "picture": "Which video has the better picture?",
    "motion": "Which video moves more naturally?",
    "control": "Which video does better what it was asked for?",
}
CONTROL = "control"
KEY, PAGE, VIDEOS = "key.json", "page", "videos"
FILES = ("index.html", "compare.css", "compare.js")


@dataclass(frozen=True, slots=True)
class Trial:
    """A pair as it is shown."""

    pair: str  # the name that both videos have
    left: str  # the run on the left: "a" or "b"
    again: bool  # it was shown before


@dataclass(frozen=True)
class Study:
    """What is compared, and how it is shown."""

    a: Folder
    b: Folder
    questions: tuple[str, ...]
    seed: int
    trials: tuple[Trial, ...]

    @property
    def name(self) -> str:
        """What its votes carry, so that they are not read with the key of another one."""
        facts = [self.a.sha256, self.b.sha256, self.questions, self.seed, [asdict(trial) for trial in self.trials]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def key(self) -> dict[str, object]:
        """What tells which run is where."""
        runs = {side: {"name": one.name, "sha256": one.sha256} for side, one in (("a", self.a), ("b", self.b))}
        trials = [asdict(trial) for trial in self.trials]
        return {"study": self.name, "seed": self.seed, **runs, "questions": list(self.questions), "trials": trials}

    def shown(self) -> dict[str, object]:
        """What the page may know."""
        trials = [
            {side: f"{VIDEOS}/{_file(index, side)}" for side in ("left", "right")} | {"asked": self.asked(trial.pair)}
            for index, trial in enumerate(self.trials)
        ]
        questions = [{"name": name, "text": QUESTIONS[name]} for name in self.questions]
        return {"study": self.name, "questions": questions, "trials": trials}

    def asked(self, pair: str) -> str:
        """What the videos of a pair were asked to show: their prompt, or their actions; '' if nothing says."""
        first, second = (said(notes.get(pair, Note())) for notes in self._notes)
        return first if first == second else ""

    @cached_property
    def _notes(self) -> tuple[dict[str, Note], dict[str, Note]]:
        """What both folders say of their videos; the names of files say nothing here."""
        return manifest.read(self.a.path), manifest.read(self.b.path)


def said(note: Note) -> str:
    """A prompt, or actions with how often each comes in a row: 'forward 4, left 2'."""
    if note.prompt is not None:
        return note.prompt
    return ", ".join(f"{action} {len(list(times))}" for action, times in groupby(note.actions or ()))


def _file(trial: int, side: str) -> str:
    return f"{trial + 1:04}-{side}.mp4"


def plan_study(a: Path, b: Path, questions: Sequence[str], pairs: tuple[int | None, int | None], seed: int) -> Study:
    """Check both folders, and draw pairs, order and sides. `pairs`: how many, and how many of them come twice; None:
    all, and a fifth."""
    unknown = [name for name in questions if name not in QUESTIONS]
    if unknown or not questions or len(set(questions)) < len(questions):
        raise ValueError(f"questions {', '.join(questions) or 'none'} given; some of {', '.join(QUESTIONS)}, once each")
    first, second = Folder.of(a), Folder.of(b)
    if first.sha256 == second.sha256:
        raise ValueError(f"{a} and {b} hold the same videos: there is nothing to compare")
    check_pairs(first, second)
    check_pairs(second, first)
    count, twice = pairs
    names = list(first.videos)
    count = len(names) if count is None else count
    twice = count // 5 if twice is None else twice
    if not 1 <= count <= len(names):
        raise ValueError(f"{count} pairs asked for; the folders have {len(names)}")
    if not 0 <= twice <= count // 2:
        raise ValueError(f"{twice} pairs asked for twice; of {count} pairs 0 to {count // 2} can come twice")
    study = Study(first, second, tuple(questions), seed, tuple(_trials(names, count, twice, seed)))
    silent = [trial.pair for trial in study.trials if not study.asked(trial.pair)]
    if CONTROL in questions and silent:
        raise ValueError(
            f"the question {CONTROL} shows what was asked for; no manifest.json says the prompt or the actions of "
            f"{silent[0]}, or they differ: leave the question out"
        )
    return study


def _trials(names: Sequence[str], count: int, twice: int, seed: int) -> Iterator[Trial]:
    """Pairs in a drawn order; those that come twice are of the first half, and come again in the second one."""
    rng = np.random.default_rng(seed)
    order = [(names[index], False) for index in rng.permutation(len(names))[:count]]
    half = (count + 1) // 2
    again = [(order[index][0], True) for index in rng.permutation(half)[:twice]]
    for one in again:
        order.insert(int(rng.integers(half + 1, len(order) + 1)), one)
    for name, shown in order:
        yield Trial(name, "ab"[rng.integers(2)], shown)


def write(study: Study, out: Path) -> Iterator[str]:
    """Write page and key. Yields each trial whose videos are there; the page appears when all are."""
    page = out / PAGE
    if page.exists():
        raise ValueError(f"{page} exists, and votes may belong to it; name another --out")
    out.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=out, prefix=f".{PAGE}-"))
    try:
        (temporary / VIDEOS).mkdir()
        for index, trial in enumerate(study.trials):
            _copy(study, index, temporary / VIDEOS)
            yield trial.pair
        for name in FILES:
            shutil.copyfile(Path(__file__).parent / PAGE / name, temporary / name)
        (temporary / "trials.js").write_text(f"const STUDY = {json.dumps(study.shown())};\n")
        with atomic(out / KEY) as key:
            key.write_text(json.dumps(study.key(), indent=1) + "\n")
        temporary.chmod(0o755)
        temporary.rename(page)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _copy(study: Study, index: int, folder: Path) -> None:
    """Both videos of a trial, encoded alike: H.264, 4:2:0, without sound."""
    trial = study.trials[index]
    sides = {"left": study.a, "right": study.b} if trial.left == "a" else {"left": study.b, "right": study.a}
    frames = {side: read(run.videos[trial.pair].path) for side, run in sides.items()}
    left, right = frames.values()
    if left.shape != right.shape:
        raise ValueError(
            f"{trial.pair} has {len(left)} frames of {left.shape[1]}x{left.shape[2]} in one folder and {len(right)} of "
            f"{right.shape[1]}x{right.shape[2]} in the other: both must be alike"
        )
    factor = to_be_seen(left.shape[1])
    if left.shape[1] * factor % 2 or left.shape[2] * factor % 2:
        factor *= 2  # 4:2:0, which every browser plays, needs even sides
    for side, run in sides.items():
        with writer(folder / _file(index, side), run.videos[trial.pair].header.fps) as file:
            for frame in frames[side]:
                file.write(enlarge(frame, factor))
