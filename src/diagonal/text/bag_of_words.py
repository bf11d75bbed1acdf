"""Texts as rows of zeros and ones, for models that learn what words mean: the captions of Doom, and nothing else.

A word's row marks the word, and which motion it belongs to: those before the first "then", the second, or the third. So
a text is a bag of words for each motion. The first layer that a model sends these rows through is a matrix, and its
columns are the learned embeddings of words and of motions; they are trained with the model and stored in its weights.
"""

from __future__ import annotations

from difflib import get_close_matches

import torch
from torch import Tensor

from diagonal.worlds.captions import PHASES, THEN, VOCABULARY, WORDS, words

WIDTH = len(VOCABULARY) + PHASES


def rows(text: str) -> Tensor:
    """A row (words, WIDTH) for each word of a text; words that are not known are refused."""
    found = words(text)
    unknown = [word for word in found if word not in VOCABULARY]
    if unknown:
        raise ValueError(_refusal(unknown))
    if found.count(THEN) >= PHASES:
        raise ValueError(f"{text!r} says {THEN!r} {found.count(THEN)} times; at most {PHASES} motions are understood")
    marked = torch.zeros(len(found), WIDTH)
    phase = 0
    for row, word in zip(marked, found, strict=True):
        phase += word == THEN
        row[VOCABULARY.index(word)] = row[len(VOCABULARY) + phase] = 1
    return marked


def _refusal(unknown: list[str]) -> str:
    """Why words are refused, and which may be said instead."""
    near = {word: get_close_matches(word, VOCABULARY, n=3, cutoff=0.6) for word in dict.fromkeys(unknown)}
    hints = [f"{word!r}" + (f" (perhaps {', '.join(close)})" if close else "") for word, close in near.items()]
    known = "; ".join(f"{kind}: {' '.join(of_kind)}" for kind, of_kind in WORDS.items())
    return f"this model does not know {', '.join(hints)}. It knows {known}"
