"""The interface of a GEMM with a prepared weight, and its PyTorch reference."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from octavo.kernels.basic import gelu_tanh_and_mul, silu_and_mul
from octavo.kernels.deferred_norm import DeferredNorm, WeightedRows
from octavo.kernels.dispatch import device_function, kernel

GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": silu_and_mul, "gelu_tanh": gelu_tanh_and_mul}
"""Gated activations by name, ``[..., 2N] → [..., N]``."""


class LinearOp(ABC):
    """``x Wᵀ + b`` for one weight ``[out, in]``.

    Attributes:
        has_rows: whether :meth:`rows` works, so that a token embedding with this weight needs no memory of its own.
        widens: whether ``out`` may be float32 where ``x`` is narrower, and then gets the sums as they are.
        writes_strided: whether the rows of ``out`` may lie apart.
        memory: the weight's memory ``[out, in]`` if it was taken over: it holds other values now. None if it was not.
    """

    has_rows = False
    widens = False
    writes_strided = False
    memory: torch.Tensor | None = None

    @abstractmethod
    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., in] → [..., out]``, into ``out`` if it is given."""

    @abstractmethod
    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of ``y = x Wᵀ + b``: ``[T, in] → [T, out / 2]``.

        Args:
            activation: a name in :data:`GATES`.
        """

    def normed(self, norm: DeferredNorm, activation: str = "none") -> torch.Tensor | None:
        """``norm.rows() Wᵀ + b``, gated if there is an activation, by a kernel that settles the norm; None if none can.

        Args:
            activation: "none" or a name in :data:`GATES`.
        """
        return None

    def added(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> WeightedRows | None:
        """Add ``x Wᵀ + b`` to ``residual``, in its memory; None if no kernel does that, and nothing was done.

        Args:
            x: ``[M, in]``.
            residual: ``[M, out]``.
            weight: ``[out]``, of the norm that reads the sum.
        """
        return None

    def update(self, weight: torch.Tensor) -> bool:
        """Take a new weight ``[out, in]``, at the same addresses; False if another GEMM must be made for it."""
        return False

    def refresh(self) -> None:  # noqa: B027 - most read nothing but the tensors themselves
        """Called when the tensors that it reads have new values: what was made from them is made again, in place."""

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, ``[T]`` int64 → ``[T, in]``; see :attr:`has_rows`."""
        raise TypeError(f"{type(self).__name__} does not keep the weight's rows")


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Rows rounded to float8, as :func:`octavo.kernels.scaled.quantize_rows` has them.

    Attributes:
        values: ``[M, N]`` float8.
        scales: ``[M, 1]`` float32.
        dtype: of the rows before.
    """

    values: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype

    @classmethod
    def empty(cls, num_rows: int, size: int, dtype: torch.dtype, device: torch.device) -> "RoundedRows":
        """Memory for so many."""
        values = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=device)
        return cls(values, torch.empty(num_rows, 1, dtype=torch.float32, device=device), dtype)


class RoundingLinearOp(LinearOp):
    """A GEMM of rows rounded to float8, which can round its own outputs for another such GEMM and spare a launch."""

    @abstractmethod
    def of_rounded(self, x: RoundedRows) -> torch.Tensor:
        """``[M, in] → [M, out]`` of rows that are rounded already."""

    @abstractmethod
    def gated_rounded(self, x: torch.Tensor | DeferredNorm, activation: str) -> RoundedRows | None:
        """:meth:`gated`, rounded; None if no kernel does that, and nothing was done.

        Args:
            x: ``[M, in]``; a norm is settled.
        """


class ComposedLinear(LinearOp):
    """A GEMM followed by a separate gate kernel."""

    writes_strided = True

    def __init__(self, product: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._product = product

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._product(x) if out is None else out.copy_(self._product(x))

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
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
