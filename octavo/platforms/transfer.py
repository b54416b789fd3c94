"""Asynchronous copies between host and device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.platforms.runtime import DeviceRuntime, Event
from octavo.platforms.select import runtime_of


def to_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy host values to a device; the copy is queued behind the device's work and the host does not wait."""
    return runtime_of(device).to_device(torch.from_numpy(np.ascontiguousarray(values)))


class StepBuffer:
    """A device tensor that every step overwrites, and whose first rows the host reads."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._runtime = runtime_of(tensor.device)
        # What PyTorch takes to slice and copy a few numbers counts in a small step, as its code is in no cache by then.
        self._on_host = tensor.numpy() if self._runtime.is_host else None

    def to_host(self, num_rows: int) -> NDArray[Any]:
        """Queue a copy of the first rows; it may be read after :meth:`HostCopies.wait` of copies sealed later."""
        if self._on_host is not None:
            return self._on_host[:num_rows].copy()
        return self._runtime.to_host(self._tensor[:num_rows]).numpy()


class HostCopies:
    """Copies to the host that are queued behind a device's work.

    Call :meth:`add` for each tensor, then :meth:`seal`, and :meth:`wait` before reading the copies.
    """

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime
        self._event: Event | None = None

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue a copy and return the host tensor; on a CPU, the tensor itself."""
        return self._runtime.to_host(tensor)

    def seal(self) -> None:
        """Mark the end of the copies."""
        if self._runtime.is_host:
            return
        self._event = self._runtime.new_event()
        self._event.record()

    def wait(self) -> None:
        """Wait until all copies have arrived."""
        if self._event is not None:
            self._event.synchronize()
