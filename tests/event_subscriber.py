"""A subscriber to cache events, with structs of its own, written from vLLM's documented format."""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

PATIENCE = 60
"""Seconds."""
END = (-1).to_bytes(8, "big", signed=True)


class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Events are maps, tagged with the name of their class."""


class BlockStored(Event):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(Event):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Batches are arrays."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(Batch).decode


class Subscriber:
    """Listens at an address; a context manager."""

    def __init__(self, address: str, topic: str = "") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._socket.connect(address)

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(0)

    def wait_for(self, publish: Callable[[Callable[[], bytes]], None]) -> None:
        """Publish until something arrives, since nobody tells when a subscription is in force; then forget it all.

        Args:
            publish: of a publisher; gets one payload at a time, so that none of them is dropped.
        """
        deadline = time.monotonic() + PATIENCE
        number = 0
        while not self._socket.poll(20):
            assert time.monotonic() < deadline, "nothing arrives"
            number += 1
            is_taken = threading.Event()

            def encode(number: int = number, is_taken: threading.Event = is_taken) -> bytes:
                is_taken.set()
                return b"trial %d" % number

            publish(encode)
            assert is_taken.wait(PATIENCE), "the publisher stands still"
        while self.messages(1)[0][2] != b"trial %d" % number:
            pass

    @property
    def has_news(self) -> bool:
        """Whether a message is there."""
        return bool(self._socket.poll(0))

    def messages(self, count: int) -> list[list[bytes]]:
        """The next messages: topic, number and payload of each."""
        found = []
        for _ in range(count):
            assert self._socket.poll(1000 * PATIENCE), f"{len(found)} of {count} messages came"
            found.append(self._socket.recv_multipart())
        return found


def replay(address: str, first: int | bytes) -> list[list[bytes]]:
    """Ask for earlier batches: the messages before the end marker."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        socket.send_multipart([b"", first if isinstance(first, bytes) else first.to_bytes(8, "big")])
        found: list[list[bytes]] = []
        while True:
            assert socket.poll(1000 * PATIENCE), "the replay has no end"
            empty, *frames = socket.recv_multipart()
            assert empty == b""
            if frames == [b"", END, b""]:
                return found
            found.append(frames)


def replay_until(address: str, is_complete: Callable[[list[list[bytes]]], bool]) -> list[list[bytes]]:
    """All kept messages, once they are complete: the publisher has a thread of its own."""
    deadline = time.monotonic() + PATIENCE
    while not is_complete(messages := replay(address, 0)):
        assert time.monotonic() < deadline, f"only {messages} came"
    return messages
