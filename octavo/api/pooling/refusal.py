"""Rejects text-generation requests to pooling models."""

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.api.errors import send_error
from octavo.api.middleware import route_path
from octavo.inputs.processor import NOT_A_GENERATIVE_MODEL

TEXT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})


class NoTextMiddleware:
    """Answers requests for text with status 400, before templates and tools are processed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and route_path(scope) in TEXT_PATHS:
            await send_error(send, 400, NOT_A_GENERATIVE_MODEL, scope=scope)
        else:
            await self._app(scope, receive, send)
