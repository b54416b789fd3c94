"""Rotary embedding of heads that stand anywhere in memory; see :func:`octavo.kernels.basic.rotate_heads`."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

_VALUES = 2048
"""Values per program, at most, if a head has no more: 16 per thread of 4 warps."""


def rotate_heads(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    is_interleaved: bool = False,
    is_last: bool = False,
) -> torch.Tensor:
    """Rotate a part of each head; see :func:`octavo.kernels.basic.rotate_heads`."""
    if x.stride(2) != 1:
        x = x.contiguous()
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    assert out.stride(2) == cos.stride(2) == sin.stride(2) == 1
    num_tokens, num_heads, size = x.shape
    if num_tokens == 0:
        return out
    block = triton.next_power_of_2(size)
    heads = min(max(_VALUES // block, 1), triton.next_power_of_2(num_heads))
    _rotate_heads_kernel[(num_tokens * triton.cdiv(num_heads, heads),)](
        x, cos, sin, out, x.stride(0), x.stride(1), cos.stride(0), sin.stride(0), out.stride(0), out.stride(1),
        NUM_HEADS=num_heads, SIZE=size, ROTARY=cos.shape[2], HEADS=heads, BLOCK=block,
        IS_INTERLEAVED=is_interleaved, IS_LAST=is_last,
        num_warps=max(heads * block // 512, 1), **dependent_launch(x.device),
    )  # fmt: skip
    return out


@triton.jit
def _rotate_heads_kernel(
    x,
    cos,
    sin,
    out,
    x_stride,
    x_head_stride,
    cos_stride,
    sin_stride,
    out_stride,
    out_head_stride,
    NUM_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROTARY: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    IS_LAST: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program rotates ``HEADS`` heads of one token; grid (tokens · tiles of heads)."""
    num_tiles: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    token = (tl.program_id(0) // num_tiles).to(tl.int64)
    heads = tl.program_id(0) % num_tiles * HEADS + tl.arange(0, HEADS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    cosine, sine = load_turns(cos + token * cos_stride, sin + token * sin_stride, columns, ROTARY)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    mask = (heads < NUM_HEADS) & (columns < SIZE)
    x += token * x_stride + heads * x_head_stride
    rotated = load_rotated(x, columns, mask, cosine, sine, SIZE, ROTARY, IS_INTERLEAVED, IS_LAST)
    tl.store(out + token * out_stride + heads * out_head_stride + columns, rotated, mask)


@triton.jit
def load_turns(cos, sin, columns, ROTARY: tl.constexpr):
    """Factors of each of a head's values and of its partner; those of values that do not rotate are 1 and 0.

    Args:
        cos, sin: addresses of tables' rows, see :func:`octavo.kernels.basic.apply_rope`.
    """
    is_rotary = columns < ROTARY
    return tl.load(cos + columns, is_rotary, other=1.0), tl.load(sin + columns, is_rotary, other=0.0)


@triton.jit
def load_rotated(
    x,
    columns,
    mask,
    cosine,
    sine,
    SIZE: tl.constexpr,
    ROTARY: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    IS_LAST: tl.constexpr,
):
    """Columns of heads after the rotation, rounded where the reference rounds.

    Args:
        x: addresses of heads of ``SIZE`` values.
    """
    half: tl.constexpr = ROTARY // 2
    is_rotary = columns < ROTARY
    partners = tl.where(columns < half, columns + half, columns - half)
    own_at, partners_at = columns, partners
    if IS_INTERLEAVED:
        own_at = tl.where(columns < half, 2 * columns, 2 * (columns - half) + 1)
        own_at = tl.where(is_rotary, own_at, columns)
        partners_at = tl.where(columns < half, 2 * partners - 2 * half + 1, 2 * partners)
    if IS_LAST:
        own_at = tl.where(is_rotary, own_at + (SIZE - ROTARY), own_at - ROTARY)
        partners_at += SIZE - ROTARY
    own = tl.load(x + own_at, mask, other=0.0)
    partner = tl.load(x + partners_at, mask & is_rotary, other=0.0)
    product = own.to(tl.float32) * cosine.to(tl.float32)
    if cosine.dtype == own.dtype:
        product = product.to(own.dtype).to(tl.float32)
    return (product + partner.to(tl.float32) * sine.to(tl.float32)).to(own.dtype)
