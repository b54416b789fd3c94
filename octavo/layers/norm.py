"""RMS norms."""

from collections.abc import Iterator

import torch
from torch import nn

from octavo import kernels
from octavo.quantization.slot import WeightSlot


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., size]`` in and out."""
        return kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add ``x`` to the residual stream; returns the normed sum and the sum."""
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)


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


def _plus_one(weight: torch.Tensor) -> torch.Tensor:
    return weight.float() + 1.0
