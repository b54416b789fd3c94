"""Copies values from host memory to a model's tensors through reused pinned buffers.

A device copies at full speed, and asynchronously, only from pinned host memory. Pinning takes longer than reading, so
a few pinned buffers are reused.
"""

import queue
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch

from octavo.platforms import Event, runtime_of

# torch does not split copies of fewer than 32768 elements over its own threads, which would compete with ours.
SERIAL_COPY = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Host memory ``[N]`` uint8, and the event after the last copy out of it."""

    memory: torch.Tensor
    event: Event


class Staging:
    """Host buffers whose contents are copied to a device asynchronously; thread-safe.

    Attributes:
        is_host: whether the device's tensors are in host memory, so that values can be written there without a buffer.

    Args:
        num_threads: threads that use buffers.
        buffer_bytes: size of each buffer.
    """

    def __init__(self, device: torch.device, num_threads: int, buffer_bytes: int) -> None:
        self._runtime = runtime = runtime_of(device)
        self.is_host = runtime.is_host
        self.buffer_bytes = buffer_bytes
        self._device = device
        self._stream = runtime.side_stream()
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        # Where copies are asynchronous, one buffer is filled while the previous one's contents are copied.
        num_buffers = num_threads if self.is_host else 2 * num_threads
        for row in runtime.empty_host(num_buffers, buffer_bytes, dtype=torch.uint8):
            self._free.put(_Buffer(row, runtime.new_event()))

    @contextmanager
    def lend(self) -> Iterator[torch.Tensor]:
        """Lend a buffer, ``[buffer_bytes]`` uint8, to fill and to :meth:`send` from."""
        buffer = self._free.get()
        try:
            buffer.event.synchronize()
            with self._stream.use():
                yield buffer.memory
                buffer.event.record()
        finally:
            self._free.put(buffer)

    @contextmanager
    def lend_host(self, num_bytes: int) -> Iterator[torch.Tensor]:
        """Lend host memory, ``[num_bytes]`` uint8, that nothing is sent from: a buffer, or more than one holds."""
        if num_bytes <= self.buffer_bytes:
            with self.lend() as memory:
                yield memory[:num_bytes]
        else:
            yield self._runtime.empty_host(num_bytes, dtype=torch.uint8)

    def in_order(self) -> AbstractContextManager[object]:
        """A context whose device work comes after all copies that are queued before it."""
        return self._stream.use()

    def send(self, values: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy values from a lent buffer; their type is converted on the destination's device.

        Args:
            values, destination: ``[N]``, each contiguous.
        """
        if self.is_host:
            copy_serially(values, destination)
        elif values.dtype is destination.dtype:
            destination.copy_(values, non_blocking=True)
        else:
            destination.copy_(values.to(self._device, non_blocking=True))

    def deposit(self, values: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy host values of any type that are not in a lent buffer; see :meth:`send`."""
        if self.is_host:
            copy_serially(values, destination)
            return
        size = self.buffer_bytes // destination.element_size()
        for part, target in zip(values.split(size), destination.split(size), strict=True):
            with self.lend() as memory:
                staged = memory[: target.numel() * target.element_size()].view(target.dtype)
                copy_serially(part, staged)
                self.send(staged, target)

    def finish(self) -> None:
        """Wait until all copies have arrived."""
        self._stream.synchronize()


def copy_serially(values: torch.Tensor, destination: torch.Tensor) -> None:
    """Copy on the calling thread only, converting the type.

    Args:
        values, destination: ``[N]`` on the CPU.
    """
    for part, target in zip(values.split(SERIAL_COPY), destination.split(SERIAL_COPY), strict=True):
        target.copy_(part)
