"""How Quark stores integers in groups of inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo.quantization.awq import unpack_interleaved
from octavo.quantization.bit_packing import num_words, unpack_words
from octavo.quantization.grouped_weight import FLOATS, GroupedForm, GroupedWeight, Layout, StoredTensor

_WORDS = 4
"""Bits of integers that are packed; those of 8 have a byte each."""


@dataclass(frozen=True, slots=True)
class QuarkIntegers(Layout):
    """Values ``[in, out]`` and zeros ``[groups, out]``, of 4 bits in words along the outputs; scales ``[groups, out]``.

    Attributes:
        bits: of an integer, 4 or 8.
        group: inputs that share a scale.
        is_signed: whether values and zeros are two's complements.
        has_zeros: whether zeros are read; otherwise they are 0.
        is_interleaved: whether words have outputs in AWQ's order (``pack_method``: ``reorder``).
    """

    bits: int
    group: int
    is_signed: bool
    has_zeros: bool
    is_interleaved: bool = True

    @property
    def name(self) -> str:
        return "Quark"

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(self.bits, self.group, has_zeros=self.has_zeros)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        num_outputs, num_inputs = shape
        groups = self.form.num_groups(num_inputs)
        columns, dtype = num_outputs, torch.int8 if self.is_signed else torch.uint8
        if self.bits == _WORDS:
            columns, dtype = num_words(num_outputs, self.bits), torch.int32
        found = {
            "weight": StoredTensor(((num_inputs, columns),), (dtype,)),
            "weight_scale": StoredTensor(((groups, num_outputs),), FLOATS),
        }
        return found | ({"weight_zero_point": StoredTensor(((groups, columns),), (dtype,))} if self.has_zeros else {})

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        num_outputs, num_inputs = shape
        zeros: torch.Tensor | float = float(1 << (self.bits - 1))
        if self.has_zeros:
            zeros = self._codes(tensors["weight_zero_point"], num_outputs).float()
        scales = tensors["weight_scale"].float().T.contiguous()
        codes = self._codes(tensors["weight"], num_outputs)
        return GroupedWeight(codes, scales, self.form.group_of(num_inputs), zeros)

    def _codes(self, stored: torch.Tensor, num_outputs: int) -> torch.Tensor:
        """``[rows, columns]`` → ``[out, rows]`` uint8, with two's complements' zero in the middle."""
        if self.bits != _WORDS:
            codes = stored.view(torch.uint8).T.contiguous()
        elif self.is_interleaved:
            codes = unpack_interleaved(stored, num_outputs)
        else:
            codes = unpack_words(stored, self.bits, 1, num_outputs).T.contiguous()
        return codes ^ (1 << (self.bits - 1)) if self.is_signed else codes
