"""VBench itself (Huang et al., 2024), in an environment of its own: it pins packages that nothing else can live with.

Each dimension is a process of that environment's Python, which is given the videos, their prompts and a place for its
result, which is read back. A dimension that has its result is not run again.

    OUT/vbench/FOLDER/DIMENSION.json         what was asked for
    OUT/vbench/FOLDER/DIMENSION_eval_results.json, DIMENSION_versions.json, DIMENSION.log    what came of it

Where VBench's list of prompts is given, all sixteen dimensions are scored by its own rules, so every video must have
the name `prompt-index` that it looks for. Without it, those that are defined for any video. VBench wants videos for
`temporal_flickering` to pass a static filter, which is a program of its repository and is not run here.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagonal.evaluation import vbench, vbench_runner
from diagonal.evaluation.folders import MANY, Folder
from diagonal.media.files import atomic

DIMENSIONS = tuple(name.replace(" ", "_") for name in (*vbench.QUALITY, *vbench.SEMANTIC))
OF_ANY_VIDEO = (
    *("subject_consistency", "background_consistency", "motion_smoothness", "dynamic_degree", "aesthetic_quality"),
    "imaging_quality",
)
VIDEOS_A_PROMPT = 5
LAST_WORDS = 12  # lines of a log that an error shows


@dataclass(frozen=True, slots=True)
class Environment:
    """Where VBench is, and what of it is run."""

    python: Path
    out: Path
    info: Path | None = None  # VBench_full_info.json; None: videos of any prompts
    device: str = "cuda"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """What is scored."""
        return OF_ANY_VIDEO if self.info is None else DIMENSIONS

    def check(self, folders: Sequence[Folder]) -> None:
        """Refuse what VBench would leave out in silence, before anything is run."""
        if not self.python.is_file():
            raise FileNotFoundError(f"--vbench {self.python}: there is no such Python; name that of an environment")
        if self.info is None:
            return
        for folder in folders:
            missing = [name for name in _wanted(self.info) if name not in folder.videos]
            if missing:
                raise ValueError(
                    f"{folder.path} lacks {len(missing)} videos that VBench looks for, such as "
                    f"{', '.join(map(repr, missing[:MANY]))}; `diagonal video --prompts {self.info} --each "
                    f"{VIDEOS_A_PROMPT}` makes them"
                )


@dataclass(frozen=True, slots=True)
class Scored:
    """What VBench says of a folder, by its own names."""

    folder: str
    scores: dict[str, float]
    versions: dict[str, str]

    def content(self) -> dict[str, Any]:
        """As JSON takes it; totals only where no score is missing, for else they are none."""
        named = {name.replace("_", " "): score for name, score in self.scores.items()}
        missing = vbench.missing(named)
        totals = None if missing else vbench.totals(named)
        found = {"scores": self.scores, "versions": self.versions, "missing": missing}
        return found | {
            "totals": totals and {"quality": totals.quality, "semantic": totals.semantic, "total": totals.total}
        }


def run(environment: Environment, folders: Sequence[Folder]) -> Iterator[tuple[str, str] | Scored]:
    """Yields the folder and dimension that were just scored, and behind those of a folder all that was found."""
    for folder in folders:
        scores, versions = dict[str, float](), dict[str, str]()
        for dimension in environment.dimensions:
            scores[dimension], versions = _dimension(environment, folder, dimension)
            yield folder.name, dimension
        yield Scored(folder.name, scores, versions)


def _dimension(environment: Environment, folder: Folder, dimension: str) -> tuple[float, dict[str, str]]:
    place = environment.out / "vbench" / folder.name
    place.mkdir(parents=True, exist_ok=True)
    job, result = _job(environment, folder, dimension, place), place / f"{dimension}_eval_results.json"
    asked = place / f"{dimension}.json"
    if not (_read(asked) == job and result.exists()):
        result.unlink(missing_ok=True)
        with atomic(asked) as temporary:
            temporary.write_text(json.dumps(job, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        _call(environment.python, asked, place / f"{dimension}.log")
    versions = _read(place / f"{dimension}_versions.json")
    return _score(result, dimension), versions if isinstance(versions, dict) else {}


def _job(environment: Environment, folder: Folder, dimension: str, place: Path) -> dict[str, Any]:
    """All that the runner needs, and the hash of the videos, so that other ones are scored anew."""
    known = {video.path.name: video.note.prompt for video in folder.videos.values()}
    told = environment.info is None and all(prompt is not None for prompt in known.values())
    return {
        "videos": str(folder.path.resolve()),
        "videos_sha256": folder.sha256,
        "dimensions": [dimension],
        "name": dimension,
        "out": str(place.resolve()),
        "info": "" if environment.info is None else str(environment.info.resolve()),
        "mode": "custom_input" if environment.info is None else "vbench_standard",
        "prompts": known if told else [],
        "device": environment.device,
    }


def _call(python: Path, job: Path, log: Path) -> None:
    runner = Path(vbench_runner.__file__).resolve()
    with log.open("w", encoding="utf-8") as written:
        done = subprocess.run(
            [str(python.absolute()), str(runner), str(job.resolve())],
            stdout=written,
            stderr=subprocess.STDOUT,
            cwd=job.parent,
        )
    if done.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_WORDS:]
        raise ValueError(
            f"VBench failed ({python}, exit code {done.returncode}); all of it is in {log}:\n" + "\n".join(last)
        )


def _score(result: Path, dimension: str) -> float:
    """Of {dimension: [score, of each video]}."""
    found = _read(result)
    value = found.get(dimension) if isinstance(found, dict) else None
    score = value[0] if isinstance(value, list) and value else value
    if not isinstance(score, int | float):
        raise ValueError(f"{result} has no score of {dimension}, which VBench should have written")
    return float(score)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _wanted(info: Path) -> Iterator[str]:
    from diagonal.text.prompt_files import prompts

    for prompt in prompts(info):
        yield from (f"{prompt}-{index}" for index in range(VIDEOS_A_PROMPT))
