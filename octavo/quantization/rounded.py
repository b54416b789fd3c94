"""Weights rounded to packed integers while they are loaded, on GPUs (``--quantization int8|int4``)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from octavo.kernels import LinearOp
from octavo.kernels.grouped import GroupedTensors, can_pack, grouped_linear, round_weight
from octavo.quantization.scheme import LinearScheme, LinearWeights, empty_parameter
from octavo.quantization.slot import WeightPart, WeightSlot

GROUP = 128
"""Inputs that share a scale. Blocks on CPUs have 32, as their kernels multiply so many at a time; a GPU would read a
quarter more bytes for as many scales, and its kernel scales its sums after each group."""


@dataclass(frozen=True, slots=True)
class RoundedScheme(LinearScheme):
    """Packed integers with a scale, and for 4 bits a minimum, per output and :data:`GROUP` inputs.

    Attributes:
        bits: 8 or 4.
        deterministic: a row's bits must not depend on the other rows.
    """

    bits: int
    deterministic: bool = False

    def fits(self, in_features: int, part_sizes: Sequence[int]) -> bool:
        return can_pack(in_features, GROUP)

    def create(self, module: LinearWeights, *, bias: bool) -> None:
        size, groups = module.out_features, module.in_features // GROUP
        codes = empty_parameter(size, module.in_features * self.bits // 8, dtype=torch.uint8)
        module.register_parameter("weight", codes)
        module.register_parameter("weight_scale", empty_parameter(size, groups, dtype=torch.float32))
        minimum = empty_parameter(size, groups, dtype=torch.float16) if self.bits == 4 else None
        module.register_parameter("weight_minimum", minimum)
        module.register_parameter("bias", empty_parameter(size) if bias else None)

    def slots(self, module: LinearWeights, part: WeightPart) -> Iterator[tuple[str, WeightSlot]]:
        stored = self._tensors(module)
        fields = [name for name in ("codes", "scales", "minimums") if getattr(stored, name) is not None]
        rounding = _Rounding(self.bits, len(fields))
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
        minimums = module.get_parameter("weight_minimum").data if self.bits == 4 else None
        return GroupedTensors(module.weight.data, module.weight_scale.data, None, self.bits, minimums)


class _Rounding:
    """Rounds a layer's weight once for all of its fields, which a loader fills one after another.

    Args:
        num_fields: how often :meth:`field` is called for each weight.
    """

    def __init__(self, bits: int, num_fields: int) -> None:
        self._bits = bits
        self._num_fields = num_fields
        self._num_left = 0
        self._rounded: GroupedTensors | None = None

    def field(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """A field of what the weight becomes."""
        if self._rounded is None:
            self._rounded, self._num_left = round_weight(weight, self._bits, GROUP), self._num_fields
        found: torch.Tensor = getattr(self._rounded, name)
        self._num_left -= 1
        if self._num_left == 0:
            self._rounded = None
        return found
