"""Tensors of a layer that are read together, in whatever order they come from a checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from octavo.quantization.grouped_weight import GroupedWeight, Layout, StoredTensor
from octavo.quantization.slot import WeightSlot


class PendingTensors:
    """Keeps a layer's tensors until all of them are there. Loaders convert one tensor at a time, so no lock is needed.

    Args:
        shape: of the layer in the checkpoint, ``[out, in]``.
        store: takes the layer's weight.

    Attributes:
        first: the first tensor's name.
    """

    def __init__(self, layout: Layout, shape: tuple[int, int], store: Callable[[GroupedWeight], None]) -> None:
        self._layout = layout
        self._shape = shape
        self._store = store
        self._stored = layout.tensors(shape)
        self._tensors: dict[str, torch.Tensor] = {}
        self.first = next(iter(self._stored))

    def slots(self, view: torch.Tensor) -> Iterator[tuple[str, WeightSlot]]:
        """The names of the tensors within the layer, and their slots, which fill ``view`` together."""
        for name, stored in self._stored.items():
            yield (
                name,
                PendingSlot(
                    view,
                    stored.shapes,
                    raw_type=stored.raw_type,
                    alternatives=stored.alternatives,
                    name=name,
                    dtypes=stored.dtypes,
                    pending=self,
                ),
            )
            view = view[:0]  # what is filled is counted once

    def arrived(self, name: str, tensor: torch.Tensor) -> None:
        """Note a tensor; the last one has all of them stored."""
        self._tensors[name] = tensor
        if self._tensors.keys() == self._stored.keys():
            tensors, self._tensors = self._tensors, {}
            self.store(tensors)

    def store(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Store what all tensors stand for."""
        self._store(self._layout.read(tensors, self._shape))

    def fill_with_noise(self, std: float, generator: torch.Generator) -> None:
        """Store a random weight with values of about this standard deviation."""
        self._store(self._layout.noise(self._shape, std, generator))


class PendingStack(PendingTensors):
    """The same for layers of one shape whose tensors are stacked, ``[layers, ...]``.

    What a layer has one number of may also be one number for all layers.

    Args:
        count: number of layers.
        shape: of each.
        store: takes a layer's index and its weight.
        is_transposed: whether tensors of two dimensions are ``[in, out]``.
    """

    def __init__(
        self,
        layout: Layout,
        count: int,
        shape: tuple[int, int],
        store: Callable[[int, GroupedWeight], None],
        *,
        is_transposed: bool = False,
    ) -> None:
        super().__init__(layout, shape, partial(store, 0))
        self._count, self._store_layer, self._is_transposed = count, store, is_transposed
        self._stored = {name: self._stacked(stored) for name, stored in self._stored.items()}

    def store(self, tensors: Mapping[str, torch.Tensor]) -> None:
        own = {name: self._by_layer(tensor) for name, tensor in tensors.items()}
        for index in range(self._count):
            layer = {name: self._own(tensor[index]) for name, tensor in own.items()}
            self._store_layer(index, self._layout.read(layer, self._shape))

    def fill_with_noise(self, std: float, generator: torch.Generator) -> None:
        for index in range(self._count):
            self._store_layer(index, self._layout.noise(self._shape, std, generator))

    def _stacked(self, stored: StoredTensor) -> StoredTensor:
        shapes = tuple((self._count, *(shape[::-1] if self._is_transposed else shape)) for shape in stored.shapes)
        return StoredTensor(shapes + (stored.shapes if () in stored.shapes else ()), stored.dtypes)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.T.contiguous() if self._is_transposed and tensor.ndim == 2 else tensor

    def _by_layer(self, tensor: torch.Tensor) -> torch.Tensor:
        is_one = tensor.ndim == 0 or (tensor.numel() == 1 and self._count > 1)
        return tensor.reshape(1).expand(self._count) if is_one else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSlot(WeightSlot):
    """The destination of a tensor that is stored together with others.

    Attributes:
        name: within the layer.
        dtypes: types that the tensor may have, the usual one first.
        pending: takes the tensor.
    """

    name: str
    dtypes: tuple[torch.dtype, ...]
    pending: PendingTensors = field(compare=False)

    @property
    def is_first(self) -> bool:
        """Whether it is the first of the layer's slots."""
        return self.name == self.pending.first

    @property
    def is_direct(self) -> bool:
        return False

    @property
    def whole_rows(self) -> slice | None:
        return None

    def accepts(self, shape: tuple[int, ...]) -> bool:
        return any(
            len(own) == len(shape) and all(size in (-1, given) for size, given in zip(own, shape, strict=True))
            for own in self.source_shapes
        )

    def takes(self, dtype: torch.dtype, raw_type: str = "") -> bool:
        return dtype in self.dtypes and self.raw_type in ("", raw_type)

    def fill(self, tensor: torch.Tensor) -> None:
        self.pending.arrived(self.name, tensor)
