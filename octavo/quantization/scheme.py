"""How a linear layer's weights are stored, loaded and applied."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from octavo.kernels import LinearOp, linear
from octavo.quantization.grouped_weight import ExpertForm
from octavo.quantization.slot import WeightPart, WeightSlot


class LinearWeights(nn.Module):
    """A linear layer as schemes see it: its sizes, and the parameters that its scheme registers."""

    weight: nn.Parameter
    weight_scale: nn.Parameter
    bias: nn.Parameter | None
    scheme: "LinearScheme"

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.compute_dtype = torch.get_default_dtype()

    @property
    def has_weight(self) -> bool:
        """Whether the weight's memory is there, which is freed where a packed copy takes its place."""
        return self.weight.numel() > 0

    def free_weight(self) -> None:
        """Free the weight's memory."""
        self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def restore_weight(self) -> None:
        """Make room for the weight if its memory was freed."""
        if not self.has_weight:
            shape = self.out_features, self.in_features
            self.weight = nn.Parameter(self.weight.new_empty(shape), requires_grad=False)


class LinearScheme(ABC):
    """A storage format of a weight ``[out, in]``. Schemes are values: equal ones can share a layer.

    Attributes:
        has_rows: whether its GEMMs can return the weight's rows, so that a token embedding needs no weight of its own.
        has_values: whether the weight's values are kept in the compute type.
    """

    has_rows: ClassVar[bool] = False
    has_values: ClassVar[bool] = False

    @property
    def stored_as(self) -> str:
        """The format of the weights in memory, for the plan; empty for their type."""
        return ""

    @property
    def expert_form(self) -> ExpertForm | None:
        """How the device keeps experts whose layers have this scheme; None for the compute type."""
        return None

    @property
    def may_merge(self) -> bool:
        """Whether several layers of a checkpoint that are stored so can be one GEMM."""
        return True

    def fits(self, in_features: int, part_sizes: Sequence[int]) -> bool:
        """Whether a layer of these numbers of inputs and, per part, outputs can be stored so."""
        return True

    def fallback(self, plain: "PlainScheme") -> "LinearScheme":
        """The scheme of layers that do not fit."""
        return plain

    def divides_inputs(self, inputs: range, in_features: int) -> bool:
        """Whether a device can have these inputs of a layer, and no others."""
        return True

    @abstractmethod
    def create(self, module: LinearWeights, *, bias: bool) -> None:
        """Register the parameters, of torch's default type and device."""

    @abstractmethod
    def slots(self, module: LinearWeights, part: WeightPart) -> Iterator[tuple[str, WeightSlot]]:
        """Where a layer's tensors in the checkpoint go; may be called again, to update weights.

        Args:
            part: the layer, which may be one of several in the module, and what of it the module stores.

        Yields:
            The tensor's name within its layer, such as ``weight``, and a slot; a tensor may have several slots.
        """

    @abstractmethod
    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        """Called when all slots are filled.

        Returns:
            The layer's GEMM, ``[..., in] → [..., out]``, and whether it holds a copy of the weight. If it does not, it
            reads the parameters where they are, and updates of the weights do not call this again.
        """


@dataclass(frozen=True, slots=True)
class PlainScheme(LinearScheme):
    """Weights in the compute type, as in the checkpoint.

    Attributes:
        deterministic: a row's bits must not depend on the other rows.
    """

    has_values: ClassVar[bool] = True

    deterministic: bool = False

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        module.register_parameter("weight", empty_parameter(module.out_features, module.in_features))
        module.register_parameter("bias", empty_parameter(module.out_features) if bias else None)

    def slots(self, module: LinearWeights, part: WeightPart) -> Iterator[tuple[str, WeightSlot]]:
        module.restore_weight()
        yield "weight", part.weight_slot(module.weight.data[part.outputs])
        if module.bias is not None:
            yield "bias", part.bias_slot(module.bias.data[part.outputs])

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        bias = None if module.bias is None else module.bias.data
        return linear(module.weight.data, bias, deterministic=self.deterministic)


def empty_parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """An uninitialised parameter without gradient; the type defaults to torch's default."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
