"""The examples of docs/jobs.md run, against a server whose models are tiny ones."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import diagonal
from diagonal.media.video import header
from diagonal.server.app import create_app
from diagonal.server.house import Served
from diagonal.server.jobs.fields import Fields
from diagonal.server.jobs.work import OFFLINE
from diagonal.server.settings import Limits, Settings
from diagonal.server.video_models import serve_video
from diagonal.server.world_models import serve_world
from tests.server.conftest import tiny_world
from tests.server.job_server import VIDEO, listening

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tiny models under the names of the page."""
    world, video = serve_world(tiny_world(), 2, Limits()), serve_video(diagonal.load(VIDEO), 2)
    models: dict[str, Served] = {"doom": replace(world, name="doom"), "doom-t2v": replace(video, name="doom-t2v")}
    with listening(create_app(Settings(data=tmp_path_factory.mktemp("data")), models)) as place:
        yield place


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl: the examples for it are not tried")
def test_the_examples_for_curl_run(address: str, tmp_path: Path) -> None:
    script = _blocks("bash")[1].replace("127.0.0.1:8000", address)
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert '"status":"completed"' in done.stdout and '"object":"video.deleted"' in done.stdout
    assert header(tmp_path / "walk.mp4").width == 384 and (tmp_path / "walk.webp").read_bytes()[:4] == b"RIFF"


def test_the_example_for_openai_runs(address: str, tmp_path: Path) -> None:
    code = _blocks("py")[0].replace("127.0.0.1:8000", address)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed ['video_") and header(tmp_path / "film.mp4").width == 384


def test_the_page_names_every_field_schedule_and_limit() -> None:
    fields = set(re.findall(r"`(\w+)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `"))))
    assert fields >= {*Fields.model_fields, "input_reference", "extra_params"}
    assert all(f"`{schedule}`" in PAGE for schedule in OFFLINE)
