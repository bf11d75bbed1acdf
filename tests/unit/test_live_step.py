"""Steps of frames that samples decode together, each in its own ring, against a loop over all slots."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import select
from diagonal.engine.kernels.live import LiveFrame
from diagonal.engine.kernels.visibility import BLOCK, EVERYBODY, NOWHERE
from diagonal.planning.frames import UNUSED
from tests.live import Ring, frame_of, random_rows

RINGS = [Ring(0, 6, 30), Ring(5, 40, 4), Ring(70, 64, 3), Ring(3, 13, 1)]


def naive(frame: LiveFrame, sample: int, step: int) -> list[int]:
    """What each slot needs, one after the other."""
    own, before, fed = int(frame.own_B[sample]), int(frame.before_B[sample]), frame.fed_U2.tolist()
    needed = []
    for slot in range(frame.unused):
        place = (slot - frame.prefix) // frame.unit
        if slot < frame.prefix:
            needed.append(EVERYBODY)
        elif place >= frame.filled_B[sample]:  # the first frame of a video has none before it
            needed.append(NOWHERE)
        elif place == (own - frame.prefix) // frame.unit:
            number = slot - own
            needed.append(number if fed[number + frame.unit] <= step else NOWHERE)
        elif place == (before - frame.prefix) // frame.unit:
            number = slot - before - frame.unit
            needed.append(number if fed[number + frame.unit] <= step else NOWHERE)
        else:
            needed.append(EVERYBODY)
    return needed


def cell(frame: LiveFrame, sample: int, number: int) -> int:
    """Its slot."""
    first = frame.own_B if number >= 0 else frame.before_B + frame.unit
    return int(first[sample]) + number


@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_a_step_is_found_in_every_ring(ring: Ring) -> None:
    torch.manual_seed(ring.unit)
    frame = frame_of(ring, batch=5)
    rows, cursor = random_rows(ring, inputs=3), torch.zeros(2, dtype=torch.long)
    tokens = torch.randint(1000, (7, frame.unused + 1))
    for number, row in enumerate(rows.tolist()):
        made = select.live_step(rows, cursor, frame, tokens, 3)
        read, slot, write, step = row[:3], row[3:6], row[6:9], row[9]
        assert cursor.tolist() == [number + 1, 0]
        assert made.seen.slots_S.tolist() == slot and made.seen.needed_L.dtype == torch.int32
        for b in range(5):
            own_row = tokens[frame.rows_B[b]]
            assert made.tokens_BS[b].tolist() == [int(own_row[cell(frame, b, one)]) for one in read]
            assert made.slots_BS[b].tolist() == [cell(frame, b, one) for one in slot]
            assert made.positions_BS[b].tolist() == [int(frame.position_B[b]) + one for one in slot]
            wanted = [frame.unused if one == UNUSED else cell(frame, b, one) for one in write]
            assert made.write_BS[b].tolist() == wanted
            for one, noise in zip(write, made.noise_BS[b].tolist(), strict=True):
                assert one == UNUSED or noise == int(frame.video_B[b]) + one
            assert made.seen.needed_L[b].tolist() == naive(frame, b, step)


@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_counts_of_blocks_say_what_is_seen_by_all_and_what_is_written(ring: Ring) -> None:
    torch.manual_seed(ring.unit)
    frame = frame_of(ring, batch=8)
    rows = random_rows(ring, inputs=2)
    tokens = torch.zeros(10, frame.unused + 1, dtype=torch.long)
    seen = select.live_step(rows, torch.zeros(2, dtype=torch.long), frame, tokens, 2).seen
    assert seen.whole.shape == seen.extent.shape == (8, 1) and seen.whole.dtype == seen.extent.dtype == torch.int64
    for b in range(8):
        blocks = (seen.needed_L[b] == EVERYBODY).view(-1, BLOCK).all(1).tolist()
        assert int(seen.whole[b]) == [*blocks, False].index(False)
        last = ring.prefix + ring.unit * int(frame.filled_B[b]) - 1
        assert int(seen.extent[b]) == last // BLOCK + 1
        assert (seen.needed_L[b, int(seen.extent[b]) * BLOCK :] == NOWHERE).all()


def test_the_place_of_a_frame_is_written_and_seen_in_order() -> None:
    """Step by step: each cell from the step that feeds it, by cells from its own number on."""
    ring = Ring(4, 5, 3)
    frame = replace(frame_of(ring, batch=2), fed_U2=torch.tensor([-1] * 4 + [0, 1, 2, 3, 4, 5]))
    frame.filled_B.fill_(3)
    rows = torch.tensor([[n - 1, n - 1, n, n] for n in range(5)])
    tokens = torch.arange(frame.unused + 1).repeat(4, 1)
    cursor = torch.zeros(2, dtype=torch.long)
    for number in range(5):
        made = select.live_step(rows, cursor, frame, tokens, 1)
        for b in range(2):
            own, before = int(frame.own_B[b]), int(frame.before_B[b])
            sees: Tensor = made.seen.of(b).mask()[0]
            assert sees[own : own + 5].tolist() == [n < number for n in range(5)]
            assert sees[before : before + 5].all() and sees[:4].all()
            assert made.tokens_BS[b].item() == (own + number - 1 if number else before + 4)


def test_frames_that_fit_no_ring_are_refused() -> None:
    frame = frame_of(Ring(4, 5, 3), batch=2)
    with pytest.raises(ValueError, match="six tensors"):
        replace(frame, own_B=frame.own_B[:1])
    with pytest.raises(ValueError, match="int64"):
        replace(frame, fed_U2=frame.fed_U2.int())
    with pytest.raises(ValueError, match="whole blocks of 64, at least 19 slots"):
        replace(frame, unused=19)
