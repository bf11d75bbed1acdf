"""Captions: true of the clip, in words that are known, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from diagonal.worlds import captions, vizdoom
from diagonal.worlds.captions import MOTIONS, PLACES, THINGS, VOCABULARY, Facts, caption, describe, phases, words
from tests.unit.test_vizdoom import plays

NOTHING = np.zeros((20, len(THINGS)))
FAR = np.full(20, 30.0)


def taken(*runs: tuple[str, int]) -> np.ndarray:
    return np.array([vizdoom.ACTIONS.index(name) for name, count in runs for _ in range(count)])


def seen(**shares: float) -> np.ndarray:
    return np.tile([shares.get(thing, 0.0) for thing in THINGS], (20, 1))


def test_the_first_motions_are_the_actions_of_the_world_in_its_order() -> None:
    assert len(MOTIONS) == len(vizdoom.ACTIONS) + 1
    assert vizdoom.ACTIONS[captions.FORWARD_LEFT] == "forward+left" and vizdoom.ACTIONS[captions.BACK] == "back"
    assert vizdoom.ACTIONS[captions.SHOOTING] == "attack" and vizdoom.ACTIONS[captions.STANDING] == "noop"
    assert set(PLACES) <= set(vizdoom.SCENARIOS)


def test_every_word_of_every_caption_is_known_and_every_known_word_is_used() -> None:
    used: set[str] = set()
    for scenario in PLACES:
        for motions in [(one,) for one in range(len(MOTIONS))] + [(1, 3), (5, 0, 7)]:
            for things in [(), *((thing,) for thing in THINGS), ("demon", "imp")]:
                used |= {word for seed in range(40) for word in words(caption(Facts(scenario, motions, things), seed))}
    assert used == set(VOCABULARY)
    assert len(VOCABULARY) == len(set(VOCABULARY)) <= 120


def test_a_caption_says_all_facts_in_the_order_of_time() -> None:
    facts = Facts("deadly_corridor", (captions.FORWARD, captions.LEFT), ("soldier",))
    made = {caption(facts, seed) for seed in range(60)}
    assert len(made) > 10 and caption(facts, 3) == caption(facts, 3)
    for text in made:
        before, _, after = text.partition("then")
        assert "corridor" in before and "soldier" in before and "left" in after and "left" not in before
        assert {"walking", "going"} & set(words(before))
    assert all("an imp" in caption(Facts("defend_the_line", (1,), ("imp",)), seed) for seed in range(9))


def test_motions_are_told_one_after_the_other_without_brief_ones() -> None:
    clip = taken(("forward", 8), ("back", 2), ("left", 10))
    assert describe("my_way_home", clip, FAR, NOTHING).motions == (captions.FORWARD, captions.LEFT)
    assert phases([1] * 6 + [3] * 2 + [1] * 6) == (1,)  # interrupted for a moment
    assert phases([1] * 5 + [2] * 5 + [3] * 5 + [4] * 5) == (captions.WANDERING,)
    assert phases([1, 2, 3, 4]) == (captions.WANDERING,) and phases([3, 3]) == (3,)


def test_who_walks_against_a_wall_stands_still_and_who_has_no_weapon_does_not_shoot() -> None:
    still = np.zeros(20)
    for action, seems in (("forward", captions.STANDING), ("back", captions.STANDING), ("forward+left", captions.LEFT)):
        assert describe("my_way_home", taken((action, 20)), still, NOTHING).motions == (seems,)
    shots = taken(("attack", 20))
    assert describe("rocket_basic", shots, still, NOTHING).motions == (captions.SHOOTING,)
    assert describe("my_way_home", shots, still, NOTHING).motions == (captions.STANDING,)


def test_things_are_told_if_they_are_large_and_seen_often() -> None:
    clip = taken(("noop", 20))
    assert describe("defend_the_line", clip, FAR, seen(imp=0.01, demon=0.2)).things == ("demon", "imp")
    assert describe("defend_the_line", clip, FAR, seen(imp=0.003)).things == ()
    rarely = seen(imp=0.01)
    rarely[3:] = 0
    assert describe("defend_the_line", clip, FAR, rarely).things == ()
    assert len(describe("defend_the_line", clip, FAR, seen(imp=0.1, demon=0.2, rocket=0.3)).things) == captions.TOLD


def test_what_cannot_be_described_is_refused() -> None:
    with pytest.raises(ValueError, match="no words for the scenario 'basic'; known: my_way_home"):
        describe("basic", taken(("noop", 20)), FAR, NOTHING)
    with pytest.raises(ValueError, match="20 actions, 19 distances and 20 lists of things given"):
        describe("my_way_home", taken(("noop", 20)), FAR[1:], NOTHING)


@plays
def test_a_real_recording_with_captions(tmp_path: Path) -> None:
    """The game's own labels and distances arrive, the player outlives his enemies, and other folders are refused."""
    planned = vizdoom.shards("deadly_corridor", 200, 0, tmp_path, 100, captions=True)
    assert list(vizdoom.record(planned)) == [200]
    data = load_file(planned[0].path)
    assert data["moved"].shape == (200,) and data["seen"].shape == (200, len(THINGS))
    assert data["episodes"].tolist() == [0] * 100 + [1] * 100  # the hardest skill would end them after 20 frames
    assert data["seen"][:, THINGS.index("soldier")].max() > captions.AREA and data["seen"].min() >= 0
    walking = np.isin(data["actions"], [captions.FORWARD, captions.FORWARD_LEFT, captions.FORWARD_RIGHT])
    turning = np.isin(data["actions"], [captions.LEFT, captions.RIGHT])
    assert data["moved"][walking].mean() > 2 * captions.MOVED > captions.MOVED > np.median(data["moved"][turning])
    assert all("corridor" in example for example in vizdoom.examples(planned))
    with pytest.raises(ValueError, match=r"of another recording .*captions 1"):
        vizdoom.check_folder(vizdoom.shards("deadly_corridor", 200, 0, tmp_path, 100))


@given(
    scenario=st.sampled_from(list(captions.PLACES)),
    motions=st.lists(st.integers(0, len(captions.MOTIONS) - 1), min_size=1, max_size=captions.PHASES),
    things=st.lists(st.sampled_from(THINGS), max_size=captions.TOLD, unique=True),
    seed=st.integers(0, 1000),
)
def test_a_caption_is_understood_as_the_facts_that_it_was_made_of(
    scenario: str, motions: list[int], things: list[str], seed: int
) -> None:
    facts = captions.Facts(scenario, tuple(motions), tuple(things))
    assert captions.understood(captions.caption(facts, seed)) == facts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a cat on a skateboard", "it names none of the places: a stone maze, a dark maze"),
        ("walking in a stone maze, then dancing", "'dancing' is none of the motions"),
        ("a stone maze", "'a stone maze' is none of the motions"),
        ("walking in a stone maze with a cat", "it says more than captions do"),
    ],
)
def test_what_is_no_caption_is_not_understood(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        captions.understood(text)
