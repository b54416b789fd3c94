"""Latent vectors into the cache, as they are or finished; see :mod:`octavo.kernels.latent_attention`."""

import torch
import triton
import triton.language as tl

from octavo.kernels.attention import RopeTables
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.triton.cache_scales import latent_scale_arguments, round_values, scale_of
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.norm import scale_normed
from octavo.kernels.triton.rotate import load_rotated, load_turns


def store_latent(
    latent: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor, scales: CacheScales | None = None
) -> None:
    """Write a step's latent vectors into the cache; see :func:`octavo.kernels.latent_attention.store_latent`."""
    num_tokens, (_, block_size, size) = len(slot_mapping), cache.shape
    if num_tokens == 0:
        return
    assert latent.stride(1) == cache.stride(2) == 1
    _store_kernel[(num_tokens,)](
        latent, cache, slot_mapping, latent.stride(0), cache.stride(0), cache.stride(1),
        **latent_scale_arguments(scales, cache.dtype),
        SIZE=size, BLOCK=triton.next_power_of_2(size), BLOCK_SIZE=block_size,
        num_warps=2, **dependent_launch(latent.device),
    )  # fmt: skip


def finish_latent(
    latent: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    rope: RopeTables,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: CacheScales | None = None,
    *,
    is_interleaved: bool,
) -> None:
    """Norm, rotate and store, in one launch; see :func:`octavo.kernels.latent_attention.finish_latent`."""
    num_tokens, (_, block_size, size), rank = len(slot_mapping), cache.shape, len(norm)
    if num_tokens == 0:
        return
    cos, sin = rope
    assert latent.stride(1) == cache.stride(2) == cos.stride(2) == sin.stride(2) == 1 and cos.shape[2] == size - rank
    _finish_kernel[(num_tokens,)](
        latent, norm, eps, cos, sin, cache, slot_mapping,
        latent.stride(0), cos.stride(0), sin.stride(0), cache.stride(0), cache.stride(1),
        **latent_scale_arguments(scales, cache.dtype),
        RANK=rank, ROPE=size - rank,
        BLOCK_R=triton.next_power_of_2(rank), BLOCK_ROPE=triton.next_power_of_2(size - rank), BLOCK_SIZE=block_size,
        IS_INTERLEAVED=is_interleaved, num_warps=2, **dependent_launch(latent.device),
    )  # fmt: skip


@triton.jit
def _own_scale(spot, place, largest, poison, ARE_GIVEN: tl.constexpr, LARGEST: tl.constexpr):
    """A vector's scale: the given one, or one that is made of its values and stored; see :func:`scale_of`."""
    if ARE_GIVEN:
        scale = tl.load(spot, place >= 0, other=1.0)
    else:
        scale = scale_of(largest, poison, LARGEST)
        tl.store(spot, scale, place >= 0)
    return scale


@triton.jit
def _store_kernel(
    latent,
    cache,
    slot_mapping,
    latent_stride,
    block_stride,
    token_stride,
    scales,
    scale_block,
    scale_token,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program stores one token's vector."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(slot_mapping + token).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if scales is None:
        values = tl.load(latent + token * latent_stride + columns, columns < SIZE)
    else:
        values = tl.load(latent + token * latent_stride + columns, columns < SIZE, other=0.0)
        scales += place // BLOCK_SIZE * scale_block + place % BLOCK_SIZE * scale_token
        wide = values.to(tl.float32)
        scale = _own_scale(scales, place, tl.max(tl.abs(wide), 0), tl.sum(wide * 0.0, 0), ARE_GIVEN, LARGEST)
        values = round_values(values, scale, LARGEST, cache.dtype.element_ty)
    target = cache + place // BLOCK_SIZE * block_stride + place % BLOCK_SIZE * token_stride
    tl.store(target + columns, values, (columns < SIZE) & (place >= 0))


@triton.jit
def finish_token(
    token,
    latent,
    norm,
    eps,
    cos,
    sin,
    cache,
    slot_mapping,
    latent_stride,
    cos_stride,
    sin_stride,
    block_stride,
    token_stride,
    scales,
    scale_block,
    scale_token,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Finish and store a token's vector."""
    token = token.to(tl.int64)
    place = tl.load(slot_mapping + token).to(tl.int64)
    dims, rope_dims = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_ROPE)
    weight = tl.load(norm + dims, dims < RANK, other=0.0)
    cosine, sine = load_turns(cos + token * cos_stride, sin + token * sin_stride, rope_dims, ROPE)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    latent += token * latent_stride
    main = tl.load(latent + dims, dims < RANK, other=0.0)
    key = load_rotated(latent + RANK, rope_dims, rope_dims < ROPE, cosine, sine, ROPE, ROPE, IS_INTERLEAVED, False)
    wide = main.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / RANK + eps)
    main = scale_normed(wide, weight, main.dtype)
    if scales is not None:
        scales += place // BLOCK_SIZE * scale_block + place % BLOCK_SIZE * scale_token
        wide, wide_key = main.to(tl.float32), key.to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(wide), 0), tl.max(tl.abs(wide_key), 0))
        poison = tl.sum(wide * 0.0, 0) + tl.sum(wide_key * 0.0, 0)
        scale = _own_scale(scales, place, largest, poison, ARE_GIVEN, LARGEST)
        main = round_values(main, scale, LARGEST, cache.dtype.element_ty)
        key = round_values(key, scale, LARGEST, cache.dtype.element_ty)
    target = cache + place // BLOCK_SIZE * block_stride + place % BLOCK_SIZE * token_stride
    tl.store(target + dims, main, (dims < RANK) & (place >= 0))
    tl.store(target + RANK + rope_dims, key, (rope_dims < ROPE) & (place >= 0))


@triton.jit
def _finish_kernel(
    latent,
    norm,
    eps,
    cos,
    sin,
    cache,
    slot_mapping,
    latent_stride,
    cos_stride,
    sin_stride,
    block_stride,
    token_stride,
    scales,
    scale_block,
    scale_token,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program finishes and stores one token's vector."""
    finish_token(
        tl.program_id(0), latent, norm, eps, cos, sin, cache, slot_mapping, latent_stride, cos_stride, sin_stride,
        block_stride, token_stride, scales, scale_block, scale_token,
        RANK, ROPE, BLOCK_R, BLOCK_ROPE, BLOCK_SIZE, IS_INTERLEAVED, ARE_GIVEN, LARGEST, PDL,
    )  # fmt: skip
