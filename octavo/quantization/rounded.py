"""Weights rounded while they are loaded (``--quantization int8|int4|mxfp4``), for devices that unpack them in GEMMs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from octavo.kernels import LinearOp
from octavo.kernels.float4 import MX_GROUP
from octavo.kernels.grouped import GroupedTensors, Rounding, can_pack, grouped_linear, round_weight
from octavo.quantization.grouped_weight import GroupedForm
from octavo.quantization.scheme import LinearScheme, LinearWeights, empty_parameter
from octavo.quantization.slot import WeightPart, WeightSlot

GROUPS: dict[Rounding, int] = {"int8": 128, "int4": 128, "mxfp4": MX_GROUP}
"""Inputs that share a scale. Blocks of integers on CPUs have 32, as their kernels multiply so many at a time; a GPU
would read a quarter more bytes for as many scales, and its kernel scales its sums after each group."""


@dataclass(frozen=True, slots=True)
class RoundedScheme(LinearScheme):
    """Packed numbers with a scale, and for ``int4`` a zero, per output and group of inputs.

    Attributes:
        format: what the numbers are.
        deterministic: a row's bits must not depend on the other rows.
    """

    format: Rounding
    deterministic: bool = False

    @property
    def stored_as(self) -> str:
        return self.format

    @property
    def expert_form(self) -> GroupedForm | None:
        kind: Literal["integer", "mxfp4"] = "mxfp4" if self.format == "mxfp4" else "integer"
        return GroupedForm(self.bits, self.group, has_zeros=self.format == "int4", kind=kind)

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return GROUPS[self.format]

    @property
    def bits(self) -> int:
        """Of a number."""
        return 8 if self.format == "int8" else 4

    def fits(self, in_features: int, part_sizes: Sequence[int]) -> bool:
        return can_pack(in_features, self.group, self.bits)

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        size, groups = module.out_features, module.in_features // self.group
        codes = empty_parameter(size, module.in_features * self.bits // 8, dtype=torch.uint8)
        scale_type = torch.uint8 if self.format == "mxfp4" else torch.float32
        module.register_parameter("weight", codes)
        module.register_parameter("weight_scale", empty_parameter(size, groups, dtype=scale_type))
        zero = empty_parameter(size, groups, dtype=torch.uint8) if self.format == "int4" else None
        module.register_parameter("weight_zero", zero)
        module.register_parameter("bias", empty_parameter(size) if bias else None)

    def slots(self, module: LinearWeights, part: WeightPart) -> Iterator[tuple[str, WeightSlot]]:
        stored = self._tensors(module)
        fields = [name for name in ("codes", "scales", "zeros") if getattr(stored, name) is not None]
        rounding = _Rounding(self.format, len(fields))
        for name in fields:
            view: torch.Tensor = getattr(stored, name)
            yield "weight", part.weight_slot(view[part.outputs], partial(rounding.field, name))
        if module.bias is not None:
            yield "bias", part.bias_slot(module.bias.data[part.outputs])

    def make_gemm(self, module: LinearWeights) -> tuple[LinearOp, bool]:
        weight = self._tensors(module)
        bias = None if module.bias is None else module.bias.data
        return grouped_linear(weight.codes, weight, bias, deterministic=self.deterministic)

    def _tensors(self, module: LinearWeights) -> GroupedTensors:
        zeros = module.get_parameter("weight_zero").data if self.format == "int4" else None
        return GroupedTensors(module.weight.data, module.weight_scale.data, zeros, self.bits)


class _Rounding:
    """Rounds a layer's weight once for all of its fields, which a loader fills one after another.

    Args:
        num_fields: how often :meth:`field` is called for each weight.
    """

    def __init__(self, form: Rounding, num_fields: int) -> None:
        self._form = form
        self._num_fields = num_fields
        self._num_left = 0
        self._rounded: GroupedTensors | None = None

    def field(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """A field of what the weight becomes."""
        if self._rounded is None:
            rounded = round_weight(weight, self._form, GROUPS[self._form])
            self._rounded, self._num_left = rounded, self._num_fields
        found: torch.Tensor = getattr(self._rounded, name)
        self._num_left -= 1
        if self._num_left == 0:
            self._rounded = None
        return found
