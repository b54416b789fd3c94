"""Float8 weights (e4m3fn) with a scale per output; activations are rounded per token, when they come."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from octavo.kernels import FLOAT8, LinearOp, float8_linear, quantize_rows
from octavo.quantization.float8_layout import other_names_of_scales
from octavo.quantization.grouped_weight import GroupedForm
from octavo.quantization.scheme import LinearScheme, LinearWeights, empty_parameter
from octavo.quantization.slot import WeightPart, WeightSlot

Source = Literal["channel", "tensor", "plain"]

_GRANULARITY = 16
"""Tensor cores take float8 matrices whose sizes are multiples of this."""


@dataclass(frozen=True, slots=True)
class Float8Scheme(LinearScheme):
    """Weights of float8 values and a float32 scale per output.

    Where the inputs are divided over devices, each rounds its own part of an activation, and of an unquantised weight,
    with a scale of its own.

    Attributes:
        source: what the checkpoint has: scales per ``channel``, one per ``tensor``, or unquantised (``plain``) weights,
            which are rounded as they are loaded, with a scale per output.
        is_native: whether the device multiplies float8; otherwise the values are kept in the compute type.
        deterministic: a row's bits must not depend on the other rows.
        weight_name, scale_name: what the checkpoint calls a layer's values and scales.
    """

    source: Source
    is_native: bool = False
    deterministic: bool = False
    weight_name: str = "weight"
    scale_name: str = "weight_scale"

    @property
    def expert_form(self) -> GroupedForm | None:
        return GroupedForm(8, -1, kind="float8", rounds_inputs=True) if self.is_native else None

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        module.register_parameter("weight", self._empty_weight(module))
        module.register_parameter("weight_scale", empty_parameter(module.out_features, dtype=torch.float32))
        module.register_parameter("bias", empty_parameter(module.out_features) if bias else None)

    def slots(self, module: LinearWeights, part: WeightPart) -> Iterator[tuple[str, WeightSlot]]:
        module.restore_weight()
        weight, scales = module.weight.data[part.outputs], module.weight_scale.data[part.outputs]
        if self.source == "plain":
            yield "weight", part.weight_slot(weight, _values)
            yield "weight", part.weight_slot(scales, _scales)
        else:
            yield self.weight_name, part.weight_slot(weight, has_scale=True)
            if self.source == "channel":
                num_outputs = part.shape[0]
                yield self.scale_name, part.output_slot(scales, ((num_outputs, 1), (num_outputs,)))
            else:
                others = other_names_of_scales(self.scale_name)
                shapes: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))
                yield (
                    self.scale_name,
                    WeightSlot(scales, shapes, transform=_repeat(len(scales)), alternatives=others),
                )
        if module.bias is not None:
            yield "bias", part.bias_slot(module.bias.data[part.outputs])

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        bias = None if module.bias is None else module.bias.data
        scales = module.weight_scale.data
        return float8_linear(module.weight.data, scales, bias, deterministic=self.deterministic)

    def _empty_weight(self, module: LinearWeights) -> torch.nn.Parameter:
        fits = module.in_features % _GRANULARITY == 0 and module.out_features % _GRANULARITY == 0
        # Every float8 value is one of bfloat16 and of float16, but sums of their products exceed float16's range.
        compute_type = torch.get_default_dtype()
        wide = torch.float32 if compute_type is torch.float16 else compute_type
        return empty_parameter(
            module.out_features, module.in_features, dtype=FLOAT8 if self.is_native and fits else wide
        )


def _values(weight: torch.Tensor) -> torch.Tensor:
    return quantize_rows(weight)[0]


def _scales(weight: torch.Tensor) -> torch.Tensor:
    return quantize_rows(weight)[1]


def _repeat(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda scale: scale.reshape(1).expand(size)
