"""`diagonal video --prompts FILE --out DIR`: a folder of videos, a few of each prompt of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagonal.cli import out, print_json, progress_bar
from diagonal.cli.options import Computing
from diagonal.cli.signing import Watermarking
from diagonal.cli.spread import Spread

if TYPE_CHECKING:
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.evaluation.prompted import Planned
    from diagonal.generation.components import Weights
    from diagonal.generation.request import Request


@dataclass(frozen=True, kw_only=True)
class Making:
    """All that a process needs to make the videos of some prompts: called, it loads the model."""

    name: str
    source: Weights
    computing: Computing
    request: Request
    scale: int
    signing: Watermarking
    out: Path

    def __call__(self) -> Callable[[Planned], float]:
        """What makes a video, in a folder that has no videos of other models."""
        from diagonal.cli.video import load_video
        from diagonal.evaluation.manifest import check_run
        from diagonal.evaluation.prompted import Asked, make

        model = load_video(self.name, self.source, self.computing)
        asked = Asked(model, self.request, self.scale, self.signing.marking(None))
        check_run(self.out, asked.facts())
        return lambda one: make(asked, one, self.out)


@dataclass(frozen=True)
class Many:
    """Prompts, and the folder of their videos. Made by `of`."""

    prompts: Sequence[str]
    each: int
    seed: int
    out: Path

    @classmethod
    def of(cls, path: Path, each: int, seed: int, target: str) -> Many:
        """Those of a file, or why there can be no videos of them."""
        from diagonal.media.video import CONTAINERS
        from diagonal.text.prompt_files import prompts

        if target == "-" or Path(target).suffix.lower() in CONTAINERS:
            raise ValueError(f"--out {target} given; --prompts makes many videos: name a folder for them")
        if Path(target).exists() and not Path(target).is_dir():
            raise NotADirectoryError(f"--out {target} is a file; name a folder for the videos")
        return cls(prompts(path), each, seed, Path(target))

    def check(self, variant: DiffusionVariant, source: Weights) -> None:
        """Refuse prompts that the text encoder cannot read, and videos that are there but others."""
        from diagonal.evaluation.prompted import made, planned
        from diagonal.generation import checks

        if source.text_encoder is None:
            checks.check_texts(variant, self.prompts)
        made(self.out, planned(self.prompts, self.each, self.seed))

    def make(self, making: Making, variant: DiffusionVariant, spread: Spread, as_json: bool) -> None:
        """Make what is not there yet, with a progress bar."""
        from diagonal.evaluation.manifest import run_of
        from diagonal.evaluation.prompted import made, planned
        from diagonal.generation.load import label_of

        videos = planned(self.prompts, self.each, self.seed)
        self.out.mkdir(parents=True, exist_ok=True)
        there = made(self.out, videos)
        new = [one for one in videos if one.name not in there]
        with progress_bar("videos") as progress:
            task = progress.add_task(making.name, total=len(videos), completed=len(there), note="")
            for one, fps in spread.each(making, new, lambda one: one.name, making.computing.device):
                progress.update(task, advance=1, note=f"{fps:.1f} FPS, {one.name[:40]}")
        weights = label_of(making.name, variant, making.source.transformer)
        numbers = {"videos": len(videos), "made": len(new), "there": len(there)}
        if as_json:
            print_json((run_of(self.out) or {}) | {"weights": weights, "out": str(self.out)} | numbers)
            return
        facts = f"{len(self.prompts)} prompts, {self.each} each; {len(new)} made, {len(there)} were there"
        out.print(f"{len(videos)} videos of {making.name} ({weights} weights) in {self.out}: {facts}", markup=False)
        out.print("manifest.json has prompt and seed of each, run.json what made them", markup=False)
