"""GEMMs of heads: each head's vectors times a constant weight of its own."""

from abc import ABC, abstractmethod

import torch

from octavo.kernels.dispatch import kernel


class HeadLinear(ABC):
    """``y[:, h] = x[:, h] W[h]ᵀ`` for a constant weight ``[H, out, in]``.

    Attributes:
        is_copy: whether it holds a copy of the weight, which is no longer read then.
    """

    is_copy = False

    @abstractmethod
    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """``[T, H, in] → [T, H, out]``, into ``out``, which is returned; vectors may lie apart in both."""

    def update(self, weight: torch.Tensor) -> None:  # noqa: B027 - most read the weight where it is
        """Take a new weight, at the same addresses."""


class PlainHeadLinear(HeadLinear):
    """By PyTorch, which reads the weight where it is."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.bmm(x.transpose(0, 1), self.weight.transpose(1, 2), out=out.transpose(0, 1))
        return out


@kernel
def head_linear(weight: torch.Tensor) -> HeadLinear:
    """The fastest form of the GEMMs with a weight ``[H, out, in]``, of any strides."""
    return PlainHeadLinear(weight)
