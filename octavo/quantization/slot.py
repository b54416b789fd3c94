"""Where a checkpoint's tensors go: what a module tells a loader about its parameters."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

FLOAT8_TYPES = (torch.float8_e4m3fn,)
"""Types whose values mean nothing without their scales."""


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """The destination of a checkpoint's tensor, or of a part of it.

    Attributes:
        view: the destination, a view into a parameter; its address stays the same when weights are updated.
        shapes: shapes that the checkpoint's tensor may have, the usual one first; empty for the view's.
        source_slice: the part of the tensor that goes here, per dimension; empty for all of it.
        transform: converts that part, on the view's device, into the view's shape; None converts only the type.
        has_scale: whether the tensor's values mean nothing without a scale, which has a slot of its own.
        raw_type: the type of a GGUF tensor whose rows of bytes go here as they are, ``[out, bytes]`` uint8; empty for
            its values.
    """

    view: torch.Tensor
    shapes: tuple[tuple[int, ...], ...] = ()
    source_slice: tuple[slice, ...] = ()
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    has_scale: bool = False
    raw_type: str = ""

    @property
    def source_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the checkpoint's tensor may have, the usual one first."""
        return self.shapes or (tuple(self.view.shape),)

    @property
    def is_direct(self) -> bool:
        """Whether the tensor's values, converted in type, are the view's, one after another."""
        return self.transform is None and not self.source_slice and self.view.is_contiguous()

    @property
    def whole_rows(self) -> slice | None:
        """The rows of the tensor that are the view's values, converted in type, if it is some rows and nothing else."""
        columns = tuple(slice(0, size) for size in self.source_shapes[0][1:])
        is_rows = self.transform is None and self.source_slice and self.view.is_contiguous()
        return self.source_slice[0] if is_rows and self.source_slice[1:] in ((), columns) else None

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether a checkpoint's tensor may have a type: values that need scales go where scales are, and no others."""
        return (dtype in FLOAT8_TYPES) == self.has_scale

    def fill(self, tensor: torch.Tensor) -> None:
        """Store a whole tensor of the checkpoint, which is on the view's device."""
        part = tensor[self.source_slice] if self.source_slice else tensor
        part = part if self.transform is None else self.transform(part)
        self.view.copy_(part.view(self.view.shape))


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A linear layer of the checkpoint, and what of it a module stores.

    Attributes:
        outputs: the module's outputs that are this layer's.
        shape: of the checkpoint's weight, ``[out, in]``.
        source: the part of it that is stored, per dimension; empty for all of it.
        has_bias: whether this device adds the layer's bias; otherwise its bias is zero.
    """

    outputs: slice
    shape: tuple[int, int]
    source: tuple[slice, ...] = ()
    has_bias: bool = True

    def weight_slot(
        self,
        view: torch.Tensor,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        *,
        has_scale: bool = False,
    ) -> WeightSlot:
        """The slot of a tensor of the weight's shape."""
        return WeightSlot(view, (self.shape,), self.source, transform, has_scale)

    def output_slot(self, view: torch.Tensor, shapes: tuple[tuple[int, ...], ...]) -> WeightSlot:
        """The slot of a tensor with an entry per output of the layer, which comes first in all of its shapes."""
        return WeightSlot(view, shapes, self.source[:1])

    def bias_slot(self, view: torch.Tensor) -> WeightSlot:
        """The slot of the bias."""
        return WeightSlot(view, (self.shape[:1],), self.source[:1], None if self.has_bias else torch.zeros_like)


Slots = dict[str, tuple[WeightSlot, ...]]
"""Names in the checkpoint → where the tensor goes."""
