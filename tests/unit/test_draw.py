"""Pictures of plans and of clips."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from rich.text import Text

from diagonal.media import draw
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import Plan, make_plan


def planned(frames: int, rows: int, cols: int, schedule: str = "diagonal:k=1") -> Plan:
    return make_plan(Layout(Grid(frames, rows, cols), prefix=1), schedule)


def lines(plan: Plan, width: int, height: int = 40) -> list[str]:
    """The wave as a terminal shows it, without colours."""
    return Text.from_markup(draw.wave(plan, width, height)).plain.splitlines()


# The wave as text


def test_the_wave_has_one_line_per_row_and_a_legend():
    *rows, legend = lines(planned(1, 5, 7), 80)
    assert [len(row) for row in rows] == [7] * 5
    assert legend == "0 first, Z last"


def test_the_wave_marks_the_first_cell_0_and_the_last_one_z():
    *rows, _ = lines(planned(1, 4, 6), 80)
    assert rows[0][0] == "0" and rows[-1][-1] == "Z"
    assert "".join(rows).count("0") == "".join(rows).count("Z") == 1


def test_cells_of_one_step_have_one_mark_and_later_steps_later_marks():
    plan = planned(1, 4, 6)
    *rows, _ = lines(plan, 80)
    marks = np.array([[draw.GLYPHS.index(mark) for mark in row] for row in rows])
    times = plan.times[0]
    assert len({(step, mark) for step, mark in zip(times.flat, marks.flat, strict=True)}) == len(plan.steps)
    assert (np.diff(marks.ravel()[np.argsort(times, axis=None)]) >= 0).all()


def test_frames_stand_side_by_side():
    *rows, _ = lines(planned(3, 4, 6), 80)
    assert all([len(frame) for frame in row.split("  ")] == [6, 6, 6] for row in rows)


def test_known_frames_are_not_drawn():
    plan = make_plan(Layout(Grid(3, 4, 6)), "diagonal:k=1", known=2)
    *rows, _ = lines(plan, 80)
    assert [len(row) for row in rows] == [6] * 4


@pytest.mark.parametrize("width", [6, 20, 22, 23, 79])
def test_no_line_is_wider_than_asked_and_left_out_frames_are_counted(width):
    *rows, legend = lines(planned(9, 4, 6), width)
    shown = rows[0].count("  ") + 1
    assert max(map(len, rows)) <= width
    assert (f"first {shown} of 9 frames" in legend) == (shown < 9)
    assert shown == min(9, (width + 2) // 8)


def test_a_large_frame_is_thinned_and_the_legend_says_so():
    *rows, legend = lines(planned(1, 100, 100), 60, height=40)
    assert len(rows) == 34 and max(map(len, rows)) == 34
    assert "every 3th row and column" in legend


def test_a_single_cell_can_be_drawn():
    assert lines(planned(1, 1, 1), 80)[0] == "0"


# Colours


@pytest.mark.parametrize("last", [1, 2, 7, 161, 2000])
def test_later_steps_are_brighter(last):
    colours = draw.colours(np.arange(last + 1), last).astype(float)
    brightness = colours @ [0.299, 0.587, 0.114]
    assert colours.shape == (last + 1, 3)
    assert (np.diff(brightness) > (0 if last < 100 else -1)).all()  # a step smaller than rounding may stand still
    assert brightness[-1] - brightness[0] > 150


def test_the_first_and_last_step_have_the_end_colours():
    ends = draw.colours(np.array([0, 161]), 161)
    np.testing.assert_array_equal(ends, draw.STOPS[[0, -1]])


def test_the_colour_of_the_only_step_is_the_first():
    np.testing.assert_array_equal(draw.colours(np.array(0), 0), draw.STOPS[0])


# The wave as a picture


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 14, 24), (3, 40, 64), (20, 14, 24)])
def test_the_picture_of_a_plan_is_large_enough_to_see_and_small_enough_to_show(tmp_path, shape):
    path = tmp_path / "wave.png"
    draw.save_plan(planned(*shape), path, "title")
    with Image.open(path) as image:
        assert image.format == "PNG" and image.mode == "RGB"
        assert 400 <= image.width <= 1700 and 80 <= image.height <= 3000
    assert os.listdir(tmp_path) == ["wave.png"]


def test_every_cell_of_the_picture_has_the_colour_of_its_step(tmp_path):
    plan = planned(2, 3, 4)
    draw.save_plan(plan, tmp_path / "wave.png", "")
    with Image.open(tmp_path / "wave.png") as image:
        pixels = np.asarray(image)
    cell, gap, top = 24, 12, 44
    for t, i, j in np.ndindex(plan.times.shape):
        x, y = gap + t * (4 * cell + gap) + j * cell + cell // 2, top + i * cell + cell // 2
        np.testing.assert_array_equal(pixels[y, x], draw.colours(plan.times[t, i, j], len(plan.steps) - 1))


@pytest.mark.parametrize("name", ["wave.jpg", "wave", "wave.png.txt"])
def test_a_picture_of_another_kind_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        draw.save_plan(planned(1, 2, 2), tmp_path / name, "")
    assert os.listdir(tmp_path) == []


def test_a_picture_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        draw.save_plan(planned(1, 2, 2), tmp_path / "nowhere" / "wave.png", "")


# Clips


def test_clips_stand_side_by_side_below_their_labels():
    clips = [np.full((3, 20, 60, 3), value, dtype=np.uint8) for value in (100, 200)]
    clips[1][2] = 50
    both = draw.side_by_side(clips, ["left", "right"])
    assert both.dtype == np.uint8 and both.shape == (3, 52, 128, 3)
    np.testing.assert_array_equal(both[:, 32:, :60], clips[0])
    np.testing.assert_array_equal(both[:, 32:, 68:], clips[1])
    np.testing.assert_array_equal(both[:, 32:, 60:68], np.broadcast_to(draw.PAPER, (3, 20, 8, 3)))


def test_each_label_is_written_above_its_own_clip():
    clips = [np.zeros((1, 8, 100, 3), dtype=np.uint8)] * 2
    band = draw.side_by_side(clips, ["", "label"])[0, :32]
    inked = (band != draw.PAPER).any(axis=-1)
    assert not inked[:, :108].any() and inked[:, 108:].any()


def test_labels_are_the_same_on_every_frame():
    clips = [np.zeros((4, 8, 100, 3), dtype=np.uint8)] * 2
    band = draw.side_by_side(clips, ["one", "two"])[:, :32]
    assert (band == band[0]).all()


@pytest.mark.parametrize("size", [(7, 9), (8, 9), (7, 10)])
def test_the_sides_of_clips_put_together_are_even(size):
    clips = [np.full((2, *size, 3), 77, dtype=np.uint8)] * 3
    both = draw.side_by_side(clips, ["", "", ""])
    assert both.shape[1] % 2 == both.shape[2] % 2 == 0
    for index in range(3):
        left = index * (size[1] + 8)
        assert (both[:, 32 : 32 + size[0], left : left + size[1]] == 77).all()


@pytest.mark.parametrize("other", [(2, 8, 12, 3), (1, 8, 10, 3), (2, 9, 10, 3)])
def test_clips_of_other_sizes_or_lengths_are_refused(other):
    clips = [np.zeros((2, 8, 10, 3), dtype=np.uint8), np.zeros(other, dtype=np.uint8)]
    with pytest.raises(ValueError, match="shape"):
        draw.side_by_side(clips, ["", ""])


def test_the_test_card_is_one_frame_with_sky_ground_and_blocks():
    card = draw.test_card(224, 384)
    assert card.dtype == np.uint8 and card.shape == (1, 224, 384, 3)
    sky, ground, block = card[0, 5, 5], card[0, -5, 5], card[0, 100, 80]
    assert sky[2] > sky[0] and ground[1] > ground[2]
    np.testing.assert_array_equal(block, [120, 85, 60])


# Curves


def test_panels_show_every_curve_in_its_colour(tmp_path):
    rising = [draw.Point(x, 2 * x, 2 * x - 1, 2 * x + 1, label="here") for x in (1, 2, 5)]
    panels = [draw.Panel("steps", "height", {"rising": rising, "flat": [draw.Point(3, 4)]}) for _ in range(3)]
    draw.save_panels(panels, tmp_path / "curves.png", "Three panels")
    image = np.asarray(Image.open(tmp_path / "curves.png"))
    assert image.shape == (48 + 2 * 360 + 2 * 24, 2 * 560, 3)
    for shade in draw.colours(np.array([1, 2]), 2):
        found = (image == shade).all(-1)
        assert found[48:408, :560].any() and found[408:768, :560].any() and found[768:].any()


def test_points_that_are_loose_are_not_connected(tmp_path):
    points = [draw.Point(1, 1), draw.Point(9, 9)]
    for name, loose in (("tied", ()), ("loose", ("all",))):
        draw.save_panels([draw.Panel("x", "y", {"all": points}, loose)], tmp_path / f"{name}.png", "")
    pixels = {
        name: (np.asarray(Image.open(tmp_path / f"{name}.png")) == draw.colours(np.array([1]), 1)).all(-1).sum()
        for name in ("tied", "loose")
    }
    assert pixels["tied"] > pixels["loose"] + 200


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 17), (0.001, 0.0019), (95, 105), (0, 49_000)])
def test_ticks_are_round_and_few(low, high):
    ticks = draw._ticks(low, high)
    assert 4 <= len(ticks) <= 11 and low <= ticks[0] < ticks[-1] <= high
    assert np.allclose(np.diff(ticks), ticks[1] - ticks[0])


def test_an_axis_has_room_even_for_one_value():
    assert draw._room([2.0, 2.0]) == (1.0, 3.0) and draw._room([0.0]) == (-1.0, 1.0)
