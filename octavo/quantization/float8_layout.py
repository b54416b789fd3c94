"""How checkpoints store float8 weights whose scales are not applied by the GEMM: in blocks, or of experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from octavo.kernels import FLOAT8
from octavo.kernels.float4 import MX_GROUP, powers_of_two
from octavo.quantization.grouped_weight import FLOATS, GroupedForm, GroupedWeight, Layout, StoredTensor

ALL = -1
"""As a block's size: all outputs, or all inputs."""
_MAX_GROUP = 1 << 16
_SCALE_NAMES = ("weight_scale", "weight_scale_inv")
_EXPONENT_TYPES = (torch.uint8, torch.float8_e8m0fnu)
_SCALE_TYPES = (*FLOATS, torch.float8_e8m0fnu)
"""Powers of two (``ue8m0``) may be stored as their exponents, too."""


@dataclass(frozen=True, slots=True)
class Float8Layout(Layout):
    """Float8 values, and a scale for each block of them.

    Attributes:
        block: outputs and inputs of a block; :data:`ALL` for all.
        scale_name, weight_name: the names of the tensors of scales and of values.
        rounds_inputs: whether activations are float8, too.
        has_exponents: whether scales are powers of two, stored as their exponents (MXFP8, OCP MX 1.0).
    """

    block: tuple[int, int]
    scale_name: str = "weight_scale"
    weight_name: str = "weight"
    rounds_inputs: bool = True
    has_exponents: bool = False

    @property
    def has_blocks(self) -> bool:
        """Whether there are scales per block."""
        return ALL not in self.block

    @property
    def name(self) -> str:
        return "float8"

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(8, self.block[1], kind="float8")

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        types = _EXPONENT_TYPES if self.has_exponents else _SCALE_TYPES
        scales = StoredTensor(self.scale_shapes(shape), types, alternatives=other_names_of_scales(self.scale_name))
        return {self.weight_name: StoredTensor((shape,), (FLOAT8,)), self.scale_name: scales}

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        scales = self.scales_of_outputs(tensors[self.scale_name], shape)
        return GroupedWeight(tensors[self.weight_name], scales, self.form.group_of(shape[1]))

    def scale_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Shapes that the tensor of scales of a layer may have."""
        if self.block == (ALL, ALL):
            return (1,), (), (1, 1)
        if self.block == (1, ALL):
            return (shape[0], 1), shape[:1]
        rows, columns = (-(-size // block) for size, block in zip(shape, self.block, strict=True))
        return (rows, columns), (rows, 1, columns, 1)

    def scales_of_outputs(self, scales: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        """``[out, groups]`` float32."""
        rows = shape[0] if self.block[0] == ALL else self.block[0]
        numbers = powers_of_two(scales) if scales.dtype is torch.uint8 else scales.float()
        groups = numbers.reshape(-(-shape[0] // rows), -1)
        return groups.repeat_interleave(rows, 0)[: shape[0]]


MXFP8 = Float8Layout((1, MX_GROUP), rounds_inputs=False, has_exponents=True)
"""A power of two per output and 32 inputs. Activations, which are meant to be rounded likewise, are not."""


def other_names_of_scales(name: str) -> tuple[str, ...]:
    """What other writers of the same format call a layer's scales: transformers has one name for all granularities."""
    return tuple(other for other in _SCALE_NAMES if other != name) if name in _SCALE_NAMES else ()


def is_block(value: Any) -> TypeGuard[list[int]]:
    """Whether a value of a configuration is a block's size."""
    return isinstance(value, list) and len(value) == 2 and all(is_size(size) for size in value)


def is_size(value: Any) -> bool:
    """Whether it is a number of inputs or outputs that can share a scale."""
    return type(value) is int and 0 < value <= _MAX_GROUP
