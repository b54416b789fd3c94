"""The residual stream of the library's layers, whose additions share a kernel with the norms that follow."""

from typing import Any

import torch
from torch import nn

from octavo.layers.norm import Norm

_ADDITIONS = {torch.add, torch.Tensor.add}
_FORMS = {
    torch.Tensor.dim,
    torch.Tensor.size,
    *(getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "ndim", "shape")),
}
"""What a sum has before it is computed."""


class ResidualStream(torch.Tensor):
    """``residual + addend``, computed when it is read: in the kernel of a norm, or else by itself.

    The library's code handles it as any tensor. A sum of it and another tensor of its form is a stream again.
    """

    _residual: torch.Tensor
    _addend: torch.Tensor | None

    @staticmethod
    def of(residual: torch.Tensor, addend: torch.Tensor | None = None) -> "ResidualStream":
        """The stream of a sum.

        Args:
            addend: of the residual's shape and type; None for a stream that is the residual itself.
        """
        stream = torch.Tensor._make_subclass(ResidualStream, residual)
        stream._residual, stream._addend = residual, addend
        return stream

    def total(self) -> torch.Tensor:
        """The sum."""
        if self._addend is not None:
            self._residual, self._addend = self._residual + self._addend, None
        return self._residual

    def normed(self, norm: Norm) -> torch.Tensor:
        """The sum's norm; if the sum is still to be computed, it takes the memory of its parts."""
        if self._addend is None:
            normed: torch.Tensor = norm(self._residual)
        else:
            normed, self._residual = norm.add(self._addend, self._residual)
            self._addend = None
        return normed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ADDITIONS and len(args) == 2 and not kwargs:
            stream, addend = args if isinstance(args[0], cls) else reversed(args)
            residual, addend = stream.total(), _total(addend)
            if _are_alike(residual, addend):
                return cls.of(residual, addend)
        if func in _FORMS:
            return func(args[0]._residual, *args[1:])
        return func(*map(_total, args), **{name: _total(value) for name, value in (kwargs or {}).items()})


def _total(value: Any) -> Any:
    """A stream's sum, also inside of lists; other values as they are."""
    if isinstance(value, ResidualStream):
        return value.total()
    return type(value)(map(_total, value)) if type(value) in (list, tuple) else value


def _are_alike(residual: torch.Tensor, addend: Any) -> bool:
    return (
        isinstance(addend, torch.Tensor)
        and addend.shape == residual.shape
        and addend.dtype == residual.dtype
        and residual.is_contiguous()
    )


def join_additions(base: nn.Module, joined: frozenset[str]) -> None:
    """Let norms compute the sums that they read, and layers pass sums on.

    Args:
        joined: paths of norms whose sums' parts nothing else reads.
    """
    norms = {path: module for path, module in base.named_modules() if isinstance(module, Norm)}
    if not joined & norms.keys():
        return
    for path, norm in norms.items():
        _read_streams(norm, joins=path in joined)
    for module in list(base.modules()):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(isinstance(child, Norm) for child in layer.children()):
                    _take_stream(layer)


def _read_streams(norm: Norm, *, joins: bool) -> None:
    alone = norm.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if joins and isinstance(x, ResidualStream):
            return x.normed(norm)
        return alone(_total(x))

    vars(norm)["forward"] = forward


def _take_stream(layer: nn.Module) -> None:
    """Let a layer get its input as a stream."""
    usual = layer.forward

    def forward(*args: Any, **options: Any) -> Any:
        if args and type(args[0]) is torch.Tensor:
            args = ResidualStream.of(args[0]), *args[1:]
        return usual(*args, **options)

    vars(layer)["forward"] = forward
