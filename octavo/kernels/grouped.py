"""GEMMs with a weight of small integers, or float8 values, whose groups of inputs share a scale; activations stay.

A weight is ``scales · (codes - zeros)``, or with offsets ``scales · (codes - middle) + offsets``; or codes are 4-bit
floats (MXFP4), and scales powers of two; or codes of 4 bits stand for the values of a table (NVFP4, NF4, FP4, IQ4).
Codes of 4 bits are packed in units of inputs, so that a kernel unpacks a unit into two runs of neighbours: a byte of a
unit has the code of an input ``j`` of the first half in its low half, and that of ``j + unit / 2`` in its high one.
Bytes are in the order in which tensor cores take operands from registers: of 16 neighbours, a thread has the inputs
``2t``, ``2t + 8``, ``2t + 1`` and ``2t + 9``, so that a mask of 32 bits leaves two neighbours' codes in the halves of a
word, and a quarter of a unit belongs to each of four threads; see :func:`byte_order`. Codes of 8 bits lie one after
another.
"""

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from octavo.kernels.dispatch import kernel
from octavo.kernels.float4 import float4_values, powers_of_two, round_to_float4
from octavo.kernels.linear import ComposedLinear, LinearOp

Rounding = Literal["int8", "int4", "mxfp4"]
"""What weights can be rounded to."""
ZERO_STEP = 1 / 8
"""Zeros of 4-bit codes are stored as multiples of it."""
MAX_UNIT = 128
_LEAST_INPUTS = 16
"""Tensor cores multiply at least 16 inputs: half of a unit of 4 bits."""
_LEAST_UNIT = 2 * _LEAST_INPUTS
_KEPT = (1.0, 0.95, 0.9)
RANGES = tuple((below, above) for below in _KEPT for above in _KEPT)
"""What is tried for 16 codes: the parts of half a group's range that they span below and above its centre. ``native/``
has the same table."""
ROUNDED_AT_ONCE = 1 << 21
"""Values that are rounded at a time; as many are tried for each of :data:`RANGES`."""


class GroupedTensors(NamedTuple):
    """A weight ``[out, in]``.

    Attributes:
        codes: ``[out, in / 2]`` uint8 for 4 bits; ``[out, in]`` uint8, or float8 values, for 8.
        scales: ``[out, groups]`` float32; all groups have the same size. Or exponents of powers of two, uint8: then
            codes are 4-bit floats; see :mod:`octavo.kernels.float4`. Beside a table, float8 values as well.
        zeros: ``[out, groups]`` uint8, for 4 bits in steps of :data:`ZERO_STEP` from 0 to 16, so that bfloat16 has
            every difference of a code and a zero; None for the middle of the codes, 8 or 128 (0 for float8).
        bits: of a code.
        offsets: ``[out, groups]`` float16, in place of zeros: what the middle of the codes stands for; or None.
        table: ``[16]`` float32, what codes of 4 bits stand for, which then have no zeros; None for themselves. Beside
            it, a group may be half a unit of packed codes.
        factors: ``[out]`` float32, beside a table: what all scales of an output are multiplied by; None for 1.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    offsets: torch.Tensor | None = None
    table: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    @property
    def num_inputs(self) -> int:
        """Inputs of the layer."""
        return self.codes.shape[1] * 8 // self.bits

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.num_inputs // self.scales.shape[1]

    @property
    def unit(self) -> int:
        """Inputs whose codes are packed together, or follow each other in a group."""
        return pack_unit(self.group) if self.bits == 8 else code_unit(self.group)

    @property
    def is_float4(self) -> bool:
        """Whether codes are 4-bit floats beside powers of two."""
        return self.scales.dtype is torch.uint8

    @property
    def is_integer(self) -> bool:
        """Whether codes stand for themselves, less a zero."""
        return self.codes.dtype is torch.uint8 and not self.is_float4 and self.table is None

    @property
    def middle(self) -> int:
        """The zero of groups that have none of their own."""
        return 1 << (self.bits - 1) if self.is_integer else 0

    def of_outputs(self, index: torch.Tensor | slice) -> "GroupedTensors":
        """The weight of some outputs."""
        own = [
            None if tensor is None else tensor[index]
            for tensor in (self.codes, self.scales, self.zeros, self.offsets, self.factors)
        ]
        codes, scales, zeros, offsets, factors = own
        assert codes is not None and scales is not None
        return self._replace(codes=codes, scales=scales, zeros=zeros, offsets=offsets, factors=factors)


@kernel
def grouped_linear(
    codes: torch.Tensor,
    weight: GroupedTensors,
    bias: torch.Tensor | None,
    *,
    deterministic: bool,
    rounds_inputs: bool = False,
    rows_dtype: torch.dtype | None = None,
) -> tuple[LinearOp, bool]:
    """``x Wᵀ + b`` for a weight that stays packed; products are accumulated in float32.

    Args:
        codes: those of the weight, whose device selects the form.
        bias: ``[out]`` or None.
        deterministic: whether a row's bits must not depend on the other rows.
        rounds_inputs: whether the weight was made for activations in float8, with a scale per token and group of
            inputs, so that a device may round them.
        rows_dtype: the type of rows that are read from the weight; None if none are.

    Returns:
        The operation, and whether it holds a copy, so that the weight itself is no longer read.
    """
    return _DequantizedLinear(weight, bias, rows_dtype), False


class _DequantizedLinear(ComposedLinear):
    """The reference, which dequantises the weight for each GEMM."""

    def __init__(self, weight: GroupedTensors, bias: torch.Tensor | None, rows_dtype: torch.dtype | None) -> None:
        super().__init__(lambda x: F.linear(x, dequantize(weight, x.dtype), bias))
        self.has_rows = rows_dtype is not None
        self._weight = weight
        self._rows_dtype = rows_dtype

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        if self._rows_dtype is None:
            return super().rows(index)
        return dequantize(self._weight.of_outputs(index), self._rows_dtype)


def dequantize(weight: GroupedTensors, dtype: torch.dtype) -> torch.Tensor:
    """The weight itself, ``[out, in]``."""
    codes = weight.codes
    if weight.bits == 4:
        codes = unpack_codes(codes, weight.unit)
    numbers, scales = codes.float(), weight.scales.float()
    if weight.is_float4:
        numbers, scales = float4_values(codes), powers_of_two(weight.scales)
    elif weight.table is not None:
        numbers = weight.table[codes.int()]
    if weight.factors is not None:
        scales = scales * weight.factors[:, None]
    zeros: torch.Tensor | int = weight.middle
    if weight.zeros is not None:
        zeros = weight.zeros.float()[..., None] * (ZERO_STEP if weight.bits == 4 else 1)
    values = (numbers.unflatten(1, (-1, weight.group)) - zeros) * scales[..., None]
    if weight.offsets is not None:
        values += weight.offsets.float()[..., None]
    return values.flatten(1).to(dtype)


def pack_unit(group: int) -> int:
    """Inputs whose codes of 4 bits are packed together: a unit is within a group."""
    return math.gcd(group, MAX_UNIT)


def code_unit(group: int) -> int:
    """The same where a unit may have two groups of 16 inputs."""
    return max(pack_unit(group), _LEAST_UNIT)


def can_pack(num_inputs: int, group: int, bits: int, *, has_table: bool = False) -> bool:
    """Whether the operation takes a weight of so many inputs in groups of this size."""
    if has_table and 2 * group == _LEAST_UNIT:
        return num_inputs % _LEAST_UNIT == 0
    return num_inputs % group == 0 and pack_unit(group) >= (_LEAST_UNIT if bits == 4 else _LEAST_INPUTS)


def byte_order(unit: int) -> list[int]:
    """The input of the first half of a unit whose code is in the low half of each byte."""
    runs = range(unit // 32)
    return [16 * run + 8 * high + 2 * t + one for t in range(4) for run in runs for one in (0, 1) for high in (0, 1)]


def pack_codes(codes: torch.Tensor, unit: int) -> torch.Tensor:
    """``[out, in]`` uint8 of 4 bits → ``[out, in / 2]``."""
    low, high = codes.unflatten(1, (-1, 2, unit // 2)).unbind(2)
    return (low | (high << 4))[..., byte_order(unit)].flatten(1)


def unpack_codes(packed: torch.Tensor, unit: int) -> torch.Tensor:
    """The inverse of :func:`pack_codes`."""
    places = torch.tensor(byte_order(unit), device=packed.device).argsort()
    units = packed.unflatten(1, (-1, unit // 2))[..., places]
    return torch.stack((units & 15, units >> 4), 2).flatten(1)


def round_weight(weight: torch.Tensor, form: Rounding, group: int) -> GroupedTensors:
    """A weight ``[out, in]`` rounded as ``docs/quantization.md`` defines it."""
    parts = [round_rows(rows, form, group) for rows in weight.split(max(1, ROUNDED_AT_ONCE // weight.shape[1]))]
    codes, scales, zeros = (torch.cat(found) for found in zip(*parts, strict=True))
    if form == "int8":
        return GroupedTensors(codes, scales, None, 8)
    return GroupedTensors(pack_codes(codes, pack_unit(group)), scales, zeros if form == "int4" else None, 4)


def round_rows(weight: torch.Tensor, form: Rounding, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Some rows rounded as :func:`round_weight` does: codes ``[out, in]`` of whole bytes, scales and zeros."""
    groups = weight.float().unflatten(1, (-1, group))
    if form == "mxfp4":
        codes, scales = round_to_float4(groups)
        return codes.flatten(1), scales, torch.zeros_like(scales)
    if form == "int8":
        scales = (groups.abs().amax(-1) / 127).half().float()
        codes = _quotient(groups, scales).clamp_(-127, 127) + 128
        return codes.flatten(1).to(torch.uint8), scales, torch.zeros_like(scales)
    codes, scales, zeros = _round_to_int4(groups)
    return codes.flatten(1).to(torch.uint8), scales, (zeros / ZERO_STEP).to(torch.uint8)


def _round_to_int4(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``[out, groups, group]`` → codes, scales and zeros with the least squared error of those that are tried."""
    # Zero is within the range, so that a zero is a code.
    low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
    centre, half = (low + high) / 2, (high - low) / 2
    parts = [((below + above) / 15, below) for below, above in RANGES]
    widths, below = groups.new_tensor(parts).T[..., None, None]
    steps = half * widths
    # Of equal errors the first one's: where none is a number, as of a group of NaNs, scale and zero are 0.
    scales, zeros, errors = _tried(groups, steps, (half * below - centre) / steps)
    least = errors.amin(0)
    first = ((errors == least) * torch.arange(len(RANGES), 0, -1, device=errors.device)[:, None, None]).argmax(0)
    is_number = least < math.inf
    scales, zeros = (torch.where(is_number, tried.gather(0, first[None])[0], 0) for tried in (scales, zeros))
    # The line that fits best through the values of the codes that they have now.
    codes = _int4_codes(groups, scales, zeros)
    mean_code, mean = codes.mean(-1), groups.mean(-1)
    codes.sub_(mean_code[..., None])
    step = (codes * (groups - mean[..., None])).sum(-1) / codes.square().sum(-1)
    new_scales, new_zeros, new_errors = _tried(groups, step, mean_code - mean / step)
    is_better = new_errors < least
    scales, zeros = torch.where(is_better, new_scales, scales), torch.where(is_better, new_zeros, zeros)
    return _int4_codes(groups, scales, zeros), scales, zeros


def _tried(
    groups: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales and zeros as they are stored, ``[..., out, groups]``, and the groups' squared errors with them."""
    scales = scales.half().float()
    zeros = (zeros / ZERO_STEP).nan_to_num_().round_().clamp_(0, 15 / ZERO_STEP) * ZERO_STEP
    steps = _int4_codes(groups, scales, zeros).sub_(zeros[..., None])
    errors = steps.mul_(scales[..., None]).sub_(groups).square_().sum(-1)
    return scales, zeros, errors.nan_to_num_(nan=math.inf, posinf=math.inf)


def _int4_codes(groups: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    return _quotient(groups, scales, zeros[..., None]).clamp_(0, 15)


def _quotient(groups: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | float = 0.0) -> torch.Tensor:
    """``[out, groups, group]`` divided by scales, plus zeros, and rounded; 0 where the scale is."""
    return torch.where(scales[..., None] > 0, groups / scales[..., None] + zeros, 0).round_()


class ReorderedLinear(LinearOp):
    """A GEMM whose weight has its inputs in another order than ``x``.

    Args:
        order: ``[in]`` int64; the weight's input ``j`` is the input ``order[j]`` of ``x``.
    """

    def __init__(self, linear: LinearOp, order: torch.Tensor) -> None:
        self.widens = linear.widens
        self.writes_strided = linear.writes_strided
        self._linear = linear
        self._order = order

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._linear(x.index_select(-1, self._order), out)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        return self._linear.gated(x.index_select(-1, self._order), activation)

    def refresh(self) -> None:
        self._linear.refresh()
