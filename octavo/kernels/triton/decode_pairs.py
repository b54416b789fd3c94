"""Device functions of decode attention over keys and values of 8 bits.

They are loaded as pairs of neighbouring dimensions, and moved to where a wider type has their bits, which leaves them
too small by a power of two: see :mod:`widening`. Queries and weights take half of it, so that products stay in
float32's range, scores and outputs the rest; all exactly.

Queries and accumulators are tuples of their even and their odd dimensions. With a walker per warp, a tile's values are
the first operand of their matmul and its weights the second, which has rows of 8 where the first one has 16: most
groups have no more than 8 queries. Then accumulators are ``[WALKERS, dims, queries]``.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.cache_scales import weighed_type
from octavo.kernels.triton.decode_tiles import first_half, multiply
from octavo.kernels.triton.decode_token import scale_scores
from octavo.kernels.triton.widening import move_pairs, moved_power
from octavo.kernels.triton.window import first_visible


@triton.constexpr_function
def query_power(stored, compute):
    """The power of two that queries take."""
    return moved_power(stored, compute) // 2 if compute == tl.bfloat16 else 0


@triton.constexpr_function
def weight_power(stored, compute):
    """The power of two that weights take."""
    return moved_power(stored, weighed_type(compute)) // 2


@triton.constexpr_function
def output_power(stored, compute):
    """The power of two that is left to weighted sums of values."""
    return moved_power(stored, weighed_type(compute)) - weight_power(stored, compute)


@triton.jit
def split_pairs(x: tl.tensor):
    """The even and the odd places along the last dimension."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
    return even, odd


@triton.jit
def pack_queries(queries: tl.tensor, POWER: tl.constexpr):
    """Queries ``[WALKERS, rows, D]`` times a power of two as even and odd dimensions, two values in a word.

    A loop that carries values of 16 bits would keep each in a register of its own.
    """
    even, odd = split_pairs((queries.to(tl.float32) * 2.0**POWER).to(queries.dtype))
    return _pack(even), _pack(odd)


@triton.jit
def _pack(x: tl.tensor):
    if x.dtype == tl.float32:
        words = x
    else:
        first, second = split_pairs(x)
        low, high = first.to(tl.int16, bitcast=True).to(tl.int32), second.to(tl.int16, bitcast=True).to(tl.int32)
        words = (low & 0xFFFF) | (high << 16)
    return words


@triton.jit
def _unpack(words: tl.tensor, dtype: tl.constexpr):
    if dtype == tl.float32:
        x = words
    else:
        first, second = words.to(tl.int16).to(dtype, bitcast=True), (words >> 16).to(tl.int16).to(dtype, bitcast=True)
        x = tl.reshape(tl.join(first, second), (words.shape[0], words.shape[1], 2 * words.shape[2]))
    return x


@triton.jit
def load_pairs(
    pairs: tl.tensor,
    table: tl.tensor,
    blocks: tl.tensor,
    tile: tl.tensor,
    end: tl.tensor,
    tokens: tl.tensor,
    steps: tl.tensor,
    offsets: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    scales: tl.tensor,
    scale_part: tl.tensor,
    scale_block: tl.tensor,
    scale_token: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Load a tile's keys, values and scales, and the next tile's block numbers.

    No token is masked, since what lies in a block beyond a row's tokens is finite, but for scales.

    Args:
        pairs: keys as pairs of values, int16; strides and ``HEAD_DIM`` count pairs, too.
        blocks: ``[WALKERS, steps]`` block numbers; those beyond the row's tokens are 0.

    Returns:
        Keys ``[WALKERS, tokens, D/2]``, values ``[WALKERS, D/2, tokens]``, with one walker as the keys; scales of both
        ``[WALKERS, tokens]``; the block numbers.
    """
    positions = tile * TOKENS + steps
    in_block = positions % BLOCK_SIZE
    places = blocks.to(tl.int64) * scale_block + in_block * scale_token + (tokens - steps) * scale_token
    parts = tl.arange(0, 2)[None, None, :]
    k_scale, v_scale = tl.split(tl.load((scales + places)[:, :, None] + parts * scale_part))
    keys = (pairs + (blocks.to(tl.int64) * block_stride + in_block * HEAD_DIM))[:, :, None] + offsets
    values = keys + part_stride
    dims = tl.arange(0, offsets.shape[2])
    key_dims, value_dims = dims[None, None, :], dims[None, None, :]
    if tokens.shape[0] > 1:
        values, value_dims = tl.permute(values, (0, 2, 1)), dims[None, :, None]
    if offsets.shape[2] > HEAD_DIM:
        k, v = tl.load(keys, key_dims < HEAD_DIM, other=0), tl.load(values, value_dims < HEAD_DIM, other=0)
    else:
        k, v = tl.load(keys), tl.load(values)
    # One tile ahead, so that no load of keys waits for its address.
    positions += TOKENS
    blocks = tl.load(table + positions // BLOCK_SIZE, positions < end, other=0)
    return (k, v, k_scale, v_scale), blocks


@triton.jit
def attend_pairs(
    queries: tl.tensor,
    loaded: tl.tensor,
    positions: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    limit: tl.tensor,
    query_token: tl.tensor,
    slope: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    LENGTH: tl.constexpr,
    STORED: tl.constexpr,
    COMPUTE: tl.constexpr,
    IS_NEW: tl.constexpr,
):
    """Update each walker's maximum (base 2), sum of weights and weighted sum of values with a tile.

    Sums are of weights times 2 to the ``weight_power``, and those of values too small by the ``output_power``.

    Args:
        queries: what ``pack_queries`` returns.
        loaded: the first result of :func:`load_pairs`.
        positions: ``[WALKERS, tokens]``.
        first, end: where keys begin that any query sees, and where those before the row's new tokens end.
        limit: where keys end.
        query_token: ``[1, rows, 1]`` the place of each query's token among the new ones.
        slope: ``[1, rows, 1]``, what scores fall by with each token from key to query (base 2); None for nothing.
        IS_NEW: whether keys are those of new tokens, which queries see up to their own.
    """
    k, v, k_scale, v_scale = loaded
    ROWS: tl.constexpr = peak.shape[1]
    seen = positions[:, None, :]
    is_seen = positions < limit
    if HAS_WINDOW:
        is_seen = is_seen & (positions >= first)
    # A weight of zero must not meet a scale that is no number.
    v_scale = tl.where(is_seen, v_scale, 0.0)[:, None, :]
    is_seen = is_seen[:, None, :]
    if IS_NEW:
        is_seen = is_seen & (seen <= end + query_token)
    if HAS_WINDOW and LENGTH > 1:
        is_seen = is_seen & (seen >= first_visible(end + query_token, window))
    even, odd = move_pairs(k, STORED, COMPUTE)
    # Two sums at a time, each half as long a chain of matmul instructions.
    even_scores = multiply(_unpack(queries[0], COMPUTE), tl.permute(even, (0, 2, 1)), None)
    odd_scores = multiply(_unpack(queries[1], COMPUTE), tl.permute(odd, (0, 2, 1)), None)
    if even_scores.shape[1] > ROWS:
        even_scores, odd_scores = first_half(even_scores), first_half(odd_scores)
    scores = even_scores * k_scale[:, None, :] + odd_scores * k_scale[:, None, :]
    factor = scale * 2.0 ** (moved_power(STORED, COMPUTE) - query_power(STORED, COMPUTE))
    scores = scale_scores(scores, factor, softcap, HAS_SOFTCAP)
    if slope is not None:
        scores -= slope * (end + query_token - seen).to(tl.float32)
    scores = tl.where(is_seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 2))
    decay = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - (new_peak - weight_power(STORED, COMPUTE))[:, :, None])
    even, odd = move_pairs(v, STORED, weighed_type(COMPUTE))
    scaled = (weights * v_scale).to(even.dtype)
    if peak.shape[0] > 1:
        scaled, part_decay = tl.permute(scaled, (0, 2, 1)), decay[:, None, :]
        acc = multiply(even, scaled, acc[0] * part_decay), multiply(odd, scaled, acc[1] * part_decay)
    else:
        part_decay = decay[:, :, None]
        acc = multiply(scaled, even, acc[0] * part_decay), multiply(scaled, odd, acc[1] * part_decay)
    return new_peak, total * decay + tl.sum(weights, 2), acc


@triton.jit
def attend_new_pairs(
    queries: tl.tensor,
    pairs: tl.tensor,
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
    scales: tl.tensor,
    scale_part: tl.tensor,
    scale_block: tl.tensor,
    scale_token: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    LENGTH: tl.constexpr,
    STORED: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Attend to the row's own tokens, each query up to its own; this program has stored them.

    Strides, ``HEAD_DIM`` and ``BLOCK_D`` count pairs.
    """
    # All threads' stores come before their loads.
    tl.debug_barrier()
    dims = tl.arange(0, BLOCK_D)[None, None, :]
    for start in tl.static_range(0, LENGTH, tokens.shape[0] * tokens.shape[1]):
        new = start + tokens
        is_new = new < num_new
        blocks = tl.load(table + (end + new) // BLOCK_SIZE, is_new, other=0).to(tl.int64)
        in_block = (end + new) % BLOCK_SIZE
        pointers = (pairs + blocks * block_stride + in_block * HEAD_DIM)[:, :, None] + dims
        mask = is_new[:, :, None] & (dims < HEAD_DIM)
        k, v = tl.load(pointers, mask, other=0), tl.load(pointers + part_stride, mask, other=0)
        if tokens.shape[0] > 1:
            v = tl.permute(v, (0, 2, 1))
        places = scales + blocks * scale_block + in_block * scale_token
        k_scale, v_scale = tl.load(places, is_new, other=0.0), tl.load(places + scale_part, is_new, other=0.0)
        peak, total, acc = attend_pairs(
            queries, (k, v, k_scale, v_scale), end + new, 0, end, end + num_new, query_token, slope, peak, total,
            acc, scale, window, softcap, HAS_WINDOW, HAS_SOFTCAP, LENGTH, STORED, COMPUTE, True,
        )  # fmt: skip
    return peak, total, acc


@triton.jit
def no_pairs(WALKERS: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Accumulators of zeros."""
    if WALKERS > 1:
        acc = tl.zeros((WALKERS, SIZE, ROWS), tl.float32)
    else:
        acc = tl.zeros((WALKERS, ROWS, SIZE), tl.float32)
    return acc, acc


@triton.jit
def join_pairs(total: tl.tensor, acc: tl.tensor, STORED: tl.constexpr, COMPUTE: tl.constexpr):
    """Sums of weights and the weighted sums of values ``[WALKERS, rows, D]`` of what :func:`attend_pairs` returns."""
    values = tl.join(acc[0], acc[1])
    if values.shape[0] > 1:
        values = tl.permute(values, (0, 2, 1, 3))
    values = tl.reshape(values, (values.shape[0], values.shape[1], 2 * values.shape[2]))
    return total * 2.0 ** -weight_power(STORED, COMPUTE), values * 2.0 ** output_power(STORED, COMPUTE)
