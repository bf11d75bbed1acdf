"""The body of a request, form or JSON, within the limits of a server: its fields as they came, and its one file.

All is held in memory, as there is little of it: parts of a form are not spooled to files elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from diagonal.server.jobs.fields import FieldError
from diagonal.server.settings import Limits
from diagonal.server.wire import RefusedError, decoded

FILE = "input_reference"
FIELDS = 4096  # of a form: each action may be one
NAMED = re.compile(r"(?P<name>\w{1,100})(?P<kind>\[\]|\[(?P<key>\w{1,100})\])?", re.ASCII)
DATA_URL = re.compile(r"data:[\w/+.-]{0,100};base64,(?P<data>[A-Za-z0-9+/=\s]*)", re.ASCII)


class Body(NamedTuple):
    """What came."""

    fields: dict[str, Any]
    upload: bytes | None


class Bodies:
    """Reads the bodies of requests, of all clients together not more than there is room for."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0

    async def read(self, request: Request) -> Body:
        """A form or a JSON object."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        readers = {
            "multipart/form-data": self._multipart,
            "application/x-www-form-urlencoded": self._form,
            "application/json": self._json,
        }
        if kind not in readers:
            raise RefusedError("bad_content_type", f"content type {kind!r} given; known: {', '.join(readers)}")
        try:
            async with asyncio.timeout(self._limits.upload_seconds):
                return await readers[kind](request)
        except TimeoutError as error:
            why = f"the request did not come within {self._limits.upload_seconds:g} seconds"
            raise RefusedError("too_slow", why) from error
        except ClientDisconnect as error:
            raise RefusedError("bad_form", "the client went away") from error

    async def _multipart(self, request: Request) -> Body:
        stream, most = self._stream(request, self._limits.upload_bytes), self._limits.message_bytes
        parser = MultiPartParser(request.headers, stream, max_files=1, max_fields=FIELDS, max_part_size=most)
        parser.spool_max_size = self._limits.upload_bytes + 1  # never a file elsewhere
        return await _parsed(parser, stream)

    async def _form(self, request: Request) -> Body:
        stream = self._stream(request, self._limits.message_bytes)
        return await _parsed(FormParser(request.headers, stream, max_fields=FIELDS), stream)

    async def _json(self, request: Request) -> Body:
        stream = self._stream(request, self._limits.start_bytes)
        try:
            text = b"".join([chunk async for chunk in stream]).decode()
        except UnicodeDecodeError as error:
            raise RefusedError("bad_json", f"the body is not JSON in UTF-8: {error.reason}") from error
        finally:
            await stream.aclose()
        fields = decoded(text, self._limits.start_bytes)
        given = fields.pop(FILE, None)
        return Body(fields, None if given is None else _from_url(given))

    async def _stream(self, request: Request, most: int) -> AsyncGenerator[bytes, None]:
        """The body piece by piece, until it is too much."""
        came, room = 0, self._limits.uploads * self._limits.upload_bytes
        try:
            async for chunk in request.stream():
                came += len(chunk)
                self._held += len(chunk)
                if came > most:
                    raise RefusedError("too_large", f"at most {most} bytes are taken")
                if self._held > room:
                    raise RefusedError("busy", "the server takes as many uploads as it can; try again later")
                yield chunk
        finally:
            self._held -= came


async def _parsed(parser: MultiPartParser | FormParser, stream: AsyncGenerator[bytes, None]) -> Body:
    """The fields of a form; nothing of it stays open."""
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RefusedError("bad_form", f"the form cannot be read: {error.message}") from error
    finally:
        await stream.aclose()
    try:
        return await _sorted(form.multi_items())
    finally:
        await form.close()


async def _sorted(items: list[tuple[str, Any]]) -> Body:
    """A form's fields by name: `name[]` is one of a list, `name[key]` one of an object."""
    fields: dict[str, Any] = {}
    upload: bytes | None = None
    for written, value in items:
        if isinstance(value, UploadFile):
            if written != FILE:
                raise FieldError(written, "unknown_field", f"a file is taken as {FILE} alone, and a video by its id")
            upload = await value.read()
            continue
        match = NAMED.fullmatch(written)
        if match is None:
            raise FieldError(written, "unknown_field", "there is no such field")
        _put(fields, match, value)
    if FILE in fields:
        if upload is not None:
            raise FieldError(FILE, "bad_value", "given twice")
        upload = _from_url(fields.pop(FILE))
    return Body(_unpacked(fields), upload)


def _put(fields: dict[str, Any], match: re.Match[str], value: str) -> None:
    name, kind, key = match["name"], match["kind"], match["key"]
    empty: Any = None if kind is None else [] if kind == "[]" else {}
    held = fields.setdefault(name, empty)
    if type(held) is not type(empty) or (kind is None and held is not None) or (key and key in held):
        raise FieldError(name, "bad_value", "given twice")
    if kind is None:
        fields[name] = value
    elif kind == "[]":
        held.append(value)
    else:
        held[key] = value


def _unpacked(fields: dict[str, Any]) -> dict[str, Any]:
    """Lists and objects that came as JSON texts."""
    for name, opening in (("actions", "["), ("extra_params", "{")):
        text = fields.get(name)
        if isinstance(text, str) and text.lstrip().startswith(opening):
            try:
                fields[name] = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise FieldError(name, "bad_json", f"this is not JSON: {error}") from error
    return fields


def _from_url(given: Any) -> bytes:
    """The bytes of a picture in JSON: {"image_url": "data:image/png;base64,..."}. Nothing is fetched."""
    url = given.get("image_url") if isinstance(given, dict) and len(given) == 1 else given
    match = DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if match is None:
        why = "a file of a form is taken, or {'image_url': 'data:image/png;base64,...'}; the server fetches nothing"
        raise FieldError(FILE, "bad_value", why)
    try:
        return base64.b64decode(match["data"], validate=False)
    except binascii.Error as error:
        raise FieldError(FILE, "bad_value", f"this is not base64: {error}") from error
