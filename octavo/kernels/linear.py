"""The interface of a GEMM with a prepared weight, and its PyTorch reference."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F

from octavo.kernels.basic import gelu_tanh_and_mul, silu_and_mul
from octavo.kernels.dispatch import device_function, kernel

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


@kernel
def linear(weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool) -> tuple[LinearOp, bool]:
    """The fastest form of ``x @ weight.T + bias`` for a constant weight ``[out, in]``.

    Args:
        deterministic: whether a row's bits must not depend on the other rows.

    Returns:
        The operation, and whether it holds a copy, so that the weight itself is no longer read.
    """
    return ComposedLinear(partial(F.linear, weight=weight, bias=bias)), False


@device_function
def padded_rows(device: torch.device, num_rows: int) -> int:
    """The number of rows to pad ``num_rows`` to, so that few distinct sizes occur."""
    return num_rows
