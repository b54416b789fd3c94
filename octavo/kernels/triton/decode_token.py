"""Device functions of decode attention for the new tokens: norm, rotation, cache store, and scaled scores."""

import triton
import triton.language as tl

from octavo.kernels.triton.cache_scales import nearest_values, scale_of
from octavo.kernels.triton.launch import wait_in_loop
from octavo.kernels.triton.norm import scale_normed

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def scale_scores(scores: tl.tensor, scale: tl.tensor, softcap: tl.tensor, HAS_SOFTCAP: tl.constexpr):
    """Scaled and capped scores in base 2: the hardware computes exp2."""
    if HAS_SOFTCAP:
        # tanh(x) = 1 − 2 / (1 + exp(2x)), correct at both infinities.
        squared = tl.exp2(scores * (scale / softcap * (2 * LOG2E)))
        scores = (softcap * LOG2E) * (1 - 2 / (1 + squared))
    else:
        scores *= scale * LOG2E
    return scores


@triton.jit
def take_token(
    qkv: tl.tensor,
    qkv_stride: tl.tensor,
    head: tl.tensor,
    cos: tl.tensor,
    cos_stride: tl.tensor,
    sin: tl.tensor,
    sin_stride: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    eps: tl.tensor,
    place: tl.tensor,
    part_stride: tl.tensor,
    scale_place: tl.tensor,
    scale_part: tl.tensor,
    num_new: tl.tensor,
    stores_token: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    ROTARY_DIM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WALKERS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    LENGTH: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Wait for the QKV GEMM, norm and rotate the queries of one group and its keys, and store keys and values.

    Args:
        qkv: heads of the row's first token: queries, keys, values; those of further tokens are ``qkv_stride`` apart.
        head: index of the key/value head.
        cos, sin: rotation of the row's first token; likewise.
        place: the address of each query's own key in the cache; the value's is ``part_stride`` further.
        scale_place: likewise of its scale in a quantised cache, ``scale_part`` before the value's; None for another.
        num_new: number of the row's tokens, at most ``LENGTH``; not read if that is 1.
        stores_token: whether this program stores them; exactly one per row and head does.

    Returns:
        Queries ``[WALKERS, BLOCK_G, BLOCK_D]``, by token, then by head. If ``LENGTH`` is 1, also their scores with the
        key ``[1, BLOCK_G]`` (scaled, base 2), and the value ``[1, 1, BLOCK_D]``, both as they are in the cache.
    """
    HEADS: tl.constexpr = triton.next_power_of_2(GROUP * LENGTH)
    heads, dims = tl.arange(0, HEADS)[None, None, :, None], tl.arange(0, BLOCK_D)[None, None, None, :]
    in_head, in_rotary = dims < HEAD_DIM, dims < ROTARY_DIM
    if LENGTH > 1:
        # Each query prepares its own token's key, too; those of a group's first heads are stored.
        token = heads // GROUP
        heads %= GROUP
        in_head, in_rotary = in_head & (token < num_new), in_rotary & (token < num_new)
        qkv, cos, sin = qkv + token * qkv_stride, cos + token * cos_stride, sin + token * sin_stride
        stores_token = stores_token & (heads == 0)
    # Shared values are loaded once per head, in the heads' layout: a change of layout would cost a barrier.
    shared = tl.zeros((1, 1, HEADS, BLOCK_D), tl.int32) + dims
    q_weight = None
    q_partner_weight = None
    if q_norm is not None:
        q_weight, q_partner_weight = _load_pairs(q_norm, shared, in_head, ROTARY_DIM)
    k_weight = None
    k_partner_weight = None
    if k_norm is not None:
        k_weight, k_partner_weight = _load_pairs(k_norm, shared, in_head, ROTARY_DIM)
    cosine = tl.load(cos + shared, in_rotary, other=0.0)
    sine = tl.load(sin + shared, in_rotary, other=0.0)
    if PDL:
        wait_in_loop()
    first_query = qkv + head * GROUP * HEAD_DIM
    first_key = qkv + (NUM_HEADS + head) * HEAD_DIM
    mask = in_head & (heads < GROUP)
    queries, query_partners = _load_pairs(first_query + heads * HEAD_DIM, shared, mask, ROTARY_DIM)
    key, key_partner = _load_pairs(first_key, shared, in_head, ROTARY_DIM)
    value = tl.load(first_key + NUM_HEADS // GROUP * HEAD_DIM + dims, in_head, other=0.0)
    queries = _norm_and_rotate(
        queries, query_partners, q_weight, q_partner_weight, eps, cosine, sine, HEAD_DIM, ROTARY_DIM, BLOCK_D
    )
    key = _norm_and_rotate(
        key, key_partner, k_weight, k_partner_weight, eps, cosine, sine, HEAD_DIM, ROTARY_DIM, BLOCK_D
    )
    if scale_place is not None:
        is_own = stores_token & (token < num_new) if LENGTH > 1 else stores_token
        dtype: tl.constexpr = place.dtype.element_ty
        key, wide_key = _quantize(key, scale_place, is_own & (heads == 0), dtype, ARE_GIVEN, LARGEST)
        value, wide_value = _quantize(value, scale_place + scale_part, is_own, dtype, ARE_GIVEN, LARGEST)
    tl.store(place + shared, key, in_head & (heads == 0) & stores_token)
    tl.store(place + part_stride + dims, value, in_head & stores_token)
    if scale_place is not None:
        key, value = wide_key, wide_value
    if LENGTH == 1:
        scores = scale_scores(tl.sum(queries.to(tl.float32) * key.to(tl.float32), axis=3), scale, softcap, HAS_SOFTCAP)
        return _repeat(queries, WALKERS, BLOCK_G), scores, value
    else:  # noqa: RET505, a return for each kind of program
        return _repeat(queries, WALKERS, BLOCK_G)


@triton.jit
def _quantize(
    x: tl.tensor,
    scale_at: tl.tensor,
    is_own: tl.tensor,
    dtype: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Heads ``[1, 1, N, D]`` rounded to a cache's type, and what they stand for then, in float32.

    Args:
        scale_at: the addresses of their scales, ``[1, 1, N, 1]`` or one; found ones are stored where ``is_own``.
    """
    if ARE_GIVEN:
        scale = tl.load(scale_at)
    else:
        wide = x.to(tl.float32)
        largest = tl.max(tl.abs(wide), axis=3, keep_dims=True)
        scale = scale_of(largest, tl.sum(wide * 0.0, axis=3, keep_dims=True), LARGEST)
        tl.store(scale_at + tl.zeros(scale.shape, tl.int32), scale, is_own)
    rounded = nearest_values(x, scale, LARGEST, dtype)
    return rounded.to(dtype), rounded * scale


@triton.jit
def _repeat(queries: tl.tensor, WALKERS: tl.constexpr, BLOCK_G: tl.constexpr):
    """Heads ``[1, 1, N, D]`` repeated to ``[WALKERS, BLOCK_G, D]``."""
    num_heads: tl.constexpr = queries.shape[2]
    size: tl.constexpr = queries.shape[3]
    queries = tl.broadcast_to(queries, (WALKERS, BLOCK_G // num_heads, num_heads, size))
    return tl.reshape(queries, (WALKERS, BLOCK_G, size))


@triton.jit
def _load_pairs(heads: tl.tensor, dims: tl.tensor, mask: tl.tensor, ROTARY_DIM: tl.constexpr):
    """The values of some heads at ``dims``, and at the dimensions that these are rotated with."""
    half: tl.constexpr = ROTARY_DIM // 2
    partners = tl.where(dims < half, dims + half, tl.where(dims < ROTARY_DIM, dims - half, dims))
    return tl.load(heads + dims, mask, other=0.0), tl.load(heads + partners, mask, other=0.0)


@triton.jit
def _norm_and_rotate(
    x: tl.tensor,
    partner: tl.tensor,
    weight: tl.tensor,
    partner_weight: tl.tensor,
    eps: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Norm and rotate heads ``[1, 1, N, BLOCK_D]``, rounding after each step as the separate kernels do."""
    if weight is not None:
        wide = x.to(tl.float32)
        inverse = tl.rsqrt(tl.sum(wide * wide, axis=3, keep_dims=True) / HEAD_DIM + eps)
        partner = scale_normed(partner.to(tl.float32) * inverse, partner_weight, x.dtype)
        x = scale_normed(wide * inverse, weight, x.dtype)
    rotated = x.to(tl.float32) * cosine.to(tl.float32) + partner.to(tl.float32) * sine.to(tl.float32)
    return tl.where(tl.arange(0, BLOCK_D)[None, None, None, :] < ROTARY_DIM, rotated.to(x.dtype), x)
