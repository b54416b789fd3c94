"""Memory of the tensors that recorded work makes: each place is used again once its tensor is gone, as when it ran.

Kept alive instead, the results of all layers would take megabytes per recording, and pass through the caches for
nothing.
"""

import mmap
import weakref
from bisect import insort

import torch

_MAPPING = 64 << 20
"""Bytes of a mapping; the system provides them as they are used."""
_ALIGNMENT = 64


class TapeMemory:
    """Memory that tapes share: they run one at a time, and their results last until the next one runs."""

    def __init__(self) -> None:
        self._mappings: list[_Mapping] = []

    def place(self, form: torch.Tensor) -> torch.Tensor:
        """A tensor of the form of another, whose place is free again when it and its views are gone."""
        num_bytes = form.untyped_storage().nbytes()
        if num_bytes == 0:
            return form
        reserved = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        place = next((place for mapping in self._mappings if (place := mapping.take(reserved)) is not None), None)
        if place is None:
            self._mappings.append(_Mapping(max(_MAPPING, reserved)))
            place = self._mappings[-1].take(reserved)
            assert place is not None, "the mapping is large enough and empty"
        return torch.frombuffer(place, dtype=form.dtype).as_strided(form.shape, form.stride())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies here."""
        address = tensor.data_ptr()
        return any(mapping.has(address) for mapping in self._mappings)

    def release(self, tensor: torch.Tensor) -> None:
        """Let the next tape use the place of a result, which is kept beyond its own tape."""
        address = tensor.data_ptr()
        for mapping in self._mappings:
            if mapping.has(address):
                mapping.release(address - mapping.address)


class _Mapping:
    """Contiguous memory.

    Attributes:
        address: of its first byte.
    """

    def __init__(self, num_bytes: int) -> None:
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
        self._memory = mmap.mmap(-1, num_bytes, **flags)
        self.address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._taken: list[tuple[int, int]] = []  # first byte and end of each place in use, in order
        self._ends: dict[tuple[int, int], weakref.finalize[[tuple[int, int]], memoryview]] = {}

    def has(self, address: int) -> bool:
        """Whether an address lies here."""
        return 0 <= address - self.address < len(self._memory)

    def take(self, num_bytes: int) -> memoryview | None:
        """The first free place of this size, taken until the object that is returned is gone; None if there is none."""
        at = 0
        for start, end in self._taken:
            if start - at >= num_bytes:
                break
            at = end
        if at + num_bytes > len(self._memory):
            return None
        bounds = at, at + num_bytes
        insort(self._taken, bounds)
        place = memoryview(self._memory)[at : at + num_bytes]
        self._ends[bounds] = weakref.finalize(place, self._free, bounds)
        self._ends[bounds].atexit = False
        return place

    def release(self, offset: int) -> None:
        """Free the place that a byte is in, although its object lives."""
        for bounds in self._taken:
            if bounds[0] <= offset < bounds[1]:
                self._ends[bounds].detach()
                self._free(bounds)
                return

    def _free(self, bounds: tuple[int, int]) -> None:
        self._taken.remove(bounds)
        del self._ends[bounds]
