"""MXFP4, the format of gpt-oss's experts: 4-bit floats in blocks of 32 with a power of two each (OCP MX 1.0).

All other weights of such checkpoints are not quantised.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from octavo.kernels.float4 import FLOAT4_VALUES, MX_GROUP, float4_values, powers_of_two
from octavo.quantization.bit_packing import unpack_bits
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.grouped_weight import (
    BlockForm,
    ExpertForm,
    GroupedForm,
    GroupedWeight,
    Layout,
    StoredTensor,
)
from octavo.quantization.scheme import LinearScheme


@dataclass(frozen=True, slots=True)
class Mxfp4Config(QuantizationConfig):
    """Linear layers of a checkpoint whose experts alone are quantised.

    Attributes:
        experts: how the device keeps them; None if they are expanded as they are loaded.
    """

    experts: ExpertForm | None = None

    @property
    def description(self) -> str:
        kept = "activations in 8 bits" if isinstance(self.experts, BlockForm) else "unpacked in each GEMM"
        return f"mxfp4 experts, {'expanded at load' if self.experts is None else kept}"

    def expert_form(self, names: Iterable[str]) -> ExpertForm | None:
        return self.experts

    def scheme(self, name: str) -> LinearScheme:
        return self.plain


def parse_mxfp4(fields: Mapping[str, Any], options: SchemeOptions) -> Mxfp4Config:
    """Read ``quantization_config`` of the method ``mxfp4``; it says nothing that the names of tensors do not."""
    form: ExpertForm | None = None
    if options.has_blocks:
        form = BlockForm.of("MXFP4")
    elif options.has_groups and not options.expands:
        form = GroupedForm(4, MX_GROUP, kind="mxfp4")
    return Mxfp4Config(options.plain, form)


@dataclass(frozen=True, slots=True)
class Mxfp4Layout(Layout):
    """One of the experts in gpt-oss's stacked tensors."""

    @property
    def name(self) -> str:
        return "mxfp4"

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(4, MX_GROUP, kind="mxfp4")

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        groups = shape[0], shape[1] // MX_GROUP
        dtypes = (torch.uint8,)
        return {"blocks": StoredTensor(((*groups, MX_GROUP // 2),), dtypes), "scales": StoredTensor((groups,), dtypes)}

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        codes = unpack_bits(tensors["blocks"].flatten(1), 4, shape[1])
        return GroupedWeight(codes, powers_of_two(tensors["scales"]), MX_GROUP, table=FLOAT4_VALUES)


def unpack(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of packed blocks before they are scaled.

    Args:
        blocks: ``[E, out, in / 32, 16]`` uint8; the lower half of a byte comes first.

    Returns:
        ``[E, out, in]``.
    """
    numbers = torch.empty(*blocks.shape, 2, dtype=dtype, device=blocks.device)
    for packed, unpacked in zip(blocks, numbers, strict=True):  # one expert at a time, as indices take eight bytes
        unpacked[..., 0] = float4_values(packed & 15, dtype)
        unpacked[..., 1] = float4_values(packed >> 4, dtype)
    return numbers.flatten(2)


def scale_numbers(numbers: torch.Tensor, scales: torch.Tensor, columns: slice = slice(None)) -> None:
    """Scale :func:`unpack`'s numbers in place.

    Args:
        numbers: ``[E, out, columns]``.
        scales: ``[E, out, in / 32]`` uint8, exponents.
        columns: those of ``in`` that ``numbers`` has.
    """
    for own, exponents in zip(numbers, scales, strict=True):
        factors = powers_of_two(exponents).repeat_interleave(MX_GROUP, -1)
        own.mul_(factors[:, columns].to(own.dtype))
