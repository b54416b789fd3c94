"""Value-by-value operations by the compiled kernels, with the bits of PyTorch's; recorded steps may contain them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

_NUMBERS = {
    "add": 0,
    "multiply": 1,
    "clamp": 2,
    "copy": 3,
    "soft_cap": 4,
    "subtract": 5,
    "divide": 6,
    "square_root": 7,
    "sigmoid": 8,
    "softplus": 9,
}
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
    """Write a function of each value of ``x``, and of ``y`` for some functions, to ``to``.

    Args:
        kind: ``add``, ``subtract``, ``multiply``, ``divide``, ``clamp`` (to ``y`` and ``upper``), ``copy``,
            ``soft_cap`` (``y · tanh(x / y)``), ``square_root``, ``sigmoid`` or ``softplus``.
        x: like the others of a type that the kernels know; of the shape of ``to`` or one that expands to it.
        to: of at most four dimensions; its memory may be that of ``x``. Only a copy may have another type than ``x``.
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
        TYPE_NUMBERS[to.dtype],
    )


def can_copy(x: torch.Tensor, to: torch.Tensor) -> bool:
    """Whether :func:`combine` can copy values from ``x`` to ``to``."""
    return x.dtype in TYPE_NUMBERS and to.dtype in TYPE_NUMBERS and to.dim() <= _MAX_DIMS


def combined(
    native: NativeKernels, func: Any, args: Sequence[Any], place: Place = lambda form: form
) -> torch.Tensor | None:
    """The result of one of PyTorch's operations; None if the compiled kernels do not have it for these operands."""
    compute = _OPERATIONS.get(func)
    return None if compute is None else compute(native, place, *args)


def promoted(native: NativeKernels, func: Any, args: Sequence[Any], place: Place) -> Sequence[Any]:
    """Arguments of an operation; those of two types, of which PyTorch would compute in a wider one, in that one."""
    if func not in _PROMOTING or len(args) != 2 or not isinstance(args[1], torch.Tensor):
        return args
    x, y = args
    if x.dtype == y.dtype or not {x.dtype, y.dtype} <= TYPE_NUMBERS.keys() or not (x.dim() and y.dim()):
        return args
    wide = torch.promote_types(x.dtype, y.dtype)
    return [_converted(native, place, each, wide) for each in (x, y)]


def _converted(native: NativeKernels, place: Place, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.dtype == dtype or x.dim() > _MAX_DIMS:
        return x
    converted = place(torch.empty_like(x, dtype=dtype))
    combine(native, "copy", x, converted)
    return converted


def _pairwise(kind: str, *, in_place: bool) -> Callable[..., torch.Tensor | None]:
    def compute(native: NativeKernels, place: Place, x: torch.Tensor, y: Any) -> torch.Tensor | None:
        if isinstance(y, torch.Tensor):
            if y.dtype != x.dtype or not (x.dim() and y.dim() and (_is_ordered(y) or not _repeats(x))):
                return None
            shape = torch.broadcast_shapes(x.shape, y.shape)
        elif isinstance(y, (int, float)):
            shape = x.shape
            if kind in ("add", "subtract") and x.dtype in TYPE_NUMBERS:
                y = torch.tensor(y, dtype=x.dtype).item()  # as PyTorch does
        else:
            return None
        to = _result(x, shape, None if in_place else place)
        if to is not None:
            combine(native, kind, x, to, y)
        return to

    return compute


def _alone(kind: str, y: float | None = None, upper: float = 0.0) -> Callable[..., torch.Tensor | None]:
    def compute(native: NativeKernels, place: Place, x: torch.Tensor) -> torch.Tensor | None:
        to = _result(x, x.shape, place)
        if to is not None:
            combine(native, kind, x, to, y, upper)
        return to

    return compute


def _squared(native: NativeKernels, place: Place, x: torch.Tensor) -> torch.Tensor | None:
    to = _result(x, x.shape, place)
    if to is not None:
        combine(native, "multiply", x, to, x)
    return to


def _copied(native: NativeKernels, place: Place, x: torch.Tensor) -> torch.Tensor | None:
    to = torch.empty_like(x)
    if not can_copy(x, to):
        return None
    to = place(to)
    combine(native, "copy", x, to)
    return to


def _filled(
    native: NativeKernels, place: Place, to: torch.Tensor, x: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor | None:
    if not can_copy(x, to) or not to.dim() >= x.dim() > 0:
        return None
    combine(native, "copy", x, to)
    return to


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
    if x.dtype not in TYPE_NUMBERS or len(shape) > _MAX_DIMS or not _is_ordered(x):
        return None
    if place is None:
        return x if list(shape) == list(x.shape) and not _repeats(x) else None
    return place(x.new_empty(shape))


def _is_ordered(x: torch.Tensor) -> bool:
    """Whether no dimension has a smaller stride than a later one; those that repeat values do not count."""
    order = [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1 and stride]
    return order == sorted(order, reverse=True)


def _repeats(x: torch.Tensor) -> bool:
    return any(not stride and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))


def _stacked(native: NativeKernels, place: Place, parts: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor | None:
    return _joined(native, place, [part.unsqueeze(dim) for part in parts], dim)


_OPERATIONS: dict[Any, Callable[..., torch.Tensor | None]] = {
    aten.add.Tensor: _pairwise("add", in_place=False),
    aten.add_.Tensor: _pairwise("add", in_place=True),
    aten.sub.Tensor: _pairwise("subtract", in_place=False),
    aten.mul.Tensor: _pairwise("multiply", in_place=False),
    aten.mul_.Tensor: _pairwise("multiply", in_place=True),
    aten.div.Tensor: _pairwise("divide", in_place=False),
    aten.clamp.default: _bounded(in_place=False),
    aten.clamp_.default: _bounded(in_place=True),
    aten.relu.default: _alone("clamp", 0.0, math.inf),
    aten.neg.default: _alone("multiply", -1.0),
    aten.square.default: _squared,
    aten.clone.default: _copied,
    aten.copy_.default: _filled,
    aten.cat.default: _joined,
    aten.stack.default: _stacked,
}
_PROMOTING = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}
