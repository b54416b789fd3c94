"""Float8 experts of a single token on Hopper's tensor cores, which multiply float8 by float8 without conversions.

Values are split into parts for that (:mod:`.value_parts`).

A tensor core's smallest tile has 64 rows of weights and eight of values. Here 16 weight rows have four slices of the sum
in it, an expert or a quarter of its inputs each, and the parts of each slice are rows of values. What the one slice has
with the values of another is left out; that costs no time, since weights are read from memory at their own pace. TMA
puts them into shared memory, up to all of a program's at once. The second kernel adds up the token's experts, and asks
for its weights while the first one still runs.
"""

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo.kernels.packed_experts import PackedExperts, PackedMatrices
from octavo.kernels.triton.hopper_tiles import tile_descriptor
from octavo.kernels.triton.launch import aligned_rows, dependent_launch, is_hopper, num_multiprocessors
from octavo.kernels.triton.token_experts_kernel import ROWS, SLICES, WIDTH, token_down_kernel, token_up_kernel
from octavo.kernels.triton.value_parts import PARTS, empty_parts
from octavo.records.experts import ExpertSpec

_SLOTS = 3
"""Tiles of weights in shared memory of the first kernel."""
_MAX_BYTES = 160 << 10
"""Of weights in shared memory."""


def reads(weights: PackedExperts) -> bool:
    """Whether the kernels take experts: float8 values with a scale per output, without biases."""
    up, down = weights.gate_up, weights.down
    slices = SLICES.value
    return (
        weights.gate_up_bias is None
        and weights.down_bias is None
        and all(weight.is_float8 and weight.has_one_group and _is_aligned(weight) for weight in (up, down))
        and up.num_inputs % (16 * slices) == 0
        and down.num_inputs % 16 == 0
        and down.codes.shape[1] % ROWS.value == 0
        and _SLOTS * _bytes(up.num_inputs // slices) <= _MAX_BYTES
    )


def can_multiply(x: torch.Tensor, chosen: torch.Tensor, weights: PackedExperts) -> bool:
    """Whether the kernels compute the chosen experts of a token, if they take the weights."""
    num_chosen, slices = chosen.shape[1], SLICES.value
    has_room = num_chosen // slices * _bytes(weights.down.num_inputs) <= _MAX_BYTES
    return is_hopper(x.device) and x.dtype is torch.bfloat16 and num_chosen % slices == 0 and has_room


def token_experts(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, weights: PackedExperts, spec: ExpertSpec
) -> torch.Tensor:
    """The weighted sum of a single token's experts; see :data:`octavo.kernels.experts.ExpertsOp`."""
    num_pairs, num_experts = chosen.shape[1], len(weights.down.codes)
    hidden, size = weights.down.codes.shape[1:]
    rows, slices, width = ROWS.value, SLICES.value, WIDTH.value
    inner = empty_parts(x, num_pairs, size)
    y = torch.empty(1, hidden, dtype=x.dtype, device=x.device)
    up, down = weights.gate_up, weights.down
    num_tiles = size // (rows // 2)
    num_items = num_tiles * num_pairs
    token_up_kernel[(min(num_items, num_multiprocessors(x.device)),)](
        _sliced_descriptor(up.codes.view(2 * num_experts, size, hidden)),
        aligned_rows(x),
        chosen,
        shares,
        up.scales,
        inner,
        size,
        num_tiles,
        num_items,
        spec.alpha,
        spec.limit,
        K=hidden,
        SLOTS=_SLOTS,
        ACTIVATION=spec.activation,
        WEIGHS=spec.weighs_inputs,
        num_warps=4,
        **dependent_launch(x.device),
    )
    token_down_kernel[(hidden // rows,)](
        tile_descriptor(down.codes.flatten(0, 1), (rows, width)),
        tile_descriptor(inner, (slices * PARTS.value, width)),
        chosen,
        shares,
        down.scales,
        y,
        hidden,
        K=size,
        PAIRS=num_pairs,
        WEIGHS=not spec.weighs_inputs,
        num_warps=4,
        **dependent_launch(x.device),
    )
    return y


def _bytes(num_inputs: int) -> int:
    """Of a tile's weights in shared memory, with so many inputs of each slice."""
    return triton.cdiv(num_inputs, WIDTH.value) * WIDTH.value * ROWS.value * SLICES.value


def _is_aligned(weight: PackedMatrices) -> bool:
    return weight.codes.is_contiguous() and weight.scales.is_contiguous() and weight.codes.data_ptr() % 16 == 0


def _sliced_descriptor(codes: torch.Tensor) -> TensorDescriptor:
    """How TMA loads blocks of all slices of eight rows of a gate and of as many of its up projection.

    Args:
        codes: ``[2E, outputs, K]``.
    """
    halves, num_outputs, num_inputs = codes.shape
    slices, width, half = SLICES.value, WIDTH.value, ROWS.value // 2
    size = num_inputs // slices
    shape, strides = [slices, halves, num_outputs, size], [size, num_outputs * num_inputs, num_inputs, 1]
    layout = gl.NVMMASharedLayout(width, 8, rank=4)
    return TensorDescriptor(codes, shape, strides, [slices, 2, half, width], layout)
