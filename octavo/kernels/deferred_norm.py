"""A norm that the kernel computes which reads its result."""

from dataclasses import dataclass

import torch

from octavo.kernels.basic import add_rms_norm, rms_norm
from octavo.kernels.dispatch import device_function
from octavo.kernels.pair_sum import PairSum, add_rms_norm_of_pairs


@dataclass(frozen=True, slots=True)
class WeightedRows:
    """Rows times a norm's weight, not yet divided by their root mean square.

    Attributes:
        values: ``[M, N]``.
        squares: ``[M, P]`` float32, sums of squares of parts of the rows without the weight.
    """

    values: torch.Tensor
    squares: torch.Tensor


class DeferredNorm:
    """``rms_norm(x + residual)``, for layers whose first kernel norms what it reads.

    Args:
        x: ``[M, N]``; or pairs whose sum that is, with a residual.

    Attributes:
        residual: ``[M, N]``; None for none, and once the sum is there.
        weight: ``[N]``.
        weighted: what the kernel that computed the sum left of it; None if it left nothing.
    """

    def __init__(
        self,
        x: torch.Tensor | PairSum,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        weighted: WeightedRows | None = None,
    ) -> None:
        self._x = x
        self.residual = residual
        self.weight = weight
        self.eps = eps
        self.weighted = weighted
        self._normed: torch.Tensor | None = None

    @property
    def x(self) -> torch.Tensor:
        """``[M, N]``; the sum with the residual, once a kernel has computed it. Pairs are added up by a launch."""
        if isinstance(self._x, PairSum):
            self._x = self._x.rows()
        return self._x

    @property
    def pairs(self) -> PairSum | None:
        """The pairs whose sum ``x`` is, for kernels that add them up; None if it is there."""
        return self._x if isinstance(self._x, PairSum) and self._x.is_open else None

    @property
    def num_rows(self) -> int:
        """M."""
        return self._x.num_rows if isinstance(self._x, PairSum) else len(self._x)

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self._x.dtype

    @property
    def total(self) -> torch.Tensor:
        """``x + residual``, which the layer's kernels have computed."""
        assert self.residual is None, "nothing has read the norm"
        return self.x

    @property
    def is_computed(self) -> bool:
        """Whether the normed rows are there."""
        return self._normed is not None

    @property
    def is_single(self) -> bool:
        """Whether it is of a single row."""
        return self.num_rows == 1

    def settle(self, total: torch.Tensor, normed: torch.Tensor | None = None) -> None:
        """Note where a kernel writes the sum and, if it does, the normed rows."""
        self._x = total
        self.residual = None
        self._normed = normed

    def rows(self) -> torch.Tensor:
        """The normed rows, for what cannot norm them itself: computed by a launch of its own, once."""
        if self.residual is not None:
            self.settle(*self._add(self.residual))
        elif self._normed is None:
            self._normed = rms_norm(self.x, self.weight, self.eps)
        assert self._normed is not None, "it was computed now or before"
        return self._normed

    def _add(self, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum and its norm, by one launch."""
        if self.pairs is None:
            normed, total = add_rms_norm(self.x, residual, self.weight, self.eps)
        else:
            normed, total = add_rms_norm_of_pairs(*self.pairs.take(), residual, self.weight, self.eps)
        return total, normed


def rows_of(x: torch.Tensor | DeferredNorm) -> torch.Tensor:
    """Rows as they are, or the normed rows."""
    return x.rows() if isinstance(x, DeferredNorm) else x


@device_function
def defers_norms(device: torch.device, x: torch.Tensor) -> bool:
    """Whether the device has kernels that norm rows like ``x`` as they read them."""
    return False
