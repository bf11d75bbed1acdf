"""The terminal that a world is played in: its keys, its screen, and both as they were when it is left."""

from __future__ import annotations

import os
import queue
import re
import select
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, BinaryIO

from diagonal.cli.keys import Event, decode
from diagonal.media import terminal
from diagonal.media.video import VideoArray

ESCAPE = 0.05  # seconds after which an escape is the key, and not the beginning of a sequence
ANSWER = 0.3  # seconds that a terminal has to say what it can do
ASK = b"\x1b[?u\x1b[c"  # kitty's keyboard protocol? what can you do (DA1)? All terminals answer the second
TELLS = re.compile(rb"\x1b\[\?\d*u")
CAN = re.compile(rb"\x1b\[\?([\d;]*)c")
SIXEL = "4"
EXACT_ON, EXACT_OFF = b"\x1b[>11u", b"\x1b[<u"  # escape codes for all keys, with their kind of event
ENTER = b"\x1b[?1049h\x1b[?25l\x1b[2J"
LEAVE = b"\x1b[?2026l\x1b[0m\x1b[?25h\x1b[?1049l"
BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"  # what is between is shown at once
CELL = (16, 8)  # pixels of a character, where the terminal does not say
MOST_SCALE = 4  # of sixel pictures: more takes long to send


def check_terminal() -> None:
    """Refuse to be played where there are no keys or no screen."""
    missing = [name for name, file in (("stdin", sys.stdin), ("stdout", sys.stdout)) if not file.isatty()]
    if missing:
        raise ValueError(
            f"{missing[0]} is no terminal, so nobody can play; run it in one, or give --script 'forward*8,left*4', "
            "which needs neither keys nor a screen"
        )
    _modes()


def _modes() -> Any:
    """The module that switches the modes of a terminal."""
    try:
        import termios
    except ImportError as error:
        raise ValueError(
            "keys are read from terminals of Linux, macOS and WSL; elsewhere --script 'forward*8,left*4' plays"
        ) from error
    return termios


class Keyboard:
    """Keys as they are pressed, until it is left: a thread reads them, so that they are known by their time. It learns
    whether the terminal can tell when a key goes up (`exact`), and can show pictures (`sixel`)."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._in = out, sys.stdin.fileno()
        self._events: queue.SimpleQueue[tuple[Event, float]] = queue.SimpleQueue()
        self.exact, self.sixel = False, False

    def __enter__(self) -> Keyboard:
        modes = _modes()
        self._before = modes.tcgetattr(self._in)
        now = modes.tcgetattr(self._in)
        now[0] &= ~(modes.IXON | modes.ICRNL)
        now[3] &= ~(modes.ICANON | modes.ECHO | modes.ISIG | modes.IEXTEN)
        now[6][modes.VMIN], now[6][modes.VTIME] = 1, 0
        modes.tcsetattr(self._in, modes.TCSADRAIN, now)
        try:
            typed = self._ask()
            self._woken, self._wake = os.pipe()
            self._thread = threading.Thread(target=self._listen, args=(typed,), daemon=True)
            self._thread.start()
        except BaseException:
            modes.tcsetattr(self._in, modes.TCSAFLUSH, self._before)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        modes = _modes()
        os.write(self._wake, b".")
        self._thread.join()
        os.close(self._wake)
        os.close(self._woken)
        modes.tcsetattr(self._in, modes.TCSAFLUSH, self._before)

    def read(self, seconds: float | None) -> list[tuple[Event, float]]:
        """Events and when they happened; waits so long for the first one, or for ever."""
        found = []
        try:
            found.append(self._events.get(timeout=seconds) if seconds != 0 else self._events.get_nowait())
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return found

    def _ask(self) -> bytes:
        """Learn what the terminal can do; what was typed meanwhile comes back."""
        _write(self._out, ASK)
        answer, until = b"", time.monotonic() + ANSWER
        while CAN.search(answer) is None and (left := until - time.monotonic()) > 0:
            if select.select([self._in], [], [], left)[0]:
                answer += os.read(self._in, 4096)
        can = CAN.search(answer)
        self.sixel = can is not None and SIXEL in can[1].decode().split(";")
        self.exact = TELLS.search(answer) is not None
        return CAN.sub(b"", TELLS.sub(b"", answer))

    def _listen(self, rest: bytes) -> None:
        while True:
            ready = select.select([self._in, self._woken], [], [], ESCAPE if rest else None)[0]
            if self._woken in ready:
                return
            data = self._heard() if ready else b""
            gone = bool(ready) and not data
            events, rest = decode(rest + data, whole=not data)
            at = time.monotonic()
            for event in [*events, *([Event("ctrl-c")] if gone else [])]:
                self._events.put((event, at))
            if gone:
                return

    def _heard(self) -> bytes:
        """What was typed; nothing: the terminal is gone."""
        try:
            return os.read(self._in, 4096)
        except OSError:
            return b""


class Screen:
    """The other screen of a terminal, until it is left. Each frame is one write, which is shown at once. `exact`: it
    tells when keys go up."""

    def __init__(self, out: BinaryIO, sixel: bool, exact: bool = False) -> None:
        self._out, self._sixel, self._full = out, sixel, full_colour()
        self._exact, self._size = exact, (0, 0)

    def __enter__(self) -> Screen:
        _write(self._out, ENTER + (EXACT_ON if self._exact else b""))  # each screen has keys of its own
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _write(self._out, (EXACT_OFF if self._exact else b"") + LEAVE)

    def show(self, pixels: VideoArray, lines: Sequence[str]) -> None:
        """A frame with lines of text below it."""
        columns, rows = os.get_terminal_size(self._out.fileno())
        changed, self._size = self._size != (columns, rows), (columns, rows)
        lines = lines[: max(1, rows // 4)]
        room = max(1, rows - len(lines))
        text = b"".join(
            place(rows - index, 1) + b"\x1b[0m" + line[: columns - 1].encode() + b"\x1b[K"
            for index, line in enumerate(lines)
        )
        drawn = self._pictured(pixels, room, columns) if self._sixel else self._blocks(pixels, room, columns)
        _write(self._out, BEGIN + (b"\x1b[2J" if changed else b"") + drawn + text + END)

    def _blocks(self, pixels: VideoArray, room: int, columns: int) -> bytes:
        fitted = terminal.fitted(pixels, 2 * room, columns)
        lines = terminal.blocks(fitted, self._full)
        left, top = 1 + (columns - fitted.shape[1]) // 2, 1 + (room - len(lines)) // 2
        return b"".join(place(top + index, left) + line for index, line in enumerate(lines))

    def _pictured(self, pixels: VideoArray, room: int, columns: int) -> bytes:
        cell_height, cell_width = self._cell()
        height, width = (MOST_SCALE * side for side in pixels.shape[:2])
        # A line is left free below: some terminals scroll when a picture ends on the last one.
        fitted = terminal.fitted(
            pixels, min(height, max(6, (room - 1) * cell_height)), min(width, columns * cell_width)
        )
        left = 1 + (columns - -(-fitted.shape[1] // cell_width)) // 2
        return place(1, max(1, left)) + terminal.sixel(fitted)

    def _cell(self) -> tuple[int, int]:
        """Height and width of a character in pixels."""
        import fcntl
        import struct

        packed = fcntl.ioctl(self._out.fileno(), _modes().TIOCGWINSZ, bytes(8))
        rows, columns, width, height = struct.unpack("HHHH", packed)
        return (height // rows, width // columns) if width >= columns > 0 and height >= rows > 0 else CELL


class Printed:
    """Frames one below the other, for output that is no terminal."""

    def __init__(self, out: BinaryIO, sixel: bool) -> None:
        self._out, self._sixel, self._full = out, sixel, full_colour()

    def show(self, pixels: VideoArray, lines: Sequence[str]) -> None:
        """A frame with lines of text below it."""
        columns, rows = shutil.get_terminal_size()
        if self._sixel:
            drawn = terminal.sixel(pixels)
        else:
            fitted = terminal.fitted(pixels, 2 * max(1, rows - len(lines)), columns)
            drawn = b"\n".join(terminal.blocks(fitted, self._full))
        _write(self._out, b"\n".join([drawn, *(line.encode() for line in reversed(lines)), b""]))


def full_colour() -> bool:
    """Whether the terminal shows 24-bit colours."""
    return os.environ.get("COLORTERM") in ("truecolor", "24bit")


def place(line: int, column: int) -> bytes:
    """Where the next text goes; both count from 1."""
    return f"\x1b[{line};{column}H".encode()


def _write(out: BinaryIO, data: bytes) -> None:
    out.write(data)
    out.flush()
