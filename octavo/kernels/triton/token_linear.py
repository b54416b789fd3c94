"""The GEMM of a single row by float8 weights on Hopper's tensor cores, without conversions of the weights.

A program computes a tile of 16 weight rows over all of K. It requests weights by TMA before it waits for the kernel
that computes the row; then it norms the row if need be, and splits it into parts (:mod:`.token_tiles`).
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.triton.gluon_names import barrier, load_async
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import apply_gate
from octavo.kernels.triton.stream_norm import load_factors, norm_arguments, normed_parts
from octavo.kernels.triton.token_tiles import (
    ROWS,
    WIDTH,
    add_slices,
    block_columns,
    memory_blocks,
    multiply_blocks,
    own_sums,
    row_layout,
    sliced_descriptor,
    store_block,
    transfer_barriers,
)
from octavo.kernels.triton.value_parts import PARTS

_MAX_FEATURES = 4096
"""Beyond this K, other kernels are faster."""
_MEMORY = 227 << 10
"""Shared memory of a multiprocessor, of which each program takes 1 KiB more than its own."""


def suits(num_weights: int, num_features: int, num_sms: int) -> bool:
    """Whether the kernel takes ``[num_weights, num_features]``, contiguous and aligned to 16 bytes, and is fast.

    All programs have to be resident at once: otherwise those that wait for room cannot request their weights early.
    """
    if num_features % WIDTH.value or num_features > _MAX_FEATURES:
        return False
    shared = _num_blocks(num_features) * _num_slices(num_features) * WIDTH.value * (ROWS.value + PARTS.value)
    return triton.cdiv(num_weights, ROWS.value) <= _MEMORY // (shared + 1024) * num_sms


def _num_blocks(num_features: int) -> int:
    return triton.cdiv(num_features, WIDTH.value * _num_slices(num_features))


def _num_slices(num_features: int) -> int:
    """Of the inputs, each for a warp."""
    return 8 if num_features >= 4096 else 4


def token_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    norm: DeferredNorm | None = None,
) -> None:
    """``x Wᵀ · scales + b``, or with an activation ``act(y₁) · y₂`` for the halves of ``y``.

    Args:
        x: ``[1, K]`` bfloat16, contiguous.
        weight: ``[N, K]`` float8, that :func:`suits`; a kernel is compiled for each K.
        scales: ``[N]`` float32.
        out: ``[1, N]``, or ``[1, N / 2]`` with an activation.
        activation: "none", "silu" or "gelu_tanh".
        norm: of ``x``; settled by this.
    """
    num_features, num_channels = weight.shape[1], out.shape[1]
    num_slices, num_halves = _num_slices(num_features), 1 if activation == "none" else 2
    token_linear_kernel[(triton.cdiv(num_channels, ROWS.value // num_halves),)](
        x,
        *norm_arguments(norm),
        sliced_descriptor(weight.view(num_halves, num_channels, num_features), num_slices, num_halves),
        scales,
        bias,
        out,
        num_channels,
        K=num_features,
        ACTIVATION=activation,
        num_warps=num_slices,
        **dependent_launch(x.device),
    )


@gluon.jit(do_not_specialize=["num_channels", "eps"])
def token_linear_kernel(
    x,
    residual,  # [K], added to x before its norm; or None
    norm,  # [K], the weight of the norm of x; None for none
    eps,
    summed,  # [K], where the sum goes; None without a residual
    weight_desc,  # [K / WIDTH, 1, N, WIDTH] or [K / WIDTH, 2, N / 2, WIDTH], blocks of a tile
    scales,  # [N]
    bias,  # [N] or None
    out,
    num_channels,
    K: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes a tile of outputs; grid (tiles)."""
    SLICES: gl.constexpr = weight_desc.block_shape[0]
    HALVES: gl.constexpr = weight_desc.block_shape[1]
    CHANNELS: gl.constexpr = ROWS // HALVES
    BLOCKS: gl.constexpr = (K + SLICES * WIDTH - 1) // (SLICES * WIDTH)
    weights = memory_blocks(weight_desc.dtype, BLOCKS, SLICES * ROWS)
    values = memory_blocks(gl.float8e5, BLOCKS, SLICES * PARTS)
    full = transfer_barriers(BLOCKS)
    fence_async_shared()
    first = gl.program_id(0) * CHANNELS
    for block in gl.static_range(BLOCKS):
        mbarrier.expect(full[block], weight_desc.block_type.nbytes)
    for block in gl.static_range(BLOCKS):
        target = weights[block].reshape(weight_desc.block_shape)
        load_async(weight_desc, [block * SLICES, 0, first, 0], full[block], target)
    row = gl.arange(0, SLICES * ROWS, row_layout(SLICES)) % ROWS
    channel = first + row % CHANNELS
    number = row // CHANNELS * num_channels + gl.minimum(channel, num_channels - 1)
    scale = gl.load(scales + number)
    shift = gl.zeros_like(scale)
    if bias is not None:
        shift = gl.load(bias + number).to(gl.float32)
    columns = ()
    for block in gl.static_range(BLOCKS):
        columns = columns + (block_columns(block, SLICES),)  # type: ignore[assignment]
    if norm is not None:
        factors = load_factors(norm, columns, K)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if norm is not None:
        rows = normed_parts(x, residual, columns, factors, eps, summed, K)
        for block in gl.static_range(BLOCKS):
            store_block(rows[block], values[block])
    else:
        for block in gl.static_range(BLOCKS):
            column = columns[block]  # type: ignore[var-annotated]
            store_block(gl.load(x + column, column < K, other=0.0), values[block])
    fence_async_shared()
    barrier()

    for block in gl.static_range(BLOCKS):
        mbarrier.wait(full[block], 0)
    sums = multiply_blocks(weights, values, SLICES)
    # Each slice has its share of the bias.
    result = add_slices(own_sums(sums, SLICES) * scale + shift * (1.0 / SLICES), SLICES)
    if ACTIVATION != "none":
        gate, up = result.reshape((2, CHANNELS)).permute((1, 0)).split()
        result = apply_gate(gate, up, ACTIVATION)
    channel = first + gl.arange(0, CHANNELS, result.type.layout)
    gl.store(out + channel, result.to(out.dtype.element_ty), channel < num_channels)
