"""Matrices of numbers in files of MATLAB 5 (.mat), as scipy and MATLAB write them. Nothing else in them is read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from diagonal.evaluation.statistics import FloatArray

HEADER = 128
LARGEST = 2**24  # bytes of a file, and of what is packed in it
MATRIX, PACKED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


def read(path: Path) -> dict[str, FloatArray]:
    """All two-dimensional matrices of a file, by name."""
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST} bytes; no file of parameters has")
    content = path.read_bytes()
    if content[126:128] != b"IM":
        raise ValueError(f"{path} is no file of MATLAB 5 in little-endian order")
    try:
        return dict(_matrices(content[HEADER:]))
    except (struct.error, ValueError, zlib.error, StopIteration, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged, or no file of matrices: {error}") from error


def _matrices(content: bytes) -> Iterator[tuple[str, FloatArray]]:
    for kind, data in _elements(content):
        if kind == PACKED:
            unpacking = zlib.decompressobj()
            whole = unpacking.decompress(data, LARGEST)
            if unpacking.unconsumed_tail:
                raise ValueError(f"a part of it has more than {LARGEST} bytes unpacked")
            yield from _matrices(whole)
        elif kind == MATRIX:
            parts = list(_elements(data))
            if len(parts) >= 4 and len(sides := np.frombuffer(parts[1][1], "<i4")) == 2 and parts[3][0] in NUMBERS:
                kind, numbers = parts[3]
                matrix = np.frombuffer(numbers, f"<{NUMBERS[kind]}").reshape(tuple(sides), order="F")
                yield parts[2][1].decode("ascii"), matrix.astype(np.float64)


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and data of each part; short ones have both in eight bytes."""
    at = 0
    while at + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, at)
        if kind >> 16:
            yield kind & 0xFFFF, content[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        if at + 8 + size > len(content):
            raise ValueError(f"a part of {size} bytes is cut off")
        yield kind, content[at + 8 : at + 8 + size]
        at += 8 + (size if kind == PACKED else -(-size // 8) * 8)
