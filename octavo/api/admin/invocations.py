"""``/invocations``: SageMaker's one route for everything; the body tells which other route is meant."""

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from octavo.api.frontend import Frontend
from octavo.api.json_body import JsonRequest
from octavo.errors import InvalidRequestError

# In the order in which they are tried: fields that a body has, and where it then belongs.
_TARGETS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("messages",), ("/v1/chat/completions", "/v1/embeddings", "/classify", "/pooling")),
    (("prompt",), ("/v1/completions",)),
    (("query", "documents"), ("/rerank",)),
    (("text_1", "text_2"), ("/score",)),
    (("queries",), ("/score",)),
    (("data_1", "data_2"), ("/score",)),
    (("input",), ("/v1/embeddings", "/classify", "/pooling")),
)


def invocations_router(frontend: Frontend, app: FastAPI) -> APIRouter:
    """The route that passes requests on to the others.

    Args:
        app: has the other routes.
    """
    router = APIRouter(tags=["admin"])
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))

    @router.post("/invocations", summary="The same as the route that the body is for.")
    async def invocations(request: Request) -> Response:
        asked = JsonRequest(request.scope, request.receive)
        asked.max_bytes = frontend.settings.max_request_bytes
        asked.check_content_type()
        path = target_of(await asked.json(), paths, is_pooling=frontend.engine.info.pooling is not None)
        return _PassedOn(app, path, await asked.body())

    return router


def target_of(body: Any, paths: Collection[str], *, is_pooling: bool) -> str:
    """The route that a body is for.

    Args:
        paths: routes that there are.
        is_pooling: whether the model answers with vectors.

    Raises:
        InvalidRequestError: the body fits none.
    """
    if isinstance(body, dict):
        for fields, targets in _TARGETS:
            there = [path for path in targets if path in paths and _answers(path) != is_pooling]
            if there and all(field in body for field in fields):
                return there[0]
    raise InvalidRequestError(
        "The body fits no route: a chat has messages, a completion a prompt, an embedding an input, a ranking a query "
        "and documents."
    )


def _answers(path: str) -> bool:
    """Whether a route answers with text."""
    return path.endswith("completions")


class _PassedOn(Response):
    """Lets another route answer, with a body that was read already."""

    def __init__(self, app: FastAPI, path: str, body: bytes) -> None:
        super().__init__()
        self._app, self._path, self._whole = app, path, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        root = scope.get("root_path", "")
        passed_on = {
            key: value for key, value in scope.items() if key not in ("route", "endpoint", "path_params", "router")
        }
        passed_on |= {"path": root + self._path, "raw_path": (root + self._path).encode()}
        is_read = False

        async def receive_again() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": self._whole, "more_body": False}

        await self._app.router(passed_on, receive_again, send)
