"""Where a checkpoint's tensors go: what a module tells a loader about its parameters."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

FLOAT8_TYPES = (torch.float8_e4m3fn,)
_SCALED_TYPES = (*FLOAT8_TYPES, torch.uint8)
"""Types whose values mean nothing without their scales; uint8 has packed ones."""
_INTEGERS = (torch.int8, torch.int32, torch.int64)
"""Types that only tensors that are read together with others have."""

Index = slice | torch.Tensor
"""What is taken along a dimension: consecutive entries, or those of an index, ``[n]`` int64 on the CPU."""


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """The destination of a checkpoint's tensor, or of a part of it.

    Attributes:
        view: the destination, a view into a parameter; its address stays the same when weights are updated.
        shapes: shapes that the checkpoint's tensor may have, the usual one first; empty for the view's.
        source_slice: the part of the tensor that goes here, per dimension; empty for all of it.
        transform: converts that part, on the view's device, into the view's shape; None converts only the type.
        store: writes what ``transform`` leaves into the view, in a form of its own; None copies it.
        row_unit: ``store`` makes a row of the view of so many rows of the tensor; 0 if it is not made row by row.
        has_scale: whether the tensor's values mean nothing without a scale, which has a slot of its own.
        raw_type: the type of a GGUF tensor whose rows of bytes go here as they are, ``[out, bytes]`` uint8; empty for
            its values.
        alternatives: other names of the tensor, in the place of the last part of its own.
        is_optional: whether a checkpoint may lack the tensor; its slot is then filled with ones.
    """

    view: torch.Tensor
    shapes: tuple[tuple[int, ...], ...] = ()
    source_slice: tuple[Index, ...] = ()
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    has_scale: bool = False
    raw_type: str = ""
    alternatives: tuple[str, ...] = ()
    is_optional: bool = False
    store: Callable[[torch.Tensor, torch.Tensor], object] | None = None
    row_unit: int = 0

    @property
    def source_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the checkpoint's tensor may have, the usual one first."""
        return self.shapes or (tuple(self.view.shape),)

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether the checkpoint's tensor may have a shape."""
        return shape in self.source_shapes

    @property
    def is_converted(self) -> bool:
        """Whether values are changed in more than their type."""
        return self.transform is not None or self.store is not None

    @property
    def is_direct(self) -> bool:
        """Whether the tensor's values, converted in type, are the view's, one after another."""
        return not self.is_converted and not self.source_slice and self.view.is_contiguous()

    @property
    def whole_rows(self) -> slice | None:
        """The rows of the tensor that are the view's values, converted in type, if it is some rows and nothing else."""
        columns = tuple(slice(0, size) for size in self.source_shapes[0][1:])
        if self.is_converted or not self.view.is_contiguous() or self.source_slice[1:] not in ((), columns):
            return None
        rows = self.source_slice[0] if self.source_slice else None
        return rows if isinstance(rows, slice) else None

    @property
    def can_split(self) -> bool:
        """Whether the tensor can arrive in pieces of ``row_unit`` rows, which are stored by themselves."""
        return self.row_unit > 0 and self.transform is None and not self.source_slice

    def pieces(self, num_rows: int, row_bytes: int, most_bytes: int) -> Iterator[range]:
        """The rows of each piece of so many bytes at most, or of ``row_unit`` rows if these have more."""
        step = max(1, most_bytes // (self.row_unit * row_bytes)) * self.row_unit
        return (range(start, min(start + step, num_rows)) for start in range(0, num_rows, step))

    def piece(self, rows: range) -> "WeightSlot":
        """The slot of some rows of the tensor, of which the first is a multiple of ``row_unit``."""
        view = self.view[rows.start // self.row_unit : -(-rows.stop // self.row_unit)]
        return replace(self, view=view, shapes=((len(rows), *self.source_shapes[0][1:]),))

    def takes(self, dtype: torch.dtype, raw_type: str = "") -> bool:
        """Whether a checkpoint's tensor may have a type: values that need scales go where scales are, and no others.

        Args:
            raw_type: GGUF's type of the tensor, which must be the slot's if it has one.
        """
        is_value = dtype not in _INTEGERS and (dtype in _SCALED_TYPES) == self.has_scale
        return is_value and self.raw_type in ("", raw_type)

    def fill(self, tensor: torch.Tensor) -> None:
        """Store a whole tensor of the checkpoint, which is on the view's device."""
        part = tensor[self.source_slice] if self.source_slice else tensor
        part = part if self.transform is None else self.transform(part)
        if self.store is None:
            self.view.copy_(part.view(self.view.shape))
        else:
            self.store(part, self.view)


@dataclass(frozen=True, slots=True)
class SplitPairs:
    """Reorders rows of heads: the rotary pairs ``(2i, 2i + 1)`` of a head become pairs ``(i, i + count / 2)``.

    Attention scores do not change if queries and keys are reordered alike.

    Attributes:
        unit: rows of a head.
        count: how many of them are such pairs, the first ones.
    """

    unit: int
    count: int

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """``[heads · unit, ...]`` in and out, new memory."""
        heads = rows.view(torch.uint8) if rows.dtype in FLOAT8_TYPES else rows  # few operations take float8
        heads = heads.unflatten(0, (-1, self.unit))
        pairs = heads[:, : self.count].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
        return torch.cat((pairs, heads[:, self.count :]), 1).flatten(0, 1).view(rows.dtype)


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A linear layer of the checkpoint, and what of it a module stores.

    Attributes:
        outputs: the module's outputs that are this layer's.
        shape: of the layer's weight, ``[out, in]``.
        source: the part of it that is stored, per dimension; empty for all of it.
        has_bias: whether this device adds the layer's bias; otherwise its bias is zero.
        order: reorders the rows of that part; None keeps them.
        is_transposed: whether the checkpoint has the weight as ``[in, out]``.
    """

    outputs: slice
    shape: tuple[int, int]
    source: tuple[Index, ...] = ()
    has_bias: bool = True
    order: Callable[[torch.Tensor], torch.Tensor] | None = None
    is_transposed: bool = False

    def ordered(
        self, transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """A conversion of the rows in their new order; None if there is nothing to do."""
        order = self.order
        if order is None or transform is None:
            return order or transform
        return lambda rows: transform(order(rows))

    def taken(self, weight: torch.Tensor) -> torch.Tensor:
        """What is stored of the layer's whole weight, ``[out, in]``, before its rows are reordered."""
        return weight[self.source] if self.source else weight

    def weight_slot(
        self,
        view: torch.Tensor,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        *,
        has_scale: bool = False,
    ) -> WeightSlot:
        """The slot of a tensor of the weight's shape."""
        transform = self.ordered(transform)
        if not self.is_transposed:
            return WeightSlot(view, (self.shape,), self.source, transform, has_scale)
        outputs, inputs = self.source or (slice(None), slice(None))
        return WeightSlot(view, (self.shape[::-1],), (inputs, outputs), _transposed(transform), has_scale)

    def output_slot(self, view: torch.Tensor, shapes: tuple[tuple[int, ...], ...]) -> WeightSlot:
        """The slot of a tensor with an entry per output of the layer, which comes first in all of its shapes."""
        return WeightSlot(view, shapes, self.source[:1], self.order)

    def bias_slot(self, view: torch.Tensor) -> WeightSlot:
        """The slot of the bias."""
        return WeightSlot(view, (self.shape[:1],), self.source[:1], self.order if self.has_bias else torch.zeros_like)


def _transposed(transform: Callable[[torch.Tensor], torch.Tensor] | None) -> Callable[[torch.Tensor], torch.Tensor]:
    def transpose(weight: torch.Tensor) -> torch.Tensor:
        weight = weight.T.contiguous()
        return weight if transform is None else transform(weight)

    return transpose


Slots = dict[str, tuple[WeightSlot, ...]]
"""Names in the checkpoint → where the tensor goes."""
