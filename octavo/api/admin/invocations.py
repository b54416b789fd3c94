"""``/invocations``: SageMaker's single route; the body determines which other route is meant."""

from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import Message, Receive, Scope, Send

from octavo.api.frontend import Frontend
from octavo.api.json_body import JsonRequest
from octavo.errors import InvalidRequestError

# Fields that a body has, and where it then belongs.
_TEXT_TARGETS = ((("messages",), "/v1/chat/completions"), (("prompt",), "/v1/completions"))
_POOLING_TARGETS = (
    (("query", "documents"), "/rerank"),
    (("text_1", "text_2"), "/score"),
    (("queries",), "/score"),
    (("data_1", "data_2"), "/score"),
)
_BY_TASK = {"embed": "/v1/embeddings", "classify": "/classify"}


def invocations_router(frontend: Frontend, app: FastAPI) -> APIRouter:
    """The route that passes requests on to the others.

    Args:
        app: has the other routes.
    """
    router = APIRouter(tags=["admin"])

    @router.post("/invocations", summary="The same as the route that the body is for.")
    async def invocations(request: Request) -> Response:
        asked = JsonRequest(request.scope, request.receive)
        asked.max_bytes = frontend.settings.max_request_bytes
        asked.check_content_type()
        pooling = frontend.engine.info.pooling
        path = target_of(await asked.json(), None if pooling is None else pooling.tasks[0])
        return _PassedOn(app, path, await asked.body())

    return router


def target_of(body: Any, task: str | None) -> str:
    """The route that a body is for.

    Args:
        task: the model's first pooling task; None if it generates text.
    """
    if isinstance(body, dict):
        for fields, path in _TEXT_TARGETS if task is None else _POOLING_TARGETS:
            if all(field in body for field in fields):
                return path
        if task is not None and ("input" in body or "messages" in body):
            return _BY_TASK.get(task, "/pooling")
    raise InvalidRequestError(
        "The body fits no route of this model: a chat has messages, a completion a prompt, an embedding an input, a "
        "ranking a query and documents."
    )


class _PassedOn(Response):
    """Lets another route answer, with a body that was read already."""

    def __init__(self, app: FastAPI, path: str, body: bytes) -> None:
        super().__init__()
        self._app, self._path, self._whole = app, path, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
