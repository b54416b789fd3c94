"""Feed-forward experts whose weights stay quantised: small numbers in groups of inputs that share a scale.

A weight is ``scales · (codes - zeros)``, or with offsets ``scales · (codes - middle) + offsets``; or codes are 4-bit
floats, and scales powers of two (MXFP4) or float8 values (NVFP4). Codes of 4 bits are packed in units of 32 inputs: a
byte of a unit's 16 has the code of an input ``j`` in its low half and that of input ``j + 16`` in the high one. Of 16
neighbours, tensor cores take ``2t``, ``2t + 1``, ``2t + 8`` and ``2t + 9`` from a thread ``t``, so that their bytes lie
together. Codes of 8 bits lie one after another. Scales lie by group, so that a kernel reads those of neighbouring
outputs together.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from octavo.kernels.dispatch import kernel
from octavo.kernels.experts import ExpertsOp, GroupedExperts, apply_gate
from octavo.kernels.float4 import float4_values, powers_of_two
from octavo.kernels.grouped import ZERO_STEP
from octavo.kernels.scaled import FLOAT8, quantize_rows
from octavo.records.experts import ExpertSpec

UNIT = 32
"""Inputs whose codes of 4 bits are packed together; a group has a multiple of it, or half of it (INT8, NVFP4)."""


class PackedMatrices(NamedTuple):
    """A weight ``[out, in]`` of each expert.

    Attributes:
        codes: ``[E, out, in / 2]`` uint8 for 4 bits; ``[E, out, in]`` uint8, or float8 values, for 8.
        scales: ``[E, groups, out]`` float32; all groups have the same size. Or exponents of powers of two, uint8: then
            codes are 4-bit floats; see :mod:`octavo.kernels.float4`. Or float8 values, beside factors: codes are, too.
        zeros: ``[E, groups, out]`` uint8, for codes of 4 bits, in steps of :data:`ZERO_STEP` from 0 to 16; None for the
            middle of the codes, 8 or 128 (0 for floats).
        bits: of a code.
        offsets: ``[E, groups, out]`` float16, in place of zeros: what the middle of the codes stands for; or None.
            Groups then have a unit.
        factors: ``[E, out]`` float32, of all scales of an output (NVFP4); or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    offsets: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    @property
    def num_inputs(self) -> int:
        """Inputs of each weight."""
        return self.codes.shape[2] * 8 // self.bits

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.num_inputs // self.scales.shape[1]

    @property
    def is_float4(self) -> bool:
        """Whether codes are 4-bit floats beside powers of two."""
        return self.scales.dtype is torch.uint8

    @property
    def is_nvfp4(self) -> bool:
        """Whether they are 4-bit floats beside float8 values, in groups of half a unit."""
        return self.factors is not None

    @property
    def is_float8(self) -> bool:
        """Whether codes are float8 values."""
        return self.codes.dtype is FLOAT8

    @property
    def has_one_group(self) -> bool:
        """Whether sums of codes of 8 bits are scaled once, at their end."""
        return self.bits == 8 and self.group == self.num_inputs and self.offsets is None

    @property
    def is_scaled(self) -> bool:
        """Whether integers are scaled before they are multiplied: they have offsets, or groups of less than a unit."""
        has_halves = not self.has_one_group and not self.is_nvfp4 and self.group % UNIT != 0
        return self.offsets is not None or has_halves

    @property
    def form(self) -> str:
        """What codes are: ``float4``, ``nvfp4``, ``float8``, ``int4`` or ``int8``."""
        if self.is_nvfp4:
            return "nvfp4"
        return f"{'float' if self.is_float4 or self.is_float8 else 'int'}{self.bits}"

    @property
    def middle(self) -> int:
        """The zero of groups that have none of their own."""
        return 0 if self.is_float4 or self.is_nvfp4 or self.is_float8 else 1 << (self.bits - 1)


class PackedExperts(NamedTuple):
    """The weights of all experts of a layer.

    Attributes:
        gate_up: ``[E, 2·I, hidden]``, of each expert the gate's rows before those of the up projection.
        down: ``[E, hidden, I]``.
        gate_up_bias, down_bias: ``[E, 2·I]`` and ``[E, hidden]``, or None.
        rounds_inputs: whether they were made for float8 activations, so that a device may round what enters a GEMM; see
            :func:`round_inputs`.
    """

    gate_up: PackedMatrices
    down: PackedMatrices
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    rounds_inputs: bool = False


class PlainPackedExperts(GroupedExperts):
    """Packed experts in PyTorch's operations, each dequantised whenever it is used.

    Args:
        rounds: whether float8 experts round what enters each GEMM, as devices do for many tokens.
    """

    def __init__(self, weights: PackedExperts, spec: ExpertSpec, *, rounds: bool = False) -> None:
        super().__init__(len(weights.down.codes), spec)
        self._weights = weights
        self._rounds = rounds

    def run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        inner = self._multiply(x, self._weights.gate_up, self._weights.gate_up_bias, expert)
        return self._multiply(apply_gate(inner, self._spec), self._weights.down, self._weights.down_bias, expert)

    def _multiply(
        self, x: torch.Tensor, weight: PackedMatrices, bias: torch.Tensor | None, expert: int
    ) -> torch.Tensor:
        if self._rounds:
            values, scales = round_inputs(x, weight.group)
            x = (values.float().unflatten(1, (-1, weight.group)) * scales[..., None]).flatten(1).to(x.dtype)
        return F.linear(x, dequantize_expert(weight, expert, x.dtype), None if bias is None else bias[expert])


@kernel
def make_packed_experts(
    codes: torch.Tensor, weights: PackedExperts, spec: ExpertSpec, *, deterministic: bool = False
) -> ExpertsOp:
    """The fastest form of a layer's experts, called once their weights are loaded, and after each update of them.

    Args:
        codes: those of the first GEMM, whose device selects the form.
        deterministic: whether a token's bits must not depend on the other tokens.
    """
    return PlainPackedExperts(weights, spec)


def dequantize_expert(weight: PackedMatrices, expert: int, dtype: torch.dtype) -> torch.Tensor:
    """One expert's weight, ``[out, in]``."""
    codes = weight.codes[expert]
    if weight.bits == 4:
        codes = unpack_units(codes)
    numbers, scales = codes.float(), weight.scales[expert]
    if weight.is_float4:
        numbers, scales = float4_values(codes), powers_of_two(scales)
    elif weight.factors is not None:
        numbers, scales = float4_values(codes), scales.float() * weight.factors[expert]
    zeros: torch.Tensor | int = weight.middle
    if weight.zeros is not None:
        zeros = weight.zeros[expert].T[..., None].float() * ZERO_STEP
    values = (numbers.unflatten(1, (-1, weight.group)) - zeros) * scales.T[..., None]
    if weight.offsets is not None:
        values += weight.offsets[expert].T[..., None].float()
    return values.flatten(1).to(dtype)


def round_inputs(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Round activations to float8, with a scale for each token and group of inputs.

    Args:
        x: ``[N, in]``.

    Returns:
        ``[N, in]`` values, and ``[N, in / group]`` float32 scales.
    """
    values, scales = quantize_rows(x.reshape(-1, group))
    return values.view(x.shape), scales.view(len(x), -1)


def pack_units(codes: torch.Tensor) -> torch.Tensor:
    """``[..., in]`` uint8 of 4 bits → ``[..., in / 2]``."""
    low, high = codes.unflatten(-1, (-1, 2, UNIT // 2)).unbind(-2)
    return (low | (high << 4)).unflatten(-1, (2, 4, 2)).transpose(-3, -2).flatten(-4)


def unpack_units(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`pack_units`."""
    units = packed.unflatten(-1, (-1, 4, 2, 2)).transpose(-3, -2).flatten(-3)
    return torch.stack((units & 15, units >> 4), -2).flatten(-3)
