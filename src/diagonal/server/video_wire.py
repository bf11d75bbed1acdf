"""The messages of clients that watch a video being made: vLLM-Omni's dialect, as far as a model here can follow it.

Fields of it that nothing here could follow are known and refused, so that nobody waits for their effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from diagonal.server.wire import Message, Number, RefusedError, Text, decoded, validated

Prompt = Annotated[str, Field(max_length=100_000)]  # the limit of a server is below it
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Rate = Annotated[float, Field(gt=0, le=1000)]


class Part(BaseModel):
    """An object inside a message."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class VideoParams(Part):
    """Size and length."""

    width: Count | None = None
    height: Count | None = None
    num_frames: Count | None = None
    fps: Rate | None = None


class Extra(Part):
    """What this server takes besides: the schedule, pacing, and acknowledgements."""

    schedule: Annotated[str, Field(max_length=64)] | None = None
    acknowledge: bool = False  # the client says which chunks it has shown, and gets the next one when it has
    pace_to_media_time: bool | None = None
    pacing_lead_seconds: Annotated[float, Field(ge=0, le=60)] = 0.0
    pacing_max_lag_seconds: Annotated[float, Field(ge=0, le=600)] = 5.0


class Start(Message):
    """Begin a video."""

    type: Literal["session.start"]
    model: Text | None = None
    prompt: Prompt
    format: Literal["m4s"] = "m4s"
    width: Count | None = None
    height: Count | None = None
    size: Annotated[str, Field(pattern=r"^[0-9]{1,5}x[0-9]{1,5}$")] | None = None
    fps: Rate | None = None
    num_frames: Count | None = None
    seconds: Annotated[float, Field(gt=0, le=100_000)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=100)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None
    negative_prompt: Prompt | None = None
    seed: Number | None = None
    user: Text | None = None
    video_params: VideoParams = VideoParams()
    extra_params: Extra = Extra()
    # Known, and nothing that could be done:
    guidance_scale_2: None = None
    true_cfg_scale: None = None
    boundary_ratio: None = None
    flow_shift: None = None
    lora: None = None
    image_reference: None = None


class Event(Part):
    """What is to change."""

    prompt: Prompt


class Change(Part):
    """Another prompt, from the next chunk on."""

    event_id: Text | None = None
    event: Event
    transition_chunks: Annotated[int, Field(ge=0, le=0)] | None = None  # prompts are not blended


class Interaction(Message):
    """A change while the video is made."""

    type: Literal["session.interaction"]
    interaction: Change


class Ack(Message):
    """The page has shown a chunk, or begun to."""

    type: Literal["session.ack"]
    chunk: Number


class Ping(Message):
    """Still there."""

    type: Literal["session.ping"]


class Stop(Message):
    """End the video."""

    type: Literal["session.stop"]


AnyMessage = Start | Interaction | Ack | Ping | Stop
_VIDEO: TypeAdapter[AnyMessage] = TypeAdapter(Annotated[AnyMessage, Field(discriminator="type")])


def video_message(text: str | bytes | None, most: int) -> AnyMessage:
    """What a client says; `sampling_params` of its start are taken as fields of the start."""
    found = decoded(text, most)
    sampling = found.pop("sampling_params", None) if found.get("type") == "session.start" else None
    if sampling is not None:
        found = _lifted(found, sampling)
    message: AnyMessage = validated(_VIDEO, found)
    return message


def _lifted(found: dict[str, Any], sampling: Any) -> dict[str, Any]:
    if not isinstance(sampling, dict):
        raise RefusedError("bad_value", "sampling_params: an object is needed")
    known = {key: value for key, value in sampling.items() if key in Start.model_fields}
    extra = {key: value for key, value in sampling.items() if key not in known}
    others = found.get("extra_params") or {}
    return {**known, **found, "extra_params": {**extra, **others} if isinstance(others, dict) else others}
