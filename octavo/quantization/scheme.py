"""How a linear layer's weights are stored, loaded and applied."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from octavo.kernels import LinearOp, linear


class LinearScheme(ABC):
    """A storage format of a weight ``[out, in]``."""

    @abstractmethod
    def create(self, module: nn.Module, in_features: int, out_features: int, bias: bool) -> None:
        """Register the parameters that a checkpoint fills."""

    @abstractmethod
    def finalize(self, module: nn.Module, *, keep_weight: bool) -> LinearOp:
        """Called once the parameters are loaded.

        Args:
            keep_weight: keep the parameter in place, since another module reads it (a tied embedding).

        Returns:
            The layer's GEMM, ``[..., in] → [..., out]``.
        """


class PlainScheme(LinearScheme):
    """Weights in the compute type, as in the checkpoint.

    Args:
        deterministic: a row's bits must not depend on the other rows.
    """

    def __init__(self, *, deterministic: bool = False) -> None:
        self._deterministic = deterministic

    def create(self, module: nn.Module, in_features: int, out_features: int, bias: bool) -> None:
        module.register_parameter("weight", _empty(out_features, in_features))
        module.register_parameter("bias", _empty(out_features) if bias else None)

    def finalize(self, module: nn.Module, *, keep_weight: bool) -> LinearOp:
        weight, bias = module.weight, module.bias
        assert isinstance(weight, nn.Parameter)
        assert bias is None or isinstance(bias, nn.Parameter)
        product, is_copied = linear(weight.data, None if bias is None else bias.data, deterministic=self._deterministic)
        if is_copied and not keep_weight:
            module.weight = nn.Parameter(weight.data.new_empty(0), requires_grad=False)
        return product


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)
