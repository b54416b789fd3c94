"""Tensors that the library's code handles before they are computed."""

from abc import abstractmethod
from typing import Any

import torch

from octavo import kernels
from octavo.kernels import DeferredNorm
from octavo.layers.norm import Norm, RMSNorm

_FORMS = {
    torch.Tensor.dim,
    torch.Tensor.size,
    *(getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "ndim", "shape")),
}
"""What a tensor has before it is computed."""

_VIEWS = {torch.Tensor.view, torch.Tensor.reshape, torch.reshape}


class LazyTensor(torch.Tensor):
    """A tensor that is computed when it is read.

    Attributes:
        form: of its shape and type, on its device.
    """

    form: torch.Tensor

    @abstractmethod
    def value(self) -> torch.Tensor:
        """The tensor, computed."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FORMS:
            return func(args[0].form, *args[1:])
        return func(*map(value_of, args), **{name: value_of(value) for name, value in (kwargs or {}).items()})


def value_of(value: Any) -> Any:
    """What a lazy tensor stands for, also inside of lists; other values as they are."""
    if isinstance(value, LazyTensor):
        return value.value()
    return type(value)(map(value_of, value)) if type(value) in (list, tuple) else value


class NormedRow(LazyTensor):
    """A normed row that the kernel of a linear layer or router computes; where other code reads it, the norm's own.

    Views with rows of the same length are such tensors again, of the same norm.
    """

    deferred: DeferredNorm

    @staticmethod
    def of(deferred: DeferredNorm, form: torch.Tensor) -> "NormedRow":
        """A norm's result in the shape of ``form``."""
        # Without memory: code that passes over __torch_function__ must not take other values for the row's.
        row = torch.Tensor._make_subclass(NormedRow, torch.empty_like(form, device="meta"))
        row.deferred, row.form = deferred, form
        return row

    @staticmethod
    def defer(norm: Norm, x: torch.Tensor, residual: torch.Tensor | None = None) -> "NormedRow | None":
        """The norm of ``x + residual``, ``[..., N]``; None if the device's kernels do not norm it as they read it."""
        rows = x.reshape(-1, x.shape[-1])
        if not isinstance(norm, RMSNorm) or len(rows) != 1 or not kernels.defers_norms(x.device, rows):
            return None
        others = None if residual is None else residual.reshape(rows.shape)
        return NormedRow.of(DeferredNorm(rows.contiguous(), others, norm.weight, norm.eps), x)

    def value(self) -> torch.Tensor:
        return self.deferred.rows().view(self.form.shape)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _VIEWS and not kwargs:
            row, *shape = args
            form = func(row.form, *shape)
            if (form.dtype, form.shape[-1:]) == (row.form.dtype, row.form.shape[-1:]):
                return cls.of(row.deferred, form)
        return super().__torch_function__(func, types, args, kwargs)


def as_rows(x: torch.Tensor) -> torch.Tensor | DeferredNorm:
    """``[..., N] → [T, N]``; of a normed row that is not computed yet, its norm."""
    if isinstance(x, NormedRow) and not x.deferred.is_computed:
        return x.deferred
    return value_of(x).reshape(-1, x.shape[-1])
