"""Asynchronous copies between host and device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.platforms.runtime import Event
from octavo.platforms.select import runtime_of


def to_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy host values to a device; the copy is queued behind the device's work and the host does not wait."""
    return runtime_of(device).to_device(torch.from_numpy(np.ascontiguousarray(values)))


class HostCopies:
    """Copies to the host that are queued behind a device's work.

    Call :meth:`add` for each tensor, then :meth:`seal`, and :meth:`wait` before reading the copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._runtime = runtime_of(device)
        self._event: Event | None = None

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue a copy and return the host tensor; on a CPU, the tensor itself."""
        return self._runtime.to_host(tensor)

    def add_buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same for a tensor that later work overwrites; a copy on a CPU, too."""
        return tensor.clone() if self._runtime.is_host else self._runtime.to_host(tensor)

    def seal(self) -> None:
        """Mark the end of the copies."""
        self._event = self._runtime.new_event()
        self._event.record()

    def wait(self) -> None:
        """Wait until all copies have arrived."""
        if self._event is not None:
            self._event.synchronize()
