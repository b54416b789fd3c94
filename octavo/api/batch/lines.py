"""Request and response lines in OpenAI's batch format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.api.errors import ErrorInfo, error_body
from octavo.errors import ConfigError

MAX_CUSTOM_ID_LENGTH = 1024
# A request's wrapping around its body: id, method, URL.
MAX_WRAPPING_BYTES = 64 << 10
_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it

URLS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        *("/score", "/v1/score"),
        *("/rerank", "/v1/rerank", "/v2/rerank"),
    }
)
"""Routes that a batch may ask: those that answer from a model. What administers a server is not among them."""


class BatchRequest(msgspec.Struct):
    """One line of the input. All but the id is checked when its turn comes, so that the others are answered."""

    custom_id: str
    method: Any = None
    url: Any = None
    body: msgspec.Raw | UnsetType = UNSET

    def problem(self) -> str | None:
        """Why the request cannot be sent, as a sentence; None if it can."""
        if self.method != "POST":
            return "method must be POST."
        if not isinstance(self.url, str) or self.url not in URLS:
            return f"url must be one of {', '.join(sorted(URLS))}."
        body = None if self.body is UNSET else msgspec.json.decode(self.body)
        if not isinstance(body, dict):
            return "body must be an object: the request that the url takes."
        for name in ("stream", "background"):
            if body.get(name):
                return f"{name}: a batch has whole answers; leave it out."
        return None


class BatchResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchAnswer(msgspec.Struct):
    """One line of the output.

    Attributes:
        response: with the route's answer, which is an error's description unless the status is 200.
        error: that description again; None if all went well.
    """

    id: str
    custom_id: str
    response: BatchResponse
    error: ErrorInfo | None = None


class AnswerHead(msgspec.Struct):
    """What a line of the output must have to be taken for one."""

    custom_id: str
    response: dict[str, Any] | None = None

    @property
    def is_good(self) -> bool:
        """Whether the request succeeded."""
        return self.response is not None and self.response.get("status_code") == 200


class _SaidError(msgspec.Struct):
    message: str
    type: str = "ApiError"
    param: str | None = None


class _SaidErrorBody(msgspec.Struct):
    error: _SaidError


_REQUESTS = msgspec.json.Decoder(BatchRequest)
_ERRORS = msgspec.json.Decoder(_SaidErrorBody)


def read_requests(path: Path, max_body_bytes: int) -> Iterator[BatchRequest]:
    """The requests of a file, one after another; empty lines are skipped."""
    limit = max_body_bytes + MAX_WRAPPING_BYTES
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(limit + 1):
                number += 1
                if len(line) > limit:
                    raise ConfigError(
                        f"{path}, line {number}: longer than {limit} bytes; --max-request-bytes allows more."
                    )
                line = line.removeprefix(_MARK) if number == 1 else line
                if line.strip():
                    yield _parse(line, f"{path}, line {number}")
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from None


def _parse(line: bytes, where: str) -> BatchRequest:
    try:
        request = _REQUESTS.decode(line)
        request.custom_id.encode()
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{where}: not a request of a batch: {error}.") from None
    if not 0 < len(request.custom_id) <= MAX_CUSTOM_ID_LENGTH:
        raise ConfigError(f"{where}: custom_id must have 1 to {MAX_CUSTOM_ID_LENGTH} characters.")
    return request


def scan_requests(path: Path, max_body_bytes: int) -> list[str]:
    """The ids of all requests in their order, after a look at every line."""
    ids: dict[str, None] = {}
    for request in read_requests(path, max_body_bytes):
        if request.custom_id in ids:
            raise ConfigError(f"{path}: the custom_id {request.custom_id!r} appears twice; ids must be unique.")
        ids[request.custom_id] = None
    return list(ids)


def encode_answer(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """A line of the output, with its line feed."""
    if b"\n" in body:
        body = msgspec.json.encode(msgspec.json.decode(body))
    error = None if status == 200 else _error_in(body, status)
    answer = BatchAnswer(
        f"batch_req_{request_id}", custom_id, BatchResponse(status, request_id, msgspec.Raw(body)), error
    )
    return msgspec.json.encode(answer) + b"\n"


def _error_in(body: bytes, status: int) -> ErrorInfo:
    """What an answer says went wrong, in OpenAI's shape or Anthropic's."""
    try:
        said = _ERRORS.decode(body).error
    except msgspec.MsgspecError:
        said = _SaidError(f"The request ended with status {status}.")
    return ErrorInfo(said.message, said.type, said.param, status)


def encode_refusal(custom_id: str, request_id: str, message: str) -> bytes:
    """The line for a request that no route was asked."""
    return encode_answer(custom_id, request_id, 400, error_body(400, message))
