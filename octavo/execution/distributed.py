"""The executor of several workers: rank 0 in this process, beside the scheduler, the others in processes of their own.

Every step is encoded once and sent to all other ranks. All ranks draw the same tokens: the head's logits are gathered
from all of them, and random numbers depend on seed and position only. So the next step's tokens are in every rank's
device state without the host, and only rank 0 reads them.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from octavo.errors import EngineDeadError, InvalidRequestError, OctavoError
from octavo.execution import messages
from octavo.execution.executor import Executor
from octavo.execution.worker import Worker
from octavo.parallel import ProcessGroup
from octavo.records import Step, StepResult

logger = logging.getLogger(__name__)

_NOTICE_SECONDS = 1.0
"""A broken connection is noticed a moment before the end of the process behind it, which says more."""


class Peer(Protocol):
    """A worker in another process.

    Attributes:
        rank: its number.
    """

    rank: int

    def send(self, data: bytes) -> None:
        """Send a message; messages arrive in order.

        Raises:
            OSError: the worker has ended.
        """

    def receive(self) -> bytes | bytearray:
        """Wait for its next reply.

        Raises:
            OSError: the worker has ended.
        """

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call a function, from another thread, when the worker ends before :meth:`close`, with how it ended."""

    def close(self) -> None:
        """End the worker."""


class DistributedExecutor(Executor):
    """Rank 0 and its peers. Once a worker has died, every call raises :class:`EngineDeadError`.

    Args:
        worker: rank 0.
        peers: the other ranks, in order.
        join: lets rank 0 join the group.
        clean_up: called once at the end.
    """

    def __init__(
        self,
        worker: Worker,
        peers: Sequence[Peer],
        join: Callable[[Worker], ProcessGroup],
        clean_up: Callable[[], None] | None = None,
    ) -> None:
        self._clean_up = clean_up
        self.worker = worker
        self._peers = peers
        self._group: ProcessGroup | None = None
        self._death = ""
        self._dead_rank: int | None = None
        self._has_death = threading.Event()
        try:
            for peer in peers:
                peer.watch(lambda how, rank=peer.rank: self._handle_end(rank, how))  # type: ignore[misc]
            self._replies()  # a peer that cannot start must not leave the others waiting for it
            self._group = join(worker)
            self._replies()
        except BaseException:
            self.shutdown()
            raise

    def submit(self, step: Step) -> None:
        self._send(messages.Submit(step))
        self._run(self.worker.submit, step)

    def draw(self, step_id: int, masks: NDArray[Any]) -> None:
        self._send(messages.Draw(step_id, masks, masks.shape[1]))
        self._run(self.worker.draw, step_id, masks)

    def collect(self, step_id: int) -> StepResult:
        with self.worker.host_threads:
            result = self.worker.collect(step_id)
        self._check_alive()
        return result

    def call_all(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(method, str):
            raise InvalidRequestError(
                "The model is divided over several processes, which no function reaches: name a method of the worker, "
                "or a function that allowed_functions contains, as 'package.module:function'.",
                "method",
            )
        self._send(messages.WorkerCall(method, messages.as_plain(args), kwargs))
        is_collective = method in messages.COLLECTIVE_METHODS
        try:
            try:
                own = self._run(getattr(self.worker, method), *args, **kwargs)
            except EngineDeadError as dead:
                raise self._reported() or dead from dead
            except OctavoError:
                if not is_collective:
                    self._replies()
                raise
            return [own, *self._replies()]
        except OctavoError as error:
            if is_collective:  # ranks that still wait for one that failed
                self._note_death(str(error))
                self._close_peers()
            raise

    def shutdown(self) -> None:
        self._note_death("The engine is shut down.")
        self._close_peers()
        self.worker.shutdown()
        if self._group is not None:
            self._group.abort()
            self._group = None
        if self._clean_up is not None:
            self._clean_up()
            self._clean_up = None

    def _close_peers(self) -> None:
        for peer in self._peers:
            peer.close()

    def _send(self, message: messages.Submit | messages.Draw | messages.WorkerCall) -> None:
        self._check_alive()
        data = messages.encode(message)
        for peer in self._peers:
            self._with(peer, peer.send, data)

    def _replies(self) -> list[Any]:
        """The next reply of every peer, all of them before the first error is raised."""
        replies = [messages.decode_reply(self._with(peer, peer.receive)) for peer in self._peers]
        return [reply.result() for reply in replies]

    def _with(self, peer: Peer, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except OSError as error:
            raise self._dead(f"The connection to the worker of rank {peer.rank} closed.") from error

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call rank 0's worker; the ranks would no longer run the same operations after a failure or an interrupt.

        Raises:
            EngineDeadError: another rank died, which ends operations that wait for it.
        """
        try:
            with self.worker.host_threads:
                result = function(*args, **kwargs)
        except OctavoError:
            raise
        except BaseException as error:
            dead = self._dead(f"The worker of rank 0 failed: {error!r}")
            if isinstance(error, Exception):
                raise dead from error
            raise
        self._check_alive()
        return result

    def _reported(self) -> OctavoError | None:
        """The error that a rank has replied before it ended, if there is one."""
        try:
            for peer in self._peers:
                if peer.rank == self._dead_rank:
                    messages.decode_reply(peer.receive()).result()
        except OctavoError as error:
            return error
        except OSError:
            pass
        return None

    def _check_alive(self) -> None:
        if self._death:
            raise EngineDeadError(self._death)

    def _dead(self, reason: str) -> EngineDeadError:
        """The error to raise once the workers cannot go on.

        Args:
            reason: what was noticed here; the end of a process says more.
        """
        self._has_death.wait(_NOTICE_SECONDS)
        self._note_death(reason)
        return EngineDeadError(self._death)

    def _note_death(self, reason: str) -> None:
        self._death = self._death or reason
        self._has_death.set()

    def _handle_end(self, rank: int, how: str) -> None:
        """Note that a worker ended, and end the operations that wait for it; called from any thread."""
        if self._death:
            return
        self._dead_rank = rank
        self._note_death(f"The worker of rank {rank} ended {how}.")
        logger.error("%s", self._death)
        if self._group is not None:
            self._group.abort()
