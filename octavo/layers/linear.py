"""The linear layer: one or several layers of a checkpoint as one GEMM."""

from collections.abc import Iterator, Mapping

import torch

from octavo.kernels import LinearOp
from octavo.layers.weights import sibling
from octavo.quantization.scheme import LinearScheme, LinearWeights
from octavo.quantization.slot import WeightSlot


class Linear(LinearWeights):
    """``y = x Wᵀ + b``; built by :meth:`octavo.layers.build.Build.linear`.

    Args:
        parts: the checkpoint's layers that are computed as one, and their numbers of outputs, which are concatenated in
            this order; names stand in for this layer's own.
    """

    keep_weight = False
    """Whether another module reads the weight (a tied embedding)."""

    def __init__(self, in_features: int, parts: Mapping[str, int], scheme: LinearScheme, *, bias: bool = False) -> None:
        super().__init__(in_features, sum(parts.values()))
        self.scheme = scheme
        self.packed: LinearOp | None = None  # the GEMM, if it holds a copy of the weight
        self._gemm: LinearOp | None = None
        self._parts = dict(parts)
        scheme.create(self, bias=bias)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        start = 0
        for part, size in self._parts.items():
            for leaf, slot in self.scheme.slots(self, slice(start, start + size)):
                yield f"{sibling(path, part)}.{leaf}", slot
            start += size

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`. A GEMM that reads the parameters themselves stays."""
        if not self.has_weight or (self._gemm is not None and self.packed is None):
            return
        self._gemm, is_copied = self.scheme.make_gemm(self)
        if is_copied:
            self.packed = self._gemm
            if not self.keep_weight:
                self.free_weight()

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., in] → [..., out]``, into ``out`` if it is given."""
        assert self._gemm is not None, "weights are used before they are finished"
        return self._gemm(x, out)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of the outputs: ``[T, in] → [T, out / 2]``."""
        assert self._gemm is not None, "weights are used before they are finished"
        return self._gemm.gated(x, activation)
