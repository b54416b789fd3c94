"""A Triton GEMM of int8 values, scaled per row and per output.

The weight is the M operand of the tensor cores, which add up in int32. Such sums are exact, so that tiles and parts
follow from the number of rows without changing a bit.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.linear_kernel import add_parts

BLOCK_K = 128
"""Inputs that are multiplied at a time."""
_TOGETHER = tl.constexpr(8)
"""Row tiles that share the weights of a channel tile while these are in the L2 cache."""


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def int8_kernel(
    x,
    row_scales,
    weight,
    scales,
    bias,
    y,
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_features,
    num_parts,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    IS_EVEN: tl.constexpr,
    SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes a tile of ``y``, or a part of its sum; grid (tiles, parts).

    Args:
        x: ``[num_rows, num_features]`` int8.
        row_scales: float32, one per row.
        weight: ``[num_channels, num_features]`` int8.
        scales: float32, one per channel.
        bias: one value per channel, or None.
        y: ``[num_rows, num_channels]``.
        partials: int32 ``[num_parts, num_rows, channels padded to whole tiles]`` if ``SPLIT``.
        arrivals: int32, one counter per tile, zero before and after the launch; if ``SPLIT``.
        IS_EVEN: whether the features are a multiple of ``BLOCK_K``.
        SPLIT: whether there are several parts.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles_n = tl.cdiv(num_channels, BLOCK_N)
    tile_m, tile_n = tl.swizzle2d(tile // tiles_n, tile % tiles_n, tl.cdiv(num_rows, BLOCK_M), tiles_n, _TOGETHER)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    is_row, is_channel = m < num_rows, n < num_channels
    # What is past the end reads the last row instead: cheaper than a mask, and it is not stored.
    x_spots = x + tl.minimum(m, num_rows - 1).to(tl.int64)[:, None] * num_features + k[None, :]
    weight_spots = weight + tl.minimum(n, num_channels - 1).to(tl.int64)[:, None] * num_features + k[None, :]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    steps = tl.cdiv(num_features, BLOCK_K)
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.int32)
    for step in range(part * steps // num_parts, (part + 1) * steps // num_parts):
        start = step * BLOCK_K
        if IS_EVEN:
            weights, values = tl.load(weight_spots + start), tl.load(x_spots + start)
        else:
            is_inside = (start + k < num_features)[None, :]
            weights = tl.load(weight_spots + start, mask=is_inside, other=0)
            values = tl.load(x_spots + start, mask=is_inside, other=0)
        total = tl.dot(weights, values.T, total, out_dtype=tl.int32)
    is_last = part >= 0
    if SPLIT:
        width = tiles_n * BLOCK_N
        stride = num_rows.to(tl.int64) * width
        spots = partials + m[None, :] * width + n[:, None]
        tl.store(spots + part * stride, total, mask=is_row[None, :])
        # All threads' stores come before the arrival; the last program's loads come after it.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == num_parts - 1
        if is_last:
            tl.store(arrivals + tile, 0)
            total = add_parts(spots, stride, num_parts, is_row[None, :], BLOCK_M, BLOCK_N)
    if is_last:
        scaled = total.to(tl.float32) * tl.load(row_scales + m, is_row, other=0.0)[None, :]
        scaled *= tl.load(scales + n, is_channel, other=0.0)[:, None]
        if bias is not None:
            scaled += tl.load(bias + n, is_channel, other=0.0).to(tl.float32)[:, None]
        spots_y = y + m[None, :].to(tl.int64) * num_channels + n[:, None]
        tl.store(spots_y, scaled.to(y.dtype.element_ty), mask=is_row[None, :] & is_channel[:, None])
