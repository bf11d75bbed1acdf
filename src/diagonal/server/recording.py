"""A session as a video: its frames are decoded from their tokens once more, a few at a time while it is played."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path

from diagonal.generation.origin import of_world
from diagonal.generation.world import World
from diagonal.media.draw import stamp
from diagonal.media.provenance.origin import Origin
from diagonal.media.provenance.writing import Marking, marked_writer
from diagonal.media.video import VideoArray, enlarge, to_be_seen
from diagonal.server.player import Player
from diagonal.server.ticker import Ticker
from diagonal.worlds.script import spell

TOGETHER = 4  # frames that others wait for


async def record(ticker: Ticker, player: Player, path: Path, marking: Marking) -> None:
    """Write the frames that are kept of a session, up to the newest one, as mp4, signed as the server signs."""
    first, last = player.timeline.first, player.timeline.last
    origin = await asyncio.to_thread(_origin, ticker.world, player)
    with ExitStack() as stack:
        video = stack.enter_context(marked_writer(path, ticker.world.variant.fps, origin, marking))
        for start in range(first, last + 1, TOGETHER):
            count = min(TOGETHER, last + 1 - start)
            asked = ticker.ask(partial(ticker.pixels, player, start, count))
            frames = shown(await asyncio.wrap_future(asked), ticker.world)
            await asyncio.to_thread(video.write, frames)


def _origin(world: World, player: Player) -> Origin:
    """What the recording's credentials say: of a player who went back, the frames that are left."""
    session, timeline = player.session, player.timeline
    told = {"actions": spelled(world, timeline.actions()), "frames": f"{timeline.first} to {timeline.last}"}
    return of_world(world, session.order, session.sampling, session.seed, told)


def spelled(world: World, ids: list[tuple[int, ...]]) -> str:
    """Actions in the short text form from their token ids; an action without a name is its ids."""
    controls = list(dict.fromkeys(world.actions.CONTROLS.values()))
    texts = dict.fromkeys(["noop", *controls, *("+".join(pair) for pair in combinations(controls, 2))])
    first, names = world.variant.config.codebook, dict[tuple[int, ...], str]()
    for text in texts:
        try:
            (row,) = world.actions.tokens(world.actions.parse(text), first)
        except ValueError:  # controls that are not held together
            continue
        names.setdefault(tuple(row), text)
    return spell([names.get(row, " ".join(map(str, row))) for row in ids])


def shown(frames: VideoArray, world: World) -> VideoArray:
    """Frames as they are looked at in a file, with the mark that the model's licence asks for."""
    large = enlarge(frames, to_be_seen(world.size[0]))
    return stamp(large, world.variant.mark) if world.variant.mark else large
