"""Middleware for API keys and request ids. Plain ASGI, so that it costs nothing per streamed chunk."""

import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.api.errors import send_error
from octavo.records.caller import CALLER, Caller
from octavo.telemetry.metrics import Metrics

REQUEST_ID_HEADER = b"x-request-id"
REQUEST_ID = "octavo.request_id"
"""In a request's scope: its :class:`RequestId`."""
KEY_INDEX = "octavo.key_index"
"""In a request's scope: which of the server's keys it bears."""
_UNSAFE_IN_REQUEST_ID = re.compile(r"[^A-Za-z0-9._:-]")
MAX_REQUEST_ID_LENGTH = 128
FORMAT_HEADER = b"endpoint-load-metrics-format"
REPORT_HEADER = b"endpoint-load-metrics"


def clean_request_id(text: str | None) -> str | None:
    """A client's request id without anything that could hurt a log or a header; None if nothing is left."""
    cleaned = _UNSAFE_IN_REQUEST_ID.sub("", text or "")
    return cleaned[:MAX_REQUEST_ID_LENGTH] or None


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def owner_of(scope: Scope) -> str:
    """Whose request it is: its API key's. One key cannot touch what another made; without keys, all clients are one."""
    return str(scope.get(KEY_INDEX, ""))


def route_path(scope: Scope) -> str:
    """The path that routes see: without the prefix that a proxy stripped and uvicorn put back."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class ApiKeyMiddleware:
    """Lets requests through that bear one of the keys.

    Args:
        open_paths: served without a key.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], open_paths: Collection[str] = ("/health",)) -> None:
        self._app = app
        self._open_paths = frozenset(open_paths)
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or route_path(scope) in self._open_paths or self._admit(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "A valid API key is needed."})
        else:
            message = "A valid API key is needed, as in 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."
            await send_error(send, 401, message, {"www-authenticate": "Bearer"}, scope)

    def _admit(self, scope: Scope) -> bool:
        """Whether the request bears a key; which of them it is, is noted in the scope."""
        kind, _, bearer = (header(scope, b"authorization") or "").partition(" ")
        # Anthropic's clients have a header of their own.
        offered = [bearer if kind.lower() == "bearer" else "", header(scope, b"x-api-key") or ""]
        digests = [_digest(key.strip()) for key in offered if key.strip()]
        # All keys are compared, each in constant time, so that timing reveals nothing about them.
        matches = [hmac.compare_digest(digest, known) for digest in digests for known in self._digests]
        if not any(matches):
            return False
        scope[KEY_INDEX] = matches.index(True) % len(self._digests)
        return True


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(slots=True)
class RequestId:
    """What a request is called in its answer's id and head, and in log lines.

    Attributes:
        is_given: the client named it in a header; else its body may still name it.
    """

    text: str
    is_given: bool


class RequestIdMiddleware:
    """Returns each request's ``X-Request-Id``, or a generated one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = clean_request_id(header(scope, REQUEST_ID_HEADER))
        request_id = scope[REQUEST_ID] = RequestId(given or uuid.uuid4().hex, given is not None)
        # Lines about requests that are refused before anything is known of their caller name them, too.
        CALLER.set(Caller(request_id=request_id.text))
        others = [(name, value) for name, value in scope["headers"] if name != REQUEST_ID_HEADER]
        scope["headers"] = [*others, (REQUEST_ID_HEADER, request_id.text.encode())]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (REQUEST_ID_HEADER, request_id.text.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)


class LoadReportMiddleware:
    """Adds the load to answers of requests that ask for it, as ``TEXT`` or ``JSON``; other formats get none."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = (header(scope, FORMAT_HEADER) or "").upper() if scope["type"] == "http" else ""
        if kind not in ("TEXT", "JSON"):
            await self._app(scope, receive, send)
            return

        async def send_with_load(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (REPORT_HEADER, self._report(kind))]
            await send(message)

        await self._app(scope, receive, send_with_load)

    def _report(self, kind: str) -> bytes:
        load = self._metrics.load
        if kind == "JSON":
            return f"JSON {json.dumps({'named_metrics': load})}".encode()
        return f"TEXT {', '.join(f'named_metrics.{name}={value}' for name, value in load.items())}".encode()
