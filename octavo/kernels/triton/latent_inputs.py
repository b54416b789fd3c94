"""A decoding step's latent vectors and queries in one launch; see :mod:`octavo.kernels.latent_attention`."""

import torch
import triton
import triton.language as tl

from octavo.kernels.attention import RopeTables
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.head_linear import HeadLinear
from octavo.kernels.latent_attention import latent_inputs as operation
from octavo.kernels.triton.cache_scales import latent_scale_arguments
from octavo.kernels.triton.head_linear import NUM_WARPS, TritonHeadLinear, choose_tile, is_small, multiply_slice
from octavo.kernels.triton.latent_store import finish_token
from octavo.kernels.triton.launch import dependent_launch, num_multiprocessors
from octavo.kernels.triton.rotate import load_rotated, load_turns


def latent_inputs(
    queries: torch.Tensor,
    latent: torch.Tensor,
    to_latents: HeadLinear,
    norm: torch.Tensor,
    eps: float,
    rope: RopeTables,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: CacheScales | None = None,
    *,
    is_interleaved: bool,
) -> torch.Tensor:
    """Store and absorb; see :func:`octavo.kernels.latent_attention.latent_inputs`. Many tokens take a launch for each.

    Each of a few tokens has a program that finishes its vector; the other programs compute queries.
    """
    if not is_small(queries):
        return operation.reference(
            queries, latent, to_latents, norm, eps, rope, cache, slot_mapping, scales, is_interleaved=is_interleaved
        )
    assert isinstance(to_latents, TritonHeadLinear), "the kernel set made it"
    (num_tokens, num_heads, _), rank, (_, block_size, size), (cos, sin) = queries.shape, len(norm), cache.shape, rope
    assert latent.stride(1) == cache.stride(2) == cos.stride(2) == sin.stride(2) == 1 and cos.shape[2] == size - rank
    absorbed = torch.empty(num_tokens, num_heads, size, dtype=queries.dtype, device=queries.device)
    tile = choose_tile(num_tokens, to_latents.weight.shape, num_multiprocessors(queries.device))
    num_parts, num_tiles = triton.cdiv(rank, tile.num_outputs) + 1, triton.cdiv(num_tokens, tile.num_tokens)
    _latent_inputs_kernel[(len(slot_mapping) + num_heads * num_parts * num_tiles,)](
        *to_latents.arguments(queries, absorbed), len(slot_mapping),
        latent, norm, eps, cos, sin, cache, slot_mapping,
        latent.stride(0), cos.stride(0), sin.stride(0), cache.stride(0), cache.stride(1),
        **latent_scale_arguments(scales, cache.dtype), **to_latents.constants(tile),
        NUM_HEADS=num_heads, ROPE=size - rank,
        BLOCK_R=triton.next_power_of_2(rank), BLOCK_ROPE=triton.next_power_of_2(size - rank), BLOCK_SIZE=block_size,
        IS_INTERLEAVED=is_interleaved, num_warps=NUM_WARPS, **dependent_launch(queries.device),
    )  # fmt: skip
    return absorbed


@triton.jit(do_not_specialize=["num_tokens", "num_stored"])
def _latent_inputs_kernel(
    queries,  # [T, H, INPUTS + ROPE]
    weight,  # [H, OUTPUTS, INPUTS]
    absorbed,  # [T, H, OUTPUTS + ROPE]
    num_tokens,
    queries_stride,
    queries_head_stride,
    weight_head_stride,
    weight_out_stride,
    weight_in_stride,
    absorbed_stride,
    absorbed_head_stride,
    num_stored,
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
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    SPLITS: tl.constexpr,
    PER_SPLIT: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program stores one token's vector, multiplies a tile of queries by a slice of a head's weight, or rotates it.

    Grid (tokens + tiles · heads · (slices + 1)).
    """
    num_slices: tl.constexpr = (OUTPUTS + BLOCK_OUT - 1) // BLOCK_OUT
    place = tl.program_id(0) - num_stored
    if place < 0:
        finish_token(
            tl.program_id(0), latent, norm, eps, cos, sin, cache, slot_mapping, latent_stride, cos_stride, sin_stride,
            block_stride, token_stride, scales, scale_block, scale_token,
            OUTPUTS, ROPE, BLOCK_R, BLOCK_ROPE, BLOCK_SIZE, IS_INTERLEAVED, ARE_GIVEN, LARGEST, PDL,
        )  # fmt: skip
    else:
        part, own = place % (num_slices + 1), place // (num_slices + 1)
        head, tile = own % NUM_HEADS, own // NUM_HEADS
        if part < num_slices:
            multiply_slice(
                head, part, tile, queries, weight, absorbed, num_tokens, queries_stride, queries_head_stride,
                weight_head_stride, weight_out_stride, weight_in_stride, absorbed_stride, absorbed_head_stride,
                INPUTS, OUTPUTS, TOKENS, BLOCK_OUT, SPLITS, PER_SPLIT, PDL,
            )  # fmt: skip
        else:
            _rotate_queries(
                tile * TOKENS + tl.arange(0, TOKENS)[:, None], num_tokens,
                queries + head * queries_head_stride + INPUTS, absorbed + head * absorbed_head_stride + OUTPUTS,
                cos, sin, queries_stride, absorbed_stride, cos_stride, sin_stride,
                ROPE, BLOCK_ROPE, IS_INTERLEAVED, PDL,
            )  # fmt: skip


@triton.jit
def _rotate_queries(
    tokens,
    num_tokens,
    queries,
    absorbed,
    cos,
    sin,
    queries_stride,
    absorbed_stride,
    cos_stride,
    sin_stride,
    ROPE: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rotate one head's queries of some tokens, from address to address."""
    columns = tl.arange(0, BLOCK_ROPE)[None, :]
    rows = tl.minimum(tokens, num_tokens - 1)
    cosine, sine = load_turns(cos + rows * cos_stride, sin + rows * sin_stride, columns, ROPE)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    mask = (tokens < num_tokens) & (columns < ROPE)
    rotated = load_rotated(
        queries + tokens * queries_stride, columns, mask, cosine, sine, ROPE, ROPE, IS_INTERLEAVED, False
    )
    tl.store(absorbed + tokens * absorbed_stride + columns, rotated, mask)
