"""Chunks against calls, as text and as a picture."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diagonal.media import chunk_wave
from diagonal.media.draw import PAPER
from diagonal.planning.presets import find
from diagonal.planning.work import calls


def plain(text: str) -> list[str]:
    return re.sub(r"\[/?[^\]]*\]", "", text).splitlines()


def test_a_chunk_is_a_row_and_a_call_a_column() -> None:
    made = list(calls(find("self-forcing").with_schedule("32"), 9))
    assert plain(chunk_wave.wave(made, 80))[:3] == ["0 012·", "1     01·", "2        01·"]
    lagged = list(calls(find("self-forcing").with_schedule("even:steps=3,lag=1"), 9))
    assert plain(chunk_wave.wave(lagged, 80))[:3] == ["0 012·", "1  012·", "2   012"]


def test_where_all_is_in_every_call_waiting_and_finished_chunks_are_shown_still() -> None:
    made = list(calls(find("skyreels-full").with_schedule("forcing:steps=3,lag=2"), 15))
    assert plain(chunk_wave.wave(made, 80))[:3] == ["0 012····", "1 ··012··", "2 ····012"]


def test_the_level_is_the_colour() -> None:
    (line, *_) = chunk_wave.wave(list(calls(find("diagonal-distillation"), 3)), 80).splitlines()
    shades = [tuple(map(int, one)) for one in re.findall(r"rgb\((\d+),(\d+),(\d+)\)", line)]
    brightness = [sum(shade) for shade in shades]
    assert len(shades) == 4 and brightness == sorted(brightness) and len(set(brightness)) == 4


def test_long_plans_are_thinned_out_and_say_so() -> None:
    made = list(calls(find("skyreels").with_schedule("50"), 185))
    text = plain(chunk_wave.wave(made, 60, height=10))
    assert max(map(len, text[:-1])) <= 60 and len(text) == 11
    assert re.search(r"every \d+th call; first 10 of 37 chunks", text[-1])


def test_given_latents_have_no_row() -> None:
    made = list(calls(find("skyreels"), 10, 5))
    assert len(plain(chunk_wave.wave(made, 80))) == 2


def test_the_picture_has_a_block_for_every_step(tmp_path: Path) -> None:
    made = list(calls(find("self-forcing").with_schedule("even:steps=3,lag=1"), 9))
    chunk_wave.save(made, tmp_path / "wave.png", "three chunks")
    with Image.open(tmp_path / "wave.png") as image:
        pixels = np.asarray(image)
    rows = [pixels[44 + 26 * chunk + 2, 60 + 12 :: 24][:6] for chunk in range(3)]
    filled = [[tuple(pixel) != PAPER for pixel in row] for row in rows]
    assert filled == [[i in range(c, c + 3) for i in range(6)] for c in range(3)]  # the shown ones are thinner
    assert tuple(pixels[44 + 12, 60 + 24 * 3 + 12]) != PAPER
    with pytest.raises(ValueError, match="png"):
        chunk_wave.save(made, tmp_path / "wave.jpg", "no")
