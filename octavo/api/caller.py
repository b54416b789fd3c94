"""The caller of a request: its fair-share client, deadline, request id and trace headers."""

import contextlib
import dataclasses
import math
import time
import uuid
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.api.errors import send_error
from octavo.api.middleware import KEY_INDEX, REQUEST_ID_HEADER, clean_request_id, header
from octavo.records.caller import CALLER, Caller
from octavo.telemetry.tracing import TRACE_HEADERS

TIMEOUT_HEADER = b"x-request-timeout"
_MAX_USER_LENGTH = 256
_USER = "user "
_NOT_YET_NAMED = _USER + "?"

FairShare = Literal["auto", "key", "user", "none"]


class CallerMiddleware:
    """Notes what a request's headers say of its caller, for everything that is done for the request.

    Args:
        fair_share: whether turns go by API key or by user; see the setting.
        max_seconds: what a request may take at most; None is no limit.
    """

    def __init__(self, app: ASGIApp, fair_share: FairShare, num_keys: int, max_seconds: float | None) -> None:
        self._app = app
        if fair_share == "auto":
            fair_share = "key" if num_keys > 1 else "user"
        self._fair_share = fair_share
        self._max_seconds = max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; one with a deadline that is none is refused with status 400."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seconds = self._max_seconds
        asked = header(scope, TIMEOUT_HEADER)
        if asked is not None:
            wanted = _seconds(asked)
            if wanted is None:
                message = f"X-Request-Timeout is a number of seconds above 0, not {asked[:40]!r}."
                await send_error(send, 400, message, None, scope)
                return
            seconds = wanted if seconds is None else min(seconds, wanted)
        # Each request runs in its own task, so the context variable is private to it.
        CALLER.set(
            Caller(
                client=self._client(scope),
                deadline=None if seconds is None else time.monotonic() + seconds,
                request_id=clean_request_id(header(scope, REQUEST_ID_HEADER)) or uuid.uuid4().hex,
                trace_headers={
                    name: value for name in TRACE_HEADERS if (value := header(scope, name.encode())) is not None
                },
            )
        )
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        key = f"key {scope.get(KEY_INDEX, 0)}"
        if self._fair_share == "none":
            return ""
        return key if self._fair_share == "key" else _NOT_YET_NAMED


def note_user(body: object) -> None:
    """Where turns go by user, wait in the line of the one that a request's body names."""
    caller = CALLER.get()
    if caller.client != _NOT_YET_NAMED or not isinstance(body, dict):
        return
    metadata = body.get("metadata")
    # OpenAI's old and new name, and Anthropic's.
    named = (body.get("user"), body.get("safety_identifier"), isinstance(metadata, dict) and metadata.get("user_id"))
    user = next((name for name in named if isinstance(name, str) and name), "")
    CALLER.set(dataclasses.replace(caller, client=_USER + user[:_MAX_USER_LENGTH] if user else ""))


def _seconds(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if math.isfinite(seconds) and seconds > 0:
            return seconds
    return None
