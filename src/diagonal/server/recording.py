"""A session as a video: its frames are decoded from their tokens once more, a few at a time while it is played."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from diagonal.generation.world import World
from diagonal.media.draw import stamp
from diagonal.media.video import VideoArray, enlarge, to_be_seen, writer
from diagonal.server.player import Player
from diagonal.server.ticker import Ticker

TOGETHER = 4  # frames that others wait for


async def record(ticker: Ticker, player: Player, path: Path) -> None:
    """Write the frames that are kept of a session, up to the newest one, as mp4."""
    first, last = player.timeline.first, player.timeline.last
    with ExitStack() as stack:
        video = stack.enter_context(writer(path, ticker.world.variant.fps))
        for start in range(first, last + 1, TOGETHER):
            count = min(TOGETHER, last + 1 - start)
            asked = ticker.ask(partial(ticker.pixels, player, start, count))
            frames = shown(await asyncio.wrap_future(asked), ticker.world)
            await asyncio.to_thread(video.write, frames)


def shown(frames: VideoArray, world: World) -> VideoArray:
    """Frames as they are looked at in a file, with the mark that the model's licence asks for."""
    large = enlarge(frames, to_be_seen(world.size[0]))
    return stamp(large, world.variant.mark) if world.variant.mark else large
