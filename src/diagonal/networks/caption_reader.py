"""A small network that reads what a Doom clip shows: where it plays, the motions one after the other, the things seen.

It judges how well a generated clip follows its prompt. Captions are made of the same facts (worlds/captions.py), so an
answer is right or wrong. It is trained on real clips that went through the codec (training/reader.py): what the codec
blurs is not held against a student.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.worlds.captions import MOTIONS, PHASES, PLACES, THINGS, Facts

SCENARIOS = tuple(PLACES)
NO_MOTION = len(MOTIONS)  # the class of a phase that a clip does not have


@dataclass(frozen=True, slots=True)
class Config:
    """Convolutions over space and time, the last two of which halve time too."""

    channels: tuple[int, ...] = (24, 48, 96, 128)
    features: int = 160  # of each moment
    moments: int = 6  # that motions are read from
    hidden: int = 256

    def build(self) -> Reader:
        return Reader(self)


@dataclass(frozen=True, slots=True)
class Answers:
    """What clips show, or what prompts say of them."""

    scenario_N: Tensor
    motions_NP: Tensor  # one of MOTIONS or NO_MOTION for each phase
    things_NM: Tensor  # bool, for each of THINGS

    @classmethod
    def of(cls, facts: Sequence[Facts], device: torch.device | str) -> Answers:
        """What is true of clips."""
        motions = [[*one.motions, *[NO_MOTION] * (PHASES - len(one.motions))] for one in facts]
        return cls(
            torch.tensor([SCENARIOS.index(one.scenario) for one in facts], device=device),
            torch.tensor(motions, device=device),
            torch.tensor([[thing in one.things for thing in THINGS] for one in facts], device=device),
        )

    def __getitem__(self, chosen: Tensor) -> Answers:
        return Answers(self.scenario_N[chosen], self.motions_NP[chosen], self.things_NM[chosen])


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits for each of the answers."""

    scenario_NS: Tensor
    motions_NPC: Tensor
    things_NM: Tensor

    def answers(self) -> Answers:
        return Answers(self.scenario_NS.argmax(-1), self.motions_NPC.argmax(-1), self.things_NM > 0)

    def loss(self, true: Answers) -> Tensor:
        """Cross entropy of all answers."""
        motions = F.cross_entropy(self.motions_NPC.float().flatten(0, 1), true.motions_NP.flatten())
        things = F.binary_cross_entropy_with_logits(self.things_NM.float(), true.things_NM.float())
        return F.cross_entropy(self.scenario_NS.float(), true.scenario_N) + motions + things


class Reader(nn.Module):
    """Clips (N, T, 3, H, W) uint8 to scores; frames are looked at in half their size."""

    weight_map = WeightMap(prefixes=("reader.", ""))

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        layers: list[nn.Module] = []
        before, last = 3, len(config.channels) - 2
        for index, channels in enumerate(config.channels):
            stride = (2 if index >= last else 1, 2, 2)
            layers += [nn.Conv3d(before, channels, 3, stride, 1), nn.GroupNorm(8, channels), nn.SiLU()]
            before = channels
        self.trunk = nn.Sequential(*layers)
        # Where things moved matters: pool to a coarse grid, not to a point.
        self.features = nn.Linear(before * 3 * 4, config.features)
        self.still = nn.Linear(config.features, len(SCENARIOS) + len(THINGS))
        self.order = nn.Linear(config.features * config.moments, config.hidden)
        self.motions = nn.Linear(config.hidden, PHASES * (len(MOTIONS) + 1))

    def forward(self, video_NTCHW: Tensor) -> Scores:
        pixels = halved(video_NTCHW).to(self.still.weight.dtype) / 127.5 - 1
        trunk_NCTHW = self.trunk(pixels.transpose(1, 2))
        moments_NTC = F.adaptive_avg_pool3d(trunk_NCTHW, (None, 3, 4)).permute(0, 2, 1, 3, 4).flatten(2)
        moments_NTC = F.silu(self.features(moments_NTC))
        scenario, things = self.still(moments_NTC.mean(1)).split([len(SCENARIOS), len(THINGS)], dim=-1)
        few = F.adaptive_avg_pool1d(moments_NTC.transpose(1, 2), self.config.moments).flatten(1)
        motions = self.motions(F.silu(self.order(few))).unflatten(-1, (PHASES, len(MOTIONS) + 1))
        return Scores(scenario, motions, things)


def halved(video_NTCHW: Tensor) -> Tensor:
    """Clips in half their size, float."""
    small: Tensor = F.avg_pool2d(video_NTCHW.float().flatten(0, 1), 2).unflatten(0, video_NTCHW.shape[:2])
    return small


@torch.no_grad()
def read(network: Reader, video_NTCHW: Tensor, batch: int = 64) -> Answers:
    """What the network sees in clips."""
    parts = [network(part).answers() for part in video_NTCHW.split(batch)]
    return Answers(
        torch.cat([one.scenario_N for one in parts]),
        torch.cat([one.motions_NP for one in parts]),
        torch.cat([one.things_NM for one in parts]),
    )


def right(seen: Answers, told: Answers) -> dict[str, Tensor]:
    """Which clips (N,) have the scenario, the first motion, and all motions in their order."""
    return {
        "scenario": seen.scenario_N == told.scenario_N,
        "first_motion": seen.motions_NP[:, 0] == told.motions_NP[:, 0],
        "motions": (seen.motions_NP == told.motions_NP).all(1),
    }
