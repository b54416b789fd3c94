"""Workers as actors of a Ray cluster, on this machine or on others. Needs the extra ``ray``.

Rank 0 stays in the engine's process, on the node that starts the engine. Ray places the other ranks and carries their
messages; tensors go through Gloo or NCCL. The ranks find each other through an actor, so no port is opened for it.
"""

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import torch.distributed as dist

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.execution import messages
from octavo.execution.distributed import DistributedExecutor
from octavo.execution.serve_worker import answer, make_worker
from octavo.execution.worker import Worker
from octavo.records import Plan

_POLL_SECONDS = 0.01
_JOIN_TIMEOUT = timedelta(minutes=10)


class Board:
    """What the ranks tell each other while they join; an actor."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        """Set a value."""
        self._values[key] = value

    def find(self, key: str) -> bytes | None:
        """A value, None if there is none yet."""
        return self._values.get(key)

    def count(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 at first, and return it."""
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def drop(self, key: str) -> bool:
        """Delete a value; returns whether there was one."""
        return self._values.pop(key, None) is not None


class BoardStore(dist.Store):
    """A store of torch's over a :class:`Board`."""

    def __init__(self, board: Any) -> None:
        super().__init__()
        self._board = board

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        _get(self._board.put.remote(key, value if isinstance(value, bytes) else value.encode()))

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        deadline = time.monotonic() + _JOIN_TIMEOUT.total_seconds()
        while (value := _get(self._board.find.remote(key))) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank has told {key!r}")
            time.sleep(_POLL_SECONDS)
        found: bytes = value
        return found

    def wait(self, keys: list[str], timeout: timedelta = _JOIN_TIMEOUT) -> None:
        """Wait for values."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether there are values, without waiting."""
        return all(_get(self._board.find.remote(key)) is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return it."""
        total: int = _get(self._board.count.remote(key, amount))
        return total

    def delete_key(self, key: str) -> bool:
        """Delete a value; returns whether there was one."""
        was_there: bool = _get(self._board.drop.remote(key))
        return was_there


class RankActor:
    """A worker; an actor. Messages are those of processes."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def start(self, launch: bytes) -> bytes:
        """Make the worker; returns a reply."""
        try:
            # Ray shows an actor its own devices only.
            self._worker = make_worker(msgspec.msgpack.decode(launch, type=messages.WorkerLaunch), device_index=0)
        except Exception as error:
            return messages.encode(messages.WorkerReply.of_error(error))
        return messages.encode(messages.WorkerReply())

    def join(self, board: Any, is_local: bool) -> bytes:
        """Join the group; returns a reply."""
        assert self._worker is not None, "start() comes first"
        self._worker.connect(BoardStore(board), is_local=is_local)
        return messages.encode(messages.WorkerReply())

    def handle(self, data: bytes) -> bytes | None:
        """Do what a message says; returns the reply to a call."""
        assert self._worker is not None, "start() comes first"
        replies: list[bytes] = []
        try:
            answer(self._worker, data, replies.append)
        except Exception:
            if replies:
                return replies[0]  # rank 0 ends the actor
            # The other ranks wait for this one; Ray tells rank 0 that it ended.
            os._exit(1)
        return replies[0] if replies else None

    def until_end(self) -> None:
        """Return never: the call fails when the actor ends."""
        threading.Event().wait()


class RayPeer:
    """An actor; a :class:`octavo.execution.distributed.Peer`."""

    def __init__(self, actor: Any, rank: int, board: Any, is_local: bool, launch: messages.WorkerLaunch) -> None:
        self.rank = rank
        self._actor = actor
        self._is_closing = False
        self._replies = [
            actor.start.remote(msgspec.msgpack.encode(launch)),
            actor.join.remote(board, is_local),
        ]

    def send(self, data: bytes) -> None:
        """See :meth:`Peer.send`."""
        self._replies.append(self._actor.handle.remote(data))

    def receive(self) -> bytes:
        """See :meth:`Peer.receive`."""
        from ray.exceptions import RayError

        while True:
            try:
                reply: bytes | None = _get(self._replies.pop(0))
            except RayError as error:
                raise ConnectionError(str(error)) from error
            if reply is not None:
                return reply

    def watch(self, on_end: Callable[[str], None]) -> None:
        """See :meth:`Peer.watch`."""
        ended = self._actor.until_end.remote()

        def wait() -> None:
            try:
                _get(ended)
            except Exception as error:
                if not self._is_closing:
                    on_end(f"on its node: {str(error).splitlines()[0]}")

        threading.Thread(target=wait, name="worker-watch", daemon=True).start()

    def close(self) -> None:
        """See :meth:`Peer.close`."""
        import ray

        self._is_closing = True
        ray.kill(self._actor)


def start_actors(
    worker: Worker, settings: EngineConfig, plan: Plan, folder: str | None, size: int, *, has_gpus: bool
) -> DistributedExecutor:
    """Start the other ranks as actors of the cluster that ``RAY_ADDRESS`` names, or that runs on this machine.

    Args:
        worker: rank 0.
        plan: to load the model by.
        folder: updated weights; None for the model's own.
        has_gpus: whether each rank needs a GPU, else a CPU core.

    Raises:
        OctavoError: one of them cannot start.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "distributed_executor_backend is 'ray', which is not installed: pip install 'octavo[ray]'."
        ) from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    needs: dict[str, Any] = {"num_gpus": 1} if has_gpus else {"num_cpus": 1}
    make = ray.remote(concurrency_groups={"watch": 1}, scheduling_strategy="SPREAD", **needs)(_watched(RankActor))
    board = ray.remote(num_cpus=0)(Board).remote()
    plain = messages.as_plain(plan)
    actors = [make.remote() for _ in range(1, size)]
    addresses = {ray.util.get_node_ip_address(), *ray.get([actor.address.remote() for actor in actors])}
    is_local = len(addresses) == 1
    peers = [
        RayPeer(actor, rank, board, is_local, messages.WorkerLaunch(settings, plain, rank, size, folder, ""))
        for rank, actor in enumerate(actors, 1)
    ]
    return DistributedExecutor(worker, peers, lambda worker: worker.connect(BoardStore(board), is_local=is_local))


def _watched(kind: type[RankActor]) -> type[RankActor]:
    """The actor's class, with a thread of its own for :meth:`RankActor.until_end`."""
    import ray

    class Watched(kind):  # type: ignore[misc, valid-type]
        @ray.method(concurrency_group="watch")  # type: ignore[untyped-decorator, unused-ignore]
        def until_end(self) -> None:
            super().until_end()

        def address(self) -> str:
            """The address of its node."""
            found: str = ray.util.get_node_ip_address()
            return found

    return Watched


def _get(reference: Any) -> Any:
    import ray

    return ray.get(reference)
