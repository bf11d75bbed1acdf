"""How captions are cleaned for DeepFloyd's T5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagonal.text.deepfloyd import cleaned
from diagonal.text.encoders import ENCODERS


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("A Red   Car, on a WET road.", "a red car, on a wet road."),
        ("Good Boy. see https://x.y/z?q=1 and www.foo.bar now", "good boy. see and now"),
        ("a dog \u4f60\u597d on the beach", "a dog on the beach"),
        ("a fox\u2014jumping over (the) [fence]", "a fox-jumping over the fence"),
        ("fish &amp; chips", "fish chips"),
        ("a_file_name_of_words", "a file name of words"),
        ("a cat... in the rain <b>now</b>", "a cat in the rain now"),
        ("photo 1024x768 of a bird #123456", "photo of a bird"),
        ("'a quoted caption'", "a quoted caption"),
        ("rain on 192.168.0.1 street", "rain on street"),
    ],
)
def test_captions_are_cleaned(text: str, clean: str) -> None:
    assert cleaned(text) == clean


@given(st.text(max_size=80))
def test_any_text_gives_small_letters_and_single_spaces(text: str) -> None:
    clean = cleaned(text)
    assert clean == clean.strip() and "  " not in clean and "\n" not in clean
    assert "\u4e00" not in clean


def test_magi_s_encoder_cleans_so() -> None:
    encoder = ENCODERS["t5-v1.1-xxl"]
    assert encoder.tidy and encoder.clean is cleaned
