"""What the decode kernels share: one row's attention, in chunks that programs take and the last of them merges."""

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_row(
    queries: tl.tensor,
    new_score: tl.tensor,
    new_value: tl.tensor,
    keys: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    partials: tl.tensor,
    arrivals: tl.tensor,
    max_chunks: tl.tensor,
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
    HAS_SOFTCAP: tl.constexpr,
):
    """Attend from a group of heads to the cached tokens ``first ≤ n < end`` of a row, and write the output.

    Programs along grid axis 1 share the row's chunks. Scores are dotted with tokens along dimension ``TOKENS``.

    Args:
        queries: ``[BLOCK_G, BLOCK_D]``, zeros past the group and the head.
        new_score: ``[BLOCK_G]``, scaled score, base 2, of one more token that is not read from the cache; or None.
        new_value: ``[1, BLOCK_D]`` float32, its value.
        keys: the head's keys in block 0; its values lie ``part_stride`` further.
        table: the row's blocks.
        sinks, out, peaks, totals, partials, arrivals: at the row's (chunk 0) and the group's place.
    """
    split, num_splits = tl.program_id(1), tl.num_programs(1)
    if TOKENS == 0:
        queries = queries.T
    first_tile, end_tile = first // BLOCK_N, tl.cdiv(end, BLOCK_N)
    chunk_tiles = tl.maximum(tl.cdiv(end_tile - first_tile, max_chunks), MIN_TILES)
    num_chunks = tl.maximum(tl.cdiv(end_tile - first_tile, chunk_tiles), 1)
    heads = tl.arange(0, BLOCK_G)
    for chunk in range(split, num_chunks, num_splits):
        peak = tl.full((BLOCK_G,), float("-inf"), tl.float32)
        weights = tl.zeros((BLOCK_G, BLOCK_N), tl.float32)
        acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
        if new_value is not None:
            is_first = chunk == 0
            peak = tl.where(is_first, new_score, peak)
            weights += tl.where(is_first & (tl.arange(0, BLOCK_N) == 0), 1.0, 0.0)[None, :]
            acc += tl.where(is_first, new_value, 0.0)
        chunk_tile = first_tile + chunk * chunk_tiles
        peak, total, acc = _walk_tiles(
            queries,
            peak,
            weights if TOKENS == 1 else weights.T,
            acc if TOKENS == 1 else acc.T,
            keys,
            part_stride,
            block_stride,
            table,
            first,
            end,
            chunk_tile,
            tl.minimum(chunk_tile + chunk_tiles, end_tile),
            scale,
            softcap,
            HEAD_DIM,
            BLOCK_SIZE,
            BLOCK_D,
            BLOCK_N,
            TOKENS,
            HAS_SOFTCAP,
        )
        if num_chunks == 1:
            total = _add_sinks(total, peak, sinks, GROUP, BLOCK_G)
            _store_heads(out, acc / tl.expand_dims(total, TOKENS), HEAD_DIM, GROUP, BLOCK_G, BLOCK_D, TOKENS)
        else:
            place = chunk * NUM_HEADS
            tl.store(peaks + place + heads, peak, heads < GROUP)
            tl.store(totals + place + heads, total, heads < GROUP)
            _store_heads(partials + place * HEAD_DIM, acc, HEAD_DIM, GROUP, BLOCK_G, BLOCK_D, TOKENS)

    num_programs = tl.minimum(num_chunks, num_splits)
    if (num_chunks > 1) & (split < num_programs):
        # Every thread's results must be out before one thread says so.
        tl.debug_barrier()
        if tl.atomic_add(arrivals, 1, sem="acq_rel") == num_programs - 1:
            tl.store(arrivals, 0)
            _merge_chunks(num_chunks, peaks, totals, partials, out, sinks, NUM_HEADS, HEAD_DIM, GROUP, BLOCK_C, BLOCK_D)


@triton.jit
def _walk_tiles(
    queries: tl.tensor,
    peak: tl.tensor,
    weights: tl.tensor,
    acc: tl.tensor,
    keys: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    first_tile: tl.tensor,
    end_tile: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Take some tiles of tokens into an online softmax, and return its peak, total and sum.

    What has tokens or head dimensions has them along ``TOKENS``, and heads along the other.

    Args:
        peak: ``[G]``, largest score so far, base 2.
        weights: ``[G, BLOCK_N]``, sums of ``exp2(score − peak)`` that remain to be added up.
        acc: ``[G, D]``, weighted sum of values.
    """
    precision: tl.constexpr = "ieee" if queries.dtype == tl.float32 else "tf32"
    tokens, dims = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    positions = first_tile * BLOCK_N + tokens
    blocks = tl.load(table + positions // BLOCK_SIZE, (positions >= first) & (positions < end), other=0)
    for tile in range(first_tile, end_tile):
        positions = tile * BLOCK_N + tokens
        is_seen = (positions >= first) & (positions < end)
        places = blocks.to(tl.int64) * block_stride + positions % BLOCK_SIZE * HEAD_DIM
        pointers = keys + places[:, None] + dims[None, :]
        mask = is_seen[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(pointers, mask, other=0.0)
        v = tl.load(pointers + part_stride, mask, other=0.0)
        # A tile ahead, so that the next loads need not wait for their addresses.
        positions += BLOCK_N
        blocks = tl.load(table + positions // BLOCK_SIZE, positions < end, other=0)

        if TOKENS == 0:
            scores = tl.dot(k, queries, input_precision=precision)
        else:
            scores = tl.dot(queries, k.T, input_precision=precision)
        scores = scale_scores(scores, scale, softcap, HAS_SOFTCAP)
        scores = tl.where(tl.expand_dims(is_seen, 1 - TOKENS), scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, TOKENS))
        decay = tl.expand_dims(tl.exp2(peak - new_peak), TOKENS)
        fresh = tl.exp2(scores - tl.expand_dims(new_peak, TOKENS))
        peak = new_peak
        weights = weights * decay + fresh
        if TOKENS == 0:
            acc = tl.dot(v.T, fresh.to(v.dtype), acc * decay, input_precision=precision)
        else:
            acc = tl.dot(fresh.to(v.dtype), v, acc * decay, input_precision=precision)
    return peak, tl.sum(weights, TOKENS), acc


@triton.jit
def scale_scores(scores: tl.tensor, scale: tl.tensor, softcap: tl.tensor, HAS_SOFTCAP: tl.constexpr):
    """Scaled and capped scores in base 2, whose exponential is what the hardware has."""
    if HAS_SOFTCAP:
        # tanh(x) = 1 − 2 / (1 + exp(2x)), right at both infinities.
        squared = tl.exp2(scores * (scale / softcap * (2 * _LOG2E)))
        scores = (softcap * _LOG2E) * (1 - 2 / (1 + squared))
    else:
        scores *= scale * _LOG2E
    return scores


@triton.jit
def _add_sinks(total: tl.tensor, peak: tl.tensor, sinks: tl.tensor, GROUP: tl.constexpr, BLOCK_G: tl.constexpr):
    """The softmax's denominator with the sinks' share."""
    if sinks is not None:
        heads = tl.arange(0, BLOCK_G)
        logits = tl.load(sinks + heads, heads < GROUP, other=0.0).to(tl.float32)
        total += tl.exp2(logits * _LOG2E - peak)
    return total


@triton.jit
def _store_heads(
    target: tl.tensor,
    values: tl.tensor,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Store a group's heads, whose dimensions lie along ``DIMS``, one after another."""
    heads = tl.expand_dims(tl.arange(0, BLOCK_G), DIMS)
    dims = tl.expand_dims(tl.arange(0, BLOCK_D), 1 - DIMS)
    mask = (heads < GROUP) & (dims < HEAD_DIM)
    tl.store(target + heads * HEAD_DIM + dims, values.to(target.dtype.element_ty), mask)


@triton.jit
def _merge_chunks(
    num_chunks: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    partials: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the output from what the chunks' programs left, ``BLOCK_C`` chunks at a time in their order."""
    HEADS: tl.constexpr = triton.next_power_of_2(GROUP)
    heads, dims = tl.arange(0, HEADS), tl.arange(0, BLOCK_D)
    is_value = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    acc = tl.zeros((HEADS, BLOCK_D), tl.float32)
    for start in range(0, num_chunks, BLOCK_C):
        chunks = start + tl.arange(0, BLOCK_C)
        places = chunks[:, None] * NUM_HEADS + heads[None, :]
        offsets = places[:, :, None] * HEAD_DIM + dims[None, None, :]
        mask = (chunks < num_chunks)[:, None] & (heads < GROUP)[None, :]
        # Not from the first-level cache, which may hold what an earlier launch left there.
        chunk_peaks = tl.load(peaks + places, mask, other=float("-inf"), cache_modifier=".cg")
        chunk_totals = tl.load(totals + places, mask, other=0.0, cache_modifier=".cg")
        mask = (chunks < num_chunks)[:, None, None] & is_value[None, :, :]
        chunk_accs = tl.load(partials + offsets, mask, other=0.0, cache_modifier=".cg")

        new_peak = tl.maximum(peak, tl.max(chunk_peaks, 0))
        decay = tl.exp2(peak - new_peak)
        weights = tl.exp2(chunk_peaks - new_peak[None, :])
        peak = new_peak
        total = total * decay + tl.sum(weights * chunk_totals, 0)
        acc = acc * decay[:, None] + tl.sum(weights[:, :, None] * chunk_accs, 0)
    total = _add_sinks(total, peak, sinks, GROUP, HEADS)
    _store_heads(out, acc / total[:, None], HEAD_DIM, GROUP, HEADS, BLOCK_D, 1)
