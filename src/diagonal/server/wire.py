"""The messages of clients that play a world: what they may say, and why a message is refused.

All are JSON objects with a `type`. A field that is not known is refused, and so is a value of another type: a client
that misspells `seed` should hear of it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from diagonal.server.store import SESSION_ID

Text = Annotated[str, Field(max_length=256)]
Number = Annotated[int, Field(ge=0, lt=2**63)]
Held = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=32)]
CODES = {"union_tag_invalid": "unknown_type", "union_tag_not_found": "unknown_type", "extra_forbidden": "unknown_field"}


class RefusedError(Exception):
    """A message that is not taken, with the code and the text of the error that says so."""

    def __init__(self, code: str, message: str, event_id: str | None = None) -> None:
        super().__init__(printable(message))
        self.code, self.event_id = code, None if event_id is None else printable(event_id)

    def as_json(self) -> dict[str, Any]:
        """The message to the client."""
        named = {} if self.event_id is None else {"event_id": self.event_id}
        return {"type": "error", "code": self.code, "message": str(self), **named}


def printable(text: str) -> str:
    """A text that may repeat what a client sent: halves of characters, which JSON can say, cannot be sent back."""
    return text.encode("utf-8", "replace").decode()


class Message(BaseModel):
    """What all messages have."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    event_id: Text | None = None  # comes back in the error, if there is one


class Start(Message):
    """Begin: from a start view, where a snapshot was made, or where a session was kept that was cut off."""

    type: Literal["session.start"]
    model: Text | None = None
    start: Text | None = None
    snapshot: dict[str, Any] | None = None
    resume: Annotated[str, Field(pattern=SESSION_ID)] | None = None
    seed: Number | None = None
    schedule: Text | None = None
    format: Literal["jpeg", "webp"] = "jpeg"
    quality: Annotated[int, Field(ge=1, le=100)] = 85
    pace: bool = True
    paused: bool = False


class Control(Message):
    """The controls that are held now, and those that were pressed since the last message."""

    type: Literal["session.control"]
    seq: Number
    held: Held = []
    pressed: Held = []


class Ack(Message):
    """The page has shown an image."""

    type: Literal["session.ack"]
    frame: Number


class Update(Message):
    """Another schedule or pace, or a pause, from the next frame on."""

    type: Literal["session.update"]
    update_id: Text | None = None
    schedule: Text | None = None
    paused: bool | None = None
    pace: bool | None = None


class Reset(Message):
    """Begin again."""

    type: Literal["session.reset"]
    seed: Number | None = None
    start: Text | None = None


class Rewind(Message):
    """Play on from an earlier frame."""

    type: Literal["session.rewind"]
    frame: Number


class SnapshotWanted(Message):
    """The session as a file."""

    type: Literal["session.snapshot"]


class Ping(Message):
    """Still there."""

    type: Literal["session.ping"]


class Stop(Message):
    """End the session."""

    type: Literal["session.stop"]


AnyMessage = Start | Control | Ack | Update | Reset | Rewind | SnapshotWanted | Ping | Stop
_WORLD: TypeAdapter[AnyMessage] = TypeAdapter(Annotated[AnyMessage, Field(discriminator="type")])


def decoded(text: str | bytes | None, most: int) -> Any:
    """The JSON of a message of at most so many bytes."""
    if not isinstance(text, str):
        raise RefusedError("bad_json", "a binary message came; messages to the server are JSON texts")
    if len(text) > most or len(text.encode("utf-8", "replace")) > most:
        raise RefusedError("too_large", f"a message of {len(text)} characters came; at most {most} bytes are taken")
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError("bad_json", f"the message is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RefusedError("bad_json", f"the message is a {type(found).__name__}; it must be an object with a type")
    return found


def validated(adapter: TypeAdapter[Any], found: Any) -> Any:
    """A message of one of the types of an adapter, or why it is none."""
    event_id = found.get("event_id")
    event_id = event_id[:256] if isinstance(event_id, str) else None
    try:
        return adapter.validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        code = CODES.get(first["type"], "bad_value")
        raise RefusedError(code, f"{where}: {first['msg']}" if where else first["msg"], event_id) from error
    except RecursionError as error:
        raise RefusedError("bad_value", "the message is nested too deeply", event_id) from error


def world_message(text: str | bytes | None, most: int) -> AnyMessage:
    """What a client that plays a world says."""
    message: AnyMessage = validated(_WORLD, decoded(text, most))
    return message


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
