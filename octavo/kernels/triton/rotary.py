"""Q, K and V between the QKV GEMM and attention, in one launch: head norms, rotary embedding, cache store."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.triton.cache_scales import nearest_values, scale_arguments, scale_of
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.norm import scale_normed


class RotaryTile(NamedTuple):
    """A program's work: ``num_heads`` heads of one token, shared by ``num_warps`` warps."""

    num_heads: int
    num_warps: int


def choose_tile(num_heads: int, head_dim: int) -> RotaryTile:
    """A tile for tokens of ``num_heads`` heads, keys and values included; the same for any number of tokens."""
    head = triton.next_power_of_2(head_dim)
    heads = min(max(2048 // head, 1), triton.next_power_of_2(num_heads))
    return RotaryTile(heads, max(heads * head // 1024, 1))


def qk_rope_store(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor | None,
    slot_mapping: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    counts: torch.Tensor | None = None,
    tile: RotaryTile | None = None,
    scales: CacheScales | None = None,
    *,
    rounds_in_place: bool = False,
) -> None:
    """Norm and rotate queries and keys in place, store keys and values; :func:`octavo.kernels.basic.qk_rope_store`.

    Args:
        kv_cache: None stores nothing, so that values are not read either.
        counts: int32 on the device: the first ``counts[4]`` tokens are skipped. None skips none.
        tile: defaults to :func:`choose_tile`'s.
        scales: of a quantised cache.
        rounds_in_place: replace keys and values by what the quantised cache holds of them.
    """
    num_tokens, (_, all_heads, head_dim), rotary_dim = len(slot_mapping), qkv.shape, cos.shape[-1]
    if num_tokens == 0:
        return
    assert qkv.is_contiguous() and (kv_cache is None or kv_cache.stride(-1) == 1)
    num_used = num_heads + num_kv_heads if kv_cache is None else all_heads
    tile = tile or choose_tile(num_used, head_dim)
    part, block, head, token, _ = (0,) * 5 if kv_cache is None else kv_cache.stride()
    _qk_rope_store_kernel[(num_tokens * triton.cdiv(num_used, tile.num_heads),)](
        qkv,
        q_norm,
        k_norm,
        eps,
        cos,
        sin,
        kv_cache,
        slot_mapping,
        counts,
        cos.stride(0),
        sin.stride(0),
        part,
        block,
        head,
        token,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        BLOCK_SIZE=1 if kv_cache is None else kv_cache.shape[3],
        HALF_BLOCK=triton.next_power_of_2(max(rotary_dim // 2, 1)),
        REST_BLOCK=triton.next_power_of_2(max(head_dim - rotary_dim, 1)),
        HEADS=tile.num_heads,
        ROUNDS=rounds_in_place,
        **scale_arguments(scales, qkv.dtype if kv_cache is None else kv_cache.dtype),
        num_warps=tile.num_warps,
        **dependent_launch(qkv.device),
    )


@triton.jit
def _head_weight(q_norm, k_norm, columns, is_query, is_key):
    """Each head's norm weights; ones for heads without a norm.

    Loaded for every head, in the heads' layout: this costs an L1 hit, while a change of layout costs a barrier.
    """
    if q_norm is None:
        weight = tl.load(k_norm + columns, is_key, other=1.0)
    elif k_norm is None:
        weight = tl.load(q_norm + columns, is_query, other=1.0)
    else:
        query_weight = tl.load(q_norm + columns, is_query, other=1.0)
        weight = tl.where(is_query, query_weight, tl.load(k_norm + columns, is_key, other=1.0))
    return weight


@triton.jit
def _store(values, qkv, cache, columns, mask, in_place, in_cache):
    """Store a part of each head in place, in the cache, or both."""
    tl.store(qkv + columns, values, mask & in_place)
    if cache is not None:
        tl.store(cache + columns, values, mask & in_cache)


@triton.jit
def _round(values, qkv, cache, columns, mask, in_place, in_cache, scale, LARGEST: tl.constexpr, ROUNDS: tl.constexpr):
    """The same with a quantised cache; ``ROUNDS`` what it holds in place, too."""
    rounded = nearest_values(values, scale, LARGEST, cache.dtype.element_ty)
    tl.store(cache + columns, rounded.to(cache.dtype.element_ty), mask & in_cache)
    if ROUNDS:
        values = tl.where(in_cache, (rounded * scale).to(values.dtype), values)
    tl.store(qkv + columns, values, mask & in_place)


@triton.jit
def _found_scale(low, high, rest, LARGEST: tl.constexpr):
    """The scale of each head ``[HEADS, 1]``, of which these are the parts."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    largest = tl.max(tl.maximum(tl.abs(low), tl.abs(high)), axis=1, keep_dims=True)
    poison = tl.sum((low + high) * 0.0, axis=1, keep_dims=True)
    if rest is not None:
        rest = rest.to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(rest), axis=1, keep_dims=True))
        poison += tl.sum(rest * 0.0, axis=1, keep_dims=True)
    return scale_of(largest, poison, LARGEST)


@triton.jit
def _qk_rope_store_kernel(
    qkv,
    q_norm,
    k_norm,
    eps,
    cos,
    sin,
    cache,
    slot_mapping,
    counts,
    cos_stride,
    sin_stride,
    cache_part_stride,
    cache_block_stride,
    cache_head_stride,
    cache_token_stride,
    scales,
    scale_part,
    scale_block,
    scale_head,
    scale_token,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    ROUNDS: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program handles ``HEADS`` heads of one token, of Q, K and V alike; grid (tokens · tiles of heads)."""
    all_heads: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    num_used: tl.constexpr = all_heads if cache is not None else NUM_HEADS + NUM_KV_HEADS
    num_tiles: tl.constexpr = (num_used + HEADS - 1) // HEADS
    half: tl.constexpr = ROTARY_DIM // 2
    token = (tl.program_id(0) // num_tiles).to(tl.int64)
    head = tl.program_id(0) % num_tiles * HEADS + tl.arange(0, HEADS)[:, None]
    is_head, is_query, is_value = head < num_used, head < NUM_HEADS, head >= NUM_HEADS + NUM_KV_HEADS
    is_key = ~is_query & ~is_value
    is_normed = ~is_value
    if q_norm is None:
        is_normed = is_key
    if k_norm is None:
        is_normed = is_query

    low = tl.arange(0, HALF_BLOCK)[None, :]
    rest = ROTARY_DIM + tl.arange(0, REST_BLOCK)[None, :]
    in_half, in_rest = is_head & (low < half), is_head & (rest < HEAD_DIM)
    if q_norm is not None or k_norm is not None:
        low_weight = _head_weight(q_norm, k_norm, low, in_half & is_query, in_half & is_key)
        high_weight = _head_weight(q_norm, k_norm, half + low, in_half & is_query, in_half & is_key)
        if ROTARY_DIM < HEAD_DIM:
            rest_weight = _head_weight(q_norm, k_norm, rest, in_rest & is_query, in_rest & is_key)

    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if counts is not None:  # noqa: SIM102
        if token < tl.load(counts + 4):
            return
    if cache is not None:
        place = tl.load(slot_mapping + token).to(tl.int64)
    qkv += token * all_heads * HEAD_DIM + head * HEAD_DIM
    x_low = tl.load(qkv + low, in_half, other=0.0)
    x_high = tl.load(qkv + half + low, in_half, other=0.0)
    if ROTARY_DIM < HEAD_DIM:
        x_rest = tl.load(qkv + rest, in_rest, other=0.0)
    # The two halves of cos are equal; those of sin differ in sign, so the second half is the plain sine.
    cosine = tl.load(cos + token * cos_stride + low, in_half, other=0.0)
    sine = tl.load(sin + token * sin_stride + half + low, in_half, other=0.0)

    dtype: tl.constexpr = x_low.dtype
    if q_norm is not None or k_norm is not None:
        wide_low, wide_high = x_low.to(tl.float32), x_high.to(tl.float32)
        square = tl.sum(wide_low * wide_low + wide_high * wide_high, axis=1, keep_dims=True)
        if ROTARY_DIM < HEAD_DIM:
            wide_rest = x_rest.to(tl.float32)
            square += tl.sum(wide_rest * wide_rest, axis=1, keep_dims=True)
        inverse = tl.rsqrt(square / HEAD_DIM + eps)
        x_low = tl.where(is_normed, scale_normed(wide_low * inverse, low_weight, dtype), x_low)
        x_high = tl.where(is_normed, scale_normed(wide_high * inverse, high_weight, dtype), x_high)
        if ROTARY_DIM < HEAD_DIM:
            x_rest = tl.where(is_normed, scale_normed(wide_rest * inverse, rest_weight, dtype), x_rest)

    wide_low, wide_high = x_low.to(tl.float32), x_high.to(tl.float32)
    cosine, sine = cosine.to(tl.float32), sine.to(tl.float32)
    rotated_low = (wide_low * cosine - wide_high * sine).to(dtype)
    rotated_high = (wide_high * cosine + wide_low * sine).to(dtype)

    low_values, high_values = tl.where(is_value, x_low, rotated_low), tl.where(is_value, x_high, rotated_high)

    kv_head = head - NUM_HEADS - tl.where(is_value, NUM_KV_HEADS, 0)
    in_place, in_cache = is_head if ROUNDS else ~is_value, None
    if cache is not None:
        cache += place // BLOCK_SIZE * cache_block_stride + place % BLOCK_SIZE * cache_token_stride
        cache += kv_head.to(tl.int64) * cache_head_stride + tl.where(is_value, cache_part_stride, 0)
        in_cache = ~is_query & (place >= 0)
    rest_values = x_rest if ROTARY_DIM < HEAD_DIM else None
    if scales is None:
        _store(low_values, qkv, cache, low, in_half, in_place, in_cache)
        _store(high_values, qkv, cache, half + low, in_half, in_place, in_cache)
        if rest_values is not None:
            _store(rest_values, qkv, cache, rest, in_rest, in_place, in_cache)
    elif (tl.program_id(0) % num_tiles + 1) * HEADS <= NUM_HEADS:
        # Queries alone: most programs have nothing to round.
        _store(low_values, qkv, None, low, in_half, in_place, None)
        _store(high_values, qkv, None, half + low, in_half, in_place, None)
        if rest_values is not None:
            _store(rest_values, qkv, None, rest, in_rest, in_place, None)
    else:
        scales_at = scales + place // BLOCK_SIZE * scale_block + place % BLOCK_SIZE * scale_token
        scales_at += kv_head.to(tl.int64) * scale_head + tl.where(is_value, scale_part, 0)
        if ARE_GIVEN:
            scale = tl.load(scales_at, is_head & in_cache, other=1.0)
        else:
            scale = _found_scale(low_values, high_values, rest_values, LARGEST)
            tl.store(scales_at, scale, is_head & in_cache)
        _round(low_values, qkv, cache, low, in_half, in_place, in_cache, scale, LARGEST, ROUNDS)
        _round(high_values, qkv, cache, half + low, in_half, in_place, in_cache, scale, LARGEST, ROUNDS)
        if rest_values is not None:
            _round(rest_values, qkv, cache, rest, in_rest, in_place, in_cache, scale, LARGEST, ROUNDS)
