"""Events of cached blocks for outside routers, in vLLM's format; ``kv_event_publisher.py`` sends them.

:class:`KVEventRecorder` gathers the events of a step on the engine's thread, which costs a copy of the token ids. The
publisher's thread turns them into messages: msgpack arrays ``[ts, events, data_parallel_rank]``, whose events are maps
tagged with their type. The format is documented in vLLM's ``vllm/distributed/kv_events.py``.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from octavo.cache.listeners import StoredBlocks
from octavo.config.kv_events import KVEventsConfig
from octavo.records import BlockKey, CacheGroup, CacheSpec, ChunkedLocal, Full, Latent, SlidingWindow, State

MEDIUM = "GPU"
"""Where blocks lie, in vLLM's terms: the memory of the device, whichever it is."""


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Any event; its tag is the name of the class."""


class BlockStored(KVCacheEvent):
    """Consecutive blocks can be found.

    Attributes:
        extra_keys: per block, what its hash covers beside tokens: a salt as text, the digest of prompt vectors as
            bytes, anything else as a pair of its key and where it begins relative to the block.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[object, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    """Blocks can no longer be found."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    """No block can be found any more."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The events of one step."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class EventPublisher(Protocol):
    """Sends batches of events, without ever making the caller wait.

    Attributes:
        config: the settings, with the ports that were chosen.
        num_dropped: number of batches that were not sent because too many were waiting.
    """

    config: KVEventsConfig
    num_dropped: int

    def publish(self, encode: Callable[[], bytes]) -> None:
        """Send a batch soon; ``encode`` makes its payload, on another thread."""

    def close(self) -> None:
        """Send the batches that wait, then end."""


def start_kv_events(config: KVEventsConfig, groups: Sequence[CacheGroup]) -> "KVEventRecorder":
    """A recorder that publishes over ZeroMQ.

    Raises:
        ConfigError: an address cannot be used.
    """
    # Imported where it is needed: an engine in the caller's process does without ZeroMQ.
    from octavo.cache.kv_event_publisher import KVEventPublisher

    return KVEventRecorder(groups, KVEventPublisher(config))


class KVEventRecorder:
    """A listener that hands the events of each step to a publisher."""

    def __init__(self, groups: Sequence[CacheGroup], publisher: EventPublisher) -> None:
        self._groups = groups
        self._publisher = publisher
        self._events: list[StoredBlocks | BlockRemoved | AllBlocksCleared] = []

    @property
    def config(self) -> KVEventsConfig:
        """The settings, with the ports that were chosen."""
        return self._publisher.config

    @property
    def num_dropped(self) -> int:
        """Number of batches that were not sent."""
        return self._publisher.num_dropped

    def stored(self, blocks: StoredBlocks) -> None:
        self._events.append(replace(blocks, token_ids=blocks.token_ids.copy()))

    def removed(self, hashes: Sequence[bytes], group: int) -> None:
        self._events.append(BlockRemoved([_number(each) for each in hashes], MEDIUM, group))

    def cleared(self) -> None:
        self._events.append(AllBlocksCleared())
        self.flush()  # an engine that sleeps makes no step that would send it

    def flush(self) -> None:
        """Send the events since the last call as one batch, if there are any."""
        if not self._events:
            return
        timestamp, events, self._events = time.time(), self._events, []
        self._publisher.publish(lambda: _encode(self._as_batch(timestamp, events)))

    def close(self) -> None:
        """Send what is left, and end the publisher."""
        self.flush()
        self._publisher.close()

    def _as_batch(self, timestamp: float, events: list[StoredBlocks | BlockRemoved | AllBlocksCleared]) -> KVEventBatch:
        found = [self._as_stored(event) if isinstance(event, StoredBlocks) else event for event in events]
        return KVEventBatch(timestamp, found, 0)

    def _as_stored(self, blocks: StoredBlocks) -> BlockStored:
        group = self._groups[blocks.group]
        return BlockStored(
            block_hashes=[_number(each) for each in blocks.hashes],
            parent_block_hash=None if blocks.parent_hash is None else _number(blocks.parent_hash),
            token_ids=blocks.token_ids.tolist(),
            block_size=blocks.block_size,
            lora_id=None,
            medium=MEDIUM,
            lora_name=None,
            extra_keys=[tuple(map(_as_extra_key, keys)) or None for keys in blocks.extra_keys],
            group_idx=blocks.group,
            kv_cache_spec_kind=_KINDS[type(group.spec)],
            kv_cache_spec_sliding_window=group.window,
        )


_KINDS: dict[type[CacheSpec], str] = {
    Full: "full_attention",
    SlidingWindow: "sliding_window",
    ChunkedLocal: "chunked_local_attention",
    Latent: "mla_attention",
    State: "mamba",
}
"""vLLM's names."""

_encode = msgspec.msgpack.Encoder().encode


def _number(block_hash: bytes) -> int:
    """The last 64 bits of a hash: what vLLM publishes unless told otherwise."""
    return int.from_bytes(block_hash[-8:])


def _as_extra_key(key: BlockKey) -> object:
    if key.source in ("cache_salt", "prompt_embeds"):
        return key.key
    return key.key, key.offset
