"""Encodes JSON answers; long lists of large ones are written in a thread, piece by piece.

The writer of JSON does not let other threads run until it is done. Hundreds of thousands of log-probabilities take it
seconds, during which no stream would advance.
"""

import asyncio
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import Response

Item = TypeVar("Item")

MAX_AT_ONCE = 1 << 12
"""Entries of lists that are written on the spot."""
_ITEMS_PER_PIECE = 64
_BYTES_PER_PIECE = 1 << 18
ENCODER = msgspec.json.Encoder()


class ListWriter(Protocol):
    """Puts a list into an answer. Its items are iterated once, immediately, and contain no such lists themselves."""

    def __call__(self, items: Iterable[Item], /) -> "list[Item] | msgspec.Raw":
        """The list, or a placeholder until the answer is assembled."""


async def write(num_entries: int, build: Callable[[ListWriter], Any]) -> list[bytes]:
    """An answer as JSON, in pieces.

    Args:
        num_entries: how long its lists are, in all.
        build: makes the answer, with its long lists from the writer that it is given; in another thread if they are
            too long for this one.
    """
    if num_entries <= MAX_AT_ONCE:
        return [ENCODER.encode(build(list))]
    return await asyncio.to_thread(_write_apart, build)


def _write_apart(build: Callable[[ListWriter], Any]) -> list[bytes]:
    lists = _ListsApart()
    return lists.join(build(lists))


class _ListsApart:
    """Writes lists by themselves, and a mark in the place of each."""

    def __init__(self) -> None:
        # Unpredictable, so that the answer's text cannot contain it.
        self._mark = uuid.uuid4().hex
        self._lists: list[list[bytes]] = []

    def __call__(self, items: Iterable[Any]) -> msgspec.Raw:
        self._lists.append(list(_in_pieces(items)))
        return msgspec.Raw(f'"{self._mark}{len(self._lists) - 1}"'.encode())

    def join(self, answer: Any) -> list[bytes]:
        """The whole answer."""
        rest = re.split(rf'"{self._mark}(\d+)"'.encode(), ENCODER.encode(answer))
        parts = (self._lists[int(part)] if index % 2 else [part] for index, part in enumerate(rest))
        return list(_of_size(piece for part in parts for piece in part))


def _in_pieces(items: Iterable[Any]) -> Iterator[bytes]:
    """A list as JSON."""
    remaining = iter(items)
    opening = b"["
    while some := list(islice(remaining, _ITEMS_PER_PIECE)):
        yield opening
        yield ENCODER.encode(some)[1:-1]
        opening = b","
    yield b"[]" if opening == b"[" else b"]"


def _of_size(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces, none of them much larger than it was or than is good to send."""
    kept: list[bytes] = []
    size = 0
    for piece in pieces:
        if kept and size + len(piece) > _BYTES_PER_PIECE:
            yield b"".join(kept)
            kept, size = [], 0
        kept.append(piece)
        size += len(piece)
    yield b"".join(kept)


def num_entries(positions: Sequence[Sequence[Any] | dict[int, Any] | None] | None) -> int:
    """How many log-probabilities there are, roughly: positions may differ by one or two."""
    if not positions:
        return 0
    return len(positions) * (1 + len(positions[-1] or ()))


def encode_event(chunk: msgspec.Struct) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + ENCODER.encode(chunk) + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """A server-sent event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def json_answer(answer: Any) -> Response:
    """An answer as a response; bytes are JSON already."""
    body = answer if isinstance(answer, bytes) else ENCODER.encode(answer)
    return Response(body, media_type="application/json")
