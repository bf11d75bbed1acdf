"""`diagonal video --prompts FILE --out DIR`: a folder of videos, a few of each prompt of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagonal.cli import out, print_json, progress_bar

if TYPE_CHECKING:
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.generation.components import Weights
    from diagonal.generation.request import Request
    from diagonal.generation.video import VideoModel
    from diagonal.media.provenance.writing import Marking


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

    def make(self, model: VideoModel, request: Request, look: tuple[int, Marking], as_json: bool) -> None:
        """Make what is not there yet, with a progress bar."""
        from diagonal.evaluation.manifest import check_run
        from diagonal.evaluation.prompted import Asked, made, make, planned

        asked, videos = Asked(model, request, *look), planned(self.prompts, self.each, self.seed)
        self.out.mkdir(parents=True, exist_ok=True)
        check_run(self.out, asked.facts())
        there = len(made(self.out, videos))
        with progress_bar("videos") as progress:
            task = progress.add_task(model.name, total=len(videos), completed=there, note="")
            for one, fps in make(asked, videos, self.out):
                progress.update(task, advance=1, note=f"{fps:.1f} FPS, {one.name[:40]}")
        numbers = {"videos": len(videos), "made": len(videos) - there, "there": there}
        if as_json:
            print_json(asked.facts() | {"weights": model.weights, "out": str(self.out)} | numbers)
            return
        facts = f"{len(self.prompts)} prompts, {self.each} each; {numbers['made']} made, {there} were there"
        out.print(
            f"{len(videos)} videos of {model.name} ({model.weights} weights) in {self.out}: {facts}", markup=False
        )
        out.print("manifest.json has prompt and seed of each, run.json what made them", markup=False)
