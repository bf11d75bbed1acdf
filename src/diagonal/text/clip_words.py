"""Texts to the numbers that CLIP reads: byte pairs (Sennrich et al., 2016) by the merges that its authors published.

The file of merges (`bpe_simple_vocab_16e6.txt.gz`) is the user's. Mojibake is not mended, which the authors leave to
another package: texts in plain letters come out as theirs do.
"""

from __future__ import annotations

import gzip
import html
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

LENGTH = 77  # numbers of a text, its start and its end counted
MERGES = 49152 - 256 - 2  # of the file that are used
END_OF_WORD = "</w>"
SHORTENED = re.compile(r"'(?:s|t|re|ve|m|ll|d)", re.IGNORECASE)
RUNS = re.compile(r"L+|N|O+")  # letters together, digits one by one, other signs together


class Words:
    """The vocabulary, and how texts are cut into it."""

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        alphabet = list(_letters().values())
        names = [*alphabet, *(letter + END_OF_WORD for letter in alphabet), *("".join(pair) for pair in merges)]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._numbers = {name: number for number, name in enumerate(names)}
        self.start, self.end = len(names), len(names) + 1

    def __len__(self) -> int:
        return self.end + 1

    def encode(self, text: str) -> list[int]:
        """The numbers of a text between its start and its end, filled up with zeros behind it."""
        clean = " ".join(html.unescape(html.unescape(text)).split()).lower()
        inside = [self._numbers[part] for word in _cut(clean) for part in self._parts(word)]
        if len(inside) > LENGTH - 2:
            raise ValueError(f"a text of {len(inside)} tokens; CLIP reads {LENGTH - 2}: {text[:60]!r}... is too long")
        return [self.start, *inside, self.end, *[0] * (LENGTH - 2 - len(inside))]

    def _parts(self, word: str) -> list[str]:
        """A word as the merges join its bytes, the first of the file first."""
        parts = [_letters()[byte] for byte in word.encode()]
        parts[-1] += END_OF_WORD
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            joined: list[str] = []
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] += part
                else:
                    joined.append(part)
            parts = joined
        return parts


def load(path: Path) -> Words:
    """The vocabulary of a file of merges, as it is published or unpacked."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            pairs = [tuple(line.split()) for line in file.read().split("\n")[1 : MERGES + 1] if line]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no file of merges: {error}") from error
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    if len(merges) != len(pairs) or not pairs:
        raise ValueError(f"{path} is no file of merges: below the first line each must have two parts")
    return Words(merges)


def _cut(text: str) -> Iterator[str]:
    """Words, endings such as 's, single digits and runs of other signs."""
    kinds = "".join(map(_kind, text))
    place = 0
    while place < len(text):
        found = SHORTENED.match(text, place) or RUNS.match(kinds, place)
        if found is None:  # a space
            place += 1
            continue
        yield text[place : found.end()]
        place = found.end()


def _kind(letter: str) -> str:
    if letter.isspace():
        return " "
    kind = unicodedata.category(letter)[0]
    return kind if kind in "LN" else "O"


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    """A sign that can be seen for each byte."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in seen]
    signs = [*map(chr, seen), *(chr(256 + number) for number in range(len(others)))]
    return dict(zip([*seen, *others], signs, strict=True))
