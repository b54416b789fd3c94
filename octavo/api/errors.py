"""HTTP errors in the format of the route's protocol, without internal details."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope, Send

from octavo.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OctavoError,
    OverloadedError,
    PromptTooLongError,
    QueueFullError,
)

logger = logging.getLogger(__name__)

RETRY_AFTER = {"retry-after": "1"}
INTERNAL_ERROR = "The server failed while it worked on this request."
MAX_MESSAGE_LENGTH = 2000
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt that does not fit; clients compact the conversation when they see it."""

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class HttpError(OctavoError):
    """An error with its own HTTP status.

    Attributes:
        param: name of the offending field, if one can be named.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class ErrorInfo(msgspec.Struct):
    """What went wrong; ``code`` is the HTTP status, or a name that clients know the case by."""

    message: str
    type: str
    param: str | None
    code: int | str


class ErrorBody(msgspec.Struct):
    error: ErrorInfo


def status_of(error: Exception) -> int:
    """The HTTP status of an error."""
    match error:
        case HttpError():
            return error.status
        case InvalidRequestError():
            return 400
        case QueueFullError():
            return 429
        case OverloadedError() | EngineDeadError():
            return 503
        case DeadlineExceededError():
            return 504
        case _:
            return 500


def is_anthropic(scope: Scope) -> bool:
    """Whether a request uses Anthropic's protocol: by its route, or by the header that its clients send."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return True
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def error_body(
    status: int, message: str, param: str | None = None, scope: Scope | None = None, code: str | None = None
) -> bytes:
    """An error as JSON, in the shape that the request's protocol has; OpenAI's if nothing is known of the request."""
    if len(message) > MAX_MESSAGE_LENGTH:
        message = message[:MAX_MESSAGE_LENGTH] + "…"
    # A message may quote what the client sent; only well-formed text leaves.
    message = message.encode("utf-8", "replace").decode()
    if scope is not None and is_anthropic(scope):
        return anthropic_error_body(status, message)
    return msgspec.json.encode(ErrorBody(ErrorInfo(message, _TYPES.get(status, "ApiError"), param, code or status)))


def describe_error(error: Exception, scope: Scope | None = None) -> bytes:
    """An exception as JSON; those not raised on purpose become a general sentence."""
    message = str(error) if isinstance(error, OctavoError) else INTERNAL_ERROR
    param = error.param if isinstance(error, HttpError | InvalidRequestError) else None
    code = None
    if isinstance(error, PromptTooLongError):
        code = CONTEXT_LENGTH_EXCEEDED
        if scope is not None and is_anthropic(scope):
            most = min(error.max_model_len, error.num_prompt_tokens - 1)
            message = f"prompt is too long: {error.num_prompt_tokens} tokens > {most} maximum."
    return error_body(status_of(error), message, param, scope, code)


def error_response(
    status: int,
    message: str,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
    scope: Scope | None = None,
) -> Response:
    """An error as a response."""
    return Response(error_body(status, message, param, scope), status, headers, "application/json")


async def send_error(
    send: Send, status: int, message: str, headers: Mapping[str, str] | None = None, scope: Scope | None = None
) -> None:
    """Send an error from middleware, where there is no response object."""
    body = error_body(status, message, scope=scope)
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": body})


def install_error_handlers(app: FastAPI) -> None:
    """Make every exception that leaves a route an answer in the shape of its protocol."""
    app.add_exception_handler(OctavoError, _on_octavo_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_client_disconnect)
    app.add_exception_handler(Exception, _on_unexpected_error)


async def _on_octavo_error(request: Request, error: Exception) -> Response:
    status = status_of(error)
    if status == 500 and not isinstance(error, HttpError):
        logger.error("%s %s failed: %s", request.method, request.url.path, error)
    return Response(describe_error(error, request.scope), status, _headers_of(error), "application/json")


def _headers_of(error: Exception) -> Mapping[str, str] | None:
    """Headers that say whether and when to retry."""
    match error:
        case QueueFullError():
            return {"retry-after": str(error.retry_after)}
        case DeadlineExceededError():
            # It would most likely be too late again; official clients obey this header.
            return {"x-should-retry": "false"}
        case _:
            return RETRY_AFTER if status_of(error) == 503 else None


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part != "body"]
    where = ".".join(path)
    message = f"{where}: {first['msg']}" if where else str(first["msg"])
    return error_response(400, f"{message}.", path[0] if path else None, scope=request.scope)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"There is no route {request.method} {request.url.path}."
    elif error.status_code == 405:
        message = f"The route {request.url.path} does not take the method {request.method}."
    elif message == HTTPStatus(error.status_code).phrase:
        message += "."
    return error_response(error.status_code, message, headers=error.headers, scope=request.scope)


async def _on_client_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody is left to read it


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    # uvicorn closes the connection after it has logged what reaches it.
    return error_response(500, INTERNAL_ERROR, headers={"connection": "close"}, scope=request.scope)


class AnthropicErrorInfo(msgspec.Struct):
    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, tag_field="type", tag="error"):
    """The body of an error answer, and the data of an ``error`` event."""

    error: AnthropicErrorInfo


def anthropic_error_body(status: int, message: str) -> bytes:
    """An error as JSON; the status decides its type."""
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    return msgspec.json.encode(AnthropicErrorBody(AnthropicErrorInfo(_ANTHROPIC_TYPES.get(status, fallback), message)))
