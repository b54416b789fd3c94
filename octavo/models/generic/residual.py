"""The residual stream of the library's layers, whose additions share a kernel with the norms that follow."""

from typing import Any

import torch
from torch import nn

from octavo.kernels import DeferredNorm
from octavo.layers.norm import Norm
from octavo.models.generic.lazy import LazyTensor, NormedRow, value_of

_ADDITIONS = {torch.add, torch.Tensor.add}


class ResidualStream(LazyTensor):
    """``residual + addend``, computed when it is read: in the kernel of a norm or its reader, or else by itself.

    The library's code handles it as any tensor. A sum of it and another tensor of its form is a stream again.
    """

    _residual: torch.Tensor
    _addend: torch.Tensor | None
    _norm: DeferredNorm | None  # which computes the sum

    @staticmethod
    def of(residual: torch.Tensor, addend: torch.Tensor | None = None) -> "ResidualStream":
        """The stream of a sum.

        Args:
            addend: of the residual's shape and type; None for a stream that is the residual itself.
        """
        stream = torch.Tensor._make_subclass(ResidualStream, residual)
        stream.form = stream._residual = residual
        stream._addend, stream._norm = addend, None
        return stream

    def value(self) -> torch.Tensor:
        """The sum."""
        if self._norm is not None:
            if self._norm.residual is not None:  # nothing has read the normed sum
                self._norm.rows()
            self._residual, self._norm = self._norm.total.view(self.form.shape), None
        if self._addend is not None:
            self._residual, self._addend = self._residual + self._addend, None
        return self._residual

    def normed(self, norm: Norm, *, defers: bool = False) -> torch.Tensor:
        """The sum's norm; if the sum is still to be computed, it takes the memory of its parts.

        Args:
            defers: whether to leave both to the kernel that reads the norm, if the device has such kernels.
        """
        if self._addend is None:
            alone: torch.Tensor = norm(self.value())
            return alone
        row = NormedRow.defer(norm, self._addend, self._residual) if defers else None
        if row is not None:
            self._addend, self._norm = None, row.deferred
            return row
        normed, self._residual = norm.add(self._addend, self._residual)
        self._addend = None
        return normed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ADDITIONS and len(args) == 2 and not kwargs:
            stream, addend = args if isinstance(args[0], cls) else reversed(args)
            residual, addend = stream.value(), value_of(addend)
            if _are_alike(residual, addend):
                return cls.of(residual, addend)
        return super().__torch_function__(func, types, args, kwargs)


def _are_alike(residual: torch.Tensor, addend: Any) -> bool:
    return (
        isinstance(addend, torch.Tensor)
        and addend.shape == residual.shape
        and addend.dtype == residual.dtype
        and residual.is_contiguous()
    )


def join_additions(base: nn.Module, joined: frozenset[str], deferrable: frozenset[str]) -> None:
    """Let norms, or what reads their results, compute the sums that norms read, and layers pass sums on.

    Args:
        joined: paths of norms whose sums' parts nothing else reads.
        deferrable: paths of norms that may be left to what reads their results; see :class:`Trace`.
    """
    norms = {path: module for path, module in base.named_modules() if isinstance(module, Norm)}
    if not joined & norms.keys():
        return
    for path, norm in norms.items():
        _read_streams(norm, joins=path in joined, defers=path in deferrable)
    for module in list(base.modules()):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(isinstance(child, Norm) for child in layer.children()):
                    _take_stream(layer)


def _read_streams(norm: Norm, *, joins: bool, defers: bool) -> None:
    alone = norm.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if joins and isinstance(x, ResidualStream):
            return x.normed(norm, defers=defers)
        x = value_of(x)
        row = NormedRow.defer(norm, x) if defers else None
        return alone(x) if row is None else row

    vars(norm)["forward"] = forward


def _take_stream(layer: nn.Module) -> None:
    """Let a layer get its input as a stream."""
    usual = layer.forward

    def forward(*args: Any, **options: Any) -> Any:
        if args and type(args[0]) is torch.Tensor:
            args = ResidualStream.of(args[0]), *args[1:]
        return usual(*args, **options)

    vars(layer)["forward"] = forward
