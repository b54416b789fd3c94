"""Sends batches of events over ZeroMQ, numbered, and again to subscribers that missed some.

Messages are ``[topic, sequence number, payload]``; numbers count from 0, as 8 bytes, big-endian. A subscriber that
sees a gap sends a first number to the replay socket, and gets the kept batches from there on in the same form, then an
empty topic, the number −1 and an empty payload.
"""

import errno
import ipaddress
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Full, Queue

import msgspec
import zmq

from octavo.config.kv_events import KVEventsConfig
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)

Encode = Callable[[], bytes]
"""Makes a batch's payload; called on the publisher's thread."""

_END = (-1).to_bytes(8, signed=True)
_MAX_BUFFER_BYTES = 256 << 20
"""The batches kept for replay take at most so much memory; the oldest go first."""
_MAX_REQUEST_BYTES = 1024
_CLOSE_SECONDS = 2.0


class KVEventPublisher:
    """Publishes on threads of its own: nothing that subscribers do, or do not do, holds up the caller.

    A subscriber that is too slow misses batches (ZeroMQ drops them for it alone). If batches wait because this process
    has no time to send them, further ones are dropped and counted; their numbers are missing from the sequence.

    Attributes:
        config: the settings, with the port that was chosen in place of port 0.
        num_dropped: number of batches dropped so far.

    Raises:
        ConfigError: an address cannot be bound.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self.num_dropped = 0
        self._topic = config.topic.encode()
        self._num_published = 0
        self._waiting: Queue[tuple[int, Encode] | None] = Queue(config.max_queue_size)
        self._kept = _Kept(config.buffer_steps)
        self._context = zmq.Context()
        try:
            publishing, endpoint = self._open(zmq.PUB, config.endpoint, "endpoint", config.hwm)
            threads = [threading.Thread(target=self._publish, args=(publishing,), name="kv-events", daemon=True)]
            replay_endpoint = config.replay_endpoint
            if replay_endpoint is not None:
                # A full replay and its end must fit, even if half of an earlier one has not been acknowledged.
                hwm = 2 * (config.buffer_steps + 1)
                replaying, replay_endpoint = self._open(zmq.ROUTER, replay_endpoint, "replay_endpoint", hwm)
                threads.append(
                    threading.Thread(target=self._replay, args=(replaying,), name="kv-event-replay", daemon=True)
                )
        except ConfigError:
            self._context.destroy(0)
            raise
        self.config = msgspec.structs.replace(
            config, publisher="zmq", endpoint=endpoint, replay_endpoint=replay_endpoint
        )
        self._threads = threads
        for thread in threads:
            thread.start()
        logger.info("Events of cached blocks are published at %s", endpoint)

    def publish(self, encode: Encode) -> None:
        """Send a batch soon; never waits."""
        number = self._num_published
        self._num_published += 1
        try:
            self._waiting.put_nowait((number, encode))
        except Full:
            self.num_dropped += 1
            if self.num_dropped == 1:
                logger.warning(
                    "More than %d batches of cache events wait to be sent; some are dropped, now and later.",
                    self._waiting.maxsize,
                )

    def close(self) -> None:
        """Send the batches that wait, then end; returns within seconds in any case."""
        publishing = self._threads[0]
        try:
            self._waiting.put(None, timeout=_CLOSE_SECONDS)
        except Full:
            return
        publishing.join(_CLOSE_SECONDS)
        if publishing.is_alive():
            return
        # The other thread's socket ends with its context.
        self._context.term()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    def _open(self, kind: int, address: str, name: str, hwm: int) -> tuple[zmq.Socket[bytes], str]:
        """A socket at an address, and the address with its actual port."""
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
        if "[" in address:
            socket.setsockopt(zmq.IPV6, 1)
        is_ours = kind == zmq.ROUTER or _is_wildcard(address)
        try:
            if is_ours or _is_ip_address(address):
                try:
                    socket.bind(address)
                except zmq.ZMQError as error:
                    if is_ours or error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                        raise
                    socket.connect(address)
            else:
                socket.connect(address)
        except zmq.ZMQError as error:
            reason = zmq.strerror(error.errno) if error.errno else str(error)
            raise ConfigError(f"kv_events_config: {name} {address} cannot be used: {reason}.") from None
        return socket, _with_port(address, socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def _publish(self, socket: zmq.Socket[bytes]) -> None:
        while (item := self._waiting.get()) is not None:
            number, encode = item
            try:
                payload = encode()
                self._kept.append(number, payload)
                socket.send_multipart((self._topic, number.to_bytes(8), payload))
            except Exception:
                logger.exception("a batch of cache events could not be sent")
        socket.close(1000)

    def _replay(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while True:
                frames = socket.recv_multipart()
                if len(frames) != 3 or len(frames[2]) != 8:
                    continue
                client, empty, first = frames
                for number, payload in self._kept.since(int.from_bytes(first)):
                    socket.send_multipart((client, empty, self._topic, number.to_bytes(8), payload))
                socket.send_multipart((client, empty, b"", _END, b""))
        except zmq.ContextTerminated:
            socket.close(0)


class _Kept:
    """The latest batches, bounded in number and size."""

    def __init__(self, max_batches: int) -> None:
        self._max_batches = max_batches
        self._batches: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def append(self, number: int, payload: bytes) -> None:
        with self._lock:
            self._batches.append((number, payload))
            self._num_bytes += len(payload)
            while len(self._batches) > self._max_batches or self._num_bytes > _MAX_BUFFER_BYTES:
                self._num_bytes -= len(self._batches.popleft()[1])

    def since(self, first: int) -> list[tuple[int, bytes]]:
        with self._lock:
            return [batch for batch in self._batches if batch[0] >= first]


def _is_wildcard(address: str) -> bool:
    """Whether an address can only be bound."""
    return "*" in address or "::" in address or address.startswith("ipc://")


def _is_ip_address(address: str) -> bool:
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _with_port(address: str, actual: str) -> str:
    """An address with the port that was chosen for port 0."""
    if not address.endswith(":0"):
        return address
    return address[:-1] + actual.rpartition(":")[2]
