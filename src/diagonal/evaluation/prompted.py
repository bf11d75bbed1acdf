"""Videos of many prompts, as VBench and its like want them: `prompt-index.mp4`, each with a seed of its own.

    OUT/run.json         model, weights, sizes: a second run into OUT must have the same
    OUT/manifest.json    prompt and seed of each video, and what it took
    OUT/a cat-0.mp4, OUT/a cat-1.mp4, ...

A video that is there, and written down, is not made again. A prompt that is no name of a file, too long or with a
slash, gives its number and its first words; the manifest has it whole.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagonal.evaluation import manifest
from diagonal.generation.origin import of_request
from diagonal.generation.request import Request
from diagonal.generation.snapshot import fingerprint
from diagonal.generation.video import VideoModel
from diagonal.media.provenance.writing import UNMARKED, Marking, marked_writer
from diagonal.media.video import enlarge
from diagonal.planning.denoising import spec

LONGEST = 230  # bytes of a name, its ending and a temporary one's beginning left room for
SHORT = 40  # letters of a prompt in a name that cannot hold it


@dataclass(frozen=True, slots=True)
class Planned:
    """A video that is to be made."""

    name: str
    prompt: str
    seed: int


def planned(prompts: Sequence[str], each: int, seed: int) -> list[Planned]:
    """`each` videos of every prompt; seeds count on from the first one's."""
    found = []
    for number, prompt in enumerate(prompts):
        stem = _stem(prompt, number)
        found += [Planned(f"{stem}-{index}", prompt, seed + each * number + index) for index in range(each)]
    names = Counter(one.name for one in found)
    twice = next((one for one in found if names[one.name] > 1), None)
    if twice is not None:
        raise ValueError(f"two prompts would give the file {twice.name}.mp4; change {twice.prompt!r} or the other one")
    return found


def _stem(prompt: str, number: int) -> str:
    if len(prompt.encode()) <= LONGEST and prompt.isprintable() and "/" not in prompt and not prompt.startswith("."):
        return prompt
    first = re.sub(r"\W+", " ", prompt)[:SHORT].strip()
    return f"{number:05} {first}"


@dataclass(frozen=True, slots=True)
class Asked:
    """How videos are made: of `request` all but the prompt and the seed counts."""

    model: VideoModel
    request: Request
    scale: int = 1  # pixels are enlarged so many times
    marking: Marking = UNMARKED

    def facts(self) -> dict[str, Any]:
        """What must be the same for videos to belong together."""
        model, request = self.model, self.request.named(self.model.variant.preset)
        return {
            "model": model.name,
            "weights": fingerprint(model.model),
            "quantize": model.quantized or "none",
            "dtype": str(next(model.model.parameters()).dtype).removeprefix("torch."),
            "preset": str(request.preset) if isinstance(request.preset, str) else "own",
            "schedule": spec(request.how().schedule),
            "decoder": request.decoder,
            "num_frames": request.num_frames,
            "size": list(request.size(model.variant.size)),
            "scale": self.scale,
            "watermark": self.marking.watermark,
        }


def made(out: Path, videos: Sequence[Planned]) -> set[str]:
    """Those that are there; one of another prompt or seed is refused."""
    entries = manifest.entries(out)
    found = set()
    for one in videos:
        entry = entries.get(one.name)
        if entry is None or not (out / f"{one.name}.mp4").exists():
            continue
        for what, asked in (("prompt", one.prompt), ("seed", one.seed)):
            if entry.get(what) != asked:
                raise ValueError(
                    f"{out / one.name}.mp4 was made with {what} {entry.get(what)!r}, not {asked!r}: name another --out"
                )
        found.add(one.name)
    return found


def make(asked: Asked, one: Planned, out: Path) -> float:
    """Make a video and write down what it is. Gives new frames a second."""
    request = replace(asked.request, prompt=one.prompt, prompt_embeds=None, seed=one.seed)
    session = asked.model.stream(request)
    calls, new, start = 0, 0, time.perf_counter()
    origin = of_request(asked.model, request)
    target = out / f"{one.name}.mp4"
    with marked_writer(target, asked.model.variant.fps, origin, asked.marking, from_text=True) as file:
        for piece in session:
            file.write(enlarge(piece.frames, asked.scale))
            calls, new = calls + piece.calls, new + piece.new
        seconds = time.perf_counter() - start
    taken = {"calls": calls, "frames": new, "seconds": seconds}
    manifest.add(out, one.name, {"prompt": one.prompt, "seed": one.seed} | taken)
    return new / seconds
