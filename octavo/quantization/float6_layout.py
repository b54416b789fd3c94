"""How checkpoints store 6-bit floats in groups of inputs: MXFP6 (OCP MX 1.0)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from octavo.kernels.float4 import MX_GROUP, powers_of_two
from octavo.quantization.bit_packing import unpack_bits
from octavo.quantization.grouped_weight import GroupedForm, GroupedWeight, Layout, StoredTensor

_BITS = 6


@dataclass(frozen=True, slots=True)
class Float6Layout(Layout):
    """Four values in three bytes, ``[out, 3 in / 4]``, the first in the lowest bits; exponents ``[out, in / 32]``.

    Attributes:
        kind: bits of exponents and of mantissas.
    """

    kind: Literal["e3m2", "e2m3"]

    @property
    def name(self) -> str:
        return f"mxfp6 ({self.kind})"

    @property
    def form(self) -> GroupedForm | None:
        return None

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        num_outputs, num_inputs = shape
        return {
            "weight": StoredTensor(((num_outputs, -(-num_inputs * _BITS // 8)),), (torch.uint8,)),
            "weight_scale": StoredTensor(((num_outputs, -(-num_inputs // MX_GROUP)),), (torch.uint8,)),
        }

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        codes = unpack_bits(tensors["weight"], _BITS, shape[1])
        values = _values(self.kind).to(codes.device)[codes.int()]
        return GroupedWeight(values, powers_of_two(tensors["weight_scale"]), MX_GROUP)


def _values(kind: str) -> torch.Tensor:
    """What each code stands for, ``[64]`` float32: all are finite, those with an exponent of 0 are subnormal."""
    exponent_bits, mantissa_bits = int(kind[1]), int(kind[3])
    codes = torch.arange(1 << _BITS)
    exponents = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissas = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    sizes = torch.where(exponents > 0, 1 + mantissas, mantissas) * torch.exp2(exponents.clamp(min=1) - bias)
    return torch.where(codes >> (_BITS - 1) > 0, -sizes, sizes)
