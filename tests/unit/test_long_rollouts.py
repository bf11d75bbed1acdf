"""Long rollouts: seats play what sessions play alone, and what is said of them follows from their curves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal import Order
from diagonal.evaluation import long_rollouts, rollouts
from diagonal.evaluation.long_rollouts import Limits, join, median, summarise, until
from diagonal.evaluation.rollouts import Clips, Judges, lost_beyond
from diagonal.networks.inverse_dynamics import Config
from diagonal.worlds import vizdoom
from tests.worlds import small_world

WORLD: dict[str, Any] = {"rows": 12, "cols": 16, "frames": 4, "reference_frames": 2}
LEFT, FORWARD = (vizdoom.ACTIONS.index(name) for name in ("left", "forward"))


def clips(count: int = 2, frames: int = 6) -> Clips:
    generator = torch.Generator().manual_seed(0)
    video = torch.randint(256, (count, 2 + frames, 3, 96, 128), generator=generator, dtype=torch.uint8)
    return Clips(video, torch.randint(8, (count, 1 + frames), generator=generator), context=2)


@pytest.mark.parametrize("context", ["roll", "refill"])
def test_seats_play_what_a_session_plays_alone(context: str) -> None:
    world, held_out = small_world("doom/tiny", **WORLD), clips()
    made = long_rollouts.play(world, held_out, Order.of("diagonal:k=1"), context, first_seed=3)
    assert made.videos.shape == held_out.true.shape and made.calls == 27
    for number in range(2):
        names = [vizdoom.ACTIONS[index] for index in held_out.actions[number].tolist()]
        prompt = world.tokenizer.encode(held_out.frames[number : number + 1, :2])[0]
        session = world.play(prompt, names[:1], schedule="diagonal:k=1", seed=3 + number, context=context)
        alone = np.stack([session.step(name).frame for name in names[1:]])
        session.close()
        apart = made.videos[number].permute(0, 2, 3, 1).numpy().astype(int) - alone
        assert abs(apart).max() <= 1  # the same tokens, decoded to pixels in another batch


def test_an_arena_is_closed_and_serves_the_next_rollout() -> None:
    world, held_out = small_world("doom/tiny", **WORLD), clips()
    first, second = (long_rollouts.play(world, held_out, Order.of("raster"), "roll").videos for _ in range(2))
    assert torch.equal(first, second)


def test_every_frame_gets_its_numbers() -> None:
    held_out = clips()
    judges = Judges(Config(len(vizdoom.ACTIONS)).build().eval().requires_grad_(False))
    curves = long_rollouts.look(held_out, held_out.true, judges)
    assert {name: tuple(values.shape) for name, values in curves.items()} == dict.fromkeys(
        ("psnr", "seen", "jump", "sharpness", "saturation", "given"), (2, 6)
    )
    assert bool((curves["psnr"] == 100).all())  # the true frames
    assert curves["given"].tolist() == held_out.actions[:, 1:].tolist()
    limit = long_rollouts.limits(held_out, judges)
    assert limit.lost is None and float(limit.jump_A.max()) > 0
    assert summarise(curves, limit)["without switch"].mean == 1  # true frames never jump more than true frames


def made_curves(**changed: Tensor) -> dict[str, Tensor]:
    """Four starts of 120 frames that obey every left turn."""
    shape = (4, 120)
    usual = {"psnr": torch.full(shape, 20.0), "lpips": torch.full(shape, 0.2), "jump": torch.zeros(shape)}
    usual |= {"sharpness": torch.full(shape, 9.0), "saturation": torch.full(shape, 0.1)}
    usual |= {"given": torch.full(shape, float(LEFT)), "seen": torch.full(shape, float(LEFT))}
    return usual | changed


LIMIT = Limits(torch.full((8,), 0.5), sharpness=5.0, lost=0.4)


def test_what_is_switched_collapsed_lost_and_obeyed() -> None:
    curves = made_curves()
    curves["jump"][0, 7] = 0.6  # one start switches
    curves["sharpness"][1, 20:30] = 4.0  # one collapses: ten frames in a row
    curves["sharpness"][2, 20:29] = 4.0  # nine are none
    curves["lpips"][:2, 30:] = 0.5  # two are lost
    curves["seen"][:, 60:] = FORWARD
    numbers = summarise(curves, LIMIT)
    assert (numbers["starts"], numbers["frames"]) == (4, 120)
    assert numbers["without switch"].mean == numbers["without collapse"].mean == 0.75
    assert numbers["frames until lost"].mean == 75  # the median of 30, 30, 120, 120
    assert numbers["turns obeyed"].mean == 0.5


def test_slopes_are_of_a_hundred_frames_from_where_they_are_asked_for() -> None:
    rising = torch.arange(120.0).expand(4, 120) / 100
    rising = torch.where(torch.arange(120) < 50, 7.0, rising)
    numbers = summarise(made_curves(lpips=rising), LIMIT)
    assert numbers["lpips slope"].mean == pytest.approx(1, abs=1e-5)
    assert numbers["psnr slope"].mean == pytest.approx(0, abs=1e-9)
    assert "lpips slope" not in summarise(made_curves(), LIMIT, start=119)


def test_walking_turns_are_no_turns_here() -> None:
    walking = torch.full((4, 120), float(vizdoom.ACTIONS.index("forward+left")))
    walking[:, 0] = LEFT
    numbers = summarise(made_curves(given=walking, seen=torch.full((4, 120), float(FORWARD))), LIMIT)
    assert numbers["turns obeyed"].mean == 0


def test_until_counts_frames_and_medians_have_intervals() -> None:
    lost = torch.tensor([[False, True, False], [False, False, False], [True, True, True]])
    assert until(lost).tolist() == [1, 3, 0]
    found = median(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
    assert found.mean == 3 and 1 <= found.low <= 3 <= found.high <= 100


def test_starts_that_were_played_apart_are_joined_and_paired() -> None:
    one, two = made_curves(), made_curves(lpips=torch.full((4, 120), 0.3))
    joined = join([one, two])
    assert {len(values) for values in joined.values()} == {8}
    assert long_rollouts.difference(two, one, "lpips").mean == pytest.approx(0.1, abs=1e-6)


def test_both_kinds_of_rollouts_are_lost_by_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    far = {"weights": torch.zeros(1)}
    monkeypatch.setattr(
        rollouts, "lpips_distance", lambda a, b, weights: (a.float() - b.float()).abs().mean((-1, -2, -3)).numpy()
    )
    held_out = clips(count=3, frames=4)
    limit = lost_beyond(held_out.true, far)
    made = held_out.true.clone()
    made[1, 2:] = 255 - made[1, 2:]
    beyond = (made.float() - held_out.true.float()).abs().mean((-1, -2, -3)) > limit
    assert rollouts.frames_until_lost(replace(held_out), made, far) == until(beyond).astype(int).tolist() == [4, 2, 4]
