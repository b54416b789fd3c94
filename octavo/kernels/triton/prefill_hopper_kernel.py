"""Prefill attention on Hopper: warps that load, warps that compute (arXiv:2407.08608).

A tile of 128 queries is computed by two groups of four warps, 64 queries each, while one more warp finds tiles and
keeps the tensor memory accelerator busy with keys and values. Each group has a product under way while it takes
exponentials, and the two groups take turns at issuing products, so that one multiplies while the other does not.
Programs stay for tile after tile, so that the next one's keys arrive while the last one's results leave.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Renamed after Triton 3.6.
_async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def _count_tiles(starts_ptr, counts_ptr, TILE: gl.constexpr):
    """As ``prefill_tiles.count_tiles``."""
    num_rows = gl.load(counts_ptr)
    num_decode = gl.load(counts_ptr + 1)
    num_tokens = gl.load(starts_ptr + num_rows) - num_decode
    return num_decode, num_rows, num_tokens // TILE + num_rows - num_decode


@gluon.jit
def _find_tile(index, starts_ptr, num_decode, num_rows, num_tiles, GROUP: gl.constexpr, TILE: gl.constexpr):
    """As ``prefill_tiles.find_tile``, for one warp: row, its first token and length, the tile's first token, heads."""
    chunk: gl.constexpr = 128
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    kv_head = index // (num_tiles * GROUP)
    index -= kv_head * (num_tiles * GROUP)
    tile = num_tiles - 1 - index // GROUP
    row = num_decode - 1
    for first in range(num_decode, num_rows, chunk):
        rows = first + gl.arange(0, chunk, layout=layout)
        starts = gl.load(starts_ptr + rows, mask=rows < num_rows, other=2147483647)
        first_tiles = (starts - num_decode) // TILE + (rows - num_decode)
        row += gl.sum(((rows < num_rows) & (first_tiles <= tile)).to(gl.int32), axis=0)
    start = gl.load(starts_ptr + row)
    length = gl.load(starts_ptr + row + 1) - start
    first_tile = (start - num_decode) // TILE + (row - num_decode)
    return row, start, length, (tile - first_tile) * TILE, kv_head, kv_head * GROUP + index % GROUP


@gluon.jit
def _post_tile(board, number, start, length, seq_len, first_query, head):
    """Tell the groups which tile comes next; a length of zero ends their work."""
    notes, full, empty = board
    slot = number % 2
    mbarrier.wait(empty.index(slot), (number // 2 & 1) ^ 1)
    blank = gl.zeros([1], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
    notes.index(slot * 5).store(blank + start)
    notes.index(slot * 5 + 1).store(blank + length)
    notes.index(slot * 5 + 2).store(blank + seq_len)
    notes.index(slot * 5 + 3).store(blank + first_query)
    notes.index(slot * 5 + 4).store(blank + head)
    mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def _read_tile(board, number):
    """What ``_post_tile`` told: the row's first token, length and sequence length, the tile's first token, the head."""
    notes, full, empty = board
    slot = number % 2
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(full.index(slot), number // 2 & 1)
    start = gl.max(notes.index(slot * 5).load(layout), axis=0)
    length = gl.max(notes.index(slot * 5 + 1).load(layout), axis=0)
    seq_len = gl.max(notes.index(slot * 5 + 2).load(layout), axis=0)
    first_query = gl.max(notes.index(slot * 5 + 3).load(layout), axis=0)
    head = gl.max(notes.index(slot * 5 + 4).load(layout), axis=0)
    mbarrier.arrive(empty.index(slot), count=1)
    return start, length, seq_len, first_query, head


@gluon.jit
def _key_range(first_position, seq_len, window, WINDOW: gl.constexpr, TILE: gl.constexpr, BLOCK_N: gl.constexpr):
    """A tile's first visible key, the end of its keys, and the first and last of its blocks of keys."""
    first_key = gl.maximum(first_position - window + 1, 0) if WINDOW else first_position * 0
    end_key = gl.minimum(first_position + TILE, seq_len)
    return first_key, end_key, first_key // BLOCK_N, (end_key - 1) // BLOCK_N


@gluon.jit
def _reserve(ring, step, num_bytes: gl.constexpr, STAGES: gl.constexpr):
    """Wait until a place in the ring is free, and announce what will come: the place and the barrier that will tell."""
    slots, full, empty = ring
    stage = step % STAGES
    mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
    mbarrier.expect(full.index(stage), num_bytes)
    return slots.index(stage), full.index(stage)


@gluon.jit
def _load(descriptor, row, column, ring, step, STAGES: gl.constexpr):
    """Fetch a block of contiguous tokens."""
    block, full = _reserve(ring, step, descriptor.block_type.nbytes, STAGES)
    _async_load(descriptor, [row, column], full, block)


@gluon.jit
def _load_pages(descriptor, rows, ring, step, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):
    """Fetch a block of tokens page by page: ``rows`` are where each page's tokens of this head begin."""
    page: gl.constexpr = descriptor.block_shape[0]
    width: gl.constexpr = descriptor.block_shape[1]
    block, full = _reserve(ring, step, descriptor.block_type.nbytes * (BLOCK_N // page) * (D // width), STAGES)
    for i in gl.static_range(BLOCK_N // page):
        for j in gl.static_range(D // width):
            part = block.slice(i * page, page, dim=0).slice(j * width, width, dim=1)
            _async_load(descriptor, [rows[i], j * width], full, part)


@gluon.jit
def _produce(
    descriptors,
    rings,
    board,
    batch,
    pages,
    queue_ptr,
    window,
    GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    PAGED: gl.constexpr,
    WINDOW: gl.constexpr,
    PDL: gl.constexpr,
):
    q_desc, k_desc, v_desc = descriptors
    q_ring, k_ring, v_ring = rings
    starts_ptr, lens_ptr, counts_ptr = batch
    slots_ptr, tables_ptr, table_stride, block_rows, head_rows = pages
    half: gl.constexpr = q_desc.block_shape[0]
    if PDL:
        gdc_wait()
    num_decode, num_rows, num_tiles = _count_tiles(starts_ptr, counts_ptr, 2 * half)
    num_items = num_tiles * GROUP * NUM_KV_HEADS
    num_done = 0
    step = 0
    index = gl.program_id(0)
    while index < num_items:
        # Asked for long before it is needed.
        next_index = gl.num_programs(0) + gl.atomic_add(queue_ptr, 1, sem="relaxed")
        row, start, length, first_query, kv_head, head = _find_tile(
            index, starts_ptr, num_decode, num_rows, num_tiles, GROUP, 2 * half
        )
        if first_query < length:
            seq_len = gl.load(lens_ptr + row) if PAGED else length
            first_position = seq_len - length + first_query
            _post_tile(board, num_done, start, length, seq_len, first_query, head)
            _load(q_desc, start + first_query, head * D, q_ring, 2 * num_done, 2)
            _load(q_desc, start + first_query + half, head * D, q_ring, 2 * num_done + 1, 2)
            num_done += 1
            first_key, end_key, first_block, block = _key_range(
                first_position, seq_len, window, WINDOW, 2 * half, BLOCK_N
            )
            if PAGED:
                page: gl.constexpr = k_desc.block_shape[0]
                table_ptr = tables_ptr + gl.load(slots_ptr + row).to(gl.int64) * table_stride
            while block >= first_block:
                if PAGED:
                    # Pages that no query sees have no place in the table: fetch others in their stead.
                    rows = ()
                    for i in gl.static_range(BLOCK_N // page):
                        number = gl.maximum(block * (BLOCK_N // page) + i, first_key // page)
                        number = gl.minimum(number, (end_key - 1) // page)
                        first_row = gl.load(table_ptr + number) * block_rows + kv_head * head_rows
                        rows = rows + (first_row,)  # type: ignore[assignment]  # noqa: RUF005
                    _load_pages(k_desc, rows, k_ring, step, BLOCK_N, D, STAGES)
                    _load_pages(v_desc, rows, v_ring, step, BLOCK_N, D, STAGES)
                else:
                    at = start + block * BLOCK_N
                    _load(k_desc, at, kv_head * D, k_ring, step, STAGES)
                    _load(v_desc, at, kv_head * D, v_ring, step, STAGES)
                block -= 1
                step += 1
        index = next_index
    _post_tile(board, num_done, 0, 0, 0, 0, 0)
    # Who asks last leaves the queue as it was found.
    if gl.atomic_add(queue_ptr + 1, 1) == gl.num_programs(0) - 1:
        gl.store(queue_ptr, 0)
        gl.store(queue_ptr + 1, 0)


@gluon.jit
def _softmax(
    scores,
    row_max,
    row_sum,
    scale,
    softcap,
    window,
    positions,
    keys,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Exponentials of a block of scores, the new maximum and sum, and the decay of what was there before."""
    if CAP:
        scores = (1.0 - 2.0 / (gl.exp2(scores * (scale * 2.0 * 1.4426950408889634)) + 1.0)) * softcap
        scale = 1.0
    if MASKED:
        visible = keys[None, :] <= positions[:, None]
        if WINDOW:
            visible = visible & (keys[None, :] > positions[:, None] - window)
        scores = gl.where(visible, scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(scores, axis=1) * scale)
    shift = gl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
    p = gl.exp2(scores * scale - shift[:, None])
    decay = gl.exp2(row_max - shift)
    return p, new_max, row_sum * decay + gl.sum(p, axis=1), decay


@gluon.jit
def _keep_rows(block, first, end, BLOCK_N: gl.constexpr, D: gl.constexpr):
    """Zero the values of keys that are not the row's own: a probability of zero times garbage may be NaN.

    Both groups do so, and so write the same.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    rows = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout))
    is_own = (rows >= first) & (rows < end)
    block.store(gl.where(is_own[:, None], block.load(layout), 0.0))
    fence_async_shared()


@gluon.jit
def _advance(
    W: gl.constexpr,
    first_block,
    last_block,
    state,
    q,
    k_ring,
    v_ring,
    turns,
    scale,
    softcap,
    window,
    positions,
    zeros,
    STAGES: gl.constexpr,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    MASKED: gl.constexpr,
    TAKE_TURNS: gl.constexpr,
):
    """Go through blocks of keys downwards: the scores of each, and the values of the one before."""
    k_smem, k_full, k_empty = k_ring
    v_smem, v_full, v_empty = v_ring
    acc, p, row_max, row_sum, step, num_turns = state
    block_n: gl.constexpr = k_smem.shape[1]
    local_keys = gl.arange(0, block_n, layout=gl.SliceLayout(0, zeros.type.layout))
    for n in range(last_block - first_block + 1):
        last_stage = step % STAGES
        step += 1
        stage = step % STAGES
        phase = step // STAGES & 1
        mbarrier.wait(k_full.index(stage), phase)
        if TAKE_TURNS:
            mbarrier.wait(turns.index(W), num_turns & 1)
            num_turns += 1
        k = k_smem.index(stage).permute((1, 0))
        scores_next = warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        acc_next = warpgroup_mma(p, v_smem.index(last_stage), acc, is_async=True)
        if TAKE_TURNS:
            mbarrier.arrive(turns.index(1 - W), count=1)
        scores = warpgroup_mma_wait(1, deps=[scores_next])
        mbarrier.arrive(k_empty.index(stage), count=1)
        keys = (last_block - n) * block_n + local_keys
        wide_p, row_max, row_sum, decay = _softmax(
            scores, row_max, row_sum, scale, softcap, window, positions, keys, CAP, WINDOW, MASKED
        )
        p = gl.convert_layout(wide_p.to(p.dtype), p.type.layout)
        # Waited for here, not where it is used: it keeps the assembler from moving the next wait before the softmax.
        mbarrier.wait(v_full.index(stage), phase)
        acc = warpgroup_mma_wait(0, deps=[acc_next])
        mbarrier.arrive(v_empty.index(last_stage), count=1)
        acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, acc.type.layout))[:, None]
    return acc, p, row_max, row_sum, step, num_turns


@gluon.jit
def _consume(
    W: gl.constexpr,
    rings,
    board,
    turns,
    out_ptr,
    out_stride,
    sinks_ptr,
    scale,
    softcap,
    window,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    PAGED: gl.constexpr,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    SINKS: gl.constexpr,
    TAKE_TURNS: gl.constexpr,
    PDL: gl.constexpr,
):
    q_ring, k_ring, v_ring = rings
    q_smem, q_full, q_empty = q_ring
    k_smem, k_full, k_empty = k_ring
    v_smem, v_full, v_empty = v_ring
    half: gl.constexpr = q_smem.shape[1]
    dtype: gl.constexpr = q_smem.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    out_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    zeros = gl.zeros([half, BLOCK_N], gl.float32, s_layout)
    if PDL:
        gdc_wait()
    if TAKE_TURNS and W == 1:
        mbarrier.arrive(turns.index(0), count=1)
    num_turns = 0
    num_done = 0
    step = 0
    start, length, seq_len, first_query, head = _read_tile(board, 0)
    while length > 0:
        first_position = seq_len - length + first_query
        positions = first_position + W * half + gl.arange(0, half, layout=row_layout)
        first_key, end_key, first_block, last_block = _key_range(
            first_position, seq_len, window, WINDOW, 2 * half, BLOCK_N
        )
        if SINKS:
            sink = gl.load(sinks_ptr + head).to(gl.float32) * 1.4426950408889634
            row_max = gl.full([half], 0.0, gl.float32, row_layout) + sink
            row_sum = gl.where(row_max == float("-inf"), 0.0, 1.0)
        else:
            row_max = gl.full([half], float("-inf"), gl.float32, row_layout)
            row_sum = gl.zeros([half], gl.float32, row_layout)
        acc = gl.zeros([half, D], gl.float32, o_layout)
        q = q_smem.index(W)

        # The last block first: the row's end is in it.
        stage = step % STAGES
        phase = step // STAGES & 1
        mbarrier.wait(q_full.index(W), num_done & 1)
        mbarrier.wait(k_full.index(stage), phase)
        scores = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(stage), count=1)
        keys = last_block * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, s_layout))
        wide_p, row_max, row_sum, _decay = _softmax(
            scores, row_max, row_sum, scale, softcap, window, positions, keys, CAP, WINDOW, True
        )
        p = gl.convert_layout(wide_p.to(dtype), p_layout)
        mbarrier.wait(v_full.index(stage), phase)
        first_kept = first_key - last_block * BLOCK_N if PAGED and WINDOW else 0
        end_kept = seq_len - last_block * BLOCK_N
        if (end_kept < BLOCK_N) | (first_kept > 0):
            _keep_rows(v_smem.index(stage), first_kept, end_kept, BLOCK_N, D)

        state = (acc, p, row_max, row_sum, step, num_turns)
        last_block -= 1
        if PAGED or 2 * half > BLOCK_N:
            # Blocks that the diagonal crosses; the loop's end is at least the peeled block's.
            inner_block = gl.minimum((first_position + 1) // BLOCK_N, last_block + 1)
            inner_block = gl.maximum(inner_block, first_block)
            state = _advance(
                W, inner_block, last_block, state, q, k_ring, v_ring, turns, scale, softcap, window, positions,
                zeros, STAGES, CAP, WINDOW, True, TAKE_TURNS,
            )  # fmt: skip
            last_block = inner_block - 1
        if WINDOW:
            outer_block = gl.cdiv(gl.maximum(end_key - window, 0), BLOCK_N)
            outer_block = gl.minimum(gl.maximum(outer_block, first_block), last_block + 1)
        else:
            outer_block = first_block
        state = _advance(
            W, outer_block, last_block, state, q, k_ring, v_ring, turns, scale, softcap, window, positions,
            zeros, STAGES, CAP, WINDOW, False, TAKE_TURNS,
        )  # fmt: skip
        if WINDOW:
            state = _advance(
                W, first_block, outer_block - 1, state, q, k_ring, v_ring, turns, scale, softcap, window,
                positions, zeros, STAGES, CAP, WINDOW, True, TAKE_TURNS,
            )  # fmt: skip
        acc, p, row_max, row_sum, step, num_turns = state

        stage = step % STAGES
        mbarrier.arrive(q_empty.index(W), count=1)
        acc_next = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc_next])
        mbarrier.arrive(v_empty.index(stage), count=1)
        step += 1
        num_done += 1

        acc = acc / gl.convert_layout(row_sum, gl.SliceLayout(1, o_layout))[:, None]
        values = gl.convert_layout(acc.to(dtype), out_layout)
        queries = first_query + W * half + gl.arange(0, half, layout=gl.SliceLayout(1, out_layout))
        columns = head * D + gl.arange(0, D, layout=gl.SliceLayout(0, out_layout))
        at = (start + queries).to(gl.int64) * out_stride
        gl.store(out_ptr + at[:, None] + columns[None, :], values, mask=(queries < length)[:, None])
        start, length, seq_len, first_query, head = _read_tile(board, num_done)
    if PDL:
        gdc_launch_dependents()


@gluon.jit
def hopper_kernel(
    q_desc,  # [T, H · D], blocks of 64 tokens and a head
    k_desc,  # [T, Hkv · D], blocks of BLOCK_N tokens and a head; or the cache's keys as rows, blocks of a page
    v_desc,
    out_ptr,  # [T, H, D]
    starts_ptr,  # [R + 1]
    lens_ptr,  # [R]
    counts_ptr,
    slots_ptr,  # [R]
    tables_ptr,  # [S, M]
    sinks_ptr,  # [H]
    queue_ptr,  # [2] zeros: items handed out, programs that want no more
    out_stride,
    table_stride,
    block_rows,  # rows of the cache from block to block
    head_rows,  # and from head to head
    scale,  # of scores to base-2 logits; to the cap's argument where there is a cap
    softcap,  # in base-2 logits
    window,
    GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    PAGED: gl.constexpr,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    SINKS: gl.constexpr,
    TAKE_TURNS: gl.constexpr,
    PDL: gl.constexpr,
):
    """All heads' tiles of all rows' chunks, shared out among the programs."""
    dtype: gl.constexpr = q_desc.dtype
    kv_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    q_smem = gl.allocate_shared_memory(dtype, [2, q_desc.block_shape[0], D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], kv_layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], kv_layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    notes = gl.allocate_shared_memory(gl.int32, [2 * 5, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    notes_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    notes_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
        mbarrier.init(notes_full.index(i), count=1)
        mbarrier.init(notes_empty.index(i), count=2)
        mbarrier.init(turns.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    fence_async_shared()
    rings = ((q_smem, q_full, q_empty), (k_smem, k_full, k_empty), (v_smem, v_full, v_empty))
    board = (notes, notes_full, notes_empty)
    batch = (starts_ptr, lens_ptr, counts_ptr)
    pages = (slots_ptr, tables_ptr, table_stride, block_rows, head_rows)
    gl.warp_specialize(
        [
            (_consume, (0, rings, board, turns, out_ptr, out_stride, sinks_ptr, scale, softcap, window,
                        BLOCK_N, D, STAGES, PAGED, CAP, WINDOW, SINKS, TAKE_TURNS, PDL)),
            (_consume, (1, rings, board, turns, out_ptr, out_stride, sinks_ptr, scale, softcap, window,
                        BLOCK_N, D, STAGES, PAGED, CAP, WINDOW, SINKS, TAKE_TURNS, PDL)),
            (_produce, ((q_desc, k_desc, v_desc), rings, board, batch, pages, queue_ptr, window,
                        GROUP, NUM_KV_HEADS, BLOCK_N, D, STAGES, PAGED, WINDOW, PDL)),
        ],
        [4, 1],
        [232, 40] if PAGED else [240, 24],
    )  # fmt: skip
