"""How checkpoints store 4-bit floats (e2m1) in groups of inputs: NVFP4, and MXFP4 (OCP MX 1.0) of single layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from octavo.kernels import FLOAT8
from octavo.kernels.float4 import FLOAT4_VALUES, MX_GROUP, powers_of_two
from octavo.quantization.bit_packing import unpack_bits
from octavo.quantization.grouped_weight import FLOATS, GroupedForm, GroupedWeight, Layout, StoredTensor

NVFP4_GROUP = 16
_SCALES = "weight_scale"


@dataclass(frozen=True, slots=True)
class Float4Layout(Layout):
    """Two values per byte, ``[out, in / 2]``, and a scale per group, ``[out, in / group]``.

    Scales of NVFP4 are float8 for 16 inputs, beside a factor of all of them. Those of MXFP4 are powers of two for 32
    inputs, stored as exponents.

    Attributes:
        weight_name: the name of the tensor of values.
        factor_name: that of NVFP4's factor.
        is_inverse: whether scales are divided by the factor.
    """

    kind: Literal["nvfp4", "mxfp4"]
    weight_name: str = "weight"
    factor_name: str = "weight_scale_2"
    is_inverse: bool = False

    @property
    def name(self) -> str:
        return self.kind

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return NVFP4_GROUP if self.kind == "nvfp4" else MX_GROUP

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(4, self.group, kind=self.kind)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        num_outputs, num_inputs = shape
        is_nvfp4 = self.kind == "nvfp4"
        scales = StoredTensor(((num_outputs, -(-num_inputs // self.group)),), (FLOAT8 if is_nvfp4 else torch.uint8,))
        found = {self.weight_name: StoredTensor(((num_outputs, -(-num_inputs // 2)),), (torch.uint8,)), _SCALES: scales}
        return found | ({self.factor_name: StoredTensor(((), (1,), (1, 1)), FLOATS[::-1])} if is_nvfp4 else {})

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        packed, scales, group = tensors[self.weight_name], tensors[_SCALES], self.form.group_of(shape[1])
        codes = unpack_bits(packed, 4, shape[1])
        if self.kind == "mxfp4":
            return GroupedWeight(codes, powers_of_two(scales), group, table=FLOAT4_VALUES)
        factor = tensors[self.factor_name].float().reshape(1, 1)
        factors = (factor.reciprocal() if self.is_inverse else factor).expand(shape[0], 1)
        return GroupedWeight(codes, scales.float(), group, table=self.form.table, factors=factors)
