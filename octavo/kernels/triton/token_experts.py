"""Float8 experts of a single token on Hopper's tensor cores, which multiply float8 by float8 without conversions.

Two launches: one for the gates and up projections of all pairs, one that adds up the token's experts, and that asks for
its weights while the first one still runs. TMA puts weights into shared memory, most of a program's at once, and
whatever the programs multiply is in parts (:mod:`.token_tiles`).
"""

import torch
import triton

from octavo.kernels.packed_experts import PackedExperts, PackedMatrices
from octavo.kernels.triton.hopper_tiles import tile_descriptor
from octavo.kernels.triton.launch import aligned_rows, dependent_launch, is_hopper, num_multiprocessors
from octavo.kernels.triton.token_experts_kernel import token_down_kernel, token_up_kernel
from octavo.kernels.triton.token_tiles import ROWS, WIDTH, sliced_descriptor
from octavo.kernels.triton.value_parts import empty_parts
from octavo.records.experts import ExpertSpec

_SLICES = 4
"""Slices of the inputs in the first kernel."""
_SLOTS = 2
"""Tiles of weights in shared memory of the first kernel."""
_LAST_TILES = 3
"""Tiles of a program of the first kernel that are left when the second one may start and request its weights."""
_MAX_BYTES = 160 << 10
"""Of weights in shared memory."""


def reads(weights: PackedExperts) -> bool:
    """Whether the kernels take experts: float8 values with a scale per output, without biases."""
    up, down = weights.gate_up, weights.down
    return (
        weights.gate_up_bias is None
        and weights.down_bias is None
        and all(weight.is_float8 and weight.has_one_group and _is_aligned(weight) for weight in (up, down))
        and up.num_inputs % WIDTH.value == 0
        and down.num_inputs % ROWS.value == 0
        and _SLOTS * _tile_bytes(up.num_inputs) <= _MAX_BYTES
    )


def can_multiply(x: torch.Tensor, chosen: torch.Tensor, weights: PackedExperts) -> bool:
    """Whether the kernels compute the chosen experts of a token, if they take the weights."""
    num_chosen = chosen.shape[1]
    has_room = num_chosen * _tile_bytes(weights.down.num_inputs) <= _MAX_BYTES
    return is_hopper(x.device) and x.dtype is torch.bfloat16 and num_chosen % 4 == 0 and has_room


def token_experts(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, weights: PackedExperts, spec: ExpertSpec
) -> torch.Tensor:
    """The weighted sum of a single token's experts; see :data:`octavo.kernels.experts.ExpertsOp`."""
    num_pairs = chosen.shape[1]
    up, down = weights.gate_up, weights.down
    hidden, size = down.codes.shape[1:]
    inner = empty_parts(x, num_pairs, size)
    y = torch.empty(1, hidden, dtype=x.dtype, device=x.device)
    num_tiles = size // (ROWS.value // 2)
    num_items = num_tiles * num_pairs
    token_up_kernel[(min(num_items, num_multiprocessors(x.device)),)](
        sliced_descriptor(up.codes.view(-1, size, hidden), _SLICES, 2),
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
        LAST=_LAST_TILES,
        ACTIVATION=spec.activation,
        WEIGHS=spec.weighs_inputs,
        num_warps=_SLICES,
        **dependent_launch(x.device),
    )
    num_slices = 8 if num_pairs % 8 == 0 else 4
    token_down_kernel[(hidden // ROWS.value,)](
        tile_descriptor(down.codes.flatten(0, 1), (ROWS.value, WIDTH.value)),
        inner,
        chosen,
        shares,
        down.scales,
        y,
        hidden,
        K=size,
        PAIRS=num_pairs,
        SLICES=num_slices,
        WEIGHS=not spec.weighs_inputs,
        num_warps=num_slices,
        **dependent_launch(x.device),
    )
    return y


def _tile_bytes(num_inputs: int) -> int:
    """Of a tile's weights in shared memory, of one expert."""
    return triton.cdiv(num_inputs, WIDTH.value) * WIDTH.value * ROWS.value


def _is_aligned(weight: PackedMatrices) -> bool:
    return weight.codes.is_contiguous() and weight.scales.is_contiguous() and weight.codes.data_ptr() % 16 == 0
