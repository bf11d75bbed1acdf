"""The network that reads clips, and its training."""

from __future__ import annotations

from pathlib import Path

import torch

from diagonal.networks.caption_reader import NO_MOTION, SCENARIOS, Answers, Config, read, right
from diagonal.training.judges.caption_reader import ReaderTask, Told
from diagonal.training.loop import RunConfig, fit
from diagonal.training.stages import build
from diagonal.worlds.captions import LEFT, RIGHT, THINGS, Facts

SMALL = Config(channels=(8, 8, 16, 16), features=16, hidden=16)


def toy(count: int, seed: int) -> Told:
    """Clips whose facts can be seen: the scenario is a colour, the way of turning is the way that stripes move, and a
    thing is a bright row."""
    generator = torch.Generator().manual_seed(seed)
    choices = torch.randint(2, (count, 3), generator=generator)
    video = torch.zeros(count, 8, 3, 16, 32, dtype=torch.uint8)
    facts = []
    for clip, (place, way, thing) in zip(video, choices.tolist(), strict=True):
        for time, frame in enumerate(clip):
            shift = 2 * (time if way else -time)
            stripes = ((torch.arange(32) - shift) % 16 < 8).byte() * 120
            frame[2 * place] = stripes
            if thing:
                frame[:, :4] = 255
        facts.append(Facts(SCENARIOS[place], (RIGHT if way else LEFT,), (THINGS[0],) if thing else ()))
    return Told(video, Answers.of(facts, "cpu"))


def test_facts_become_answers() -> None:
    facts = [Facts(SCENARIOS[3], (LEFT, RIGHT), (THINGS[2], THINGS[0])), Facts(SCENARIOS[0], (RIGHT,), ())]
    told = Answers.of(facts, "cpu")
    assert told.scenario_N.tolist() == [3, 0]
    assert told.motions_NP.tolist() == [[LEFT, RIGHT, NO_MOTION], [RIGHT, NO_MOTION, NO_MOTION]]
    assert told.things_NM.nonzero().tolist() == [[0, 0], [0, 2]]
    assert told[torch.tensor([1])].scenario_N.tolist() == [0]


def test_right_answers_are_told_apart() -> None:
    facts = [Facts(SCENARIOS[0], (LEFT, RIGHT), ()), Facts(SCENARIOS[1], (LEFT,), ())]
    seen = [Facts(SCENARIOS[0], (LEFT,), ()), Facts(SCENARIOS[0], (LEFT,), ())]
    found = right(Answers.of(seen, "cpu"), Answers.of(facts, "cpu"))
    assert {name: one.tolist() for name, one in found.items()} == {
        "scenario": [True, False],
        "first_motion": [True, True],
        "motions": [False, True],
    }


def test_the_network_is_small_and_reads_whole_clips_of_any_length() -> None:
    network = build(Config(), 0, "cpu").eval()
    assert sum(one.numel() for one in network.parameters()) < 2_000_000
    for frames in (5, 11):
        video = torch.randint(256, (3, frames, 3, 32, 48)).byte()
        found, parts = read(network, video), read(network, video, batch=2)
        assert found.scenario_N.shape == (3,) and found.motions_NP.shape == (3, 3)
        assert torch.equal(found.motions_NP, parts.motions_NP) and torch.equal(found.things_NM, parts.things_NM)


def test_what_can_be_seen_is_learnt(tmp_path: Path) -> None:
    task = ReaderTask(build(SMALL, 1, "cpu"), toy(96, 0), toy(48, 1), batch=24, lr=1e-2, seed=0)
    before = task.evaluate()
    *_, last = fit(task, RunConfig(steps=60, warmup=5, log_every=30, evaluate_every=60), tmp_path)
    assert before["val_motions"] < 0.5
    assert min(last[f"val_{name}"] for name in ("scenario", "first_motion", "motions", "things_f1")) > 0.9
