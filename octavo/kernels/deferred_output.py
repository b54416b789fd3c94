"""A linear layer's output that is computed once it is known what it is added to."""

import torch

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import LinearOp, RoundedRows, RoundingLinearOp


class DeferredOutput:
    """``gemm(x)``, which a norm adds to the residual stream: some GEMMs do that themselves, and spare a launch."""

    def __init__(self, gemm: LinearOp, x: torch.Tensor | RoundedRows) -> None:
        self._gemm = gemm
        self._x = x
        self._rows: torch.Tensor | None = None

    def rows(self) -> torch.Tensor:
        """The output, for what adds it in another way: computed once, and not after :meth:`add_to`."""
        if self._rows is None:
            self._rows = product(self._gemm, self._x)
        return self._rows

    def add_to(self, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> DeferredNorm | None:
        """Add the output to the stream, in its memory.

        Args:
            residual: ``[M, N]``.
            weight: ``[N]``, of the norm that follows, as its ``eps``.

        Returns:
            The norm of the sum; None if the GEMM cannot, and nothing was done.
        """
        x = self._x
        weighted = None if isinstance(x, RoundedRows) else self._gemm.added(x, residual, weight)
        return None if weighted is None else DeferredNorm(residual, None, weight, eps, weighted)


def product(gemm: LinearOp, x: torch.Tensor | RoundedRows) -> torch.Tensor:
    """``gemm(x)``, of rows as they are or of those that were rounded for this GEMM."""
    if isinstance(x, torch.Tensor):
        return gemm(x)
    assert isinstance(gemm, RoundingLinearOp), "rows are rounded for nothing else"
    return gemm.of_rounded(x)


def output_of(x: torch.Tensor | DeferredOutput) -> torch.Tensor:
    """A tensor as it is, or the output."""
    return x.rows() if isinstance(x, DeferredOutput) else x
