"""What is computed once it is known what it is added to: a linear layer's output, or the sum of a token's experts."""

from abc import ABC, abstractmethod

import torch

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import LinearOp, RoundedRows, RoundingLinearOp
from octavo.kernels.pair_sum import PairSum


class DeferredOutput(ABC):
    """Rows that a norm adds to the residual stream."""

    @abstractmethod
    def rows(self) -> torch.Tensor:
        """The rows, for what adds them in another way: computed once, and not after :meth:`add_to`."""

    @abstractmethod
    def add_to(self, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> DeferredNorm | None:
        """Add the rows to the stream, in its memory, or leave that to the norm's kernel.

        Args:
            residual: ``[M, N]``.
            weight: ``[N]``, of the norm that follows, as its ``eps``.

        Returns:
            The norm of the sum; None if it cannot be deferred, and nothing was done.
        """


class GemmOutput(DeferredOutput):
    """``gemm(x)``: some GEMMs add it to the stream themselves, and spare a launch."""

    def __init__(self, gemm: LinearOp, x: torch.Tensor | RoundedRows) -> None:
        self._gemm = gemm
        self._x = x
        self._rows: torch.Tensor | None = None

    def rows(self) -> torch.Tensor:
        """See :meth:`DeferredOutput.rows`."""
        if self._rows is None:
            self._rows = product(self._gemm, self._x)
        return self._rows

    def add_to(self, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> DeferredNorm | None:
        """See :meth:`DeferredOutput.add_to`."""
        x = self._x
        weighted = None if isinstance(x, RoundedRows) else self._gemm.added(x, residual, weight)
        return None if weighted is None else DeferredNorm(residual, None, weight, eps, weighted)


class DeferredSum(DeferredOutput):
    """The sum of each token's experts: the kernel that norms or rounds the stream adds up its pairs as well."""

    def __init__(self, pairs: PairSum) -> None:
        self._pairs = pairs

    def rows(self) -> torch.Tensor:
        """See :meth:`DeferredOutput.rows`."""
        return self._pairs.rows()

    def add_to(self, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> DeferredNorm | None:
        """See :meth:`DeferredOutput.add_to`."""
        return DeferredNorm(self._pairs, residual, weight, eps)


def product(gemm: LinearOp, x: torch.Tensor | RoundedRows) -> torch.Tensor:
    """``gemm(x)``, of rows as they are or of those that were rounded for this GEMM."""
    if isinstance(x, torch.Tensor):
        return gemm(x)
    assert isinstance(gemm, RoundingLinearOp), "rows are rounded for nothing else"
    return gemm.of_rounded(x)


def output_of(x: torch.Tensor | DeferredOutput) -> torch.Tensor:
    """A tensor as it is, or the output."""
    return x.rows() if isinstance(x, DeferredOutput) else x
