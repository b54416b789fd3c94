"""Value-by-value operations by the compiled kernels, with the bits of PyTorch's; recorded steps may contain them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

_NUMBERS = {"add": 0, "multiply": 1, "clamp": 2, "copy": 3, "soft_cap": 4}
_MAX_DIMS = 4

Place = Callable[[torch.Tensor], torch.Tensor]
"""Gives memory to a result of a tensor's form."""

aten = torch.ops.aten


def combine(
    native: NativeKernels,
    kind: str,
    x: torch.Tensor,
    to: torch.Tensor,
    y: torch.Tensor | float | None = None,
    upper: float = 0.0,
) -> None:
    """Write ``x + y``, ``x · y``, ``x`` bounded by ``y`` and ``upper``, ``x``, or ``y · tanh(x / y)`` to ``to``.

    Args:
        kind: ``add``, ``multiply``, ``clamp``, ``copy`` or ``soft_cap``.
        x: like the others of a type that the kernels know; of the shape of ``to`` or one that expands to it.
        to: of at most four dimensions; its memory may be that of ``x``.
    """
    second = y if isinstance(y, torch.Tensor) else None
    fill = [1] * (_MAX_DIMS - to.dim())
    strides = [fill + list(tensor.expand(to.shape).stride()) for tensor in (x, x if second is None else second, to)]
    native.combine(
        x.data_ptr(),
        0 if second is None else second.data_ptr(),
        to.data_ptr(),
        0.0 if y is None or second is not None else float(y),
        upper,
        *fill,
        *to.shape,
        *(stride for each in strides for stride in each),
        _NUMBERS[kind],
        TYPE_NUMBERS[x.dtype],
    )


def combined(
    native: NativeKernels, func: Any, args: Sequence[Any], place: Place = lambda form: form
) -> torch.Tensor | None:
    """The result of one of PyTorch's operations; None if the compiled kernels do not have it for these operands."""
    compute = _OPERATIONS.get(func)
    return None if compute is None else compute(native, place, *args)


def _pairwise(kind: str, *, in_place: bool, takes_numbers: bool = False) -> Callable[..., torch.Tensor | None]:
    def compute(native: NativeKernels, place: Place, x: torch.Tensor, y: Any) -> torch.Tensor | None:
        if isinstance(y, torch.Tensor):
            if y.dtype != x.dtype or not (x.dim() and y.dim()):
                return None
        elif not (takes_numbers and isinstance(y, (int, float))):
            return None
        shape = torch.broadcast_shapes(x.shape, y.shape) if isinstance(y, torch.Tensor) else x.shape
        to = _result(x, shape, None if in_place else place)
        if to is not None:
            combine(native, kind, x, to, y)
        return to

    return compute


def _bounded(*, in_place: bool) -> Callable[..., torch.Tensor | None]:
    def compute(
        native: NativeKernels, place: Place, x: torch.Tensor, lower: float | None = None, upper: float | None = None
    ) -> torch.Tensor | None:
        to = _result(x, x.shape, None if in_place else place)
        if to is not None:
            bounds = (-math.inf if lower is None else lower, math.inf if upper is None else upper)
            lowest, highest = torch.tensor(bounds, dtype=x.dtype).tolist()
            combine(native, "clamp", x, to, lowest, highest)
        return to

    return compute


def _joined(native: NativeKernels, place: Place, parts: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor | None:
    first = parts[0]
    dim %= max(first.dim(), 1)
    if any(part.dtype != first.dtype or part.dim() != first.dim() for part in parts):
        return None
    shape = list(first.shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    joined = _result(first, shape, place)
    if joined is not None:
        for part, to in zip(parts, joined.split([part.shape[dim] for part in parts], dim), strict=True):
            combine(native, "copy", part, to)
    return joined


def _result(x: torch.Tensor, shape: Sequence[int], place: Place | None) -> torch.Tensor | None:
    """Memory for a result, that of ``x`` without a place; None where the kernels or PyTorch's layout are others."""
    order = [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]
    if x.dtype not in TYPE_NUMBERS or len(shape) > _MAX_DIMS or order != sorted(order, reverse=True):
        return None
    if place is None:
        return x if list(shape) == list(x.shape) else None
    return place(x.new_empty(shape))


_OPERATIONS: dict[Any, Callable[..., torch.Tensor | None]] = {
    aten.add.Tensor: _pairwise("add", in_place=False),
    aten.add_.Tensor: _pairwise("add", in_place=True),
    aten.mul.Tensor: _pairwise("multiply", in_place=False, takes_numbers=True),
    aten.mul_.Tensor: _pairwise("multiply", in_place=True, takes_numbers=True),
    aten.clamp.default: _bounded(in_place=False),
    aten.clamp_.default: _bounded(in_place=True),
    aten.cat.default: _joined,
}
