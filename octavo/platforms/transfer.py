"""Asynchronous copies between host and device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy host values to a device; the copy is queued behind the device's work and the host does not wait."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


class HostCopies:
    """Copies to the host that are queued behind a device's work.

    Call :meth:`add` for each tensor, then :meth:`seal`, and :meth:`wait` before reading the copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_device = device.type != "cpu"
        self._event: torch.cuda.Event | None = None

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue a copy and return the host tensor; on a CPU, the tensor itself."""
        if not self._is_device:
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return copy.copy_(tensor, non_blocking=True)

    def seal(self) -> None:
        """Mark the end of the copies."""
        if self._is_device:
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> None:
        """Wait until all copies have arrived."""
        if self._event is not None:
            self._event.synchronize()
