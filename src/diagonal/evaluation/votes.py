"""What voters said of the pairs of a study (`pairs`): win rates with intervals, ties, and how far they agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from diagonal.evaluation.pairs import KEY, Trial
from diagonal.evaluation.statistics import Interval, bootstrap, wilson

A, B, TIE = "a", "b", "tie"
CHOICES = ("left", "right", TIE)
SCORE = {A: 1.0, B: 0.0, TIE: 0.5}


@dataclass(frozen=True, slots=True)
class Vote:
    """One answer of one voter."""

    voter: str
    pair: str
    question: str
    choice: str  # A, B or TIE
    side: str  # of CHOICES, as it was pressed
    again: bool  # the pair had been shown before


def read_key(folder: Path) -> dict[str, Any]:
    """The key of a study."""
    place = folder / KEY
    if not place.is_file():
        raise FileNotFoundError(f"{place} does not exist; --pairs names the folder that compare wrote, with its key")
    try:
        key: dict[str, Any] = json.loads(place.read_text())
        trials = [Trial(**one) for one in key["trials"]]
        sound = {"study", "a", "b", "questions"} <= key.keys() and all(trial.left in (A, B) for trial in trials)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{place} is no key of a study: {error!r}") from error
    if not sound:
        raise ValueError(f"{place} is no key of a study as compare writes it")
    return key


def read_votes(paths: Sequence[Path], key: Mapping[str, Any]) -> list[Vote]:
    """The votes of several voters, each file checked against the key."""
    votes: list[Vote] = []
    seen: dict[str, Path] = {}
    for path in paths:
        try:
            content = json.loads(path.read_text())
            study, voter, given = str(content["study"]), str(content["voter"]), list(content["votes"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no file of votes as the page writes it: {error!r}") from error
        if study != key["study"]:
            raise ValueError(f"{path} has votes of study {study}, and the key is that of {key['study']}")
        if voter in seen:
            raise ValueError(f"{path} and {seen[voter]} are both by {voter!r}; a voter counts once")
        seen[voter] = path
        votes += _votes(path, voter, given, key)
    if not votes:
        raise ValueError(f"no votes in {', '.join(map(str, paths)) or 'no files'}: there is nothing to count")
    return votes


def _votes(path: Path, voter: str, given: Sequence[Any], key: Mapping[str, Any]) -> Iterator[Vote]:
    trials, questions, known = key["trials"], key["questions"], set[tuple[int, str]]()
    for one in given:
        try:
            number, question, side = one["trial"], one["question"], one["choice"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: {one!r} is no vote") from error
        if type(number) is not int or not 0 <= number < len(trials) or question not in questions or side not in CHOICES:
            raise ValueError(
                f"{path}: {one!r} is no vote of this study: trials 0 to {len(trials) - 1}, {', '.join(questions)}; "
                f"{', '.join(CHOICES)}"
            )
        if (number, question) in known:
            raise ValueError(f"{path}: trial {number} has two votes on {question}")
        known.add((number, question))
        trial = trials[number]
        other = B if trial["left"] == A else A
        choice = {"left": trial["left"], "right": other, TIE: TIE}[side]
        yield Vote(voter, trial["pair"], question, choice, side, trial["again"])


def merge(votes: Sequence[Vote], key: Mapping[str, Any]) -> dict[str, Any]:
    """All results, as JSON takes them. What was shown again counts for consistency alone."""
    first = [vote for vote in votes if not vote.again]
    voters = list(dict.fromkeys(vote.voter for vote in votes))
    asked = len(key["trials"]) * len(key["questions"])
    given = Counter(vote.voter for vote in votes)
    decided = [vote for vote in votes if vote.side != TIE]
    return {
        "study": key["study"],
        "a": key["a"]["name"],
        "b": key["b"]["name"],
        "pairs": len({vote.pair for vote in first}),
        "voters": {voter: {"votes": given[voter], "asked": asked} for voter in voters},
        "questions": {
            name: _question([vote for vote in first if vote.question == name])
            for name in key["questions"]
            if any(vote.question == name for vote in first)
        },
        "same_again": _rate([one.choice == two.choice for one, two in _repeated(votes)]),
        "between_voters": _between(first),
        "left": _rate([vote.side == "left" for vote in decided]),
    }


def _question(votes: Sequence[Vote]) -> dict[str, Any]:
    """Wins of both runs, ties, and two rates: a's share of the decided votes, with Wilson's interval, which takes votes
    as independent; and a's score, a tie counting half, with an interval over pairs, which does not."""
    counts = Counter(vote.choice for vote in votes)
    decided = counts[A] + counts[B]
    score = _over_pairs(votes)
    return {
        "votes": len(votes),
        A: counts[A],
        B: counts[B],
        TIE: counts[TIE],
        "win_rate": None if not decided else _numbers(wilson(counts[A], decided)) | {"of": decided},
        "score": _numbers(score),
    }


def _over_pairs(votes: Sequence[Vote]) -> Interval:
    pairs, voters = (list(dict.fromkeys(names)) for names in zip(*((v.pair, v.voter) for v in votes), strict=True))
    table = np.full((len(pairs), len(voters)), np.nan)
    for vote in votes:
        table[pairs.index(vote.pair), voters.index(vote.voter)] = SCORE[vote.choice]
    return bootstrap(np.nanmean(table, axis=1, keepdims=True))


def _repeated(votes: Sequence[Vote]) -> list[tuple[Vote, Vote]]:
    """Votes on pairs that came twice, beside the first ones of the same voter."""
    first = {(vote.voter, vote.pair, vote.question): vote for vote in votes if not vote.again}
    again = {(vote.voter, vote.pair, vote.question): vote for vote in votes if vote.again}
    return [(first[place], again[place]) for place in again if place in first]


def _between(votes: Sequence[Vote]) -> dict[str, Any] | None:
    """How often two voters say the same of a pair; and kappa, (agreement - chance) / (1 - chance), where chance is that
    of two votes drawn from all (Scott, 1955)."""
    said: dict[tuple[str, str], list[str]] = {}
    for vote in votes:
        said.setdefault((vote.pair, vote.question), []).append(vote.choice)
    same = [one == two for choices in said.values() for one, two in combinations(choices, 2)]
    if not same:
        return None
    counts = Counter(choice for choices in said.values() if len(choices) > 1 for choice in choices)
    chance = sum((count / counts.total()) ** 2 for count in counts.values())
    rate = sum(same) / len(same)
    return {"rate": rate, "of": len(same), "kappa": None if chance == 1 else (rate - chance) / (1 - chance)}


def _rate(hits: Sequence[bool]) -> dict[str, Any] | None:
    return None if not hits else _numbers(wilson(sum(hits), len(hits))) | {"of": len(hits)}


def _numbers(value: Interval) -> dict[str, float]:
    return {"mean": value.mean, "low": value.low, "high": value.high}
