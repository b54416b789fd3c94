"""All pooling routes as one router."""

from fastapi import APIRouter
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.api.errors import send_error
from octavo.api.frontend import Frontend
from octavo.api.middleware import route_path
from octavo.api.pooling.cohere import cohere_router
from octavo.api.pooling.scoring import scoring_router
from octavo.api.pooling.vectors import vectors_router
from octavo.inputs.processor import NOT_A_GENERATIVE_MODEL

TEXT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})


def pooling_router(frontend: Frontend) -> APIRouter:
    """Embeddings, pooling, classes, scores, ranks."""
    router = APIRouter()
    for make in (vectors_router, scoring_router, cohere_router):
        router.include_router(make(frontend))
    return router


class NoTextMiddleware:
    """Answers requests for text with status 400, before templates and tools are processed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and route_path(scope) in TEXT_PATHS:
            await send_error(send, 400, NOT_A_GENERATIVE_MODEL, scope=scope)
        else:
            await self._app(scope, receive, send)
