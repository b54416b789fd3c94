"""The kernel of decode attention: a program attends to a chunk of a row's context; the last one merges the chunks.

Each warp ("walker") takes a slice of every tile and keeps a softmax of its own (FlashAttention, arXiv:2205.14135), so
warps synchronise only on the arrival of tiles. The first tiles are requested from memory before the program waits for
the kernel that computes the queries.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.cache_scales import weighed_type
from octavo.kernels.triton.decode_merge import COPIES, LOWEST, MERGED_AT_ONCE, merge_chunks, output_places
from octavo.kernels.triton.decode_token import LOG2E, scale_scores, take_token
from octavo.kernels.triton.widening import move_pairs, moved_power
from octavo.kernels.triton.window import first_visible


@triton.jit(do_not_specialize=["table_stride", "max_chunks", "min_tiles", "num_long", "reads_early", "window"])
def paged_decode_kernel(
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
    pairs: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    block_tables: tl.tensor,
    table_stride: tl.tensor,
    slots: tl.tensor,
    seq_lens: tl.tensor,
    query_starts: tl.tensor,
    counts: tl.tensor,
    out: tl.tensor,
    out_stride: tl.tensor,
    logsums: tl.tensor,
    partials: tl.tensor,
    arrivals: tl.tensor,
    max_chunks: tl.tensor,
    min_tiles: tl.tensor,
    num_long: tl.tensor,
    reads_early: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    scales: tl.tensor,
    scale_part: tl.tensor,
    scale_block: tl.tensor,
    scale_head: tl.tensor,
    scale_token: tl.tensor,
    LOOPS: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKENS: tl.constexpr,
    WALKERS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    LENGTH: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Attend to chunks of one row and key/value head; grid (key/value heads, programs of a row, rows).

    A program takes one chunk, or with ``LOOPS`` several in turn. If only long rows are split (``num_long``), the
    programs for their additional chunks come before those of the rows, so that long work starts first.

    Args:
        qkv: rows of queries, keys and values before norm, rotation and store.
        cos, sin, q_norm, k_norm, eps: rotation and norms; see ``decode_attention``.
        kv_cache: ``[2, blocks, Hkv, BLOCK_SIZE, HEAD_DIM]``.
        pairs: the same memory of a quantised cache as int16, two values each; None for another.
        logsums, partials, arrivals: see ``DecodeWorkspace``.
        max_chunks, min_tiles: maximum chunks per row, minimum tiles of ``TOKENS`` tokens per chunk.
        num_long: if not 0, only the first ``num_long`` rows are split, into chunks of about the rows' mean length or
            more.
        reads_early: if 0, wait for earlier kernels before reading the cache.
        scales, scale_*: of a quantised cache; see ``scale_arguments``.
        LENGTH: maximum number of tokens of a row; if it is 1, ``query_starts`` is not read.
        WALKERS: slices of a tile with separate softmax state: one per warp, or 1.
    """
    BLOCK_G: tl.constexpr = max(triton.next_power_of_2(GROUP * LENGTH), 16)
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    num_places, num_programs = max_chunks, tl.num_programs(1)
    if num_long > 0:
        num_programs = max_chunks
        first_row = num_long * (max_chunks - 1)
        if row < first_row:
            split = 1 + (row // num_long).to(tl.int32)
            row = row % num_long
        else:
            row -= first_row
            if row >= num_long:
                max_chunks = 1
    num_decoding = tl.load(counts + 1)
    mean_tiles = tl.load(counts + 3, num_long > 0, other=0) // TOKENS
    slot = tl.load(slots + row).to(tl.int64)
    seq_len = tl.load(seq_lens + row)
    if row >= num_decoding:
        # Wait even without work: a launch in which no program waits could end before its predecessor.
        if PDL:
            tl.extra.cuda.gdc_wait()
        return
    table = block_tables + slot * table_stride
    keys = kv_cache + head * head_stride
    if pairs is not None:
        pairs += head * (head_stride // 2)
    token = row
    num_new = 1
    if LENGTH > 1:
        token = tl.load(query_starts + row).to(tl.int64)
        num_new = tl.load(query_starts + row + 1) - token.to(tl.int32)
    # Tokens before the row's own, and the first of them that the row's first token sees.
    end = seq_len - num_new
    first = first_visible(end, window) if HAS_WINDOW else 0
    first_tile = first // TOKENS
    num_tiles = tl.maximum(tl.cdiv(end, TOKENS) - first_tile, 1)
    chunk_tiles = min_tiles
    if num_long > 0:
        even_tiles = tl.maximum(mean_tiles, min_tiles)
        chunk_tiles = tl.cdiv(num_tiles, tl.maximum((num_tiles + even_tiles // 2) // even_tiles, 1))
    chunk_tiles = tl.maximum(tl.cdiv(num_tiles, max_chunks), chunk_tiles)
    if num_tiles > MERGED_AT_ONCE:
        # More chunks than a merge loads at a time take it longer than a second tile takes each of them.
        chunk_tiles = tl.maximum(chunk_tiles, 2)
    num_chunks = tl.cdiv(num_tiles, chunk_tiles)
    if split >= num_chunks:
        return
    out += token * out_stride + head * GROUP * HEAD_DIM
    place = (row * num_places * NUM_HEADS + head * GROUP) * LENGTH
    logsums += place * COPIES
    partials += place * HEAD_DIM
    arrivals += row * NUM_HEADS + head
    if sinks is not None:
        sinks += head * GROUP
    if slopes is not None:
        slopes += head * GROUP
    if scales is not None:
        scales += head * scale_head
    if PDL:  # noqa: SIM102
        if reads_early == 0:
            tl.extra.cuda.gdc_wait()
    # From the last of a program's chunks: the row's last one, which adds the new tokens, is its program's first.
    chunk = num_chunks - 1 - (num_chunks - 1 - split) % num_programs if LOOPS else split
    queries = _attend_chunk(
        chunk, num_chunks, chunk_tiles, first_tile, num_tiles, first, end, head, None, None, num_new,
        qkv + token * qkv_stride, qkv_stride, cos + token * cos_stride, cos_stride,
        sin + token * sin_stride, sin_stride, q_norm, k_norm, eps,
        keys, pairs, table, part_stride, block_stride, out, out_stride, logsums, partials, arrivals, scale, window,
        softcap, sinks, slopes, scales, scale_part, scale_block, scale_token,
        ROTARY_DIM, NUM_HEADS, HEAD_DIM, GROUP, BLOCK_SIZE, BLOCK_C, BLOCK_G, BLOCK_D, TOKENS, WALKERS,
        HAS_WINDOW, HAS_SOFTCAP, LENGTH, ARE_GIVEN, LARGEST, PDL,
    )  # fmt: skip
    if LOOPS:
        odd_queries = None
        if pairs is not None:
            queries, odd_queries = queries
        for other in range(split, chunk, num_programs):
            _attend_chunk(
                other, num_chunks, chunk_tiles, first_tile, num_tiles, first, end, head, queries, odd_queries, num_new,
                qkv, qkv_stride, cos, cos_stride, sin, sin_stride, q_norm, k_norm, eps,
                keys, pairs, table, part_stride, block_stride, out, out_stride, logsums, partials, arrivals, scale,
                window, softcap, sinks, slopes, scales, scale_part, scale_block, scale_token,
                ROTARY_DIM, NUM_HEADS, HEAD_DIM, GROUP, BLOCK_SIZE, BLOCK_C, BLOCK_G, BLOCK_D, TOKENS, WALKERS,
                HAS_WINDOW, HAS_SOFTCAP, LENGTH, ARE_GIVEN, LARGEST, PDL,
            )  # fmt: skip


@triton.jit
def _attend_chunk(
    chunk: tl.tensor,
    num_chunks: tl.tensor,
    chunk_tiles: tl.tensor,
    first_tile: tl.tensor,
    num_tiles: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    head: tl.tensor,
    queries: tl.tensor,
    odd_queries: tl.tensor,
    num_new: tl.tensor,
    row_qkv: tl.tensor,
    qkv_stride: tl.tensor,
    row_cos: tl.tensor,
    cos_stride: tl.tensor,
    row_sin: tl.tensor,
    sin_stride: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    eps: tl.tensor,
    keys: tl.tensor,
    pairs: tl.tensor,
    table: tl.tensor,
    part_stride: tl.tensor,
    block_stride: tl.tensor,
    out: tl.tensor,
    out_stride: tl.tensor,
    logsums: tl.tensor,
    partials: tl.tensor,
    arrivals: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    scales: tl.tensor,
    scale_part: tl.tensor,
    scale_block: tl.tensor,
    scale_token: tl.tensor,
    ROTARY_DIM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKENS: tl.constexpr,
    WALKERS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    LENGTH: tl.constexpr,
    ARE_GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attend to one chunk of one row and key/value head, to which pointers are offset; the last to finish merges.

    Args:
        queries: what ``take_token`` returns, or of ``pairs`` its even dimensions; None for a program's first chunk,
            which calls it. Only this one may be the row's last, which stores and adds the new tokens.
        odd_queries: the odd dimensions; None without ``pairs``.
        num_new: number of the row's tokens, at most ``LENGTH``.

    Returns:
        ``queries``, with ``pairs`` also ``odd_queries``.
    """
    IS_FIRST: tl.constexpr = queries is None
    STORED: tl.constexpr = keys.dtype.element_ty
    # What is loaded at once: a value, or two of 8 bits.
    PACK: tl.constexpr = 1 if pairs is None else 2
    stored = keys if pairs is None else pairs
    NUM_QUERIES: tl.constexpr = triton.next_power_of_2(GROUP * LENGTH)
    HEADS: tl.constexpr = 8 if NUM_QUERIES <= 8 else BLOCK_G
    TRANSPOSED: tl.constexpr = PACK == 2 and WALKERS > 1
    ROWS: tl.constexpr = HEADS if TRANSPOSED else BLOCK_G
    COMPUTE: tl.constexpr = row_qkv.dtype.element_ty
    # Powers of two that ``move_pairs`` leaves to queries, scores, weights and outputs.
    QUERY_POWER: tl.constexpr = query_power(STORED, row_qkv.dtype.element_ty)
    WEIGHT_POWER: tl.constexpr = moved_power(STORED, weighed_type(row_qkv.dtype.element_ty)) // 2
    start_tile = first_tile + chunk * chunk_tiles
    end_tile = tl.minimum(start_tile + chunk_tiles, first_tile + num_tiles)
    is_owner = chunk == num_chunks - 1
    dims = tl.arange(0, BLOCK_D // PACK)
    # A walker's tokens in a tile, and the starts of the cache blocks (or parts of one) among them.
    SPAN: tl.constexpr = TOKENS // WALKERS
    STEP: tl.constexpr = SPAN if BLOCK_SIZE % SPAN == 0 else 1
    tokens = tl.arange(0, WALKERS)[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
    steps = tl.arange(0, WALKERS)[:, None] * SPAN + tl.arange(0, SPAN // STEP)[None, :] * STEP
    offsets = ((tokens - steps) * (HEAD_DIM // PACK))[:, :, None] + dims[None, None, :]
    positions = start_tile * TOKENS + steps
    blocks = tl.load(table + positions // BLOCK_SIZE, (positions + STEP > first) & (positions < end), other=0)
    if IS_FIRST:
        new = tl.arange(0, NUM_QUERIES)[None, None, :, None] // GROUP if LENGTH > 1 else 0
        block = tl.load(table + (end + new) // BLOCK_SIZE, new < num_new).to(tl.int64)
        place = keys + block * block_stride + (end + new) % BLOCK_SIZE * HEAD_DIM
        scale_place = None
        if scales is not None:
            scale_place = scales + block * scale_block + (end + new) % BLOCK_SIZE * scale_token
        queries = tl.zeros((WALKERS, BLOCK_G, BLOCK_D // PACK), row_qkv.dtype.element_ty)
        odd_queries = None
        if PACK == 2:
            queries = _pack(queries, 0)
            odd_queries = queries
        if LENGTH == 1:
            new_score = tl.zeros((1, 1, NUM_QUERIES), tl.float32)
            new_value = tl.zeros((1, 1, 1, BLOCK_D), tl.float32 if LARGEST > 0 else row_qkv.dtype.element_ty)

    peak = tl.full((WALKERS, ROWS), LOWEST, tl.float32)
    total = tl.zeros((WALKERS, ROWS), tl.float32)
    if TRANSPOSED:
        acc = tl.zeros((WALKERS, BLOCK_D // PACK, ROWS), tl.float32)
    else:
        acc = tl.zeros((WALKERS, ROWS, BLOCK_D // PACK), tl.float32)
    odd_acc = acc if PACK == 2 else None
    # Of each query, the place of its token among the row's.
    query_token = (tl.arange(0, ROWS) % NUM_QUERIES // GROUP)[None, :, None]
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + tl.arange(0, ROWS) % NUM_QUERIES % GROUP)[None, :, None] * LOG2E
    for tile in range(start_tile, end_tile):
        k_scale = None
        v_scale = None
        if scales is not None:
            scales_at = scales + blocks.to(tl.int64) * scale_block + (tile * TOKENS + steps) % BLOCK_SIZE * scale_token
            scales_at += (tokens - steps) * scale_token
            both = scales_at[:, :, None] + tl.arange(0, 2)[None, None, :] * scale_part
            k_scale, v_scale = tl.split(tl.load(both))
        k, v, is_seen, blocks = _load_tile(
            stored, table, blocks, tile, first, end, tokens, steps, offsets, part_stride // PACK, block_stride // PACK,
            HEAD_DIM // PACK, BLOCK_SIZE, TOKENS, HAS_WINDOW, TRANSPOSED,
        )  # fmt: skip
        if IS_FIRST:  # noqa: SIM102
            # Inside the loop, since the pipeline hoists the first tiles' loads above it, and so above the wait.
            if tile == start_tile:
                taken = take_token(
                    row_qkv, qkv_stride, head, row_cos, cos_stride, row_sin, sin_stride, q_norm, k_norm, eps, place,
                    part_stride, scale_place, scale_part, num_new, is_owner, scale, softcap, ROTARY_DIM, NUM_HEADS,
                    HEAD_DIM, GROUP, BLOCK_G, BLOCK_D, WALKERS, HAS_SOFTCAP, LENGTH, ARE_GIVEN, LARGEST, PDL,
                )  # fmt: skip
                if LENGTH == 1:
                    queries, new_score, new_value = taken
                else:
                    queries = taken
                if PACK == 2:
                    queries, odd_queries = _split_pairs(queries)
                    queries, odd_queries = _pack(queries, QUERY_POWER), _pack(odd_queries, QUERY_POWER)
        if PACK == 2:
            # Of this iteration, whereas loads are some ahead; what lies in blocks beyond a row's tokens is finite, but
            # for scales.
            is_seen = tokens < end - tile * TOKENS
            if HAS_WINDOW:
                is_seen = is_seen & (tokens >= first - tile * TOKENS)
            v_scale = tl.where(is_seen, v_scale, 0.0)
        is_seen = is_seen[:, None, :]
        if HAS_WINDOW and LENGTH > 1:
            is_seen = is_seen & ((tile * TOKENS + tokens)[:, None, :] >= first_visible(end + query_token, window))
        distance = end + query_token - (tile * TOKENS + tokens)[:, None, :]
        attended = _attend_tile(
            _unpack(queries, COMPUTE) if PACK == 2 else queries, _unpack(odd_queries, COMPUTE) if PACK == 2 else None, k, v, k_scale, v_scale, is_seen, distance, slope, peak, total, acc, odd_acc, scale,
            softcap, HAS_SOFTCAP, STORED,
        )  # fmt: skip
        if PACK == 2:
            peak, total, acc, odd_acc = attended
        else:
            peak, total, acc = attended

    if IS_FIRST and LENGTH > 1:  # noqa: SIM102
        if is_owner:
            attended = _attend_new(
                _unpack(queries, COMPUTE) if PACK == 2 else queries, _unpack(odd_queries, COMPUTE) if PACK == 2 else None, stored, table, end, tokens, num_new, query_token, slope, peak, total, acc,
                odd_acc, part_stride // PACK, block_stride // PACK, scales, scale_part, scale_block, scale_token, scale,
                window, softcap, HEAD_DIM // PACK, BLOCK_SIZE, BLOCK_D // PACK, TOKENS, HAS_WINDOW, HAS_SOFTCAP, LENGTH,
                STORED,
            )  # fmt: skip
            if PACK == 2:
                peak, total, acc, odd_acc = attended
            else:
                peak, total, acc = attended
    if PACK == 2:
        acc = tl.join(acc, odd_acc)
        if TRANSPOSED:
            acc = tl.permute(acc, (0, 2, 1, 3))
        acc = tl.reshape(acc, (WALKERS, ROWS, BLOCK_D))
        acc *= 2.0**WEIGHT_POWER
        total *= 2.0**-WEIGHT_POWER
        dims = tl.arange(0, BLOCK_D)
    if HEADS < ROWS:
        peak, total, acc = _first_half(peak[:, :, None]), _first_half(total[:, :, None]), _first_half(acc)
        peak, total = tl.reshape(peak, (WALKERS, HEADS)), tl.reshape(total, (WALKERS, HEADS))
    chunk_peak = tl.max(peak, 0)[None, :]
    if IS_FIRST and LENGTH == 1:
        # A single new token is not read from the cache: the last chunk adds it from registers, in the first walker.
        last_score = tl.broadcast_to(new_score, (1, HEADS // new_score.shape[2], new_score.shape[2]))
        last_score = tl.where(is_owner, tl.reshape(last_score, (1, HEADS)), float("-inf"))
        chunk_peak = tl.maximum(chunk_peak, last_score)
    decay = tl.exp2(peak - chunk_peak)
    total *= decay
    acc *= decay[:, :, None]
    if IS_FIRST and LENGTH == 1:
        is_first = (tl.arange(0, WALKERS) == 0)[:, None]
        weight = tl.where(is_first, tl.exp2(last_score - chunk_peak), 0.0)
        total += weight
        acc += weight[:, :, None] * tl.reshape(new_value.to(tl.float32), (1, 1, BLOCK_D))
    total = tl.sum(total, 0)[None, :]

    rows = tl.arange(0, HEADS)
    logsum = tl.reshape(chunk_peak + tl.log2(total), (HEADS,))[:, None] + tl.zeros((HEADS, COPIES), tl.float32)
    if sinks is not None:
        logits = tl.load(sinks + rows % GROUP, rows < GROUP * LENGTH, other=0.0).to(tl.float32)
        total += tl.where(num_chunks == 1, tl.exp2(logits[None, :] * LOG2E - chunk_peak), 0.0)
    if HAS_WINDOW and LENGTH > 1:
        # A later token may see nothing of a chunk that the first one sees.
        total = tl.where(total > 0, total, 1.0)
    values = _add_up(acc * (1.0 / total)[:, :, None])
    rows = rows[:, None]
    mask = (rows < GROUP * num_new) & (dims < HEAD_DIM)
    if num_chunks == 1:
        tl.store(
            out + output_places(rows, out_stride, HEAD_DIM, GROUP, LENGTH) + dims, values.to(out.dtype.element_ty), mask
        )
    else:
        places = chunk * (NUM_HEADS * LENGTH) + rows
        tl.store(logsums + places * COPIES + tl.arange(0, COPIES)[None, :], logsum, rows < GROUP * num_new)
        tl.store(partials + places * HEAD_DIM + dims[None, :], values, mask)
        # All threads' stores come before the arrival.
        tl.debug_barrier()
        if tl.atomic_add(arrivals, 1, sem="acq_rel") == num_chunks - 1:
            tl.store(arrivals, 0)
            merge_chunks(
                num_chunks, logsums, partials, out, out_stride, sinks, num_new,
                NUM_HEADS, HEAD_DIM, GROUP, BLOCK_C, BLOCK_D, LENGTH,
            )  # fmt: skip
    if PACK == 2:
        return queries, odd_queries
    else:  # noqa: RET505, a return for each kind of cache
        return queries


@triton.jit
def _split_pairs(x: tl.tensor):
    """The even and the odd places along the last dimension."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
    return even, odd


@triton.jit
def _pack(x: tl.tensor, POWER: tl.constexpr):
    if x.dtype == tl.float32:
        return x
    else:
        first, second = _split_pairs((x.to(tl.float32) * 2.0**POWER).to(x.dtype))
        low = first.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return low | (second.to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def _unpack(x: tl.tensor, dtype: tl.constexpr):
    if dtype == tl.float32:
        return x
    else:
        first = x.to(tl.int16).to(dtype, bitcast=True)
        second = (x >> 16).to(tl.int16).to(dtype, bitcast=True)
        return tl.reshape(tl.join(first, second), (x.shape[0], x.shape[1], 2 * x.shape[2]))


@triton.jit
def _load_tile(
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
    TRANSPOSED: tl.constexpr,
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
    if keys.dtype.element_ty == tl.int16:
        values = pointers + part_stride
        in_head = (tl.arange(0, offsets.shape[2]) < HEAD_DIM)
        in_key = in_head[None, None, :]
        in_value = in_key
        if TRANSPOSED:
            values, in_value = tl.permute(values, (0, 2, 1)), in_head[None, :, None]
        if offsets.shape[2] > HEAD_DIM:
            k, v = tl.load(pointers, in_key, other=0), tl.load(values, in_value, other=0)
        else:
            k, v = tl.load(pointers), tl.load(values)
    else:
        k, v = tl.load(pointers, mask, other=0.0), tl.load(pointers + part_stride, mask, other=0.0)
    return k, v, is_seen, blocks


@triton.jit
def _attend_new(
    queries: tl.tensor,
    odd_queries: tl.tensor,
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
    odd_acc: tl.tensor,
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
    TOKENS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    LENGTH: tl.constexpr,
    STORED: tl.constexpr,
):
    """Attend to the row's own tokens, each query up to its own; this program has stored them.

    Keys, their strides, ``HEAD_DIM`` and ``BLOCK_D`` are those of pairs for a quantised cache.
    """
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
        if peak.shape[0] > 1 and odd_queries is not None:
            v = tl.permute(v, (0, 2, 1))
        k_scale = None
        v_scale = None
        if scales is not None:
            scales_at = scales + blocks * scale_block + (end + new) % BLOCK_SIZE * scale_token
            k_scale = tl.load(scales_at, is_new, other=0.0)
            v_scale = tl.load(scales_at + scale_part, is_new, other=0.0)
        is_seen = is_new[:, None, :] & (new[:, None, :] <= query_token)
        if HAS_WINDOW:
            is_seen = is_seen & (end + new[:, None, :] >= first_visible(end + query_token, window))
        distance = query_token - new[:, None, :]
        attended = _attend_tile(
            queries, odd_queries, k, v, k_scale, v_scale, is_seen, distance, slope, peak, total, acc, odd_acc, scale,
            softcap, HAS_SOFTCAP, STORED,
        )  # fmt: skip
        if odd_queries is not None:
            peak, total, acc, odd_acc = attended
        else:
            peak, total, acc = attended
    return attended


@triton.jit
def _attend_tile(
    queries: tl.tensor,
    odd_queries: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    is_seen: tl.tensor,
    distance: tl.tensor,
    slope: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    odd_acc: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    HAS_SOFTCAP: tl.constexpr,
    STORED: tl.constexpr,
):
    """Update each walker's maximum (base 2), sum of weights and weighted sum of values with a tile.

    Args:
        odd_queries, odd_acc: the odd dimensions of a quantised cache's, whose ``k`` and ``v`` are pairs of values of
            the type ``STORED``; None for another.
        k_scale, v_scale: ``[WALKERS, tokens]`` factors of quantised keys and values; None for others.
        is_seen: ``[WALKERS, BLOCK_G or 1, tokens]``.
        distance: ``[WALKERS, BLOCK_G, tokens]``, tokens from keys to queries.
        slope: ``[1, BLOCK_G, 1]``, what scores fall by with each of them (base 2); None for nothing.
    """
    if k_scale is not None:
        k, odd_k = move_pairs(k, STORED, queries.dtype)
        v, odd_v = move_pairs(v, STORED, weighed_type(queries.dtype))
    scores = _multiply(queries, tl.permute(k, (0, 2, 1)), None)
    if k_scale is not None:
        scores = _multiply(odd_queries, tl.permute(odd_k, (0, 2, 1)), scores)
        if scores.shape[1] > peak.shape[1]:
            scores = _first_half(scores)
        scores *= k_scale[:, None, :]
        scale *= 2.0 ** (moved_power(STORED, queries.dtype) - query_power(STORED, queries.dtype))
    scores = scale_scores(scores, scale, softcap, HAS_SOFTCAP)
    if slope is not None:
        scores -= slope * distance.to(tl.float32)
    scores = tl.where(is_seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 2))
    decay = tl.exp2(peak - new_peak)
    if v_scale is None:
        weights = tl.exp2(scores - new_peak[:, :, None])
        acc = _multiply(weights.to(v.dtype), v, acc * decay[:, :, None])
    else:
        WEIGHT_POWER: tl.constexpr = moved_power(STORED, weighed_type(queries.dtype)) // 2
        weights = tl.exp2(scores - (new_peak - WEIGHT_POWER)[:, :, None])
        scaled = (weights * v_scale[:, None, :]).to(v.dtype)
        if peak.shape[0] > 1:
            scaled = tl.permute(scaled, (0, 2, 1))
            acc = _multiply(v, scaled, acc * decay[:, None, :])
            odd_acc = _multiply(odd_v, scaled, odd_acc * decay[:, None, :])
        else:
            acc = _multiply(scaled, v, acc * decay[:, :, None])
            odd_acc = _multiply(scaled, odd_v, odd_acc * decay[:, :, None])
    total = total * decay + tl.sum(weights, 2)
    if v_scale is None:
        return new_peak, total, acc
    else:  # noqa: RET505, a return for each kind of cache
        return new_peak, total, acc, odd_acc


@triton.constexpr_function
def query_power(stored, wide):
    """The power of two of queries over quantised keys, half of the keys', so that products stay in float32's range."""
    return moved_power(stored, wide) // 2 if wide == tl.bfloat16 else 0


@triton.jit
def _multiply(a: tl.tensor, b: tl.tensor, acc: tl.tensor):
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
def _first_half(x: tl.tensor):
    """The first half along the middle dimension; the halves lie in different registers of the same threads."""
    halves = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2, x.shape[2]))
    first, _ = tl.split(tl.permute(halves, (0, 2, 3, 1)))
    return first


@triton.jit
def _add_up(x: tl.tensor):
    """The sum over the walkers (dimension 0), by halves: ``tl.sum`` across warps takes many more steps."""
    if x.shape[0] == 1:
        total = tl.reshape(x, (x.shape[1], x.shape[2]))
    else:
        halves = tl.reshape(x, (2, x.shape[0] // 2, x.shape[1], x.shape[2]))
        first, second = tl.split(tl.permute(halves, (1, 2, 3, 0)))
        total = _add_up(first + second)
    return total
