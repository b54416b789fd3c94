"""A linear layer's output that is computed once it is known what it is added to."""

import torch

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import LinearOp


class DeferredOutput:
    """``gemm(x)``, which a norm adds to the residual stream: some GEMMs do that themselves, and spare a launch."""

    def __init__(self, gemm: LinearOp, x: torch.Tensor) -> None:
        self._gemm = gemm
        self._x = x
        self._rows: torch.Tensor | None = None

    def rows(self) -> torch.Tensor:
        """The output, for what adds it in another way: computed once, and not after :meth:`add_to`."""
        if self._rows is None:
            self._rows = self._gemm(self._x)
        return self._rows

    def add_to(self, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> DeferredNorm | None:
        """Add the output to the stream, in its memory.

        Args:
            residual: ``[M, N]``.
            weight: ``[N]``, of the norm that follows, as its ``eps``.

        Returns:
            The norm of the sum; None if the GEMM cannot, and nothing was done.
        """
        weighted = self._gemm.added(self._x, residual, weight)
        return None if weighted is None else DeferredNorm(residual, None, weight, eps, weighted)


def output_of(x: torch.Tensor | DeferredOutput) -> torch.Tensor:
    """A tensor as it is, or the output."""
    return x.rows() if isinstance(x, DeferredOutput) else x
