"""What is on its way to one client: all messages, and images as far as the client keeps up.

At most `AHEAD` images are sent and not acknowledged. What the operating system and proxies buffer does not count: that
alone is seconds. While the client is behind, the newest image waits and older ones are dropped, before they are
encoded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from diagonal.server.images import Image

AHEAD = 2
MESSAGES = 256  # that may wait for a client that does not read
ASKED = 32  # that may wait before more questions are heard


class Outbox:
    """Used in the event loop alone."""

    def __init__(self) -> None:
        self.dropped = 0
        self._messages, self._images = deque[dict[str, Any]](), deque[Image]()
        self._shown = deque[int]()  # frames that were sent and are not acknowledged
        self._closing: int | None = None
        self._news, self._taken = asyncio.Event(), asyncio.Event()

    def say(self, message: dict[str, Any]) -> None:
        """A message, after those before it. Who reads none of them is left."""
        self._messages.append(message)
        if len(self._messages) > MESSAGES:
            self._messages.clear()
            self.close(1008)
        self._news.set()

    async def room(self) -> None:
        """Wait until the client has been sent most of what it asked for."""
        while len(self._messages) > ASKED and self._closing is None:
            self._taken.clear()
            await self._taken.wait()

    def show(self, image: Image, cut: bool = False) -> None:
        """An image; `cut`: it does not follow those before it, so that none of them is needed any more."""
        while self._images and (cut or len(self._images) >= max(1, AHEAD - len(self._shown))):
            dropped = self._images.popleft()
            image = image if cut else image.after(dropped)
            self.dropped += 1
        self._images.append(image)
        self._news.set()

    def acknowledge(self, frame: int) -> None:
        """The client has shown this image, so all that were sent before it are done with, too."""
        if frame in self._shown:
            while self._shown.popleft() != frame:
                pass
            self._news.set()

    def close(self, code: int) -> None:
        """Say nothing more after what was said so far."""
        if self._closing is None:
            self._closing = code
        self._news.set()
        self._taken.set()

    async def next(self) -> dict[str, Any] | Image | int:
        """What is to be sent next: a message, an image, or the code to close with."""
        while True:
            if self._messages:
                self._taken.set()
                return self._messages.popleft()
            if self._closing is not None:
                return self._closing
            if self._images and len(self._shown) < AHEAD:
                image = self._images.popleft()
                self._shown.append(image.frame)
                return image
            self._news.clear()
            await self._news.wait()
