"""GEMMs of few rows, and of few tokens' experts, with weights of 4 bits: codes go from memory into registers, once.

A thread loads 16 bytes of a row, which are its part of tensor cores' operands (:mod:`.unit_operands`): so warps wait
for nothing but their own loads, and many of those are in flight. Powers of two that scale 4-bit floats become part of
the values; integers are scaled sum by sum.

A dense weight's codes are requested before the wait for earlier kernels, and so are those of the experts whose results
a program adds up.
"""

from typing import NamedTuple

import torch
import triton

from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.packed_experts import PackedExperts, PackedMatrices
from octavo.kernels.triton.launch import IS_INTERPRETED, aligned_rows, dependent_launch
from octavo.kernels.triton.unit_kernel import unit_kernel
from octavo.records.experts import ExpertSpec

UNIT_INPUTS = 32
"""Inputs of a unit: 16 bytes of codes of 4 bits."""
ROUND_INPUTS = 4 * UNIT_INPUTS
MAX_ROWS = 64
"""Beyond this M, unpacking a weight for each 16 rows takes longer than other kernels."""
FEW_ROWS = 8
"""The same where :mod:`.grouped_hopper` takes the weight."""
MAX_TOKENS = 4
"""Tokens up to which each pair reads its expert by itself: few of them share one."""

LARGEST_EXPONENT = 127 + 33
"""Of scales of 4-bit floats that are part of bfloat16 values."""


class UnitTile(NamedTuple):
    """A program's work.

    Attributes:
        num_weights: weight rows, a multiple of 16; a gate and its up projection take half of them each.
        depth: rounds of codes in flight per warp.
        num_warps: warps per program, a power of two; of several experts each has at least one of its own.
        num_columns: rows of ``x`` in a tile, 8 or 16.
    """

    num_weights: int
    depth: int
    num_warps: int
    num_columns: int = 8


class _Weight(NamedTuple):
    """A weight as the kernel takes it.

    Attributes:
        codes: ``[..., out, in / 8]`` int32.
        group: units that share a scale.
        strides: from a scale to the next group's, and to the next row's.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    form: str
    group: int
    strides: tuple[int, int]

    @classmethod
    def of_experts(cls, weight: PackedMatrices) -> "_Weight":
        group = weight.group // UNIT_INPUTS
        strides = weight.scales.shape[2], 1
        return cls(weight.codes.view(torch.int32), weight.scales, weight.zeros, weight.form, group, strides)


def reads(weight: GroupedTensors) -> bool:
    """Whether the kernel takes a weight: 4-bit floats in groups of 32 inputs, packed in units of as many.

    Waits for the device, since it depends on the largest scale.
    """
    has_units = weight.is_float4 and weight.group == UNIT_INPUTS and weight.codes.data_ptr() % 16 == 0
    return has_units and int(weight.scales.max()) <= LARGEST_EXPONENT


def reads_experts(weights: PackedExperts) -> bool:
    """Whether the kernel takes experts: codes of 4 bits, and integers in groups of a multiple of 128 inputs."""
    return all(
        weight.bits == 4
        and weight.offsets is None
        and not weight.is_nvfp4
        and weight.codes.shape[2] % 16 == 0
        and weight.group % (UNIT_INPUTS if weight.is_float4 else ROUND_INPUTS) == 0
        for weight in (weights.gate_up, weights.down)
    )


def can_multiply(x: torch.Tensor, form: str) -> bool:
    """Whether such inputs and weights are multiplied here; 4-bit floats become bfloat16."""
    dtypes = (torch.bfloat16,) if form == "float4" else (torch.bfloat16, torch.float16)
    return not IS_INTERPRETED and x.dtype in dtypes


def choose_tile(num_rows: int, num_channels: int, num_sms: int) -> UnitTile:
    """The tile for a dense weight; tuned on an H100.

    Few programs have more warps, so that each has less to add up.

    Args:
        num_channels: those of a gate count as well.
    """
    num_tiles = -(-num_channels // 16)
    if num_rows > 8:
        return UnitTile(32, 2, 4, 16)
    if num_tiles <= 2 * num_sms:
        return UnitTile(16, 8, 8)
    are_many = num_tiles > 8 * num_sms
    return UnitTile(32 if are_many and num_rows > 4 else 16, 4 if are_many else 8, 4)


def choose_up_tile(weight: PackedMatrices) -> UnitTile:
    """The tile of experts' first GEMM; tuned on an H100."""
    return UnitTile(32, 2, 2) if weight.is_float4 else UnitTile(32, 4, 4)


def choose_down_tile(num_chosen: int) -> UnitTile:
    """The tile of the GEMM that sums a token's experts; tuned on an H100."""
    return UnitTile(16, 2, max(8, triton.next_power_of_2(num_chosen)))


def unit_linear(
    x: torch.Tensor,
    weight: GroupedTensors,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: UnitTile,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]`` bfloat16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]``, as :func:`reads` takes it; a kernel is compiled for each K.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
    """
    strides = 1, weight.scales.shape[1]
    codes = weight.codes.view(torch.int32)
    packed = _Weight(codes, weight.scales, None, "float4", weight.group // UNIT_INPUTS, strides)
    _launch(x, None, None, packed, bias, out, ExpertSpec(activation), tile, -(-len(x) // tile.num_columns))


def unit_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    weights: PackedExperts,
    spec: ExpertSpec,
    up_tile: UnitTile | None = None,
    down_tile: UnitTile | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts; see :data:`octavo.kernels.experts.ExpertsOp`.

    The first launch computes each pair's activation, times its share, and the second one sums a token's experts. What
    lies between them is in an order of its own.

    Args:
        weights: as :func:`reads_experts` takes them.
    """
    num_tokens, num_chosen = chosen.shape
    hidden, size = weights.down.codes.shape[1], weights.gate_up.codes.shape[1] // 2
    rows = aligned_rows(x)
    inner = x.new_empty(num_tokens * num_chosen, size)
    y = x.new_empty(num_tokens, hidden)
    up, down = _Weight.of_experts(weights.gate_up), _Weight.of_experts(weights.down)
    up_tile, down_tile = up_tile or choose_up_tile(weights.gate_up), down_tile or choose_down_tile(num_chosen)
    _launch(rows, chosen, shares, up, weights.gate_up_bias, inner, spec, up_tile, len(inner))
    plain = ExpertSpec("none", weighs_inputs=not spec.weighs_inputs)
    _launch(inner, chosen, shares, down, weights.down_bias, y, plain, down_tile, num_tokens, num_chosen)
    return y


def _launch(
    x: torch.Tensor,
    chosen: torch.Tensor | None,
    shares: torch.Tensor | None,
    weight: _Weight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    spec: ExpertSpec,
    tile: UnitTile,
    num_programs: int,
    num_summed: int = 1,
) -> None:
    """One launch for ``num_programs`` pairs, tokens or tiles of rows, each with tiles of all outputs.

    Args:
        num_summed: experts that a program sums.
    """
    num_outputs, num_halves = out.shape[1], 1 if spec.activation == "none" else 2
    group_stride, scale_stride = weight.strides
    unit_kernel[triton.cdiv(num_outputs * num_halves, tile.num_weights), num_programs](
        x,
        chosen,
        shares,
        weight.codes,
        weight.scales,
        weight.zeros,
        bias,
        out,
        len(x),
        num_outputs,
        x.stride(0) // 8,
        weight.codes.stride(-2) // 4,
        1 if chosen is None else chosen.shape[1],
        spec.alpha,
        spec.limit,
        ACTIVATION=spec.activation,
        WEIGHS=spec.weighs_inputs,
        FORM=weight.form,
        UNITS=weight.codes.shape[-1] // 4,
        GROUP=weight.group,
        GROUP_STRIDE=group_stride,
        SCALE_STRIDE=scale_stride,
        EXPERTS=0 if chosen is None else num_summed,
        COLUMNS=tile.num_columns,
        BLOCK_N=tile.num_weights,
        DEPTH=tile.depth,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )
