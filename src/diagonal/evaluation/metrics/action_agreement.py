"""Do frames of Doom show the actions that they were given? Our own inverse-dynamics network tells them from each pair.

all    share of pairs in which it sees just the action that was given
turns  of those whose action turns: share in which it sees a turn the same way
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from diagonal.checkpoints import ASSETS
from diagonal.evaluation.metrics import About, Beside, Metric, Setting, UnfitError, Video
from diagonal.evaluation.rollouts import TURNS
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap
from diagonal.networks.inverse_dynamics import Config, judge
from diagonal.networks.opening import opened
from diagonal.worlds.vizdoom import ACTIONS


class ActionAgreement(Metric):
    """Share of actions that are seen, 0 to 1; the weights come with the package and know Doom alone."""

    about = About(
        "our own; the idea is that of Baker et al., VPT, 2022, and Guo et al., MineWorld, 2025",
        beside=Beside.ACTIONS,
        variants=("all", "turns"),
        frames=2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(Config(len(ACTIONS)).build, ASSETS / "judge", setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        assert made.actions is not None
        given = numbers(made.actions)
        seen = judge(self.network, made.frames_TCHW[None].to(self.setting.device))[0][0].cpu()
        return agreement(seen, given, self.setting.variant)

    def of_video(self, seen: FloatArray) -> float:
        asked, right = seen.sum(0)
        return float(right / asked) if asked else float("nan")

    def curve(self, seen: FloatArray) -> FloatArray | None:
        return np.where(seen[:, 0] > 0, seen[:, 1], np.nan) if len(seen) > 1 else None

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        found = bootstrap(np.array([[self.of_video(seen)] for seen in made]))
        if not np.isfinite(found.mean):
            raise UnfitError("needs actions that turn; no video has any")
        return found


def numbers(actions: Sequence[str]) -> Tensor:
    """Actions by their place in the judge's list."""
    unknown = [action for action in actions if action not in ACTIONS]
    if unknown:
        raise UnfitError(f"the judge knows Doom's actions, {', '.join(ACTIONS)}, and not {unknown[0]!r}")
    return torch.tensor([ACTIONS.index(action) for action in actions])


def agreement(seen_T: Tensor, given_T: Tensor, variant: str) -> FloatArray:
    """Of each pair (T, 2) whether the variant asks for it, and whether it agrees: 1 or 0."""
    asked, right = torch.ones_like(given_T), seen_T == given_T
    if variant == "turns":
        turn = TURNS[given_T]
        asked, right = turn != 0, (TURNS[seen_T] == turn) & (turn != 0)
    found: FloatArray = torch.stack([asked.double(), right.double()], 1).numpy()
    return found
