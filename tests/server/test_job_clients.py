"""Clients that people have: `openai`, and one that watches a stream as vLLM-Omni's does, over real sockets."""

from __future__ import annotations

import asyncio
import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import openai
import pytest
from websockets.asyncio.client import connect

from diagonal.server.settings import Limits
from tests.server.job_server import PROMPT, SMALL, VIDEO, WORLD, application, listening, picture

TOKEN = "a long enough token"
# Every call of `client.videos` says that OpenAI's own service has gone.
pytestmark = pytest.mark.filterwarnings("ignore:The Sora API is scheduled:DeprecationWarning")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a port of its own."""
    app = application(Limits(jobs=4), data=tmp_path_factory.mktemp("data"), token=TOKEN)
    with listening(app) as place:
        yield place


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key=TOKEN, max_retries=0) as made:
        yield made


def _frames(data: bytes) -> int:
    with av.open(io.BytesIO(data), "r") as opened:
        return sum(1 for _ in opened.decode(video=0))


def test_openai_creates_polls_and_downloads(client: openai.OpenAI, tmp_path: Path) -> None:
    video: Any = client.videos.create_and_poll(model=WORLD, prompt="forward*2,left", extra_body={"seed": 3, **SMALL})
    assert (video.status, video.progress, video.size, video.seconds) == ("completed", 100, "128x96", "0.342857")
    assert video.model_extra["seed"] == 3 and video.model_extra["num_frames"] == 3
    data = client.videos.download_content(video.id)
    data.write_to_file(tmp_path / "out.mp4")
    assert _frames((tmp_path / "out.mp4").read_bytes()) == 3
    assert client.videos.download_content(video.id, variant="thumbnail").content[:4] == b"RIFF"
    assert client.videos.download_content(video.id, variant="spritesheet").content[:3] == b"\xff\xd8\xff"
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError) as missing:
        client.videos.retrieve(video.id)
    assert (missing.value.code, missing.value.param) == ("not_found", "video_id")


def test_openai_sends_a_picture_lists_and_objects(client: openai.OpenAI) -> None:
    extra: dict[str, Any] = {"actions": ["left", "left"], "extra_params": {"seed": 9}}
    still = ("still.png", picture(), "image/png")
    video: Any = client.videos.create(model=WORLD, prompt="", size="128x96", input_reference=still, extra_body=extra)  # type: ignore[arg-type]
    assert (video.status, video.model_extra["seed"], video.model_extra["num_frames"]) == ("queued", 9, 2)
    assert client.videos.poll(video.id).status == "completed"
    film: Any = client.videos.create(model=VIDEO, prompt=PROMPT, seconds="2", size="128x96")  # type: ignore[arg-type]
    remix: Any = client.videos.remix(film.id, prompt="a stone maze")
    assert remix.remixed_from_video_id == film.id and client.videos.poll(remix.id).prompt == "a stone maze"


def test_openai_lists_all_pages(client: openai.OpenAI) -> None:
    made = [client.videos.create(model=WORLD, prompt="left", extra_body=SMALL).id for _ in range(3)]
    assert [video.id for video in client.videos.list(limit=2)][:3] == made[::-1]
    first = client.videos.list(limit=1, order="asc")
    assert first.has_more and len(first.data) == 1 and first.last_id == first.data[0].id
    for name in made:
        client.videos.poll(name)


def test_openai_hears_why_it_is_refused(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.videos.create(model=WORLD, prompt="left", extra_body={"sede": 1})
    assert (wrong.value.code, wrong.value.param) == ("unknown_field", "sede")
    with pytest.raises(openai.BadRequestError, match="edits are not made here"):
        client.videos.edit(prompt="x", video=b"x")
    with pytest.raises(openai.BadRequestError, match="a video by its id"):  # and this client sends files alone
        client.videos.extend(prompt="x", seconds="4", video=b"x")
    with pytest.raises(openai.NotFoundError, match="there is no model 'sora-2'"):
        client.videos.create(model="sora-2", prompt="x")
    stranger = openai.OpenAI(base_url=f"http://{address}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.videos.list()
    assert {model.id for model in client.models.list()} == {WORLD, VIDEO}


def test_a_warning_is_all_that_openai_says_against_it(client: openai.OpenAI) -> None:
    """The filter above hides exactly this one."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        client.videos.list(limit=1)
    assert {one.category for one in said} <= {DeprecationWarning}
    assert all(str(one.message).startswith("The Sora API is scheduled") for one in said)


async def _watch(address: str) -> tuple[bytes, list[dict[str, Any]]]:
    """What vLLM-Omni's client does: sampling_params, a prompt on the way, a ping, and all bytes put together."""
    data, said = b"", list[dict[str, Any]]()
    sampling = {"num_frames": 41, "seed": 4, "width": 128, "height": 96}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with connect(f"ws://{address}/v1/realtime/video?model={VIDEO}", additional_headers=headers) as socket:
        start = {"type": "session.start", "model": VIDEO, "prompt": PROMPT, "format": "m4s"}
        await socket.send(json.dumps(start | {"sampling_params": sampling}))
        async for message in socket:
            if isinstance(message, bytes):
                assert said[-1]["type"] == "video.chunk_metadata" and said[-1]["byte_length"] == len(message)
                data += message
                continue
            said.append(json.loads(message))
            if said[-1]["type"] == "video.start":
                change = {"event_id": "turn", "event": {"prompt": "a stone maze"}}
                await socket.send(json.dumps({"type": "session.interaction", "interaction": change}))
                await socket.send(json.dumps({"type": "session.ping"}))
        assert socket.close_code == 1000
    return data, said


def test_a_client_of_vllm_omni_watches_a_video_while_it_is_made(address: str) -> None:
    data, said = asyncio.run(_watch(address))
    kinds = [message["type"] for message in said]
    assert kinds[0] == "video.start" and kinds[-1] == "session.done" and _frames(data) == 41
    assert {"session.interaction.queued", "session.pong"} <= set(kinds)
    chunks = [message for message in said if message["type"] == "video.chunk_metadata"]
    assert [chunk["transport_chunk_index"] for chunk in chunks] == [*range(len(chunks))]
    assert ["turn"] in [chunk["started_event_ids"] for chunk in chunks]
    assert said[-1]["chunks"] == len(chunks) and not said[-1]["stopped"]
    assert len({message["request_id"] for message in said if "request_id" in message}) == 1
