"""The watermark: its words, chance, and what compression leaves of it."""

from __future__ import annotations

import sys
from itertools import combinations

import numpy as np
import pytest

from diagonal.media import video
from diagonal.media.provenance import watermark
from diagonal.media.provenance.origin import Origin
from diagonal.media.provenance.payload import FALSE_ALARM, KNOWN, RUN_BITS, UNSURE, Payload, checksums, decode
from diagonal.media.provenance.verify import FOUND, NOT_FOUND, look
from diagonal.media.provenance.watermark import Watermark, find
from diagonal.media.provenance.writing import Marking, marked_writer
from diagonal.worlds import vizdoom
from tests.signers import scene

HEIGHT, WIDTH = 192, 256


@pytest.fixture(scope="module")
def seen():
    """Twelve frames of Doom as they are looked at in a file."""
    views = np.concatenate([vizdoom.start(name)[0] for name in vizdoom.STARTS[:3]])
    return video.enlarge(views, 2)


def soft(payload: Payload) -> np.ndarray:
    return payload.bits() * 2.0 - 1.0


def test_every_word_is_read_back():
    words = [Payload(family, run) for family in KNOWN for run in range(0, 2**RUN_BITS, 97)]
    assert all(decode(soft(word)) == word for word in words)
    assert len({tuple(word.bits()) for word in words}) == len(words)


def test_the_checksum_is_the_published_one():
    """CRC-16/XMODEM of the bytes '1' and '2' by the polynomial division, written out."""
    value = 0x3132 << 16
    for place in range(31, 15, -1):
        if value >> place & 1:
            value ^= 0x11021 << (place - 16)
    assert checksums()[0x3132] == value


def test_bits_that_are_least_certain_may_be_wrong():
    payload = Payload.of("wan/1.3b", 0x123)
    for places in combinations(range(0, 32, 5), 3):
        read = soft(payload)
        read[list(places)] *= -0.1
        assert decode(read) == payload


def test_words_by_chance_are_taken_as_often_as_the_model_says():
    """Words of zeros or ones alone are never taken."""
    rng = np.random.default_rng(3)
    fitting = sum(decode(rng.standard_normal(32)) is not None for _ in range(4000))
    assert pytest.approx(len(KNOWN) / 16 * 2**UNSURE / 2**16) == FALSE_ALARM
    assert fitting <= 5  # expected 4000 * FALSE_ALARM = 0.4; more than 5 has a probability of 1e-5
    for constant in (np.ones(32), -np.ones(32)):
        assert decode(constant * np.linspace(1, 2, 32)) is None


def test_families_have_numbers_and_others_one_together():
    assert Payload.of("wan/14b", 1).name == "wan" and Payload.of("doom-t2v/tiny", 1).name == "doom-t2v"
    assert Payload.of("another/one", 1).name == "another model"
    with pytest.raises(ValueError, match="runs below 4096"):
        Payload.of("wan", 4096)


@pytest.fixture(scope="module")
def marked(tmp_path_factory, seen):
    path, frames = tmp_path_factory.mktemp("marked") / "out.mp4", seen
    with marked_writer(path, 8, Origin(model="doom-t2v", weights="random"), Marking(), from_text=True) as file:
        file.write(frames[:5])
        file.write(frames[5:])
        assert file.watermark is not None
        return path, frames, file.watermark.payload


def test_the_mark_survives_the_writer_and_is_not_seen(marked):
    path, frames, payload = marked
    assert look(path).state == FOUND and (look(path).family, look(path).run) == ("doom-t2v", payload.run)
    again = Watermark(payload).mark(frames)
    error = ((again.astype(float) - frames) ** 2).mean()
    assert 36 < 10 * np.log10(255**2 / error) < 50


def test_the_mark_survives_scaling_by_half(marked):
    path, _, payload = marked
    small = video.resize(video.read(path), HEIGHT // 2, WIDTH // 2)
    assert find(small) == payload


def test_frames_without_a_mark_say_nothing(tmp_path, seen):
    with video.writer(tmp_path / "plain.mp4", 8) as file:
        file.write(seen[:6])
    assert look(tmp_path / "plain.mp4").state == NOT_FOUND


def test_one_frame_at_a_time_is_marked_as_many_at_once():
    frames = scene(6, 72, 96)
    one, many = (Watermark(Payload.of("wan", 7), every=4) for _ in range(2))
    assert (np.stack([one.mark(frame) for frame in frames]) == many.mark(frames)).all()
    assert one.statement() == many.statement() | {"run": 7}


def test_switched_off_there_is_none():
    origin = Origin(model="wan/tiny", weights="random")
    assert Marking(watermark=False).watermark_for(origin, from_text=True) is None
    assert Marking().watermark_for(origin, from_text=False) is None
    with pytest.raises(ValueError, match="at least 1"):
        Watermark(Payload.of("wan", 1), every=0)


def test_without_the_extra_the_advice_is_clear(monkeypatch):
    watermark._networks.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install 'diagonal\[provenance\]', or give --no-watermark"):
        watermark.check_installed(", or give --no-watermark")
    watermark._networks.cache_clear()
