"""The interface of a GEMM with a prepared weight, which each device implements."""

from collections.abc import Callable
from typing import Protocol

import torch

from octavo.kernels.basic import gelu_tanh_and_mul, silu_and_mul

GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": silu_and_mul, "gelu_tanh": gelu_tanh_and_mul}
"""Gated activations by name, ``[..., 2N] → [..., N]``."""


class LinearOp(Protocol):
    """``x Wᵀ + b`` for one weight ``[out, in]``."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[T, in] → [T, out]``, into ``out`` if it is given."""
        ...

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of ``y = x Wᵀ + b``: ``[T, in] → [T, out / 2]``.

        Args:
            activation: a name in :data:`GATES`.
        """
        ...


class ComposedLinear:
    """A GEMM followed by a separate gate kernel."""

    def __init__(self, product: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._product = product

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._product(x) if out is None else out.copy_(self._product(x))

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """See :meth:`LinearOp.gated`."""
        return GATES[activation](self._product(x))
