"""Means of rows whose bits do not depend on the number of rows."""

import torch
from torch import nn

from octavo.kernels.routing import LogitsOp, make_logits


class RowMean(nn.Module):
    """The mean over the last dimension, in float32: a GEMM with ones, as PyTorch's sums have an order for each shape.

    Args:
        size: of a row, or of this device's part of it.
    """

    _ones: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("_ones", torch.ones(1, size, dtype=torch.float32), persistent=False)
        self._op: LogitsOp | None = None

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        self._op = make_logits(self._ones, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, size] → [T, 1]`` float32."""
        assert self._op is not None, "finish_weights() was called"
        return self._op(x) / self._ones.shape[1]
