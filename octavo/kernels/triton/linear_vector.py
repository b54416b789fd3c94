"""Matrix products of one row or a few, without tensor cores: ``y = x Wᵀ`` as fast as ``W`` can be read.

A program reads its rows of the weight whole, into registers, before it waits for the kernel that computes ``x``: while
one kernel computes, the weights of the next are already on their way.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

MAX_FEATURES = 16384
"""Longest rows that a program holds."""

SMALL_WEIGHT = 1 << 24
"""Elements up to which multiplying two rows hides behind reading the weight."""


def vector_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, activation: str
) -> None:
    """``x Wᵀ + b``, or with an activation the gated product of ``W``'s halves.

    Args:
        x: ``[M, K]``, K up to :data:`MAX_FEATURES`, inner dimension contiguous; a kernel is compiled for each M.
        weight: ``[N, K]`` contiguous.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    block_k = triton.next_power_of_2(num_features)
    row_bytes = block_k * weight.element_size() * (1 if activation == "none" else 2)
    # Measured on an H200: small weights need many programs, large ones long reads.
    tile_bytes = 8192 if activation == "none" and weight.numel() <= SMALL_WEIGHT // 2 else 16384
    block_n = max(1, tile_bytes // row_bytes)
    vector_kernel[(triton.cdiv(num_channels, block_n),)](
        x,
        weight,
        bias,
        out,
        x.stride(0),
        num_channels,
        num_features,
        ROWS=num_rows,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        ACTIVATION=activation,
        EVEN_K=block_k == num_features,
        num_warps=8 if num_rows == 1 else 4,
        **dependent_launch(x.device),
    )


@triton.jit
def vector_kernel(
    x,
    weight,
    bias,
    out,
    x_stride,
    num_channels,
    num_features,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL: tl.constexpr,
):
    channels = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_channel = channels < num_channels
    columns = tl.arange(0, BLOCK_K)
    is_column = columns < num_features
    spots = weight + channels[:, None].to(tl.int64) * num_features + columns[None, :]
    mask = is_channel[:, None] if EVEN_K else is_channel[:, None] & is_column[None, :]
    factors = tl.load(spots, mask, other=0.0, eviction_policy="evict_first")
    if ACTIVATION != "none":
        ups = tl.load(spots + num_channels.to(tl.int64) * num_features, mask, other=0.0, eviction_policy="evict_first")
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for row in tl.static_range(ROWS):
        if EVEN_K:
            values = tl.load(x + row * x_stride + columns).to(tl.float32)
        else:
            values = tl.load(x + row * x_stride + columns, is_column, other=0.0).to(tl.float32)
        total = tl.sum(factors.to(tl.float32) * values[None, :], 1)
        if bias is not None:
            total += tl.load(bias + channels, is_channel, other=0.0).to(tl.float32)
        if ACTIVATION != "none":
            up = tl.sum(ups.to(tl.float32) * values[None, :], 1)
            if bias is not None:
                up += tl.load(bias + num_channels + channels, is_channel, other=0.0).to(tl.float32)
            if ACTIVATION == "silu":
                total = total * tl.sigmoid(total) * up
            else:
                # (1 + tanh(z)) / 2 is sigmoid(2z).
                slope = 1.5957691216057308 * (total + 0.044715 * total * total * total)
                total = total * tl.sigmoid(slope) * up
        tl.store(out + row * num_channels + channels, total.to(out.dtype.element_ty), is_channel)
