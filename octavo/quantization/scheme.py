"""How a linear layer's weights are stored, loaded and applied."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from octavo.kernels import LinearOp, linear
from octavo.quantization.slot import WeightSlot


class LinearWeights(nn.Module):
    """A linear layer as schemes see it: its sizes, and the parameters that its scheme registers."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features


class LinearScheme(ABC):
    """A storage format of a weight ``[out, in]``. Schemes are values: equal ones can share a layer."""

    @abstractmethod
    def create(self, module: LinearWeights, *, bias: bool) -> None:
        """Register the parameters, of torch's default type and device."""

    @abstractmethod
    def slots(self, module: LinearWeights, outputs: slice) -> Iterator[tuple[str, WeightSlot]]:
        """Where the checkpoint's tensors of some outputs go; may be called again, to update weights.

        Args:
            outputs: of a layer of the checkpoint, which may be a part of this one.

        Yields:
            The tensor's name within its layer, such as ``weight``, and a slot; a tensor may have several slots.
        """

    @abstractmethod
    def finish(self, module: LinearWeights, *, keep_weight: bool) -> tuple[LinearOp, bool] | None:
        """Called once all slots are filled, and again after each update.

        Args:
            keep_weight: keep the parameter in place, since another module reads it (a tied embedding).

        Returns:
            The layer's GEMM, ``[..., in] → [..., out]``, and whether it holds a copy of the weight, so that it must be
            made again after an update; None if nothing was filled since the last call.
        """


@dataclass(frozen=True, slots=True)
class PlainScheme(LinearScheme):
    """Weights in the compute type, as in the checkpoint.

    Attributes:
        deterministic: a row's bits must not depend on the other rows.
    """

    deterministic: bool = False

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        module.register_parameter("weight", empty_parameter(module.out_features, module.in_features))
        module.register_parameter("bias", empty_parameter(module.out_features) if bias else None)

    def slots(self, module: LinearWeights, outputs: slice) -> Iterator[tuple[str, WeightSlot]]:
        if not module.weight.numel():
            freed = module.weight.data
            module.weight = nn.Parameter(freed.new_empty(module.out_features, module.in_features), requires_grad=False)
        yield "weight", WeightSlot(module.weight.data[outputs])
        if module.bias is not None:
            yield "bias", WeightSlot(module.bias.data[outputs])

    def finish(self, module: LinearWeights, *, keep_weight: bool) -> tuple[LinearOp, bool] | None:
        weight = module.weight.data
        if not weight.numel():
            return None
        bias = None if module.bias is None else module.bias.data
        op, is_copied = linear(weight, bias, deterministic=self.deterministic)
        if is_copied and not keep_weight:
            module.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)
        return op, is_copied


def empty_parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """An uninitialised parameter without gradient; the type defaults to torch's default."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
