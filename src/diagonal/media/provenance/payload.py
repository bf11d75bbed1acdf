"""The 32 bits of the watermark: which family of models, which run, and a checksum that tells them from chance.

    bits = 4 of the family | 12 of the run | 16 of CRC-16/XMODEM over these two bytes, turned by a constant

A reader has a logit for every bit. It takes the word, and the words in which any of the `UNSURE` least certain bits are
the other way, and accepts one whose checksum fits and whose family is known. In frames without a mark the word is taken
as drawn at random, every checksum as likely as any other, so that one file in 1 / `FALSE_ALARM` is accepted by mistake;
`benchmarks/watermark.py` counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

BITS, FAMILY_BITS, RUN_BITS, CHECK_BITS = 32, 4, 12, 16
FAMILIES = {"wan": 1, "doom-t2v": 2}  # numbers are never given twice
OTHER = 15  # any family without a number
KNOWN = {number: name for name, number in FAMILIES.items()} | {OTHER: "another model"}
UNSURE = 5  # bits that are tried both ways
FALSE_ALARM = len(KNOWN) / 2**FAMILY_BITS * 2**UNSURE / 2**CHECK_BITS
TURN = 0xA5C3  # so that words of zeros or ones alone, or of a simple pattern, have no right checksum

Soft = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a watermark says."""

    family: int  # of KNOWN
    run: int

    def __post_init__(self) -> None:
        if self.family not in KNOWN or not 0 <= self.run < 2**RUN_BITS:
            raise ValueError(f"family {self.family}, run {self.run} given; families: {KNOWN}, runs below {2**RUN_BITS}")

    @classmethod
    def of(cls, model: str, run: int) -> Payload:
        """That of a model by its name, such as 'wan/1.3b'."""
        return cls(FAMILIES.get(model.partition("/")[0], OTHER), run)

    @property
    def name(self) -> str:
        """The family in words."""
        return KNOWN[self.family]

    def bits(self) -> npt.NDArray[np.uint8]:
        """The 32 bits, the first of them the highest."""
        message = self.family << RUN_BITS | self.run
        word = message << CHECK_BITS | int(checksums()[message]) ^ TURN
        return np.array([word >> place & 1 for place in reversed(range(BITS))], dtype=np.uint8)


@cache
def checksums() -> npt.NDArray[np.int64]:
    """Of all messages of 16 bits: CRC-16/XMODEM (x^16 + x^12 + x^5 + 1) of the two bytes."""
    remainder = np.arange(2**16)
    for _ in range(16):
        remainder = (remainder << 1 ^ np.where(remainder & 0x8000, 0x1021, 0)) & 0xFFFF
    return remainder


def decode(soft: Soft, turn: int = TURN) -> Payload | None:
    """The payload in 32 logits, above zero for a one; None: there is none. Of several that fit, the
    likeliest. `turn`: another constant of the checksum, to count what chance accepts."""
    unsure = np.argsort(np.abs(soft), kind="stable")[:UNSURE]
    read = int("".join("1" if one > 0 else "0" for one in soft), 2)
    fitting = []
    for flips in product((0, 1), repeat=UNSURE):
        word = read ^ sum(flip << BITS - 1 - int(place) for flip, place in zip(flips, unsure, strict=True))
        message, check = word >> CHECK_BITS, word & 2**CHECK_BITS - 1
        if checksums()[message] ^ turn == check and message >> RUN_BITS in KNOWN:
            fitting.append((float(np.abs(soft[unsure]) @ np.array(flips)), message))
    if not fitting:
        return None
    message = min(fitting)[1]
    return Payload(message >> RUN_BITS, message & 2**RUN_BITS - 1)
