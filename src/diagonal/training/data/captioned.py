"""Doom clips with captions as latents: from recordings through a codec to what a teacher learns from.

A recording with captions (see worlds/vizdoom.py) is a folder of shards for each scenario. `encode` cuts its episodes
into clips and writes for each scenario one file with their latents and their facts:

    latents   (N, F, C, rows, cols) float16
    motions   (N, 3) int8   numbers in captions.MOTIONS, in the order of time; -1 where there is none
    things    (N, 2) int8   places in captions.THINGS, the largest first; -1 likewise

Sentences are made of the facts when they are asked for, in several ways each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from torch import Tensor

from diagonal.checkpoints import save_tensors
from diagonal.engine.transfers import sent
from diagonal.media.files import atomic
from diagonal.text.encoders import ENCODERS, embed
from diagonal.training.data.latents import Batch, EmbeddedPrompts
from diagonal.training.data.recordings import starts
from diagonal.worlds.captions import PHASES, THINGS, TOLD, Facts, caption, describe

TEXT = "doom"  # the encoder, in text.ENCODERS
CHUNK = 16  # clips encoded at a time
NONE = -1


@dataclass(frozen=True, slots=True)
class ClipSpec:
    """How episodes become clips: of so many frames, every so many frames."""

    frames: int
    hop: int
    codec: str  # what tells one trained codec from another


def encode(recording: Path, codec: Any, spec: ClipSpec, target: Path) -> Iterator[int]:
    """Write the clips of one scenario's recording; yields how many of its frames are done. A file that is there is
    kept."""
    made = json.dumps(asdict(spec))
    if target.exists():
        _check_made(target, made)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    latents: list[Tensor] = []
    facts: list[Facts] = []
    scenario, done = "", 0
    for path in sorted(recording.glob("[!.]*.safetensors")):
        scenario, data = _read(path)
        done += len(data["frames"])
        episodes = torch.from_numpy(data["episodes"].astype(np.int64))
        if int(episodes.unique(return_counts=True)[1].max()) < spec.frames:  # the rest of a recording
            continue
        begin = starts(episodes, spec.frames)
        for part in begin[begin % spec.hop == 0].split(CHUNK):
            clips = np.stack([data["frames"][at : at + spec.frames] for at in part.tolist()])
            video = torch.from_numpy(clips).permute(0, 1, 4, 2, 3)
            latents.append(codec.encode(video.to(next(codec.parameters()).device)).half().cpu())
            names = ("actions", "moved", "seen")
            cuts = ([data[name][at : at + spec.frames] for name in names] for at in part.tolist())
            facts += [describe(scenario, *cut) for cut in cuts]
        yield done
    if not latents:
        raise ValueError(f"{recording} holds no clip of {spec.frames} frames within one episode; record longer ones")
    content = {
        "latents": torch.cat(latents),
        "motions": _padded([one.motions for one in facts], PHASES),
        "things": _padded([[THINGS.index(thing) for thing in one.things] for one in facts], TOLD),
    }
    with atomic(target) as temporary:
        save_tensors(content, temporary, {"scenario": scenario, "made": made})


def _check_made(path: Path, made: str) -> None:
    with safe_open(path, "pt") as file:
        if file.metadata().get("made") != made:
            raise ValueError(f"{path} was made by another codec or of other clips; remove it or choose another folder")


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        with safe_open(path, "numpy") as file:
            scenario = (file.metadata() or {}).get("scenario", "")
        data = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no shard of a recording: {error}") from error
    missing = {"frames", "actions", "episodes", "moved", "seen"} - data.keys()
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}; record it with captions (--captions)")
    return scenario, data


def _padded(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    return torch.tensor([[*row, *[NONE] * (width - len(row))] for row in rows], dtype=torch.int8)


@dataclass(frozen=True, slots=True)
class Captioned:
    """Clips of all scenarios with several captions each: sample n is clip n // ways with its caption n % ways."""

    latents_NFCHW: Tensor  # float16
    facts: list[Facts]
    ways: int
    text_MLC: Tensor  # of all samples; zeros and ones, as bytes

    def __len__(self) -> int:
        return len(self.text_MLC)

    def take(self, chosen: Sequence[int]) -> Batch:
        """Samples by their numbers."""
        index = sent(list(chosen), self.text_MLC.device)
        return Batch(self.text_MLC[index].float(), self.latents_NFCHW[index // self.ways].float())

    def prompts(self, count: int, seed: int) -> EmbeddedPrompts:
        """Captions alone, drawn from all samples."""
        chosen = np.random.default_rng(seed).choice(len(self), size=count, replace=count > len(self))
        return EmbeddedPrompts(self.text_MLC[torch.from_numpy(chosen).to(self.text_MLC.device)].float())


def read(folder: Path, ways: int, seed: int, device: torch.device | str) -> Captioned:
    """All clips of a folder that `encode` wrote."""
    latents, facts = [], []
    for path in sorted(folder.glob("[!.]*.safetensors")):
        with safe_open(path, "pt") as file:
            scenario = file.metadata()["scenario"]
            latents.append(file.get_tensor("latents"))
            motions, things = (file.get_tensor(name).tolist() for name in ("motions", "things"))
        for moves, seen in zip(motions, things, strict=True):
            told = tuple(move for move in moves if move != NONE)
            facts.append(Facts(scenario, told, tuple(THINGS[thing] for thing in seen if thing != NONE)))
    if not facts:
        raise ValueError(f"{folder} holds no latents (*.safetensors); encode a recording first")
    texts = [caption(one, seed + index * ways + way) for index, one in enumerate(facts) for way in range(ways)]
    text_MLC = embed(texts, ENCODERS[TEXT], device="cpu").to(torch.uint8)
    return Captioned(torch.cat(latents).to(device), facts, ways, text_MLC.to(device))
