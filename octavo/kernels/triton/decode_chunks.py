"""The kernel of decode attention: a program attends to a chunk of a row's context; the last one merges the chunks.

Each warp ("walker") takes a slice of every tile and keeps a softmax of its own (FlashAttention, arXiv:2205.14135), so
warps synchronise only on the arrival of tiles. The first tiles are requested from memory before the program waits for
the kernel that computes the queries.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.decode_merge import COPIES, LOWEST, MERGED_AT_ONCE, merge_chunks, output_places
from octavo.kernels.triton.decode_pairs import (
    attend_new_pairs,
    attend_pairs,
    join_pairs,
    load_pairs,
    no_pairs,
    pack_queries,
    query_power,
)
from octavo.kernels.triton.decode_tiles import attend_new, attend_tile, first_half, load_tile
from octavo.kernels.triton.decode_token import LOG2E, take_token
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
        chunk, num_chunks, chunk_tiles, first_tile, num_tiles, first, end, head, None, num_new,
        qkv + token * qkv_stride, qkv_stride, cos + token * cos_stride, cos_stride,
        sin + token * sin_stride, sin_stride, q_norm, k_norm, eps,
        keys, pairs, table, part_stride, block_stride, out, out_stride, logsums, partials, arrivals, scale, window,
        softcap, sinks, slopes, scales, scale_part, scale_block, scale_token,
        ROTARY_DIM, NUM_HEADS, HEAD_DIM, GROUP, BLOCK_SIZE, BLOCK_C, BLOCK_G, BLOCK_D, TOKENS, WALKERS,
        HAS_WINDOW, HAS_SOFTCAP, LENGTH, ARE_GIVEN, LARGEST, PDL,
    )  # fmt: skip
    if LOOPS:
        for other in range(split, chunk, num_programs):
            _attend_chunk(
                other, num_chunks, chunk_tiles, first_tile, num_tiles, first, end, head, queries, num_new,
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
        queries: what ``take_token`` returns, of pairs what ``pack_queries`` makes of it; None for a program's first
            chunk, which calls them. Only this one may be the row's last, which stores and adds the new tokens.
        num_new: number of the row's tokens, at most ``LENGTH``.

    Returns:
        ``queries``.
    """
    IS_FIRST: tl.constexpr = queries is None
    STORED: tl.constexpr = keys.dtype.element_ty
    COMPUTE: tl.constexpr = row_qkv.dtype.element_ty
    # What is loaded at once: a value, or two of 8 bits.
    PACK: tl.constexpr = 1 if pairs is None else 2
    NUM_QUERIES: tl.constexpr = triton.next_power_of_2(GROUP * LENGTH)
    HEADS: tl.constexpr = 8 if NUM_QUERIES <= 8 else BLOCK_G
    IS_TRANSPOSED: tl.constexpr = PACK == 2 and WALKERS > 1
    ROWS: tl.constexpr = HEADS if IS_TRANSPOSED else BLOCK_G
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
        queries = tl.zeros((WALKERS, BLOCK_G, BLOCK_D), COMPUTE)
        if PACK == 2:
            queries = pack_queries(queries, 0)
        if LENGTH == 1:
            new_score = tl.zeros((1, 1, NUM_QUERIES), tl.float32)
            new_value = tl.zeros((1, 1, 1, BLOCK_D), tl.float32 if LARGEST > 0 else COMPUTE)

    peak = tl.full((WALKERS, ROWS), LOWEST, tl.float32)
    total = tl.zeros((WALKERS, ROWS), tl.float32)
    acc = tl.zeros((WALKERS, ROWS, BLOCK_D), tl.float32) if PACK == 1 else no_pairs(WALKERS, ROWS, BLOCK_D // 2)
    # Of each query, the place of its token among the row's.
    query_token = (tl.arange(0, ROWS) % NUM_QUERIES // GROUP)[None, :, None]
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + tl.arange(0, ROWS) % NUM_QUERIES % GROUP)[None, :, None] * LOG2E
    for tile in range(start_tile, end_tile):
        if PACK == 1:
            k, v, is_seen, blocks = load_tile(
                keys, table, blocks, tile, first, end, tokens, steps, offsets, part_stride, block_stride, HEAD_DIM,
                BLOCK_SIZE, TOKENS, HAS_WINDOW,
            )  # fmt: skip
        else:
            loaded, blocks = load_pairs(
                pairs, table, blocks, tile, end, tokens, steps, offsets, part_stride // 2, block_stride // 2, scales,
                scale_part, scale_block, scale_token, HEAD_DIM // 2, BLOCK_SIZE, TOKENS,
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
                    queries = pack_queries(queries, query_power(STORED, COMPUTE))
        if PACK == 1:
            is_seen = is_seen[:, None, :]
            if HAS_WINDOW and LENGTH > 1:
                is_seen = is_seen & ((tile * TOKENS + tokens)[:, None, :] >= first_visible(end + query_token, window))
            distance = end + query_token - (tile * TOKENS + tokens)[:, None, :]
            peak, total, acc = attend_tile(
                queries, k, v, is_seen, distance, slope, peak, total, acc, scale, softcap, HAS_SOFTCAP
            )
        else:
            peak, total, acc = attend_pairs(
                queries, loaded, tile * TOKENS + tokens, first, end, end, query_token, slope, peak, total, acc, scale,
                window, softcap, HAS_WINDOW, HAS_SOFTCAP, LENGTH, STORED, COMPUTE, False,
            )  # fmt: skip

    if IS_FIRST and LENGTH > 1:  # noqa: SIM102
        if is_owner:
            if PACK == 1:
                peak, total, acc = attend_new(
                    queries, keys, table, end, tokens, num_new, query_token, slope, peak, total, acc, part_stride,
                    block_stride, scale, window, softcap, HEAD_DIM, BLOCK_SIZE, BLOCK_D, TOKENS, HAS_WINDOW,
                    HAS_SOFTCAP, LENGTH,
                )  # fmt: skip
            else:
                peak, total, acc = attend_new_pairs(
                    queries, pairs, table, end, tokens, num_new, query_token, slope, peak, total, acc,
                    part_stride // 2, block_stride // 2, scales, scale_part, scale_block, scale_token, scale, window,
                    softcap, HEAD_DIM // 2, BLOCK_SIZE, BLOCK_D // 2, HAS_WINDOW, HAS_SOFTCAP, LENGTH, STORED, COMPUTE,
                )  # fmt: skip
    if PACK == 2:
        total, acc = join_pairs(total, acc, STORED, COMPUTE)
        dims = tl.arange(0, BLOCK_D)
    if HEADS < ROWS:
        peak, total, acc = first_half(peak[:, :, None]), first_half(total[:, :, None]), first_half(acc)
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
    return queries


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
