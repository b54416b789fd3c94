"""Executors: who runs the engine's steps, on one device or on several.

The engine core submits a :class:`Step` and later collects its :class:`StepResult`; it knows executors only. What
happens on a device is in ``worker.py``; several processes are in ``distributed.py``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from octavo.execution.worker import Worker
from octavo.records import Plan, Step, StepResult


class Executor(ABC):
    """Runs steps in the order in which they are submitted.

    Steps, masks and results are records and arrays. Everything but steps goes through :meth:`call_all`.
    """

    @abstractmethod
    def submit(self, step: Step) -> None:
        """Start a step. With ``masked_rows``, no token is drawn before :meth:`draw`."""

    @abstractmethod
    def draw(self, step_id: int, masks: NDArray[Any]) -> None:
        """Draw the tokens of a step that was held.

        Args:
            masks: ``[M, ceil(V / 32)]`` int32, allowed tokens at each draw of the step's ``masked_rows``.
        """

    @abstractmethod
    def collect(self, step_id: int) -> StepResult:
        """Wait for a step's results; steps are collected in their order."""

    @abstractmethod
    def call_all(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every worker; no step may be in flight.

        Args:
            method: its name; or a function that gets the worker, if there is only one, in this process.

        Returns:
            The workers' results, by rank.

        Raises:
            InvalidRequestError: functions do not reach the workers.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Release memory and processes."""

    @property
    def has_weights(self) -> bool:
        """Whether the weights are loaded, on the device or in host memory."""
        return all(self.call_all("has_weights"))

    def start(self, plan: Plan) -> None:
        """See :meth:`octavo.execution.worker.Worker.start`."""
        self.call_all("start", plan)

    def sleep(self, level: int) -> None:
        """Release the memory of the cache and, by level, of the weights; no step may be in flight.

        Args:
            level: 0 keeps the weights where they are, 1 moves them to host memory, 2 drops them.
        """
        self.call_all("sleep", level)

    def wake_weights(self) -> None:
        """Restore the weights if they were released.

        Raises:
            OctavoError: they cannot be read.
        """
        self.call_all("wake_weights")

    def wake_cache(self) -> None:
        """Allocate an empty cache and everything else that steps need, if released; the weights must be loaded."""
        self.call_all("wake_cache")

    def check_weights(self, folder: str | None) -> None:
        """Check that the folder has safetensors files with the model's tensor names and shapes.

        Raises:
            OctavoError: it has not.
        """
        self.call_all("check_weights", folder)

    def load_weights(self, folder: str | None) -> None:
        """Replace the weights in place; no step may be in flight.

        Args:
            folder: a folder that passed :meth:`check_weights`; None reloads the model's own weights.

        Raises:
            OctavoError: the weights cannot be read. No weights are loaded then; :meth:`wake_weights` restores the old.
        """
        self.call_all("load_weights", folder)

    def weight_checksums(self) -> dict[str, str]:
        """A checksum of each parameter; those of several workers have their rank before the name."""
        found: list[dict[str, str]] = self.call_all("weight_checksums")
        if len(found) == 1:
            return found[0]
        return {f"{rank}:{name}": value for rank, own in enumerate(found) for name, value in own.items()}


class InProcessExecutor(Executor):
    """One worker, in the caller's process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def submit(self, step: Step) -> None:
        with self.worker.host_threads:
            self.worker.submit(step)

    def draw(self, step_id: int, masks: NDArray[Any]) -> None:
        with self.worker.host_threads:
            self.worker.draw(step_id, masks)

    def collect(self, step_id: int) -> StepResult:
        with self.worker.host_threads:
            return self.worker.collect(step_id)

    def call_all(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        with self.worker.host_threads:
            if isinstance(method, str):
                return [getattr(self.worker, method)(*args, **kwargs)]
            return [method(self.worker, *args, **kwargs)]

    def shutdown(self) -> None:
        self.worker.shutdown()
