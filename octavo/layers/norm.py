"""Norms over the last dimension, alone and after an addition to the residual stream."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from octavo import kernels
from octavo.kernels import DeferredNorm, DeferredOutput, output_of
from octavo.quantization.slot import WeightSlot


class Norm(nn.Module, ABC):
    """A norm over the last dimension."""

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., size]`` in and out."""

    @abstractmethod
    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add ``x`` to the residual stream; returns the normed sum and the sum."""

    def enter(
        self, x: torch.Tensor | DeferredOutput, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`add` at a layer's beginning, where a residual of None means that ``x`` is the stream itself."""
        x = output_of(x)
        return (self(x), x) if residual is None else self.add(x, residual)

    def into(
        self, module: nn.Module, x: torch.Tensor | DeferredOutput, residual: torch.Tensor | None, *args: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What ``module`` makes of the normed sum, and the sum; see :meth:`enter`."""
        normed, residual = self.enter(x, residual)
        return module(normed, *args), residual


class NoNorm(Norm):
    """What stands in the place of a norm in models that have none there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + x
        return total, total


class RMSNorm(Norm):
    """Root-mean-square norm over the last dimension (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)

    def into(
        self, module: nn.Module, x: torch.Tensor | DeferredOutput, residual: torch.Tensor | None, *args: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`Norm.into`; modules with ``takes_deferred_norms`` may norm rows as they read them."""
        norm = self._defer(x, residual) if getattr(module, "takes_deferred_norms", False) else None
        if norm is None:
            return super().into(module, x, residual, *args)
        y = module(norm, *args)
        return y, norm.total

    def _defer(self, x: torch.Tensor | DeferredOutput, residual: torch.Tensor | None) -> DeferredNorm | None:
        """The norm of the sum, for the layer that reads it; None if a launch of its own computes it."""
        if isinstance(x, DeferredOutput):
            assert residual is not None, "an output is added to something"
            norm = x.add_to(residual, self.weight, self.eps)
            if norm is not None:
                return norm
        x = output_of(x)
        return DeferredNorm(x, residual, self.weight, self.eps) if kernels.defers_norms(x.device, x) else None


class UnitRMSNorm(RMSNorm):
    """An RMS norm without a weight: kernels read ones, which no checkpoint has."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        del self.weight
        self.register_buffer("weight", torch.ones(size), persistent=False)


class UnitOffsetRMSNorm(RMSNorm):
    """An RMS norm whose weight is stored as the difference from one (Gemma).

    The weight is in float32, so that small differences keep their precision.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        self.weight = nn.Parameter(torch.ones(size, dtype=torch.float32), requires_grad=False)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        yield f"{path}.weight", WeightSlot(self.weight.data, transform=_plus_one)


class LayerNorm(Norm):
    """Layer norm over the last dimension (arXiv:1607.06450).

    Args:
        has_weight, has_bias: whether the normed values are multiplied by a weight, and a bias is added to them.
    """

    def __init__(self, size: int, eps: float, *, has_weight: bool = True, has_bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size), requires_grad=False) if has_weight else None
        self.bias = nn.Parameter(torch.zeros(size), requires_grad=False) if has_bias else None
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class UnitOffsetLayerNorm(LayerNorm):
    """A layer norm whose weight is stored as the difference from one (Nemotron)."""

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        assert self.weight is not None and self.bias is not None, "it has both"
        yield f"{path}.weight", WeightSlot(self.weight.data, transform=_plus_one)
        yield f"{path}.bias", WeightSlot(self.bias.data)


def _plus_one(weight: torch.Tensor) -> torch.Tensor:
    return weight.float() + 1.0
