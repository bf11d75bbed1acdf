"""The page of a blind comparison in a real browser, from a file: a voter who can see votes by keyboard."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diagonal.evaluation import manifest
from diagonal.evaluation.pairs import plan_study, write
from diagonal.evaluation.votes import merge, read_key, read_votes
from diagonal.media import draw
from diagonal.media.video import writer

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    pytest.skip("no browser here, so the page was not tried: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="the page was not tried: pip install playwright")

PATIENCE = 30_000  # ms: a busy machine is slow
PAIRS, TWICE = 4, 2
QUESTIONS = ("overall", "motion")
READY = """() => document.body.dataset.view === "vote" && [...document.querySelectorAll("video")].every(
  (video) => video.readyState >= 2 && !video.seeking && video.videoWidth)"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos that move, reddish ones of one run and bluish ones of the other, and their page."""
    folder = tmp_path_factory.mktemp("study")
    for name, channel in (("wormwood", 0), ("juniper", 2)):
        (folder / name).mkdir()
        for pair in range(PAIRS):
            card = np.roll(draw.test_card(48, 64)[0] // 4, pair, axis=0)
            card[..., channel] += 150
            with writer(folder / name / f"clip{pair}.mp4", 8, lossless=True) as file:
                for shift in range(4):
                    file.write(np.roll(card, 3 * shift, axis=1))
        manifest.add(folder / name, "clip1", {"actions": ["forward", "forward", "left"]})
    made = plan_study(folder / "wormwood", folder / "juniper", QUESTIONS, (None, TWICE), seed=3)
    assert len(list(write(made, folder / "out"))) == PAIRS + TWICE
    return folder / "out"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, study: Path) -> Iterator[Any]:
    """The page as a voter opens it: whatever it complains of fails the test, and so does a request to anybody else."""
    troubles: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    context.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: troubles.append(str(error.error)))
    inside = ((study / "page").as_uri(), "blob:", "data:")
    context.on("request", lambda asked: None if asked.url.startswith(inside) else troubles.append(asked.url))
    page = context.new_page()
    page.goto((study / "page" / "index.html").as_uri())
    yield page
    context.close()
    assert not troubles


def enter(page: Any, name: str) -> None:
    page.keyboard.type(name)  # the field has the focus
    page.keyboard.press("Enter")
    page.wait_for_function(READY)


def red_side(page: Any) -> str:
    """Where the reddish video is, as it is seen."""
    for side in ("left", "right"):
        with Image.open(io.BytesIO(page.locator(f"#{side}").screenshot())) as image:
            red, _, blue = np.asarray(image.convert("RGB")).reshape(-1, 3).mean(0)
        if red > blue:
            return side
    raise AssertionError("neither video is reddish")


def press(page: Any, key: str, given: int) -> None:
    """Answer, and wait for what comes next."""
    page.keyboard.press(key)
    page.wait_for_function("(given) => state.votes.length === given && !busy", arg=given)
    if given < (PAIRS + TWICE) * len(QUESTIONS):
        page.wait_for_function(READY)


def vote(page: Any, number: int) -> None:
    """Red is better, all in all; motion is alike."""
    asked = page.locator("#question").inner_text()
    said = page.evaluate("STUDY.trials[trialOf(state.votes.length)].asked")
    assert page.locator("#asked").is_visible() == bool(said) and page.locator("#asked").inner_text().endswith(said)
    arrow = {"left": "ArrowLeft", "right": "ArrowRight"}[red_side(page)] if "all in all" in asked else "ArrowDown"
    press(page, arrow, number + 1)


def saved(page: Any, folder: Path) -> Path:
    with page.expect_download() as download:
        page.locator("#end .save").click()
    target = folder / str(download.value.suggested_filename)
    download.value.save_as(target)
    return target


def test_a_voter_votes_by_keyboard_goes_on_later_and_the_votes_are_counted(
    page: Any, study: Path, tmp_path: Path
) -> None:
    enter(page, "Ada L.")
    asked = [trial["asked"] for trial in page.evaluate("STUDY.trials")]
    assert set(asked) == {"", "forward 2, left 1"}
    steps = (PAIRS + TWICE) * len(QUESTIONS)
    for number in range(3):
        vote(page, number)
    press(page, "ArrowLeft", 4)  # a slip
    page.keyboard.press("Backspace")
    assert page.evaluate("state.votes.length") == 3
    page.reload()
    page.wait_for_function(READY)
    assert page.locator("#place").inner_text() == "Pair 2 of 6, question 2 of 2"
    for number in range(3, steps):
        vote(page, number)
    assert page.evaluate("document.body.dataset.view") == "end"
    file = saved(page, tmp_path)
    assert file.name == "votes-Ada-L-.json" and json.loads(file.read_text())["voter"] == "Ada L."
    key = read_key(study)
    found = merge(read_votes([file], key), key)
    assert (found["a"], found["b"], found["pairs"]) == ("wormwood", "juniper", PAIRS)
    overall, motion = (found["questions"][name] for name in QUESTIONS)
    assert (overall["a"], overall["b"], overall["tie"], overall["win_rate"]["mean"]) == (PAIRS, 0, 0, 1)
    assert (motion["tie"], motion["win_rate"], motion["score"]["mean"]) == (PAIRS, None, 0.5)
    assert (found["same_again"]["mean"], found["same_again"]["of"]) == (1, TWICE * len(QUESTIONS))


def test_videos_play_together_pause_and_start_again(page: Any) -> None:
    enter(page, "Grace")
    times = "() => [...document.querySelectorAll('video')].map((video) => video.currentTime)"
    page.wait_for_function("() => played")  # to the end, by themselves
    page.wait_for_function("() => !videos[0].ended && !videos[0].paused && videos[0].currentTime > 0")
    page.keyboard.press("Space")
    assert page.evaluate("videos.every((video) => video.paused)")
    left, right = page.evaluate(times)
    assert abs(left - right) < 0.25
    assert page.locator("#pause").inner_text().endswith("Play")
    page.locator("#pause").click()
    page.wait_for_function("() => videos.some((video) => !video.paused)")
    page.locator("[data-choice=tie]").click()
    page.wait_for_function("() => state.votes.length === 1 && !busy")
    page.keyboard.press("Space")  # pauses, and does not press the button again that has the focus
    assert page.evaluate("state.votes.length") == 1
    assert page.evaluate("state.votes[0].played") is True


def test_the_page_says_nothing_of_which_run_is_where(study: Path) -> None:
    names = {path.relative_to(study / "page").as_posix() for path in (study / "page").rglob("*") if path.is_file()}
    videos = {f"videos/{number:04}-{side}.mp4" for number in range(1, 7) for side in ("left", "right")}
    assert names == videos | {"index.html", "compare.css", "compare.js", "trials.js"}
    for path in (study / "page").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(word in content for word in (b"wormwood", b"juniper", b"clip0", b"clip1", b"clip3"))


def test_the_page_fits_a_small_window_and_every_button_has_a_name(page: Any) -> None:
    enter(page, "Alan")
    page.set_viewport_size({"width": 390, "height": 760})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for button in page.get_by_role("button").all():
        assert button.inner_text().strip()
    assert page.get_by_label("Left video").count() == page.get_by_label("Right video").count() == 1
