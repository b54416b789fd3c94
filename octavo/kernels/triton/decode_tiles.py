"""Device functions of decode attention over tiles of keys and values of 16 bits or more, and its matmuls."""

import triton
import triton.language as tl

from octavo.kernels.triton.decode_token import scale_scores
from octavo.kernels.triton.window import first_visible


@triton.jit
def load_tile(
    keys: tl.tensor,
    table: tl.tensor,
    blocks: tl.tensor,
    tile: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    tokens: tl.tensor,
    steps: tl.tensor,
    offsets: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Load a tile's keys and values, the mask of its visible tokens, and the next tile's block numbers."""
    positions = tile * TOKENS + steps
    places = blocks.to(tl.int64) * block_stride + positions % BLOCK_SIZE * HEAD_DIM
    # One tile ahead, so that no load of keys waits for its address.
    positions += TOKENS
    blocks = tl.load(table + positions // BLOCK_SIZE, positions < end, other=0)
    seen = tile * TOKENS + tokens
    is_seen = (seen >= first) & (seen < end) if HAS_WINDOW else seen < end
    mask = is_seen[:, :, None]
    if offsets.shape[2] > HEAD_DIM:
        mask = mask & (tl.arange(0, offsets.shape[2]) < HEAD_DIM)[None, None, :]
    pointers = (keys + places)[:, :, None] + offsets
    return tl.load(pointers, mask, other=0.0), tl.load(pointers + part_stride, mask, other=0.0), is_seen, blocks


@triton.jit
def attend_new(
    queries: tl.tensor,
    keys: tl.tensor,
    table: tl.tensor,
    end: tl.tensor,
    tokens: tl.tensor,
    num_new: tl.tensor,
    query_token: tl.tensor,
    slope: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """Attend to the row's own tokens, each query up to its own; this program has stored them."""
    # All threads' stores come before their loads.
    tl.debug_barrier()
    dims = tl.arange(0, BLOCK_D)[None, None, :]
    for first in tl.static_range(0, LENGTH, TOKENS):
        new = first + tokens
        is_new = new < num_new
        blocks = tl.load(table + (end + new) // BLOCK_SIZE, is_new, other=0).to(tl.int64)
        pointers = (keys + blocks * block_stride + (end + new) % BLOCK_SIZE * HEAD_DIM)[:, :, None] + dims
        mask = is_new[:, :, None] & (dims < HEAD_DIM)
        k, v = tl.load(pointers, mask, other=0.0), tl.load(pointers + part_stride, mask, other=0.0)
        is_seen = is_new[:, None, :] & (new[:, None, :] <= query_token)
        if HAS_WINDOW:
            is_seen = is_seen & (end + new[:, None, :] >= first_visible(end + query_token, window))
        distance = query_token - new[:, None, :]
        peak, total, acc = attend_tile(
            queries, k, v, is_seen, distance, slope, peak, total, acc, scale, softcap, HAS_SOFTCAP
        )
    return peak, total, acc


@triton.jit
def attend_tile(
    queries: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    is_seen: tl.tensor,
    distance: tl.tensor,
    slope: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    HAS_SOFTCAP: tl.constexpr,
):
    """Update each walker's maximum (base 2), sum of weights and weighted sum of values with a tile.

    Args:
        is_seen: ``[WALKERS, BLOCK_G or 1, tokens]``.
        distance: ``[WALKERS, BLOCK_G, tokens]``, tokens from keys to queries.
        slope: ``[1, BLOCK_G, 1]``, what scores fall by with each of them (base 2); None for nothing.
    """
    scores = multiply(queries, tl.permute(k, (0, 2, 1)), None)
    scores = scale_scores(scores, scale, softcap, HAS_SOFTCAP)
    if slope is not None:
        scores -= slope * distance.to(tl.float32)
    scores = tl.where(is_seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 2))
    decay = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - new_peak[:, :, None])
    acc = multiply(weights.to(v.dtype), v, acc * decay[:, :, None])
    total = total * decay + tl.sum(weights, 2)
    return new_peak, total, acc


@triton.jit
def multiply(a: tl.tensor, b: tl.tensor, acc: tl.tensor):
    """A matmul per walker, one per warp; with a single walker, one matmul that all warps share."""
    precision: tl.constexpr = "ieee" if a.dtype == tl.float32 else "tf32"
    if a.shape[0] == 1:
        a, b = tl.reshape(a, (a.shape[1], a.shape[2])), tl.reshape(b, (b.shape[1], b.shape[2]))
        if acc is not None:
            acc = tl.reshape(acc, (acc.shape[1], acc.shape[2]))
        product = tl.dot(a, b, acc, input_precision=precision)[None, :, :]
    else:
        product = tl.dot(a, b, acc, input_precision=precision)
    return product


@triton.jit
def first_half(x: tl.tensor):
    """The first half along the middle dimension; the halves lie in different registers of the same threads."""
    halves = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2, x.shape[2]))
    first, _ = tl.split(tl.permute(halves, (0, 2, 3, 1)))
    return first
