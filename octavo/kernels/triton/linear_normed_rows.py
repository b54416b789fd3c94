"""Small-M GEMMs of 2 to 8 rows of up to 1,024 features that norm their rows: ``y = rms_norm(x + residual) Wᵀ``.

A program requests all its weights before it waits for the kernel that computes ``x``; then it copies all rows to
shared memory. It multiplies them by the norm's weight on their way to the tensor cores, and its sums by each row's
inverse root mean square, which is known only at the end. That saves the norm's launch.
"""

from collections.abc import Sequence

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import (
    add_slices,
    copy_places,
    copy_round,
    slices_layout,
    store_outputs,
    weight_places,
)
from octavo.kernels.triton.stream_norm import norm_arguments

MAX_ROWS = 8
"""The MMA's operand with values has so many rows."""

MAX_FEATURES = 1024
"""Beyond this K, reading all of the rows in each program takes longer than a launch."""

_NUM_WEIGHTS = 32
"""Weight rows of a program, of a gate and its up projection half of them each; 16 and 64 took longer on an H100."""

_NUM_WARPS = 4


def norms_rows(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether the kernel norms rows of ``[M, K]``.

    Not float16, which rows times the norm's weight may overflow before they are divided by their root mean square.
    """
    return (
        len(shape) == 2
        and 2 <= shape[0] <= MAX_ROWS
        and shape[1] <= MAX_FEATURES
        and shape[1] % 8 == 0
        and dtype is torch.bfloat16
    )


def normed_rows_linear(
    norm: DeferredNorm,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
) -> None:
    """:func:`.linear_stream.stream_linear` of the normed rows; settles the norm.

    Args:
        norm: of ``x``.
        x: ``[M, K]``, of which :func:`norms_rows` is true; rows contiguous, row stride a multiple of 8, aligned to 16
            bytes.
        weight: ``[N, K]`` of the same type, contiguous, aligned to 16 bytes; a kernel is compiled for each K.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    grid = (-(-num_channels // (_NUM_WEIGHTS // (1 if activation == "none" else 2))),)
    normed_rows_kernel[grid](
        x,
        *norm_arguments(norm),
        weight,
        bias,
        out,
        x.stride(0) // 8,
        num_rows,
        num_channels,
        K=num_features,
        BLOCK_N=_NUM_WEIGHTS,
        ACTIVATION=activation,
        num_warps=_NUM_WARPS,
        **dependent_launch(x.device),
    )


@gluon.jit(do_not_specialize=["num_rows", "eps"])
def normed_rows_kernel(
    x,
    residual,  # [M, K], added to x before its norm; or None
    norm,  # [K], the norm's weight
    eps,
    summed,  # [M, K], where the sum goes; None without a residual
    weight,
    bias,
    out,
    x_stride,  # in units of 8 values, so that the compiler sees rows aligned to 16 bytes
    num_rows,
    num_channels,
    K: gl.constexpr,
    BLOCK_N: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes ``CHANNELS`` outputs of all rows; each warp sums a slice of K; grid (channel tiles)."""
    WARPS: gl.constexpr = gl.num_warps()
    BLOCK_M: gl.constexpr = 8
    BLOCK_K: gl.constexpr = 64  # features that a warp multiplies per round
    ROUND: gl.constexpr = WARPS * BLOCK_K
    NUM_ROUNDS: gl.constexpr = (K + ROUND - 1) // ROUND
    # With a gate, the first half of a program's weight rows are the gate's, the second half the up projection's.
    PARTS: gl.constexpr = 1 if ACTIVATION == "none" else 2
    CHANNELS: gl.constexpr = BLOCK_N // PARTS
    # As in stream_kernel: weights are the MMA's operand with 16 rows, values that with 8.
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 8)
    value_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 8)
    copy_layout: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 256 // BLOCK_K, BLOCK_K // 8], [WARPS, 1, 1], [2, 1, 0])
    memory_layout: gl.constexpr = gl.SwizzledSharedLayout(32, 1, 2, [2, 1, 0])
    dtype: gl.constexpr = x.dtype.element_ty
    weights = gl.allocate_shared_memory(dtype, [NUM_ROUNDS, WARPS, BLOCK_N, BLOCK_K], memory_layout)
    rows = gl.allocate_shared_memory(dtype, [NUM_ROUNDS, WARPS, BLOCK_M, BLOCK_K], memory_layout)
    if residual is not None:
        residuals = gl.allocate_shared_memory(dtype, [NUM_ROUNDS, WARPS, BLOCK_M, BLOCK_K], memory_layout)

    first_channel = gl.program_id(0) * CHANNELS
    weight_spots, is_weight, weight_column = weight_places(
        weight, first_channel, num_channels, K, CHANNELS, copy_layout, WARPS, BLOCK_N, BLOCK_K
    )
    for i in gl.static_range(NUM_ROUNDS):
        copy_round(weight_spots, is_weight, weight_column, weights.index(i), i, K, ROUND)
    m, x_column = copy_places(copy_layout, WARPS, BLOCK_M, BLOCK_K)
    is_x = (m < num_rows) & (x_column >= 0)

    # A thread multiplies features of one row, 8 neighbours at a time.
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, value_layout)))[:, None, None]
    feature = gl.arange(0, BLOCK_K, gl.SliceLayout(0, gl.SliceLayout(2, value_layout)))[None, :, None]
    row = gl.arange(0, BLOCK_M, gl.SliceLayout(0, gl.SliceLayout(1, value_layout)))[None, None, :]
    columns = ()
    factors = ()
    for i in gl.static_range(NUM_ROUNDS):
        column = (i * WARPS + warp) * BLOCK_K + feature
        columns = columns + (column,)  # type: ignore[assignment]
        factors = factors + (gl.load(norm + column, column < K, other=0.0),)  # type: ignore[assignment]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()

    # Loads straight to registers took longer: probably since shared memory leaves them too little L1 cache.
    for i in gl.static_range(NUM_ROUNDS):
        copy_round(x + (m * (x_stride * 8) + x_column), is_x, x_column, rows.index(i), i, K, ROUND)
        if residual is not None:
            copy_round(residual + (m * K + x_column), is_x, x_column, residuals.index(i), i, K, ROUND)
    async_copy.commit_group()
    async_copy.wait_group(0)
    sums = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, layout)
    squares = gl.zeros([WARPS, BLOCK_K, BLOCK_M], gl.float32, value_layout)
    for i in gl.static_range(NUM_ROUNDS):
        values = rows.index(i).permute((0, 2, 1)).load(value_layout)
        if residual is not None:
            values += residuals.index(i).permute((0, 2, 1)).load(value_layout)  # rounded as float32's sum would be
            if gl.program_id(0) == 0:
                gl.store(summed + (row * K + columns[i]), values, (columns[i] < K) & (row < num_rows))
        wide = values.to(gl.float32)
        squares += wide * wide
        if norm.dtype.element_ty == dtype:
            values *= factors[i]
        else:
            values = (wide * factors[i].to(gl.float32)).to(dtype)
        sums = mma_v2(weights.index(i).load(weight_layout), values, sums)

    row_squares = gl.allocate_shared_memory(gl.float32, [WARPS, BLOCK_M], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    row_squares.store(gl.sum(squares, 1))
    result = add_slices(sums, PARTS, CHANNELS, BLOCK_M)
    slices_of_rows: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, slices_layout(WARPS, WARPS, PARTS, CHANNELS)))
    mean = gl.sum(row_squares.load(slices_of_rows), 0) / K
    rate = gl.convert_layout(gl.rsqrt(mean + eps), gl.SliceLayout(1, gl.SliceLayout(2, result.type.layout)))
    store_outputs(result * rate[:, None, None], None, bias, out, first_channel, num_rows, num_channels, ACTIVATION)
