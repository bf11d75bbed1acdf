"""What latent diffusion learns from: prompts alone, clips with prompts, or what a teacher made of noise.

Each source gives any of its samples by number. Latents are (N, F, C, H, W) in float32, prompts are embeddings
(N, L, C). Trajectories of a teacher lie in a folder of shards, one batch each. They are read once where they fit into
memory, and as they are needed where they do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diagonal.checkpoints import save_tensors
from diagonal.engine.chunks.bidirectional import trajectory
from diagonal.engine.chunks.denoise import Gaussian
from diagonal.engine.chunks.protocols import DiffusionModel
from diagonal.engine.transfers import sent
from diagonal.media.files import atomic
from diagonal.planning.denoising.noise import shifted

SIGMAS = "shares"  # where states are kept, by the name that files have for it


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples: prompts, and where the source has them, noise and the video that belongs to both."""

    text_BLC: Tensor
    video_BFCHW: Tensor | None = None
    noise_BFCHW: Tensor | None = None


class Source(Protocol):
    """Numbered samples."""

    def __len__(self) -> int: ...
    def take(self, chosen: Sequence[int]) -> Batch: ...


@dataclass(frozen=True, slots=True)
class EmbeddedPrompts:
    """Texts alone: all that distribution matching needs."""

    text_NLC: Tensor

    def __len__(self) -> int:
        return len(self.text_NLC)

    def take(self, chosen: Sequence[int]) -> Batch:
        return Batch(self.text_NLC[sent(list(chosen), self.text_NLC.device)])


@dataclass(frozen=True, slots=True)
class LatentClips:
    """Real videos and their prompts."""

    text_NLC: Tensor
    video_NFCHW: Tensor

    def __len__(self) -> int:
        return len(self.text_NLC)

    def take(self, chosen: Sequence[int]) -> Batch:
        index = sent(list(chosen), self.text_NLC.device)
        return Batch(self.text_NLC[index], self.video_NFCHW[index])


class Trajectories:
    """Videos of a teacher from the noise to the clean end, at the sigmas that the student is trained at."""

    def __init__(self, folder: str | Path, device: torch.device) -> None:
        self.device = device
        self._shards = shards(folder)
        with _open(self._shards[0][0]) as shard:
            self.sigmas: tuple[float, ...] = tuple(shard.get_tensor(SIGMAS).tolist())  # from 1 down to 0
        self._rows = [(path, row) for path, count in self._shards for row in range(count)]
        fits = sum(path.stat().st_size for path, _ in self._shards) <= memory(device) // 4
        self._held = {name: self._read(name) for name in ("text", "states")} if fits else None

    def _read(self, name: str) -> Tensor:
        """One tensor of all shards, on the device, as it is stored."""
        held: Tensor | None = None
        start = 0
        for path, count in self._shards:
            with _open(path) as shard:
                rows = shard.get_tensor(name)
            if held is None:
                held = torch.empty(len(self), *rows.shape[1:], dtype=rows.dtype, device=self.device)
            held[start : start + count] = rows
            start += count
        assert held is not None
        return held

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, chosen: Sequence[int]) -> Batch:
        text, states = self.states(chosen)
        return Batch(text, states[:, -1], states[:, 0])

    def states(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Prompts, and states (B, sigmas, F, C, H, W)."""
        if self._held is not None:
            index = sent(list(chosen), self.device)
            text, states = (rows[index].float() for rows in self._held.values())
            return text, states
        parts: dict[str, list[Tensor]] = {"text": [], "states": []}
        for path, row in (self._rows[index] for index in chosen):
            with _open(path) as shard:
                for name, rows in parts.items():
                    rows.append(shard.get_slice(name)[row : row + 1].float())
        text, states = (torch.cat(rows).to(self.device) for rows in parts.values())
        return text, states


def memory(device: torch.device) -> int:
    """Bytes of a device that are free for data; of a computer's own memory, which others use too, 4 GB."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 4 * 10**9


def shards(folder: str | Path) -> list[tuple[Path, int]]:
    """The files of a folder of trajectories, each with how many it holds; files that do not go together are refused."""
    found: list[tuple[Path, int]] = []
    kinds: list[dict[str, Any]] = []
    # Names that begin with a dot are what a killed process had not finished.
    for path in sorted(Path(folder).glob("[!.]*.safetensors")):
        with _open(path) as shard:
            text, states = (shard.get_slice(name) for name in ("text", "states"))
            kinds.append({"states at": shard.get_tensor(SIGMAS).tolist()})
            kinds[-1] |= {"sizes": [text.get_shape()[1:], states.get_shape()[1:]], "dtype": states.get_dtype()}
            found.append((path, text.get_shape()[0]))
        for key, value in kinds[-1].items():
            if value != kinds[0][key]:
                raise ValueError(f"{path} has {key} {value}, the shards before it {kinds[0][key]}; make them again")
    if not found:
        raise ValueError(f"{folder} holds no trajectories (*.safetensors); record them with the teacher first")
    return found


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} is no shard of trajectories: {error}") from error


@dataclass(frozen=True, slots=True)
class Solving:
    """How a teacher's trajectories are made. The student's own sigmas are added to the solver's steps: the states that
    it learns from are exact."""

    shape: tuple[int, ...]  # (F, C, H, W)
    kept: tuple[float, ...]  # sigmas at which states are kept besides the noise itself
    steps: int = 48
    shift: float = 8.0
    guidance_scale: float = 6.0
    batch: int = 1
    seed: int = 0

    def described(self) -> str:
        """What files say of themselves."""
        return json.dumps({SIGMAS if name == "kept" else name: value for name, value in asdict(self).items()})

    def sigmas(self) -> list[float]:
        """From 1 down: the solver's steps, and where states are kept."""
        line = np.linspace(1, 0, self.steps + 1)[:-1]
        return sorted({1.0, *shifted(line, self.shift).tolist(), *self.kept}, reverse=True)


def record(
    teacher: DiffusionModel, prompts: Source, negative_1LC: Tensor, solving: Solving, folder: str | Path
) -> Iterator[int]:
    """Let the teacher make a video of every prompt; yields how many are done. Shards that are there are kept, if they
    were made of the same prompts in the same way."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sigmas, kept = solving.sigmas(), sorted({1.0, *solving.kept}, reverse=True)
    keep = {sigmas.index(sigma) for sigma in kept} | {len(sigmas)}
    made = solving.described()
    for start in range(0, len(prompts), solving.batch):
        numbers = range(start, min(start + solving.batch, len(prompts)))
        path, text = folder / f"{start:07d}.safetensors", prompts.take(numbers).text_BLC
        if path.exists():
            _check_made(path, made, text.cpu())
        else:
            seeds = [int(np.random.SeedSequence([solving.seed, one]).generate_state(1)[0]) for one in numbers]
            noise = Gaussian(seeds, text.device)(0, 0, (len(seeds), *solving.shape))
            states = trajectory(teacher, sigmas, (text, negative_1LC), solving.guidance_scale, noise)
            stacked = torch.stack([state for index, state in enumerate(states) if index in keep], 1)
            content = {"text": text, "states": stacked, SIGMAS: torch.tensor([*kept, 0.0], dtype=torch.float64)}
            with atomic(path) as temporary:
                whole = {name: value.cpu().contiguous() for name, value in content.items()}
                save_tensors(whole, temporary, {"made": made})
        yield numbers[-1] + 1


def _check_made(path: Path, made: str, text: Tensor) -> None:
    with _open(path) as shard:
        if (shard.metadata() or {}).get("made") != made or not torch.equal(shard.get_tensor("text"), text):
            raise ValueError(f"{path} was made of other prompts or in another way; remove it or choose another folder")
