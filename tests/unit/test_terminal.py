"""Frames as text: what is written, read again, is the frame; and screens are never shown half-drawn."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagonal.cli.console import BEGIN, END, ENTER, LEAVE, Printed, Screen
from diagonal.media import draw, terminal
from diagonal.media.video import VideoArray
from diagonal.worlds import vizdoom

HALL = vizdoom.start("hall")[0][-1]


def noise(height: int, width: int, seed: int = 0) -> VideoArray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def colour_256(number: int) -> list[int]:
    """xterm's colours from 16 on."""
    if number >= 232:
        return [8 + 10 * (number - 232)] * 3
    return [[0, 95, 135, 175, 215, 255][(number - 16) // place % 6] for place in (36, 6, 1)]


def read_blocks(lines: Sequence[bytes]) -> VideoArray:
    """The pixels that half blocks show: two rows for each line."""
    rows: list[list[list[int]]] = []
    for line in lines:
        upper, lower, colours = [], [], dict[str, list[int]]()
        words = re.findall(r"\x1b\[([\d;]*)m|(▀)|(.)", line.decode())
        assert not any(other for _, _, other in words)
        for numbers, cell, _ in words:
            if cell:
                upper.append(colours["38"])
                lower.append(colours["48"])
            for place, full, one in re.findall(r"(38|48);(?:2;(\d+;\d+;\d+)|5;(\d+))", numbers):
                colours[place] = [int(part) for part in full.split(";")] if full else colour_256(int(one))
        rows += [upper, lower]
    return np.array(rows, dtype=np.uint8)


def read_sixel(data: bytes) -> VideoArray:
    """The pixels of a sixel picture; all must be drawn, and once."""
    head = re.match(rb'\x1bP0;1q"1;1;(\d+);(\d+)', data)
    assert head is not None and data.endswith(b"\x1b\\")
    width, height = int(head[1]), int(head[2])
    pixels, palette = np.full((height + 5, width, 3), -1), dict[int, list[int]]()
    line, column, times, colour = 0, 0, 1, 0
    body = data[head.end() : -2]
    words = re.findall(rb"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)|([?-~])|([$-])", body)
    assert sum(len(word[0]) for word in re.finditer(rb"#[\d;]+|!\d+|[?-~]|[$-]", body)) == len(body)
    for number, *levels, repeat, sixel, end in words:
        if number:
            colour = int(number)
            if levels[0]:
                palette[colour] = [round(int(level) * 2.55) for level in levels]
        elif repeat:
            times = int(repeat)
        elif end:
            column, line = 0, line + 6 * (end == b"-")
        else:
            for row in range(6):
                if (sixel[0] - 63) >> row & 1:
                    part = pixels[line + row, column : column + times]
                    assert part.shape[0] == times and (part == -1).all()
                    part[:] = palette[colour]
            column, times = column + times, 1
    assert (pixels[:height] >= 0).all() and (pixels[height:] == -1).all()
    return pixels[:height].astype(np.uint8)


@given(height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 99))
def test_half_blocks_in_full_colour_are_the_frame(height: int, width: int, seed: int) -> None:
    pixels = noise(height, width, seed) // 64 * 64  # neighbours that are alike
    shown = read_blocks(terminal.blocks(pixels))
    np.testing.assert_array_equal(shown[:height], pixels)
    assert not shown[height:].any()


def test_colours_that_hold_still_are_not_said_again() -> None:
    one = terminal.blocks(np.full((2, 50, 3), 200, np.uint8))[0]
    assert one.count(b"\x1b[38") == 1 and one.endswith(b"\x1b[0m")


def test_half_blocks_in_256_colours_are_the_nearest_ones() -> None:
    pixels = noise(6, 40)
    shown = read_blocks(terminal.blocks(pixels, full=False)).astype(int)
    palette = np.array([colour_256(number) for number in range(16, 256)])
    far = ((pixels[:, :, None].astype(int) - palette) ** 2).sum(-1)
    found = ((shown - pixels) ** 2).sum(-1)
    assert (found <= far.min(-1) * 1.3 + 40).all() and (found == far.min(-1)).mean() > 0.8
    greys = np.repeat(np.array([8, 118, 238], np.uint8), 3).reshape(1, 3, 3).repeat(2, axis=0)
    np.testing.assert_array_equal(read_blocks(terminal.blocks(greys, full=False)), greys)


@pytest.mark.parametrize("size", [(6, 8), (7, 5), (13, 300), (1, 1)])
def test_a_sixel_picture_of_its_own_colours_is_the_frame(size: tuple[int, int]) -> None:
    levels = terminal.LEVELS.astype(np.uint8)
    pixels = levels[noise(*size) % 6]
    np.testing.assert_array_equal(read_sixel(terminal.sixel(pixels)), pixels)


def test_a_sixel_picture_has_the_colours_of_the_frame_on_average() -> None:
    large = HALL.repeat(4, axis=0).repeat(4, axis=1)
    shown = read_sixel(terminal.sixel(large)).reshape(96, 4, 128, 4, 3).mean((1, 3))
    assert np.abs(shown - HALL).mean() < 3 and np.abs(shown - HALL).max() < 16


def test_a_run_is_said_once() -> None:
    assert len(terminal.sixel(np.full((60, 1000, 3), 255, np.uint8))) < len(terminal.sixel(noise(6, 6))) + 200


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 80), st.integers(2, 80))
def test_a_frame_is_as_large_as_there_is_room_for(height: int, width: int, most_height: int, most_width: int) -> None:
    shown = terminal.fitted(np.zeros((height, width, 3), np.uint8), most_height, most_width).shape[:2]
    assert 1 <= shown[0] <= most_height and 1 <= shown[1] <= most_width
    assert shown[0] == most_height or shown[1] == most_width
    assert abs(shown[0] * width - shown[1] * height) <= max(height, width)


# The screen


class Written(io.BytesIO):
    """Output that remembers its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.parts.append(data)
        return len(data)

    def fileno(self) -> int:
        return 1


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Columns and lines of the terminal; they may change."""
    now = [60, 24]
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size(now))
    monkeypatch.setenv("COLORTERM", "truecolor")
    return now


def cells(frame: bytes) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The lines of half blocks of a screen, and where each begins."""
    found = re.findall(rb"\x1b\[(\d+);(\d+)H((?:\x1b\[[\d;]*m|\xe2\x96\x80)+)(?=\x1b\[\d+;)", frame)
    blocks = [(line, (int(row), int(column))) for row, column, line in found if b"\xe2" in line]
    return [line for line, _ in blocks], [at for _, at in blocks]


def test_a_frame_is_one_write_that_is_shown_at_once_and_clears_nothing(size: list[int]) -> None:
    out = Written()
    with Screen(out, sixel=False) as screen:
        for _ in range(2):
            screen.show(HALL, ["status " * 20, "help"])
        size[:] = 40, 12
        screen.show(HALL, ["status", "help"])
    enter, *frames, leave = out.parts
    assert (enter, leave) == (ENTER, LEAVE) and len(frames) == 3
    for frame in frames:
        assert frame.startswith(BEGIN) and frame.endswith(END) and frame.count(END) == 1
    assert [b"\x1b[2J" in frame for frame in frames] == [True, False, True]
    lines, places = cells(frames[1])
    assert [row for row, _ in places] == [*range(1, 23)] and {column for _, column in places} == {1}
    np.testing.assert_array_equal(read_blocks(lines), terminal.fitted(HALL, 44, 60)[:44])
    assert b"\x1b[24;1H\x1b[0m" + (b"status " * 20)[:59] + b"\x1b[K" in frames[1]


@pytest.mark.parametrize("small", [[1, 1], [2, 3], [200, 2]])
def test_tiny_terminals_are_drawn_too(size: list[int], small: list[int]) -> None:
    size[:] = small
    out = Written()
    for sixel in (False, True):
        screen = Screen(out, sixel)
        screen._cell = lambda: (20, 10)  # type: ignore[method-assign]
        screen.show(HALL, ["status", "help"])
    assert len(out.parts) == 2


def test_sixels_leave_the_last_lines_free_and_keep_the_aspect_ratio(size: list[int]) -> None:
    out = Written()
    screen = Screen(out, sixel=True)
    screen._cell = lambda: (20, 10)  # type: ignore[method-assign]
    screen.show(HALL, ["status", "help"])
    begin = out.parts[0].index(b"\x1bP")
    picture = read_sixel(out.parts[0][begin : out.parts[0].index(b"\x1b\\") + 2])
    assert picture.shape[0] <= 21 * 20 and picture.shape[1] <= 600
    assert abs(picture.shape[0] * 128 - picture.shape[1] * 96) <= 128 and picture.shape[0] <= 4 * 96


def test_without_a_terminal_frames_stand_one_below_the_other(size: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    monkeypatch.setenv("LINES", "40")
    out = Written()
    printed, card = Printed(out, sixel=False), draw.test_card(32, 64)[0]
    printed.show(card, ["status", "help"])
    *lines, helped, status, rest = out.parts[0].split(b"\n")
    assert (helped, status, rest) == (b"help", b"status", b"")
    np.testing.assert_array_equal(read_blocks(lines), card)
