"""Does a window that rolls on play as well as one that is filled again? The numbers of docs/live.md, in three steps:

    python benchmarks/live.py record --data DATA                        # needs vizdoom: held-out episodes
    python benchmarks/live.py roll --data DATA --run RUN --device cuda  # long rollouts along their actions
    python benchmarks/live.py measure --data DATA --run RUN --lpips alex.safetensors --out RESULT.json

    python benchmarks/live.py nats --data RECORDING --out RESULT.json   # what rolling costs where all frames are true

DATA/starts.safetensors holds what the rollouts need: tokens of the first frames and all actions; DATA/true.safetensors
the true frames up to `--near`. Rollouts are tokens up to `--near`, and of every frame what the judge of actions sees,
how the colours jump and how sharp it is. `nats` feeds true frames of a held-out recording beyond the window: what the
model gives the tokens of the same frame in a ring that rolls, and behind a fresh prompt of the newest frames.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import diagonal
from diagonal import World
from diagonal.evaluation.clips import colour_jump, sharpness
from diagonal.evaluation.metrics.lpips import lpips_distance
from diagonal.evaluation.report import as_json, plain
from diagonal.evaluation.rollouts import TURNS, WALKS, cut
from diagonal.evaluation.statistics import bootstrap
from diagonal.evaluation.sweep import load_judge
from diagonal.media.files import atomic
from diagonal.networks import lpips
from diagonal.networks.inverse_dynamics import judge
from diagonal.planning.plan import Plan, make_plan
from diagonal.planning.rolling import rolled
from diagonal.training.data.recordings import frames as read_frames
from diagonal.training.tokens.world import lesson
from diagonal.worlds import vizdoom

SCENARIO, SEED = "my_way_home", 7_000_000  # far from the seeds of any recording
CONTEXT = 4  # frames of a prompt
CONTEXTS = ("roll", "refill")
PROMPTS = (15, 7, 4)  # frames before the one that is scored; 4 are what a refilled window begins with


def episodes(job: tuple[int, int, int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Near frames, actions, and what true frames do at most: of whole episodes of a worker's own game."""
    seed, count, (length, near) = job[0], job[1], divmod(job[2], 10_000)
    os.chdir(tempfile.mkdtemp())  # the game writes where it runs
    frames: list[np.ndarray[Any, Any]] = []
    actions: list[int] = []
    found: list[tuple[np.ndarray[Any, Any], list[int]]] = []
    limits = np.zeros(len(vizdoom.ACTIONS) + 1)
    limits[-1] = np.inf
    shown = -1
    for frame, action, number in vizdoom.play(SCENARIO, seed, length + 1):
        if number != shown:
            frames, actions, shown = [], [], number
        frames.append(frame)
        actions.append(vizdoom.ACTIONS.index(action))
        if len(frames) == length:
            found.append((np.stack(frames[:near]), [*actions]))
            _limit(limits, np.stack(frames), actions)
            if len(found) == count:
                break
    return np.stack([one for one, _ in found]), np.array([one for _, one in found]), limits


def _limit(limits: np.ndarray[Any, Any], frames: np.ndarray[Any, Any], actions: list[int]) -> None:
    """The largest jump of colours after each action, and the least sharpness."""
    video = torch.from_numpy(frames).permute(0, 3, 1, 2)[None]
    np.maximum.at(limits[:-1], actions[:-1], colour_jump(video)[0].numpy())
    limits[-1] = min(limits[-1], float(sharpness(video).min()))


def record(given: argparse.Namespace) -> None:
    """Play held-out episodes to the end, all of one length."""
    workers, length = os.cpu_count() or 1, CONTEXT + given.frames
    share = [given.starts // workers + (index < given.starts % workers) for index in range(workers)]
    given.data = given.data.absolute()
    jobs = [(SEED + index, count, length * 10_000 + given.near) for index, count in enumerate(share) if count]
    with ProcessPoolExecutor(len(jobs)) as pool:
        parts = [*pool.map(episodes, jobs)]
    frames, actions = (torch.from_numpy(np.concatenate([part[index] for part in parts])) for index in (0, 1))
    limits = np.stack([part[2] for part in parts])
    world = diagonal.load("doom")
    tokens = torch.cat([world.encode(one[:CONTEXT].numpy())[0] for one in frames])
    given.data.mkdir(parents=True, exist_ok=True)
    limit = torch.from_numpy(np.append(limits[:, :-1].max(0), limits[:, -1].min()))
    starts = {"tokens": tokens.to(torch.int16), "actions": actions.to(torch.int8), "limits": limit}
    save_file(starts, given.data / "starts.safetensors")
    save_file({"frames": frames.contiguous()}, given.data / "true.safetensors")
    sys.stdout.write(f"{len(frames)} episodes of {length} frames\n")


def played(world: World, starts: dict[str, Tensor], context: str) -> Iterator[Tensor]:
    """Tokens (N, rows, cols) of frame after frame, of all starts together. What is filled again is streamed, which
    gives the tokens of sessions and feeds all clips at once."""
    names = vizdoom.ACTIONS
    listed = [[names[index] for index in row] for row in starts["actions"].tolist()]
    if context == "refill":
        stream = world.stream(starts["tokens"].long(), [row[:-1] for row in listed], seed=range(len(listed)))
        yield from (frame.tokens.cpu() for frame in stream.token_frames())
        return
    arena = world.arena(len(listed), context)
    sessions = [
        arena.play(tokens.long(), row[: CONTEXT - 1], seed=seed)
        for seed, (tokens, row) in enumerate(zip(starts["tokens"], listed, strict=True))
    ]
    for time_ in range(CONTEXT - 1, len(listed[0]) - 1):
        made = arena.step({session: row[time_] for session, row in zip(sessions, listed, strict=True)})
        yield torch.cat([made[session].tokens for session in sessions])
    for session in sessions:
        session.close()
    arena.close()


def roll(given: argparse.Namespace) -> None:
    """Rollouts in each context; what only a GPU does quickly is measured at once."""
    starts = load_file(given.data / "starts.safetensors")
    starts = {name: part if name == "limits" else part[: given.starts] for name, part in starts.items()}
    world = diagonal.load("doom", given.weights, device=given.device)
    if given.device != "cpu":
        world.model.to(torch.bfloat16)
    idm = load_judge(given.judge, given.device)
    given.run.mkdir(parents=True, exist_ok=True)
    for context in given.contexts:
        began, near, seen, jumps, sharp = time.perf_counter(), [], [], [], []
        last = _pixels(world, starts["tokens"][:, CONTEXT - 1].long())
        for number, tokens in enumerate(played(world, starts, context)):
            near += [tokens.to(torch.int16)] if number < given.near - CONTEXT else []
            frame = _pixels(world, tokens)
            pair = torch.stack([last, frame], 1)
            seen.append(judge(idm, pair)[0][:, 0].cpu().to(torch.int8))
            jumps.append(colour_jump(pair)[:, 0].cpu())
            sharp.append(sharpness(frame[:, None])[:, 0].cpu())
            last = frame
        parts = {"near": near, "seen": seen, "jumps": jumps, "sharp": sharp}
        save_file({name: torch.stack(one, 1) for name, one in parts.items()}, given.run / f"{context}.safetensors")
        sys.stdout.write(f"{context}: {len(seen)} frames of {len(last)} in {time.perf_counter() - began:.1f} s\n")


def _pixels(world: World, tokens_NHW: Tensor) -> Tensor:
    """Pixels (N, C, H, W) on the device."""
    parts = [world.tokenizer.decode(some[:, None].to(world.device), {})[:, 0] for some in tokens_NHW.split(256)]
    return torch.cat(parts)


def measure(given: argparse.Namespace) -> None:
    """All numbers of each context, and how the two differ, clip by clip."""
    starts, true = load_file(given.data / "starts.safetensors"), load_file(given.data / "true.safetensors")["frames"]
    weights = lpips.load(given.lpips)
    world = diagonal.load("doom")
    rows: dict[str, Any] = {}
    values: dict[str, np.ndarray[Any, Any]] = {}
    for context in given.contexts:
        run = load_file(given.run / f"{context}.safetensors")
        rows[context], values[context] = _numbers(world, run, starts, true, weights)
        shown = {name: str(value) for name, value in rows[context].items() if "by_frame" not in name}
        sys.stdout.write(f"{context}: {shown}\n")
    flat = {context: plain(row) for context, row in rows.items()}
    result: dict[str, Any] = {"frames": int(run["seen"].shape[1]), "starts": len(run["seen"]), "rows": flat}
    if len(given.contexts) == 2:
        one, two = given.contexts
        result[f"lpips_50_{one}_minus_{two}"] = bootstrap((values[one] - values[two])[:, None])
    with atomic(given.out) as temporary:
        temporary.write_text(as_json(plain(result)))


def _numbers(
    world: World, run: dict[str, Tensor], starts: dict[str, Tensor], true: Tensor, weights: dict[str, Tensor]
) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Of one context: the numbers, and the LPIPS of each clip to 50 frames."""
    count, near = run["near"].shape[:2]
    true_NTCHW = true[:count, CONTEXT : CONTEXT + near].permute(0, 1, 4, 2, 3)
    far = np.concatenate([_distances(world, run["near"][index], true_NTCHW[index], weights) for index in range(count)])
    unrelated = _unrelated(true_NTCHW, weights)
    lost = far > np.quantile(unrelated, 0.05)
    until = np.array([row.argmax() if row.any() else near for row in lost])
    given, seen = starts["actions"][:count, CONTEXT - 1 : -1].long(), run["seen"].long()
    turning = (TURNS[given] != 0) & ~WALKS[given]
    right = ((TURNS[seen] == TURNS[given]) & turning).double()
    switched = run["jumps"] > starts["limits"][given]
    dull = (run["sharp"] < starts["limits"][-1]).float()
    collapsed = (dull.unfold(-1, 10, 1).mean(-1) == 1).any(-1)

    def share(hits: Tensor, of: Tensor) -> Any:
        return bootstrap((hits.sum(-1) / of.sum(-1).clamp(min=1)).double().numpy()[:, None])

    spans = {"1-50": slice(0, 50), "51-200": slice(50, 200), "201-500": slice(200, 500)}
    numbers = {
        "lpips_50": bootstrap(far[:, :50].mean(1)[:, None]),
        "lpips_by_frame": far.mean(0).tolist(),
        **{f"turns_obeyed_{name}": share(right[:, part], turning[:, part]) for name, part in spans.items()},
        "frames_until_lost": {str(q): float(np.quantile(until, q)) for q in (0.25, 0.5, 0.75)},
        "mean_frames_until_lost": bootstrap(until.astype(float)[:, None]),
        "switched_texture_by_200": bootstrap(switched[:, :200].any(-1).double().numpy()[:, None]),
        "switches_per_100_frames": bootstrap(100 * switched.double().mean(-1).numpy()[:, None]),
        "collapsed": bootstrap(collapsed.double().numpy()[:, None]),
        "sharpness": {name: float(run["sharp"][:, part].mean()) for name, part in spans.items()},
    }
    return numbers, far[:, :50].mean(1)


def _distances(world: World, tokens: Tensor, true: Tensor, weights: dict[str, Tensor]) -> np.ndarray[Any, Any]:
    """LPIPS of each generated frame of a clip to the true one, (1, T)."""
    made = _pixels(world, tokens.long())
    return lpips_distance(made[None, None], true[None, None], weights)[:, 0]


def _unrelated(true_NTCHW: Tensor, weights: dict[str, Tensor]) -> np.ndarray[Any, Any]:
    """LPIPS between true frames of different clips: a few of each."""
    some = true_NTCHW[:, ::12]
    return lpips_distance(some[:, None], some.roll(1, dims=0)[:, None], weights).ravel()


def nats(given: argparse.Namespace) -> None:
    """Nats per token of the last frame of each window, rolled and behind fresh prompts, clip by clip."""
    world = diagonal.load("doom", given.weights, device=given.device)
    window, part = world.variant.config.frames, read_frames(given.data, world.size, given.device)
    clips = cut(part, given.starts, 1, window + given.beyond - 1)
    actions = torch.tensor(world.actions.tokens(vizdoom.ACTIONS, world.variant.config.codebook), device=given.device)
    found: dict[str, list[float]] = {}
    for number in range(len(clips.frames)):
        cells = world.tokenizer.encode(clips.frames[number : number + 1])[0].flatten(1)
        taken = torch.nn.functional.pad(clips.actions[number], (0, 1)).to(given.device)
        units = torch.cat([cells, actions[taken]], 1)
        for known in (len(units) - 1, *PROMPTS):
            plan = make_plan(world.layout(known + 1), given.schedule, known=1)
            name, seen = (f"fresh, {known} frames", plan) if known < window else ("rolled", rolled(plan, window))
            found.setdefault(name, []).append(_last_nats(world, units[-known - 1 :], seen))
        sys.stdout.write(f"{number + 1}: " + ", ".join(f"{name} {one[-1]:.4f}" for name, one in found.items()) + "\n")
    values = {name: np.array(one)[:, None] for name, one in found.items()}
    rows = {
        name: {"nats": bootstrap(one), "rolled_minus": bootstrap(values["rolled"] - one)}
        for name, one in values.items()
    }
    about = {"command": " ".join(sys.argv), "device": given.device, "torch": torch.__version__}
    about |= {"clips": len(clips.frames), "beyond": given.beyond, "schedule": given.schedule, "window": window}
    with atomic(given.out) as temporary:
        temporary.write_text(as_json(plain(about | {"rows": {name: plain(row) for name, row in rows.items()}})))


@torch.no_grad()
def _last_nats(world: World, units_TU: Tensor, plan: Plan) -> float:
    """Mean nats of the tokens of the last frame, all that is before it true."""
    taught, tokens = lesson(plan, world.device, use_flex=False), units_TU.flatten()[None]
    logits = world.model(tokens[:, taught.read], taught.position, taught.memory, taught.keep)[0].float()
    last = taught.target >= plan.layout.frame(plan.layout.grid.frames - 1).start
    return float(torch.nn.functional.cross_entropy(logits[last], tokens[0, taught.target[last]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "roll", "measure", "nats"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lpips", type=Path)
    parser.add_argument("--weights", type=Path, help="of the world; default: the shipped ones")
    parser.add_argument("--judge", type=Path, default=Path(diagonal.__file__).parent / "assets" / "judge")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--starts", type=int, default=256)
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--near", type=int, default=64, help="frames whose pixels are compared, the prompt's included")
    parser.add_argument("--contexts", nargs="+", default=[*CONTEXTS], choices=CONTEXTS)
    parser.add_argument("--beyond", type=int, default=12, help="frames beyond the window, for nats")
    parser.add_argument("--schedule", default="diagonal:k=1", help="for nats")
    given = parser.parse_args()
    {"record": record, "roll": roll, "measure": measure, "nats": nats}[given.what](given)


if __name__ == "__main__":
    main()
