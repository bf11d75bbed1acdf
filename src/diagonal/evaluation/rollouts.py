"""Generates held-out clips again and measures them: the numbers behind `diagonal evaluate`.

A clip is some context frames, then frames that the world continues along the actions that were really taken. Every
clip is generated with several seeds; intervals are over clips and seeds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.evaluation.clips import colour_jump, sharpness
from diagonal.evaluation.distances import frechet
from diagonal.evaluation.metrics.lpips import lpips_distance
from diagonal.evaluation.metrics.psnr import psnr
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap
from diagonal.generation.world import World
from diagonal.networks.inverse_dynamics import InverseDynamics, judge
from diagonal.planning.plan import Order
from diagonal.planning.sampling import Sampling
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part

# Which way an action turns: -1 left, 1 right, 0 not.
TURNS = torch.tensor([("right" in name) - ("left" in name) for name in vizdoom.ACTIONS])
CPU_BATCH = 32  # samples that a CPU generates at a time: more are not faster, and need memory
WALKS = torch.tensor(["forward" in name for name in vizdoom.ACTIONS])


@dataclass(frozen=True, slots=True)
class Clips:
    """Held-out clips: frames (N, T, C, H, W) uint8 and the actions (N, T-1) between them."""

    frames: Tensor
    actions: Tensor
    context: int

    @property
    def true(self) -> Tensor:
        """The frames that are to be generated."""
        return self.frames[:, self.context :]


@dataclass(frozen=True, slots=True)
class Judges:
    """What measures: the inverse-dynamics network, and LPIPS where its weights are given."""

    idm: InverseDynamics
    lpips: Mapping[str, Tensor] | None = None


def cut(part: Part, count: int, context: int, frames: int) -> Clips:
    """`count` clips spread evenly over a recording, each within one episode."""
    length = context + frames
    inside = part.episodes_N[: len(part.episodes_N) - length + 1] == part.episodes_N[length - 1 :]
    starts = inside.nonzero().flatten()
    if len(starts) < count:
        raise ValueError(f"the recording has {len(starts)} places for clips of {length} frames; {count} are needed")
    chosen = starts[torch.linspace(0, len(starts) - 1, count).long()]
    index = (chosen[:, None] + torch.arange(length)).to(part.frames_NHWC.device)
    return Clips(part.frames_NHWC[index].permute(0, 1, 4, 2, 3), part.actions_NA[index, 0][:, :-1], context)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Generated frames (N, seeds, T, C, H, W) of clips, and what making them took."""

    videos: Tensor
    steps: float  # model calls of a batch: the mean, where batches differ
    seconds: float


def roll(
    world: World, clips: Clips, order: Order, sampling: Sampling, seeds: int, batch: int | None = None
) -> Rollouts:
    """Continue every clip with every seed: all at once, or `batch` samples at a time (the default on a CPU).

    Sample number b, counting the seeds of a clip before the next clip, has seed b whatever the batch.
    """
    prompt = clips.frames[:, : clips.context].repeat_interleave(seeds, dim=0)
    names = [[vizdoom.ACTIONS[index] for index in row] for row in clips.actions.tolist()]
    actions = [row for row in names for _ in range(seeds)]
    tokens = torch.cat([world.tokenizer.encode(part) for part in prompt.split(64)])
    batch = batch or (CPU_BATCH if tokens.device.type == "cpu" else len(tokens))
    made, calls, seconds = [], list[int](), 0.0
    for first in range(0, len(tokens), batch):
        few, number = slice(first, first + batch), list(range(first, min(first + batch, len(tokens))))
        stream = world.stream(tokens[few], actions[few], schedule=order, sampling=sampling, seed=number)
        calls.append(0)
        stream.on_call = lambda: _count(calls)
        start = time.perf_counter()
        cells = [frame.tokens for frame in stream.token_frames()]
        seconds += time.perf_counter() - start
        made.append(torch.stack([_decode(world, frame) for frame in cells], dim=1))
    steps = calls[0] if len(set(calls)) == 1 else sum(calls) / len(calls)
    return Rollouts(torch.cat(made).unflatten(0, (len(clips.frames), seeds)), steps, seconds)


def _count(calls: list[int]) -> None:
    calls[-1] += 1


def _decode(world: World, cells_BHW: Tensor) -> Tensor:
    """Pixels (B, C, H, W) of one frame of many samples."""
    return torch.cat([world.tokenizer.decode(part[:, None], {}) for part in cells_BHW.split(256)])[:, 0]


def measure(clips: Clips, made: Rollouts, judges: Judges) -> dict[str, Any]:
    """All numbers of one setting. Arrays named `*_by_frame` show how quality falls with time."""
    count, seeds = made.videos.shape[:2]
    true = clips.true[:, None].expand_as(made.videos)
    result: dict[str, Any] = {"steps": made.steps, "seconds": made.seconds}
    decibels = psnr(made.videos, true).cpu().double().numpy()
    result |= {"psnr": bootstrap(decibels.mean(-1)), "psnr_by_frame": decibels.mean((0, 1)).tolist()}
    result["psnr_values"] = decibels.mean(-1)
    if judges.lpips is not None:
        distances = lpips_distance(made.videos, true, judges.lpips)
        result |= {"lpips": bootstrap(distances.mean(-1)), "lpips_by_frame": distances.mean((0, 1)).tolist()}
        result["lpips_values"] = distances.mean(-1)
    return result | _obedience(clips, made.videos, judges.idm, (count, seeds))


def _obedience(clips: Clips, videos: Tensor, network: InverseDynamics, shape: tuple[int, int]) -> dict[str, Any]:
    """Do the generated frames show the actions that were given? The first pair starts with the last true frame."""
    last = clips.frames[:, clips.context - 1 : clips.context]
    given = clips.actions[:, clips.context - 1 :].to(videos.device)
    with_last = torch.cat([last[:, None].expand(-1, shape[1], -1, -1, -1, -1), videos], dim=2)
    seen, features = judge(network, with_last.flatten(0, 1))
    _, real_features = judge(network, clips.frames[:, clips.context - 1 :])
    numbers: dict[str, Any] = {"frechet_idm": frechet(features.flatten(0, 1), real_features.flatten(0, 1))}
    return numbers | obeyed(seen.unflatten(0, shape), given[:, None].expand(-1, shape[1], -1))


def obeyed(seen: Tensor, given: Tensor) -> dict[str, Interval]:
    """Shares of transitions (N, seeds, T) in which the judge sees what was given: exactly, and the way of turns."""
    seen, given = seen.cpu(), given.cpu()
    turn, walk = TURNS[given], WALKS[given]
    same_way = TURNS[seen] == turn
    parts = {
        "actions_obeyed": (seen == given, torch.ones_like(walk)),
        "turns_obeyed": (same_way, (turn != 0) & ~walk),
        "walking_turns_obeyed": (same_way, (turn != 0) & walk),
    }
    return {name: bootstrap(_share(right, where)) for name, (right, where) in parts.items()}


def _share(right: Tensor, where: Tensor) -> FloatArray:
    """Share of right ones among `where`, per clip and seed; nan where there are none."""
    hits, total = (right & where).sum(-1).double(), where.sum(-1).double()
    return (hits / total).numpy()


def stability(clips: Clips, videos: Tensor) -> dict[str, Any]:
    """Long rollouts: how many clips never collapse and never switch texture, by the limits of the true frames.

    A switch is a jump of colours between two frames larger than any that the true frames show for the same action;
    a collapse is ten frames in a row less sharp than any true frame.
    """
    last = clips.frames[:, clips.context - 1 : clips.context]
    real, made = colour_jump(clips.frames), colour_jump(torch.cat([last, videos], dim=1))
    given = clips.actions[:, clips.context - 1 :]
    limit = torch.zeros(len(vizdoom.ACTIONS), device=real.device)
    limit.scatter_reduce_(0, clips.actions.to(real.device).flatten(), real.flatten(), "amax")
    switched = (made > limit[given.to(made.device)]).any(-1)
    dull = (sharpness(videos) < sharpness(clips.frames).min()).float()
    collapsed = (dull.unfold(-1, min(10, dull.shape[-1]), 1).mean(-1) == 1).any(-1)
    sound = ~(switched | collapsed)
    return {
        "clips": len(videos),
        "without_switch": float((~switched).float().mean()),
        "without_collapse": float((~collapsed).float().mean()),
        "sound": bootstrap(sound.double().cpu().numpy()[:, None]),
    }


def frames_until_lost(clips: Clips, videos: Tensor, weights: Mapping[str, Tensor]) -> list[int]:
    """For each clip, how many generated frames (N, T, C, H, W) still show the place where the player really is.

    A rollout is lost from the first frame that is as far (LPIPS) from the true one as the nearest twentieth of
    unrelated views are: true frames of different clips.
    """
    lost = lpips_distance(videos[:, None], clips.true[:, None], weights)[:, 0] > lost_beyond(clips.true, weights)
    return [int(row.argmax()) if row.any() else len(row) for row in lost]


def lost_beyond(true: Tensor, weights: Mapping[str, Tensor]) -> float:
    """The distance of the nearest twentieth of unrelated views: true frames (N, T, C, H, W) of different clips."""
    return float(np.quantile(lpips_distance(true[:, None], true.roll(1, dims=0)[:, None], weights), 0.05))


def sheet(clips: Clips, rows: Mapping[str, Tensor], clip: int, every: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The true frames of one clip above the generated ones (T, C, H, W) of each setting, as one picture."""
    strips = [clips.true[clip], *rows.values()]
    lines = [torch.cat(list(strip[::every].cpu()), dim=-1) for strip in strips]
    return torch.cat(lines, dim=-2).permute(1, 2, 0).numpy()
