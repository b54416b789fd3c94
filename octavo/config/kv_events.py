"""Where events of cached blocks are published; the fields and defaults are vLLM's."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_SCHEMES = ("tcp://", "ipc://")

PositiveCount = Annotated[int, Meta(ge=1)]


class KVEventsConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Events of cached blocks over ZeroMQ.

    Attributes:
        enable_kv_cache_events: whether there are any.
        publisher: ``zmq``, or ``null`` for none; None goes by ``enable_kv_cache_events``.
        endpoint: address of the socket that publishes: ``tcp://`` or ``ipc://``. It is bound if it is a wildcard, a
            path or an IP address of this machine; other addresses are connected to.
        replay_endpoint: address to bind for subscribers that ask for earlier batches; None for none.
        buffer_steps: number of batches kept for them.
        hwm: number of batches that a slow subscriber may lag behind; further ones are not sent to it.
        max_queue_size: number of batches that may wait to be sent; further ones are dropped.
        topic: first part of each message, to subscribe to.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: PositiveCount = 10_000
    hwm: PositiveCount = 100_000
    max_queue_size: PositiveCount = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        for name, address in (("endpoint", self.endpoint), ("replay_endpoint", self.replay_endpoint)):
            if address is None:
                continue
            port = address.rpartition(":")[2]
            is_complete = not address.startswith("tcp://") or (port.isascii() and port.isdigit() and int(port) < 65536)
            if not address.startswith(_SCHEMES) or address in _SCHEMES or not is_complete:
                raise ValueError(f"{name} takes an address such as tcp://*:5557 or ipc:///run/events, not {address!r}")

    @property
    def is_on(self) -> bool:
        """Whether events are published."""
        return self.enable_kv_cache_events and self.publisher != "null"
