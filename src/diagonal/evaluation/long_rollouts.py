"""Worlds played for hundreds of frames along the actions that were really taken: how errors grow.

    made = play(world, clips, Order.of("diagonal:k=1"), "roll", first_seed=0)  # every start is a seat of one arena
    curves = look(clips, made.videos, judges)  # numbers of every frame of every start
    numbers = summarise(curves, limits(clips, judges))

Curves are small arrays (starts, frames), so that starts can be played a few at a time, kept, and joined.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.evaluation.clips import colour_jump, saturation, sharpness
from diagonal.evaluation.metrics.lpips import lpips_distance
from diagonal.evaluation.metrics.psnr import psnr
from diagonal.evaluation.rollouts import TURNS, WALKS, Clips, Judges, lost_beyond
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap, slope
from diagonal.generation.world import World
from diagonal.networks.inverse_dynamics import judge
from diagonal.planning.plan import Order
from diagonal.worlds import vizdoom

Curves = dict[str, Tensor]  # (starts, frames) each

DULL = 10  # frames in a row less sharp than any true one: a collapse
EARLY = 50  # frames whose LPIPS tells something: later ones show other places
PER = 100  # frames that slopes are of


@dataclass(frozen=True, slots=True)
class Played:
    """Frames (N, T, C, H, W) that were played, the model calls of a frame, and the seconds that all of it took."""

    videos: Tensor
    calls: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What no true frames do: the largest jump of colours for each action, the least sharpness, and the distance
    beyond which a view is of another place (None without LPIPS)."""

    jump_A: Tensor
    sharpness: float
    lost: float | None


def play(world: World, clips: Clips, order: Order, context: str, first_seed: int = 0) -> Played:
    """Continue every clip as a seat of one arena; seat number b has the seed `first_seed` + b."""
    prompts = world.tokenizer.encode(clips.frames[:, : clips.context])
    names = [[vizdoom.ACTIONS[index] for index in row] for row in clips.actions.tolist()]
    arena, known = world.arena(len(prompts), context), clips.context - 1
    try:
        seats = [
            arena.play(prompt, actions[:known], schedule=order, seed=first_seed + number)
            for number, (prompt, actions) in enumerate(zip(prompts, names, strict=True))
        ]
        frames, calls, began = list[Tensor](), 0, time.perf_counter()
        for turn in range(known, clips.actions.shape[1]):
            pieces = arena.step({seat: actions[turn] for seat, actions in zip(seats, names, strict=True)})
            frames.append(torch.from_numpy(np.stack([pieces[seat].frame for seat in seats])).permute(0, 3, 1, 2))
            calls += pieces[seats[0]].calls
        return Played(torch.stack(frames, dim=1), calls / len(frames), time.perf_counter() - began)
    finally:
        arena.close()


def look(clips: Clips, videos: Tensor, judges: Judges) -> Curves:
    """What every generated frame is like, beside the true one; the first pair begins with the last true frame."""
    device, last = clips.frames.device, clips.frames[:, clips.context - 1 : clips.context]
    curves: dict[str, list[Tensor]] = {}
    for number, video in enumerate(videos.split(1)):  # one at a time: features of hundreds of frames are large
        video, true = video.to(device), clips.true[number : number + 1]
        whole = torch.cat([last[number : number + 1], video], dim=1)
        seen, _ = judge(judges.idm, whole)
        found = {"psnr": psnr(video[:, None], true[:, None])[:, 0], "seen": seen, "jump": colour_jump(whole)}
        found |= {"sharpness": sharpness(video), "saturation": saturation(video)}
        if judges.lpips is not None:
            distance = lpips_distance(video[:, None], true[:, None], judges.lpips)
            found["lpips"] = torch.as_tensor(distance)[:, 0]
        for name, values in found.items():
            curves.setdefault(name, []).append(values.cpu().float())
    given = clips.actions[:, clips.context - 1 :].cpu().float()
    return {name: torch.cat(parts) for name, parts in curves.items()} | {"given": given}


def limits(clips: Clips, judges: Judges, every: int = 10) -> Limits:
    """The bounds of the true frames; unrelated views are compared at every tenth frame."""
    jumps = colour_jump(clips.frames)
    most = torch.zeros(len(vizdoom.ACTIONS), device=jumps.device)
    most.scatter_reduce_(0, clips.actions.to(jumps.device).flatten(), jumps.flatten(), "amax")
    least = min(float(sharpness(video).min()) for video in clips.frames)
    lost = None if judges.lpips is None else lost_beyond(clips.true[:, ::every], judges.lpips)
    return Limits(most.cpu(), least, lost)


def summarise(curves: Curves, limit: Limits, start: int = EARLY) -> dict[str, Any]:
    """What a table says of a setting: means over frames, what was obeyed, switched and lost, and slopes of a hundred
    frames from frame `start` on. Intervals are over starts."""
    given, count = curves["given"].long(), curves["given"].shape[1]
    obeyed, turning = TURNS[curves["seen"].long()] == TURNS[given], (TURNS[given] != 0) & ~WALKS[given]
    numbers: dict[str, Any] = {"starts": len(given), "frames": count}
    for name in ("psnr", "lpips"):
        if name in curves:
            numbers[f"{name} to {min(EARLY, count)}"] = _mean(curves[name][:, :EARLY].mean(1))
    numbers["turns obeyed"] = _mean((obeyed & turning).sum(1) / turning.sum(1))
    for name in ("without switch", "without collapse"):
        numbers[name] = _mean((~_broken(curves, limit, name)).float())
    if limit.lost is not None:
        numbers["frames until lost"] = median(until(curves["lpips"] > limit.lost))
    late = {name: curves[name][:, start:] for name in ("psnr", "lpips", "sharpness", "saturation") if name in curves}
    if count - start > 1:
        for name, values in late.items():
            each = np.array([slope(row, PER) for row in values.double().numpy()])
            numbers[f"{name} slope"] = bootstrap(each[:, None])
    return numbers


def _broken(curves: Curves, limit: Limits, name: str) -> Tensor:
    """The starts that ever switch texture, or collapse."""
    if name == "without switch":
        return (curves["jump"] > limit.jump_A[curves["given"].long()]).any(1)
    dull = (curves["sharpness"] < limit.sharpness).float()
    return (dull.unfold(1, min(DULL, dull.shape[1]), 1).mean(-1) == 1).any(1)


def until(lost: Tensor) -> FloatArray:
    """Frames before the first lost one of each row; all of them where none is."""
    first = torch.where(lost.any(1), lost.float().argmax(1), lost.shape[1])
    return first.double().numpy()


def median(values: FloatArray, draws: int = 2000, seed: int = 0) -> Interval:
    """The median with its 95 % bootstrap interval."""
    drawn = np.random.default_rng(seed).choice(values, size=(draws, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Interval(float(np.median(values)), float(low), float(high))


def join(parts: Sequence[Mapping[str, Tensor]]) -> Curves:
    """Curves of starts that were played apart."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def difference(one: Curves, two: Curves, name: str, frames: int = EARLY) -> Interval:
    """A curve's mean of the first frames, minus that of another setting, paired by start."""
    return _mean((one[name] - two[name])[:, :frames].mean(1))


def _mean(values: Tensor) -> Interval:
    return bootstrap(values.double().numpy()[:, None])
