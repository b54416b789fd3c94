"""Reading request bodies: size, type, encoding and nesting are checked before any model is built."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from octavo.api import ignored_fields
from octavo.api.caller import note_user
from octavo.api.errors import HttpError
from octavo.errors import InvalidRequestError

Result = TypeVar("Result")

MAX_DEPTH = 128
MAX_CONTAINERS = 1 << 17
"""Lists and objects in one body: two bytes of JSON become a hundred of Python's, and each is looked at many times."""

LARGE_BODY = 1 << 17
"""Bytes. Validating a larger body may take a tenth of a second."""

# Matches at every quote that opens a string, closed or not, so that no part of a body is read twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
# A part of a body with a bounded number of whole strings: matching it holds the GIL.
_STRINGS = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+"){1,4096}+', re.DOTALL)


def decode_json(body: bytes) -> object:
    """Parse JSON strictly: UTF-8 without lone surrogates, no NaN or infinities, neither too deep nor too finely cut."""
    if not body:
        raise InvalidRequestError("The request has no body; a JSON object is expected.")
    num_brackets = _count_brackets(body)
    # Strings may hold brackets, but few do.
    if num_brackets > MAX_CONTAINERS and _has_too_many_containers(body):
        raise InvalidRequestError(f"The JSON holds more than {MAX_CONTAINERS} lists and objects.")
    try:
        value: object = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequestError(f"The JSON is nested more than {MAX_DEPTH} levels deep.") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("The request body is not valid UTF-8.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequestError(f"The request body cannot be read as JSON: {error}.") from None
    # Only a body with more brackets than levels can be too deep, and counting bytes is nearly free.
    if num_brackets > MAX_DEPTH and not _is_shallow(value):
        raise InvalidRequestError(f"The JSON is nested more than {MAX_DEPTH} levels deep.")
    return value


def _count_brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _has_too_many_containers(body: bytes) -> bool:
    """Whether there are more brackets outside of strings than there may be containers."""
    num_brackets = end = 0
    while (part := _STRINGS.match(body, end)) is not None:
        end = part.end()
        num_brackets += _count_brackets(_STRING.sub(b"", part[0]))
        if num_brackets > MAX_CONTAINERS:
            return True
    return num_brackets + _count_brackets(_STRING.sub(b"", body[end:])) > MAX_CONTAINERS


def _is_shallow(value: object) -> bool:
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        if not level:
            return True
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in _CONTAINERS
        ]
    return not level


_CONTAINERS = frozenset({dict, list})


async def in_thread_if_large(request: Request, work: Callable[[], Result]) -> Result:
    """The result of ``work``, run in a thread if the request's body is large, so that streams are not blocked."""
    is_large = isinstance(request, JsonRequest) and len(await request.body()) > LARGE_BODY
    return await asyncio.to_thread(work) if is_large else work()


class JsonRequest(Request):
    """A request whose body is read within a limit and parsed by :func:`decode_json`."""

    max_bytes: int

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            HttpError: 413 if it is longer than the limit, with or without a content-length.
            ClientDisconnect: the client left first.
        """
        if not hasattr(self, "_body"):
            declared = self.headers.get("content-length", "")
            if declared.isdecimal() and int(declared[:20]) > self.max_bytes:
                raise self._too_large()
            buffer = bytearray()
            async for chunk in self.stream():
                buffer += chunk
                if len(buffer) > self.max_bytes:
                    raise self._too_large()
            self._body = bytes(buffer)
        return self._body

    async def json(self) -> Any:
        """The parsed body."""
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await asyncio.to_thread(decode_json, body) if len(body) > LARGE_BODY else decode_json(body)
            note_user(self._json)
        return self._json

    def check_content_type(self) -> None:
        """Refuse everything but JSON.

        Raises:
            HttpError: 415.
        """
        content_type = self.headers.get("content-type", "")
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type != "application/json" and not (
            media_type.startswith("application/") and media_type.endswith("+json")
        ):
            given = f"got {media_type!r}" if media_type else "none was given"
            raise HttpError(415, f"The content type must be application/json; {given}.")

    def _too_large(self) -> HttpError:
        return HttpError(413, f"The request body is larger than {self.max_bytes} bytes.")


def json_route(max_body_bytes: int) -> type[APIRoute]:
    """The route class for every router that takes JSON bodies of at most ``max_body_bytes``."""

    class JsonRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            if self.body_field is None:
                return handle

            async def handle_json(request: Request) -> Response:
                json_request = JsonRequest(request.scope, request.receive)
                json_request.max_bytes = max_body_bytes
                json_request.check_content_type()
                await json_request.json()
                ignored = ignored_fields.watch()
                response = await handle(json_request)
                if ignored:
                    response.headers[ignored_fields.HEADER] = ", ".join(ignored)
                return response

            return handle_json

    return JsonRoute
