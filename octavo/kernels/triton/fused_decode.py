"""All of attention between its two projections for rows that decode: norms, rotation, the cache, attention."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.decode_attention import (
    DecodeWorkspace,
    Tile,
    choose_tile,
    row_arguments,
    score_arguments,
    shape_arguments,
)
from octavo.kernels.triton.decode_chunks import attend_row, scale_scores
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.norm import scale_normed


def fused_decode_attention(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    workspace: DecodeWorkspace,
    *,
    num_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    num_splits: int,
    deterministic: bool = False,
    tile: Tile | None = None,
) -> None:
    """Norm and rotate a row's query and key heads, store its key and value at its last position, and attend.

    Equal to :func:`octavo.kernels.basic.qk_rope_store`, then
    :func:`octavo.kernels.triton.decode_attention.decode_attention`, whose arguments the others are.

    Args:
        qkv: ``[≥ R, (H + 2·Hkv)·D]``, a row contiguous: each row's queries, key and value. It is only read.
        cos, sin: ``[≥ R, 1, Rot]``; see :func:`octavo.kernels.basic.apply_rope`.
        q_norm, k_norm: ``[D]``, weights of the norms of each query and each key head; None for no norm.
        out: ``[≥ R, H, D]``, the last two dimensions contiguous.
    """
    tile = tile or choose_tile(kv_cache.shape[-1], kv_cache.dtype)
    max_chunks = workspace.splits if deterministic else num_splits
    _fused_decode_kernel[kv_cache.shape[2], num_splits, num_rows](
        qkv,
        qkv.stride(0),
        cos,
        cos.stride(0),
        sin,
        sin.stride(0),
        q_norm,
        k_norm,
        eps,
        ROTARY_DIM=cos.shape[-1],
        **row_arguments(kv_cache, block_tables, slots, seq_lens, counts, out, workspace, num_rows, max_chunks),
        **score_arguments(scale, window, softcap, sinks),
        **shape_arguments(kv_cache, out.shape[1], tile),
        **dependent_launch(qkv.device),
    )


@triton.jit
def _partners(dims: tl.tensor, ROTARY_DIM: tl.constexpr):
    """The dimension that each is rotated with, itself where there is none."""
    half: tl.constexpr = ROTARY_DIM // 2
    return tl.where(dims < half, dims + half, tl.where(dims < ROTARY_DIM, dims - half, dims))


@triton.jit
def _load_pairs(heads: tl.tensor, mask: tl.tensor, ROTARY_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Each dimension of some heads, and its partner: ``[N, BLOCK_D]`` each, from ``[N, 1]`` pointers; or None."""
    if heads is None:
        own, partner = None, None
    else:
        dims = tl.arange(0, BLOCK_D)[None, :]
        own = tl.load(heads + dims, mask, other=0.0)
        partner = tl.load(heads + _partners(dims, ROTARY_DIM), mask, other=0.0)
    return own, partner


@triton.jit
def _norm_and_rotate(
    x: tl.tensor,
    partner: tl.tensor,
    weight: tl.tensor,
    partner_weight: tl.tensor,
    eps: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """What comes before attention for heads ``[N, BLOCK_D]``; each step is rounded as the separate kernels round it."""
    if weight is not None:
        wide = x.to(tl.float32)
        inverse = tl.rsqrt(tl.sum(wide * wide, axis=1, keep_dims=True) / HEAD_DIM + eps)
        partner = scale_normed(partner.to(tl.float32) * inverse, partner_weight, x.dtype)
        x = scale_normed(wide * inverse, weight, x.dtype)
    rotated = x.to(tl.float32) * cos.to(tl.float32) + partner.to(tl.float32) * sin.to(tl.float32)
    return tl.where(tl.arange(0, BLOCK_D)[None, :] < ROTARY_DIM, rotated.to(x.dtype), x)


@triton.jit(do_not_specialize=["table_stride", "max_chunks", "window"])
def _fused_decode_kernel(
    qkv: tl.tensor,
    qkv_stride: tl.tensor,
    cos: tl.tensor,
    cos_stride: tl.tensor,
    sin: tl.tensor,
    sin_stride: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    eps: tl.tensor,
    kv_cache: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    block_tables: tl.tensor,
    table_stride: tl.tensor,
    slots: tl.tensor,
    seq_lens: tl.tensor,
    counts: tl.tensor,
    out: tl.tensor,
    out_stride: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    partials: tl.tensor,
    arrivals: tl.tensor,
    max_chunks: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    sinks: tl.tensor,
    ROTARY_DIM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    first_head = head * GROUP
    dims = tl.arange(0, BLOCK_D)[None, :]
    in_head, in_rotary = dims < HEAD_DIM, dims < ROTARY_DIM
    q_weight, q_partner_weight = _load_pairs(q_norm, in_head, ROTARY_DIM, BLOCK_D)
    k_weight, k_partner_weight = _load_pairs(k_norm, in_head, ROTARY_DIM, BLOCK_D)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    num_decoding = tl.load(counts + 1)
    slot = tl.load(slots + row).to(tl.int64)
    seq_len = tl.load(seq_lens + row)
    row_cos = tl.load(cos + row * cos_stride + dims, in_rotary, other=0.0)
    row_sin = tl.load(sin + row * sin_stride + dims, in_rotary, other=0.0)
    heads = tl.arange(0, BLOCK_G)[:, None]
    row_queries = qkv + row * qkv_stride + (first_head + heads) * HEAD_DIM
    row_key = qkv + row * qkv_stride + (NUM_HEADS + head) * HEAD_DIM
    queries, query_partners = _load_pairs(row_queries, in_head & (heads < GROUP), ROTARY_DIM, BLOCK_D)
    key, key_partner = _load_pairs(row_key, in_head, ROTARY_DIM, BLOCK_D)
    value = tl.load(row_key + NUM_HEADS // GROUP * HEAD_DIM + dims, in_head, other=0.0)
    if row >= num_decoding:
        return
    table = block_tables + slot * table_stride
    cached_len = seq_len - 1
    block = tl.load(table + cached_len // BLOCK_SIZE).to(tl.int64)

    queries = _norm_and_rotate(
        queries,
        query_partners,
        q_weight,
        q_partner_weight,
        eps,
        row_cos,
        row_sin,
        HEAD_DIM,
        ROTARY_DIM,
        BLOCK_D,
    )
    key = _norm_and_rotate(
        key,
        key_partner,
        k_weight,
        k_partner_weight,
        eps,
        row_cos,
        row_sin,
        HEAD_DIM,
        ROTARY_DIM,
        BLOCK_D,
    )
    keys = kv_cache + head * head_stride
    if split == 0:
        place = keys + block * block_stride + cached_len % BLOCK_SIZE * HEAD_DIM + dims
        tl.store(place, key, in_head)
        tl.store(place + part_stride, value, in_head)
    # No program reads that place: the new token takes part from registers.
    new_score = scale_scores(tl.sum(queries.to(tl.float32) * key.to(tl.float32), axis=1), scale, softcap, HAS_SOFTCAP)
    place = row * max_chunks * NUM_HEADS + first_head
    attend_row(
        queries,
        new_score,
        value.to(tl.float32),
        keys,
        part_stride,
        block_stride,
        table,
        tl.maximum(seq_len - window, 0) if HAS_WINDOW else 0,
        cached_len,
        scale,
        softcap,
        sinks + first_head if sinks is not None else None,
        out + row * out_stride + first_head * HEAD_DIM,
        peaks + place,
        totals + place,
        partials + place * HEAD_DIM,
        arrivals + row * NUM_HEADS + head,
        max_chunks,
        NUM_HEADS,
        HEAD_DIM,
        GROUP,
        BLOCK_SIZE,
        BLOCK_C,
        BLOCK_G,
        BLOCK_D,
        BLOCK_N,
        MIN_TILES,
        TOKENS,
        HAS_SOFTCAP,
    )
