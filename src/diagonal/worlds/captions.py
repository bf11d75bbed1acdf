"""Captions of Doom clips by rules: what is said is what the game says happened, in a small closed vocabulary.

    facts = describe("deadly_corridor", actions_N, moved_N, seen_NT)
    caption(facts, seed=0)   # "walking through a brick corridor with a soldier, then turning left"

`describe` reduces a clip to facts: where it plays, the motions one after the other, the things that are seen. `caption`
says them in one of several ways, chosen by the seed. Words before the first "then" speak of the beginning, place and
things included; each further "then" starts the next motion. That is all the grammar there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Place:
    """How a scenario looks, in several words for the same, and whether the player carries a weapon that shows."""

    names: tuple[str, ...]
    armed: bool


PLACES = {
    "my_way_home": Place(("a stone maze", "a dark maze"), armed=False),
    "deadly_corridor": Place(("a brick corridor", "a brown brick corridor"), armed=True),
    "defend_the_center": Place(("a round arena", "a sandy arena"), armed=True),
    "defend_the_line": Place(("a wide hall", "a pale brick hall"), armed=True),
    "health_gathering": Place(("a mossy courtyard", "a green courtyard"), armed=False),
    "health_gathering_supreme": Place(("a grey garden", "a grey stone garden"), armed=False),
    "predict_position": Place(("a silver base", "a base with red lights"), armed=True),
    "rocket_basic": Place(("a rusty hangar", "a metal hangar"), armed=True),
}

# What the game calls the things that are worth a word; others, such as smoke or the player's own hand, are not.
NAMES = {
    "Zombieman": "soldier",
    "ShotgunGuy": "soldier",
    "ChaingunGuy": "soldier",
    "MarineChainsawVzd": "marine",
    "Demon": "demon",
    "DoomImp": "imp",
    "Cacodemon": "cacodemon",
    "Medikit": "medikit",
    "CustomMedikit": "medikit",
    "Poison": "vial",
    "GreenArmor": "armor",
    "DoomImpBall": "fireball",
    "Rocket": "rocket",
    "CustomRocket": "rocket",
}
THINGS = tuple(dict.fromkeys(NAMES.values()))

# Motions by number, each in several words. The first eight are the world's actions, in its order.
MOTIONS: tuple[tuple[str, ...], ...] = (
    ("standing still", "waiting"),
    ("walking", "walking forward", "going forward"),
    ("walking backwards", "going back", "backing away"),
    ("turning left", "looking left"),
    ("turning right", "looking right"),
    ("walking and turning left", "going left"),
    ("walking and turning right", "going right"),
    ("shooting", "attacking"),
    ("wandering around", "walking around"),
)
STANDING, FORWARD, BACK, LEFT, RIGHT, FORWARD_LEFT, FORWARD_RIGHT, SHOOTING, WANDERING = range(len(MOTIONS))
STUCK = {FORWARD: STANDING, BACK: STANDING, FORWARD_LEFT: LEFT, FORWARD_RIGHT: RIGHT}  # walking against a wall

MOVED = 3.0  # units of the map from one frame to the next; less is no walking (its full speed is about 30)
BRIEF = 5  # frames; a shorter motion is left unsaid
PHASES = 3  # motions in a row that are told; more are wandering
AREA = 0.004  # of the screen: what is smaller is not seen
OFTEN = 0.2  # of the frames in which a thing must be seen to be told
TOLD = 2  # things, the largest ones

# All words of all captions, by kind. Trained weights know a word by its place here: others are worthless to them.
WORDS = {
    "motions": (
        *("standing", "still", "waiting", "walking", "forward", "going", "backwards", "back", "backing", "away"),
        *("turning", "looking", "left", "right", "shooting", "attacking", "wandering", "around"),
    ),
    "places": (
        *("stone", "dark", "maze", "brick", "brown", "corridor", "round", "sandy", "arena", "wide", "pale", "hall"),
        *("mossy", "green", "courtyard", "grey", "garden", "silver", "base", "red", "lights", "rusty", "metal"),
        "hangar",
    ),
    "things": THINGS,
    "joints": ("a", "an", "and", "in", "through", "with", "then", "seeing", "near"),
}
VOCABULARY = tuple(word for words in WORDS.values() for word in words)
THEN = "then"  # begins the next motion


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a clip."""

    scenario: str
    motions: tuple[int, ...]  # numbers in MOTIONS, in their order of time
    things: tuple[str, ...]  # of THINGS, the largest first


def describe(scenario: str, actions_N: Array, moved_N: Array, seen_NT: Array) -> Facts:
    """The facts of a clip: its actions, how far each moved the player, and the share of the screen of every thing."""
    if scenario not in PLACES:
        raise ValueError(f"there are no words for the scenario {scenario!r}; known: {', '.join(PLACES)}")
    if not len(actions_N) == len(moved_N) == len(seen_NT) or not len(actions_N):
        raise ValueError(
            f"{len(actions_N)} actions, {len(moved_N)} distances and {len(seen_NT)} lists of things given; a clip has "
            "at least one frame, and one of each for it"
        )
    armed = PLACES[scenario].armed
    per_frame = [_motion(int(action), float(moved), armed) for action, moved in zip(actions_N, moved_N, strict=True)]
    return Facts(scenario, phases(per_frame), _things(np.asarray(seen_NT)))


def _motion(action: int, moved: float, armed: bool) -> int:
    """What an action looks like: no walking against a wall, and no shot without a weapon."""
    if action == SHOOTING and not armed:
        return STANDING
    return STUCK.get(action, action) if moved < MOVED else action


def phases(per_frame: Sequence[int]) -> tuple[int, ...]:
    """The motions of a clip one after the other, without brief ones; too many are wandering."""
    runs = [(motion, len(list(same))) for motion, same in groupby(per_frame)]
    long = [motion for motion, length in runs if length >= BRIEF]
    told = tuple(motion for motion, _ in groupby(long))
    # A clip of brief motions alone, of one length or another, has no phases either.
    return told if 1 <= len(told) <= PHASES else (runs[0][0],) if len(runs) == 1 else (WANDERING,)


def _things(seen_NT: npt.NDArray[np.generic]) -> tuple[str, ...]:
    seen = seen_NT.astype(np.float64)
    often = (seen >= AREA).mean(0) >= OFTEN
    largest = sorted(np.flatnonzero(often).tolist(), key=lambda index: (-float(seen[:, index].mean()), index))
    return tuple(THINGS[index] for index in largest[:TOLD])


def caption(facts: Facts, seed: int) -> str:
    """The facts in words: the same ones for the same seed."""
    rng = np.random.default_rng(seed)

    def one(ways: Sequence[str]) -> str:
        return ways[int(rng.integers(len(ways)))]

    first, *later = (one(MOTIONS[motion]) for motion in facts.motions)
    place = one(PLACES[facts.scenario].names)
    seeing = " and ".join(f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}" for thing in facts.things)
    around = place + (f" {one(('with', 'near'))} {seeing}" if seeing else "")
    through = "through" if facts.motions[0] in (FORWARD, WANDERING) else "in"
    ways = [f"{first} {one((through, 'in'))} {around}", f"in {around}, {first}", f"{around}, {first}"]
    if seeing:
        ways.append(f"{first} in {place}, seeing {seeing}")
    return ", ".join([one(ways), *(f"{THEN} {motion}" for motion in later)])


def words(text: str) -> list[str]:
    """The words of a text: in small letters, without punctuation."""
    return text.lower().translate(str.maketrans(",.;:!?", "      ")).split()


def understood(text: str) -> Facts:
    """The facts that a caption tells: the other way round. What is no caption is refused."""
    first, *later = text.strip().removesuffix(".").lower().split(f", {THEN} ")
    motions = {name: number for number, names in enumerate(MOTIONS) for name in names}
    places = {name: scenario for scenario, place in PLACES.items() for name in place.names}
    place = max((name for name in places if name in first), key=len, default=None)
    if place is None:
        raise _unknown(text, f"it names none of the places: {', '.join(places)}")
    before, behind = first.split(place, 1)
    told = [word for word in words(behind) if word in THINGS]
    begins = [name for name in motions if name in f"{before} {behind}"]
    begin = max(begins, key=len, default=None)
    for motion in (begin, *later):
        if motion not in motions:
            raise _unknown(text, f"{motion or first!r} is none of the motions: {', '.join(motions)}")
    facts = Facts(places[place], tuple(motions[motion] for motion in (begin, *later) if motion), tuple(told))
    if len(facts.motions) > PHASES or set(words(text)) - set(VOCABULARY):
        raise _unknown(text, "it says more than captions do")
    return facts


def _unknown(text: str, why: str) -> ValueError:
    return ValueError(f"{text!r} is no caption of Doom: {why}")
