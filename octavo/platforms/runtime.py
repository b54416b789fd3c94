"""The interface of a device's runtime: queued work, events, memory shared with the host, and graphs.

Every kind of device implements all of it, so callers have no branch: on a CPU, where work is complete when a call
returns and device memory is host memory, events and streams do nothing and copies return their argument. A caller
gets the runtime of a tensor's device from :func:`octavo.platforms.runtime_of`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

Captured = Callable[[], tuple[torch.Tensor, ...]]
"""Work to capture in a graph; returns the tensors that it writes its results to."""


class Event(Protocol):
    """A mark in a device's queue of work."""

    def record(self) -> None:
        """Place the mark behind all work queued so far in the current stream."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark; returns at once if it was never recorded."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to a later one; both were created with ``has_timing``."""


class SideStream(Protocol):
    """A second queue of work, which starts behind the work queued before it was created."""

    def use(self) -> AbstractContextManager[object]:
        """Queue this thread's work here inside the ``with`` block."""

    def synchronize(self) -> None:
        """Wait until all its work is done."""

    def join(self) -> None:
        """Queue all later work of the current stream behind its work."""


class Graph(Protocol):
    """Captured work: one launch in place of many."""

    def replay(self) -> None:
        """Run the work again, on the same memory."""


class GraphCapture(Protocol):
    """Captures graphs that share their temporary memory, so they must not run at the same time."""

    def capture(self, work: Captured) -> tuple[Graph, tuple[torch.Tensor, ...]]:
        """Capture work that has run before, so that nothing compiles or allocates lazily during the capture.

        Returns:
            The graph, and the work's tensors, which every replay overwrites: of this graph, and on a host of any that
            shares its memory.
        """


class DeviceRuntime(ABC):
    """What code does with a device. Keeps no state of its own, so that any number of them may exist.

    Args:
        device: the device that all methods concern.
    """

    is_host: bool
    """Whether its tensors are in host memory and operations are complete when a call returns."""
    pass_elements: int
    """Elements that a chain of operations should work on at a time: as many as fit the cache, or bounded by memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def make_current(self) -> None:
        """Make it the calling thread's device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    @abstractmethod
    def return_memory(self) -> None:
        """Return memory that torch keeps for reuse to the system."""

    @abstractmethod
    def new_event(self, *, has_timing: bool = False) -> Event:
        """An event that is not recorded yet.

        Args:
            has_timing: whether it also takes the time, which costs a little.
        """

    @abstractmethod
    def side_stream(self) -> SideStream:
        """A new side stream."""

    @abstractmethod
    def graph_memory(self) -> Any:
        """Memory that graphs of several :meth:`graph_capture` share."""

    @abstractmethod
    def graph_capture(self, memory: Any = None) -> AbstractContextManager[GraphCapture]:
        """Capture graphs inside the ``with`` block; no other work of this process may use the device meanwhile.

        Args:
            memory: of :meth:`graph_memory`; None for memory of these graphs' own.
        """

    @abstractmethod
    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        """A copy of a host tensor, queued behind the device's work; on a CPU, the tensor itself."""

    @abstractmethod
    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host copy, which may be read once an event recorded after it is reached; on a CPU, the tensor itself."""

    @abstractmethod
    def empty_host(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised host memory that the device copies asynchronously (pinned, if the device needs that)."""

    @abstractmethod
    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed device memory for a large, long-lived buffer such as the key/value cache."""

    def weight_memory(self) -> AbstractContextManager[object]:
        """A context for building a model, in which its tensors get the memory that suits weights."""
        return nullcontext()

    @abstractmethod
    def last_cache_bytes(self) -> int:
        """Size of the last-level cache, for benchmarks that must exceed it."""
