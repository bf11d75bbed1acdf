"""The page in a real browser (Debian's Chromium, by Playwright), against a real server of the embedded world."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diagonal.checkpoints import ASSETS
from diagonal.evaluation.sweep import load_judge
from diagonal.media import video
from diagonal.networks.inverse_dynamics import judge
from diagonal.worlds.vizdoom import ACTIONS

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    pytest.skip("no browser here, so the page was not tried: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="the page was not tried: pip install playwright")

PATIENCE = 90_000  # ms: a busy machine is slow
TURNS = {"left": ("left", "forward+left"), "right": ("right", "forward+right")}
PICTURES = """() => [...document.querySelectorAll("#tree button")].map((thumb) => {
  const image = thumb.querySelector("img"), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  canvas.getContext("2d").drawImage(image, 0, 0);
  return { ...thumb.dataset, picture: canvas.toDataURL("image/png").split(",")[1] };
})"""

KEPT = """() => {
  const shown = Number(document.querySelector("#stage .badge.frame").textContent.split(" ")[1]);
  return Object.values(sessionStorage).some((found) => JSON.parse(found).snapshot.frame === shown);
}"""


@contextmanager
def served(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own, and where it is."""
    command = [sys.executable, "-m", "diagonal", "serve", "--seats", "3", *options]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    with subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = server.stderr.readline()
            assert line, f"the server ended: {said}"
            said += line
        yield found[0], server
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a server of `doom` is."""
    with served("--port", "0") as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=BROWSER, args=FLAGS)


@pytest.fixture
def context(browser: Any, address: str) -> Iterator[Any]:
    """A visitor: whatever the page complains of fails the test, and so does a request to anybody else."""
    troubles: list[str] = []
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE)
    context.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: troubles.append(str(error.error)))

    def asked(request: Any) -> None:
        if not request.url.startswith((address, f"blob:{address}", "data:")):
            troubles.append(f"asked for {request.url}")

    context.on("request", asked)
    yield context
    context.close()
    assert not troubles


def visit(context: Any, address: str) -> Any:
    """The page, before anybody plays."""
    page = context.new_page()
    page.goto(address)
    page.wait_for_function("() => document.body.dataset.state === 'idle'")
    return page


@pytest.fixture
def page(context: Any, address: str) -> Any:
    return visit(context, address)


def frame_of(page: Any) -> int:
    """The number of the frame that is seen."""
    return int(page.locator("#stage .badge.frame").inner_text().split()[1])


def standing(page: Any) -> int:
    """The number of the frame at which a paused game stands: the one that was in the making still comes."""
    seen = -1
    while seen != (seen := frame_of(page)):
        page.wait_for_timeout(1000)
    return seen


def wait_for_frame(page: Any, number: int) -> None:
    script = "(number) => Number(document.querySelector('#stage .badge.frame').textContent.split(' ')[1]) >= number"
    page.wait_for_function(script, arg=number, polling=50)


def meter(page: Any, name: str) -> str:
    return str(page.locator("#meters div", has_text=name).locator("dd").inner_text())


def play_to(page: Any, number: int, key: str = "ArrowUp") -> None:
    """Hold a key until a frame."""
    page.keyboard.down(key)
    wait_for_frame(page, number)
    page.keyboard.up(key)


def thumbs(page: Any) -> list[dict[str, Any]]:
    """The frames of the timeline: branch, frame, action and pixels (H, W, 3)."""
    found = page.evaluate(PICTURES)
    for one in found:
        one["pixels"] = np.asarray(Image.open(io.BytesIO(base64.b64decode(one.pop("picture")))).convert("RGB"))
    return list(found)


def test_sixty_frames_are_played_by_keys_and_turn_as_the_keys_say(page: Any) -> None:
    play_to(page, 33, "a")
    play_to(page, 63, "ArrowRight")
    assert float(meter(page, "Frames a second")) > 0
    page.click("#pause")
    seen = thumbs(page)
    assert len(seen) >= 60
    pixels = torch.from_numpy(np.stack([one["pixels"] for one in seen])).permute(0, 3, 1, 2)
    predicted, _ = judge(load_judge(ASSETS / "judge", "cpu"), pixels[None])
    for side, actions in TURNS.items():
        at = [index for index, one in enumerate(seen) if one["action"] == side]
        judged = [ACTIONS[int(predicted[0, index - 1])] for index in at]
        assert len(at) >= 20
        assert sum(action in actions for action in judged) >= 0.8 * len(at), (side, judged)
    assert meter(page, "Model calls a frame") == "27"
    assert 0 < int(meter(page, "median").removesuffix(" ms")) <= int(meter(page, "95 %").removesuffix(" ms"))


def test_the_order_of_decoding_is_switched_while_one_plays(page: Any) -> None:
    play_to(page, 6)
    page.click("#schedules label:has-text('raster')")
    page.wait_for_function("() => document.querySelector('#meters').textContent.includes('192')")
    assert "raster from frame" in page.locator("#said").inner_text()


def test_caps_light_up_at_once_and_again_go_out(page: Any) -> None:
    page.click("#stage .cover button")
    wait_for_frame(page, 4)
    lit = page.locator("#world .cap.lit")
    page.keyboard.down("w")
    page.keyboard.down("ArrowLeft")
    assert lit.evaluate_all("(caps) => caps.map((cap) => cap.dataset.control)") == ["forward", "left"]
    page.wait_for_function("() => document.querySelector('.badge.action').textContent === 'forward+left'")
    page.keyboard.up("w")
    page.keyboard.up("ArrowLeft")
    assert lit.count() == 0


def test_a_page_that_is_loaded_again_goes_on_where_it_was(page: Any) -> None:
    play_to(page, 20)
    page.evaluate("() => sessionStorage.clear()")
    page.click("#pause")
    page.wait_for_function(KEPT)
    paused, before = frame_of(page), thumbs(page)[-1]["pixels"]
    page.reload()
    page.wait_for_function("() => document.body.dataset.state === 'paused'")
    wait_for_frame(page, 1)
    assert frame_of(page) == paused
    assert np.abs(thumbs(page)[-1]["pixels"].astype(int) - before).mean() < 3  # the same frame, encoded again
    play_to(page, paused + 3)


def test_another_way_is_played_from_an_earlier_frame_and_the_first_one_stays(page: Any) -> None:
    play_to(page, 16)
    page.click("#tab-branch")
    page.click("#tree button[data-frame='10']")
    assert page.locator("#stage .title").inner_text() == "Frame 10"
    page.keyboard.down("ArrowRight")
    page.wait_for_selector("#tree button[data-branch='1'][data-frame='14']")
    page.keyboard.up("ArrowRight")
    page.click("#pause")
    first, second = ([one for one in thumbs(page) if one["branch"] == branch] for branch in "01")
    assert int(first[-1]["frame"]) >= 16 and int(second[0]["frame"]) == 11
    assert {one["action"] for one in second[2:4]} == {"right"}

    last = first[-1]["frame"]
    page.click(f"#tree button[data-branch='0'][data-frame='{last}']")
    page.click("#stage .cover button")
    page.wait_for_selector(f"#tree button[data-branch='0'][data-frame='{int(last) + 2}']")
    assert page.locator("#branch-note").inner_text().endswith("in 2 branches")


def test_a_session_is_saved_as_a_file_and_opened_again(page: Any, tmp_path: Path) -> None:
    play_to(page, 8)
    page.click("#tab-branch")
    page.click("#pause")
    with page.expect_download() as download:
        page.click("#save")
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    frame = json.loads(path.read_text())["frame"]
    page.click("#reset")
    wait_for_frame(page, 3)
    page.set_input_files("#open", path)
    page.wait_for_function(
        "(title) => document.querySelector('.title').textContent === title", arg=f"Paused at frame {frame}"
    )
    page.set_input_files("#open", files=[{"name": "not.json", "mimeType": "application/json", "buffer": b"{"}])
    page.wait_for_function("() => document.querySelector('#said').textContent.includes('not.json is no session')")


def test_a_race_counts_fewer_calls_for_the_diagonal(page: Any) -> None:
    page.click("#tab-race")
    page.click("#race-start")
    page.wait_for_function("() => document.querySelector('#verdict').textContent.includes('fewer')")
    page.keyboard.down("w")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.lane .badge.action')].every((one) => one.textContent === 'forward')"
    )
    page.keyboard.up("w")
    calls = page.locator(".lane dd:nth-child(2)").all_inner_texts()
    assert calls[1] == "192" and calls[4] == "27", calls
    assert page.locator("#verdict").inner_text().startswith("diagonal k=1: 7.1 times fewer model calls")
    page.click("#race-start")


def test_a_prompt_has_a_receipt_with_its_chunk_and_is_seen(page: Any, tmp_path: Path) -> None:
    page.click("#tab-prompt")
    assert page.locator("#text").input_value() == page.locator("#examples button").first.inner_text()
    page.click("#send")
    page.wait_for_selector("#receipts li:nth-child(1) .screen:has-text('on the screen after')")
    page.locator("#examples button").nth(1).click()
    page.keyboard.press("Enter")
    page.wait_for_selector("#receipts li:nth-child(2) .screen:has-text('on the screen after')")
    received, applied = (
        page.locator(f"#receipts li:nth-child(2) .{name}").inner_text() for name in ("received", "applied")
    )
    chunk = re.fullmatch(r"applied from chunk (\d+) on, after [\d.]+ m?s", applied)
    assert re.fullmatch(r"received after \d+ ms", received) and chunk and int(chunk[1]) >= 1
    colours = page.locator("#chunks li").evaluate_all("(marks) => marks.map((mark) => mark.dataset.colour)")
    assert colours == ["0"] * int(chunk[1]) + ["1"] * (len(colours) - int(chunk[1])) and colours[-1] == "1"
    page.fill("#text", "purple elephants")
    page.click("#send")
    page.wait_for_selector(
        "#receipts li:nth-child(3) .received:has-text(\"refused: this model does not know 'purple'\")"
    )
    page.click("#stop")
    page.wait_for_function("() => document.querySelector('#film-state').textContent.startsWith('Stopped')")
    with page.expect_download() as download:
        page.click("#film-save")
    download.value.save_as(tmp_path / "film.mp4")
    assert video.read(tmp_path / "film.mp4").shape[1:] == (96, 128, 3)


def test_a_game_is_saved_as_a_video(page: Any, tmp_path: Path) -> None:
    play_to(page, 8)
    page.click("#pause")
    last = standing(page)
    with page.expect_download() as download:
        page.click("#video")
    download.value.save_as(tmp_path / "played.mp4")
    assert video.read(tmp_path / "played.mp4").shape == (last + 1, 288, 384, 3)


def test_two_tabs_are_two_games(context: Any, page: Any, address: str) -> None:
    other = visit(context, address)
    play_to(other, 8, "ArrowLeft")
    play_to(page, 8, "ArrowRight")
    assert {one["action"] for one in thumbs(other)[2:5]} == {"left"}
    assert {one["action"] for one in thumbs(page)[2:4]} == {"right"}


def test_who_finds_no_seat_is_told_so(context: Any, page: Any, address: str) -> None:
    pages = [page, *(visit(context, address) for _ in range(3))]
    for one in pages:
        one.bring_to_front()
        one.click("#stage .cover button")
        one.wait_for_function("() => ['playing', 'ended'].includes(document.body.dataset.state)")
    assert "3 seats" in pages[-1].locator("#stage .title").inner_text()


def wait_for_seats(address: str) -> None:
    """Until those who were here before have left their seats."""
    until = time.monotonic() + PATIENCE / 1000
    while True:
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            if not json.load(answer)["sessions"]:
                return
        assert time.monotonic() < until, "somebody keeps a seat"
        time.sleep(0.1)


def test_a_phone_has_buttons_and_scrolls_in_one_direction(browser: Any, address: str) -> None:
    wait_for_seats(address)
    with browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as context:
        context.set_default_timeout(PATIENCE)
        page = visit(context, address)
        for view in ("play", "race", "branch", "prompt"):
            page.click(f"#tab-{view}")
            assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        page.click("#tab-play")
        page.tap("#stage .cover button")
        wait_for_frame(page, 4)
        page.tap("#world .cap[data-control='left']")
        page.wait_for_function("() => document.querySelector('#tree button[data-action=left]') !== null")


def test_a_session_goes_on_by_itself_when_its_server_was_killed(browser: Any, tmp_path: Path) -> None:
    """At another server with the same store, here at the same address. Each of its frames is shown once."""
    options = ("--model", "doom/tiny", "--weights", "random", "--snapshots", str(tmp_path), "--snapshot-every", "4")
    with browser.new_context() as context:
        with served("--port", "0", *options) as (address, first):
            page = visit(context, address)
            play_to(page, 20)
            first.kill()
            page.wait_for_function("() => document.body.dataset.state === 'starting'")
        before = [int(one["frame"]) for one in thumbs(page)]
        with served("--port", address.rpartition(":")[2], *options):
            page.wait_for_function("() => document.body.dataset.state === 'playing'")
            wait_for_frame(page, max(before) + 5)
            page.click("#pause")
            frames = [int(one["frame"]) for one in thumbs(page)]
    assert frames == sorted(set(frames)) and frames[: len(before) - 8] == before[:-8]
