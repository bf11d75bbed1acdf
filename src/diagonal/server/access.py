"""Who may use the server: a token, the pages that may speak to it, and what its own page may do.

A page of another site can send requests to 127.0.0.1 from a visitor's browser, and with a name of its own that leads
there (DNS rebinding) they even look like those of our page. So the browser's `Origin` must be the host that is asked,
and a server without a token answers to names of this machine alone.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from diagonal.server.settings import Settings, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/health")  # and /static/: nothing in them is secret, and a browser asks for them without the token
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the address may have the token in it
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for anew, so that a page never mixes two versions of itself
}


class Access:
    """Refuses requests and sockets before the application sees them."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        refused = self._refused(scope)
        if refused is None:
            return await self._app(scope, receive, _with_headers(send))
        status, message, code = refused
        if scope["type"] == "websocket":
            await _close(receive, send, message, code)
        else:
            await _answer(send, status, message, code)

    def _refused(self, scope: Scope) -> tuple[int, str, str] | None:
        """Status, message and code, where somebody may not come in."""
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        token = self._settings.token
        if token is None and not is_loopback(_name_of(host)):
            return 403, f"this server answers to 127.0.0.1 and localhost, not to {host!r}", "bad_host"
        own = origin is None or _place(origin) == host.lower() or origin in self._settings.origins
        if not own:
            return 403, f"pages of {origin} may not use this server; --allow-origin lets them", "bad_origin"
        path = scope["path"]
        if token is None or (scope["type"] == "http" and (path in OPEN or path.startswith("/static/"))):
            return None
        if hmac.compare_digest(_given(headers, scope).encode(), token.encode()):
            return None
        return 401, "the token is missing or wrong: Authorization: Bearer TOKEN, or ?token=TOKEN", "bad_token"


def _given(headers: dict[str, str], scope: Scope) -> str:
    """The token that came along."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    query = scope.get("query_string", b"").decode("latin-1")
    return next(iter(parse_qs(query, max_num_fields=100).get("token", [])), "") if len(query) < 8192 else ""


def _name_of(host: str) -> str:
    """A host without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str:
    """The host and port of an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {key.encode(): value.encode() for key, value in HEADERS.items()}
            message["headers"] = [*(own | dict(message.get("headers", []))).items()]
        await send(message)

    return sent


async def _answer(send: Send, status: int, message: str, code: str) -> None:
    kind = "authentication_error" if status == 401 else "permission_error"
    body = json.dumps({"error": {"message": message, "type": kind, "code": code, "param": None}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _close(receive: Receive, send: Send, message: str, code: str) -> None:
    """Say why before the socket is closed: a handshake that fails tells a page nothing."""
    await receive()
    await send({"type": "websocket.accept"})
    text = json.dumps({"type": "error", "code": code, "message": message})
    await send({"type": "websocket.send", "text": text})
    await send({"type": "websocket.close", "code": 1008, "reason": code})
