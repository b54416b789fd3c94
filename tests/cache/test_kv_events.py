"""Cache events as a subscriber sees them, in vLLM's format."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_groups import cache_groups
from event_subscriber import (
    PATIENCE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Subscriber,
    decode,
    replay,
    replay_until,
)

from octavo.cache import CacheManager, PrefixHasher
from octavo.cache.kv_event_publisher import KVEventPublisher
from octavo.cache.kv_events import KVEventRecorder
from octavo.config import EngineConfig
from octavo.config.kv_events import KVEventsConfig
from octavo.errors import ConfigError
from octavo.records import KeySpan, PromptEmbeds

GROUPS = cache_groups(None, 6)


class HeldPublisher:
    """Keeps the payloads."""

    config = KVEventsConfig()
    num_dropped = 0

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, encode: Callable[[], bytes]) -> None:
        self.payloads.append(encode())

    def close(self) -> None:
        pass


def number(block_hash: bytes) -> int:
    return int.from_bytes(block_hash, "big") & ((1 << 64) - 1)


def test_events_decode_with_a_subscriber_of_vllm() -> None:
    publisher = HeldPublisher()
    recorder = KVEventRecorder(GROUPS, publisher)
    manager = CacheManager(12, 4, GROUPS, 16, [recorder])
    vectors = PromptEmbeds(np.ones((5, 2), np.float32).tobytes(), "float32", 5, 2)
    spans = [KeySpan.of_request("tenant", "cache_salt"), KeySpan(6, 9, "cat", "image")]
    hasher = PrefixHasher(4, spans, vectors)
    cache = manager.new_request(hasher)
    tokens = np.arange(13, dtype=np.int32)
    manager.grow([cache], [0], [13])
    manager.publish(cache, tokens, 5)
    manager.publish(cache, tokens, 13)
    tokens[:] = 0  # the row of device state is reused before the batch is encoded
    recorder.flush()
    recorder.flush()
    (payload,) = publisher.payloads
    batch = decode(payload)
    assert abs(batch.ts - time.time()) < 600
    assert batch.data_parallel_rank == 0
    first, first_window, rest, rest_window = batch.events
    hashes = [number(block_hash) for block_hash in hasher.hashes]
    digests = [key.key for index in range(2) for key in hasher.extra_keys[index] if key.source == "prompt_embeds"]
    assert first == BlockStored(
        [hashes[0]], None, [0, 1, 2, 3], 4, None, "GPU", None, [("tenant", digests[0])], 0, "full_attention"
    )
    assert rest == BlockStored(
        hashes[1:3],
        hashes[0],
        list(range(4, 12)),
        4,
        None,
        "GPU",
        None,
        [(["cat", 2], digests[1]), (["cat", -2],)],
        0,
        "full_attention",
    )
    assert isinstance(first_window, BlockStored) and isinstance(rest_window, BlockStored)
    assert (rest_window.group_idx, rest_window.kv_cache_spec_kind, rest_window.kv_cache_spec_sliding_window) == (
        1,
        "sliding_window",
        6,
    )
    manager.distrust(cache)
    manager.free(cache)
    manager.pool.clear_index()
    assert decode(publisher.payloads[1]).events == [
        BlockRemoved(hashes[:3], "GPU", 0),
        BlockRemoved(hashes[:3], "GPU", 1),
        AllBlocksCleared(),
    ]


@pytest.fixture
def addresses(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


@pytest.fixture
def publisher(addresses: tuple[str, str]) -> Iterator[KVEventPublisher]:
    endpoint, replay_endpoint = addresses
    config = KVEventsConfig(endpoint=endpoint, replay_endpoint=replay_endpoint, buffer_steps=3, topic="kv@here")
    publisher = KVEventPublisher(config)
    yield publisher
    publisher.close()


def test_messages_have_a_topic_and_a_number(publisher: KVEventPublisher, addresses: tuple[str, str]) -> None:
    with Subscriber(addresses[0], "kv@") as subscriber, Subscriber(addresses[0], "other") as stranger:
        subscriber.wait_for(publisher.publish)
        for payload in (b"one", b"two"):
            publisher.publish(lambda payload=payload: payload)
        (topic, first, one), (_, second, two) = subscriber.messages(2)
        assert (topic, one, two) == (b"kv@here", b"one", b"two")
        assert int.from_bytes(first, "big") + 1 == int.from_bytes(second, "big")
        assert not stranger.has_news


def test_the_latest_batches_are_sent_again(publisher: KVEventPublisher, addresses: tuple[str, str]) -> None:
    for index in range(5):
        publisher.publish(lambda index=index: b"%d" % index)
    kept = replay_until(addresses[1], lambda messages: any(message[2] == b"4" for message in messages))
    assert kept == [[b"kv@here", bytes([0] * 7 + [index]), b"%d" % index] for index in (2, 3, 4)], "three are kept"
    assert replay(addresses[1], 3) == kept[1:]
    assert replay(addresses[1], 5) == []
    assert replay(addresses[1], (1 << 64) - 1) == []


def test_a_nonsensical_replay_request_is_ignored(publisher: KVEventPublisher, addresses: tuple[str, str]) -> None:
    for request in (b"", b"123", bytes(9), bytes(5000)):
        with pytest.raises(AssertionError, match="no end"):
            _impatient_replay(addresses[1], request)
    assert replay(addresses[1], 0) == []


def _impatient_replay(address: str, request: bytes) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        socket.send_multipart([b"", request])
        assert socket.poll(100), "no end"


def test_a_batch_that_cannot_be_encoded_is_left_out(
    publisher: KVEventPublisher, addresses: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    publisher.publish(lambda: str(1 / 0).encode())
    publisher.publish(lambda: b"good")
    assert replay_until(addresses[1], bool) == [[b"kv@here", bytes(7) + b"\1", b"good"]]
    assert "could not be sent" in caplog.text


def test_batches_are_dropped_and_counted_if_too_many_wait(
    addresses: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    publisher = KVEventPublisher(KVEventsConfig(endpoint=addresses[0], max_queue_size=2))
    is_encoding, may_go_on = threading.Event(), threading.Event()

    def stuck() -> bytes:
        is_encoding.set()
        may_go_on.wait(PATIENCE)
        return b"stuck"

    with Subscriber(addresses[0]) as subscriber, caplog.at_level(logging.WARNING):
        subscriber.wait_for(publisher.publish)
        publisher.publish(stuck)
        assert is_encoding.wait(PATIENCE)
        for index in range(5):
            publisher.publish(lambda index=index: b"%d" % index)
        assert publisher.num_dropped == 3
        may_go_on.set()
        sent = subscriber.messages(3)
        publisher.publish(lambda: b"late")
        sent += subscriber.messages(1)
    assert [message[2] for message in sent] == [b"stuck", b"0", b"1", b"late"]
    first = int.from_bytes(sent[0][1], "big")
    assert [int.from_bytes(message[1], "big") - first for message in sent] == [0, 1, 2, 6], "the gap shows"
    assert caplog.text.count("wait to be sent") == 1
    publisher.close()


def test_nobody_needs_to_listen(addresses: tuple[str, str]) -> None:
    publisher = KVEventPublisher(KVEventsConfig(endpoint=addresses[0]))
    for _ in range(1000):
        publisher.publish(lambda: b"x" * 1000)
    publisher.close()
    assert publisher.num_dropped == 0


def test_a_chosen_port_is_told(addresses: tuple[str, str]) -> None:
    publisher = KVEventPublisher(KVEventsConfig(endpoint="tcp://127.0.0.1:0", topic="t"))
    assert publisher.config.endpoint.startswith("tcp://127.0.0.1:")
    with Subscriber(publisher.config.endpoint) as subscriber:
        subscriber.wait_for(publisher.publish)
    with pytest.raises(ConfigError, match=r"kv_events_config: endpoint tcp://127.0.0.1:\d+ cannot be used: .*in use\."):
        KVEventPublisher(KVEventsConfig(endpoint=publisher.config.endpoint))
    publisher.close()


def test_a_host_name_is_connected_to() -> None:
    """As in vLLM: routers in a cluster bind an address of theirs, and engines connect to it."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        publisher = KVEventPublisher(KVEventsConfig(endpoint=f"tcp://localhost:{port}"))
        deadline = time.monotonic() + PATIENCE
        while not socket.poll(50):
            assert time.monotonic() < deadline
            publisher.publish(lambda: b"here")  # until the connection stands
        assert socket.recv_multipart()[2] == b"here"
        publisher.close()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"endpoint": "5557"}, "endpoint takes an address"),
        ({"endpoint": "tcp://*"}, "endpoint takes an address"),
        ({"endpoint": "tcp://*:99999"}, "endpoint takes an address"),
        ({"endpoint": "ipc://"}, "endpoint takes an address"),
        ({"replay_endpoint": "http://here:1"}, "replay_endpoint takes an address"),
        ({"buffer_steps": 0}, "buffer_steps"),
        ({"publisher": "kafka"}, "publisher"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig.from_kwargs(model="m", kv_events_config=values)


@pytest.mark.parametrize(
    ("values", "is_on"),
    [
        ({}, False),
        ({"publisher": "zmq"}, False),
        ({"enable_kv_cache_events": True}, True),
        ({"enable_kv_cache_events": True, "publisher": "zmq"}, True),
        ({"enable_kv_cache_events": True, "publisher": "null"}, False),
    ],
)
def test_the_publisher_goes_by_whether_events_are_enabled(values: dict[str, Any], is_on: bool) -> None:
    assert KVEventsConfig(**values).is_on is is_on
