"""A checkpoint's tensor on its way to its slots."""

import math
import threading
from collections.abc import Sequence
from functools import partial

import torch

from octavo.platforms import runtime_of
from octavo.quantization.slot import WeightSlot

conversion = threading.Lock()
"""One tensor is converted at a time on a device, which bounds the memory for intermediate results."""


def takes_pieces(slots: Sequence[WeightSlot]) -> bool:
    """Whether the only slot of a tensor stores pieces of it straight from the host's memory."""
    return len(slots) == 1 and slots[0].can_split and runtime_of(slots[0].view.device).is_host


class TensorArrival:
    """Collects a tensor that arrives in parts, in any order and from any thread, and fills its slots with it.

    A single slot that takes the values as they are is written directly. Otherwise the tensor stays on the slots' device
    until its last part is there, and is converted there.

    Attributes:
        is_direct: whether the slot is written directly.
        can_take: whether the tensor can be stored from the host's memory, wherever it is there; see :meth:`take`.

    Args:
        shape, dtype: of the tensor in the checkpoint.
    """

    def __init__(self, slots: Sequence[WeightSlot], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._slots = slots
        self._shape = shape
        self._lock = threading.Lock()
        self._num_missing = math.prod(shape)
        view = slots[0].view
        self.is_direct = len(slots) == 1 and slots[0].is_direct
        self.can_take = takes_pieces(slots)
        self._values = view.view(-1) if self.is_direct else None
        self.device = view.device
        self.dtype = view.dtype if self.is_direct else dtype

    def part(self, start: int, count: int) -> torch.Tensor:
        """The memory for ``count`` elements from ``start`` on, ``[count]`` of :attr:`dtype`, contiguous."""
        with self._lock:
            if self._values is None:
                runtime = runtime_of(self.device)
                make = runtime.empty_host if runtime.is_host else partial(torch.empty, device=self.device)
                self._values = make(math.prod(self._shape), dtype=self.dtype)
            return self._values[start : start + count]

    def take(self, values: torch.Tensor) -> None:
        """Store the whole tensor, ``[N]`` of its type, on the calling thread; several threads may do so at a time."""
        self._slots[0].fill(values.view(self._shape))

    def arrived(self, count: int) -> None:
        """Note that ``count`` more elements are stored, or their copy is queued on the current stream."""
        with self._lock:
            self._num_missing -= count
            is_whole = self._num_missing == 0
        if is_whole and not self.is_direct and self._values is not None:
            whole, self._values = self._values.view(self._shape), None
            with conversion:
                for slot in self._slots:
                    slot.fill(whole)
