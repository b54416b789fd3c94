"""The producer warp of :mod:`prefill_hopper`: takes tiles from the queue and loads their Q, K and V by TMA.

It takes a tile only when it has issued all loads of the one before. A tile taken earlier would wait for its program,
and at the end, when no others are left, so would the whole device.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_wait

from octavo.kernels.triton.gluon_names import load_async, store_async
from octavo.kernels.triton.prefill_hopper_tiles import count_tiles, find_tile, key_range, post_tile
from octavo.kernels.triton.prefill_tiles import split_index


@gluon.jit
def _reserve(ring, step, num_bytes: gl.constexpr, STAGES: gl.constexpr):
    """Wait for a free ring slot and set the bytes to expect; returns the slot and its full barrier."""
    slots, full, empty = ring
    stage = step % STAGES
    mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
    mbarrier.expect(full.index(stage), num_bytes)
    return slots.index(stage), full.index(stage)


@gluon.jit
def _load(descriptor, row, column, ring, step, STAGES: gl.constexpr):
    """Load a block of contiguous tokens."""
    block, full = _reserve(ring, step, descriptor.block_type.nbytes, STAGES)
    load_async(descriptor, [row, column], full, block)


@gluon.jit
def _load_blocks(
    descriptors,
    start,
    kv_head,
    block,
    end_block,
    rings,
    step,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Load contiguous keys and values from block ``block`` down to ``end_block``; returns the next block and step."""
    _q_desc, k_desc, v_desc, _k_pages, _v_pages = descriptors
    _q_ring, k_ring, v_ring = rings
    while block >= end_block:
        at = start + block * BLOCK_N
        _load(k_desc, at, kv_head * D, k_ring, step, STAGES)
        _load(v_desc, at, kv_head * D, v_ring, step, STAGES)
        block -= 1
        step += 1
    return block, step


@gluon.jit
def _load_pages(descriptor, rows, ring, step, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):
    """Load a block of tokens page by page; ``rows`` are the first cache rows of each page for this head."""
    page: gl.constexpr = descriptor.block_shape[0]
    width: gl.constexpr = descriptor.block_shape[1]
    block, full = _reserve(ring, step, descriptor.block_type.nbytes * (BLOCK_N // page) * (D // width), STAGES)
    for i in gl.static_range(BLOCK_N // page):
        for j in gl.static_range(D // width):
            part = block.slice(i * page, page, dim=0).slice(j * width, width, dim=1)
            load_async(descriptor, [rows[i], j * width], full, part)


@gluon.jit
def _store_pages(descriptor, rows, ring, step, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):
    """Store a loaded block of tokens page by page, those that have a row (it is not negative)."""
    page: gl.constexpr = descriptor.block_shape[0]
    width: gl.constexpr = descriptor.block_shape[1]
    slots, full, _empty = ring
    mbarrier.wait(full.index(step % STAGES), step // STAGES & 1)
    block = slots.index(step % STAGES)
    for i in gl.static_range(BLOCK_N // page):
        if rows[i] >= 0:
            for j in gl.static_range(D // width):
                part = block.slice(i * page, page, dim=0).slice(j * width, width, dim=1)
                store_async(descriptor, [rows[i], j * width], part)


@gluon.jit
def _own_rows(
    first_token, end_token, kv_head, mapping_ptr, block_rows, head_rows, BLOCK_N: gl.constexpr, PAGE: gl.constexpr
):
    """The first cache rows of each page for the ``BLOCK_N`` tokens of the step from ``first_token`` on.

    Those of pages without a token before ``end_token``, or without a place in the cache, are −1.
    """
    rows = ()
    for i in gl.static_range(BLOCK_N // PAGE):
        token = first_token + i * PAGE
        place = gl.load(mapping_ptr + token, mask=token < end_token, other=-1)
        row = (place // PAGE).to(gl.int32) * block_rows + kv_head * head_rows
        rows = rows + (gl.where(place >= 0, row, -1),)  # type: ignore[assignment]
    return rows


@gluon.jit
def produce(
    descriptors,
    rings,
    board,
    batch,
    pages,
    mapping_ptr,
    key_starts_ptr,
    queue_ptr,
    heads_at_once,
    num_kv_heads,
    window,
    GROUP: gl.constexpr,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    PAGED: gl.constexpr,
    HAS_CONTEXT: gl.constexpr,
    STORES: gl.constexpr,
    WINDOW: gl.constexpr,
    PDL: gl.constexpr,
):
    q_desc, k_desc, v_desc, k_pages, v_pages = descriptors
    q_ring, k_ring, v_ring = rings
    starts_ptr, lens_ptr, counts_ptr = batch
    slots_ptr, tables_ptr, table_stride, block_rows, head_rows = pages
    half: gl.constexpr = q_desc.block_shape[0]
    num_slots: gl.constexpr = q_ring[0].shape[0]
    num_decode, skipped, num_rows, num_tiles = count_tiles(starts_ptr, counts_ptr, 2 * half)
    num_items = num_tiles * GROUP * num_kv_heads
    if PDL:
        gdc_wait()
    num_done = 0
    step = 0
    index = gl.program_id(0)
    while index < num_items:
        tile, kv_head, member = split_index(index, num_tiles, heads_at_once, GROUP)
        head = kv_head * GROUP + member
        row, start, length, first_query = find_tile(tile, starts_ptr, num_decode, skipped, num_rows, 2 * half)
        if first_query < length:
            seq_len = gl.load(lens_ptr + row) if HAS_CONTEXT else length
            first_position = seq_len - length + first_query
            post_tile(board, num_done, start, length, seq_len, first_query, head)
            _load(q_desc, start + first_query, head * D, q_ring, 2 * num_done, num_slots)
            _load(q_desc, start + first_query + half, head * D, q_ring, 2 * num_done + 1, num_slots)
            num_done += 1
            first_key, end_key, first_block, block = key_range(
                first_position, seq_len, window, WINDOW, 2 * half, BLOCK_N
            )
            if PAGED and seq_len > length:
                page: gl.constexpr = k_pages.block_shape[0]
                table_ptr = tables_ptr + gl.load(slots_ptr + row).to(gl.int64) * table_stride
                while block >= first_block:
                    # The table may have no entry for pages outside the visible range: load the nearest visible page.
                    rows = ()
                    for i in gl.static_range(BLOCK_N // page):
                        number = gl.maximum(block * (BLOCK_N // page) + i, first_key // page)
                        number = gl.minimum(number, (end_key - 1) // page)
                        first_row = gl.load(table_ptr + number) * block_rows + kv_head * head_rows
                        rows = rows + (first_row,)  # type: ignore[assignment]
                    _load_pages(k_pages, rows, k_ring, step, BLOCK_N, D, STAGES)
                    _load_pages(v_pages, rows, v_ring, step, BLOCK_N, D, STAGES)
                    block -= 1
                    step += 1
            if STORES:
                # The tile's own block is the first. It is stored once the ring is full, or no blocks are left.
                tma.store_wait(0)
                rows = _own_rows(
                    start + block * BLOCK_N, start + length, kv_head, mapping_ptr, block_rows, head_rows, BLOCK_N,
                    k_pages.block_shape[0],
                )  # fmt: skip
                own_step = step
                full_block = gl.maximum(block - (STAGES - 1), first_block)
                block, step = _load_blocks(
                    descriptors, start, kv_head, block, full_block, rings, step, BLOCK_N, D, STAGES
                )  # fmt: skip
                if member == 0:
                    # Consumers are done with the keys first, so these are replaced before the values are stored.
                    _store_pages(k_pages, rows, k_ring, own_step, BLOCK_N, D, STAGES)
                    if block >= first_block:
                        tma.store_wait(0)
                        _load(k_desc, start + block * BLOCK_N, kv_head * D, k_ring, step, STAGES)
                    _store_pages(v_pages, rows, v_ring, own_step, BLOCK_N, D, STAGES)
                    if block >= first_block:
                        tma.store_wait(0)
                        _load(v_desc, start + block * BLOCK_N, kv_head * D, v_ring, step, STAGES)
                        block -= 1
                        step += 1
            key_start = start if key_starts_ptr is None else gl.load(key_starts_ptr + row)
            block, step = _load_blocks(
                descriptors, key_start, kv_head, block, first_block, rings, step, BLOCK_N, D, STAGES
            )  # fmt: skip
        index = gl.num_programs(0) + gl.atomic_add(queue_ptr, 1, sem="relaxed")
    post_tile(board, num_done, 0, 0, 0, 0, 0)
    if STORES:
        tma.store_wait(0)
    # The last program to finish resets the queue to zeros.
    if gl.atomic_add(queue_ptr + 1, 1) == gl.num_programs(0) - 1:
        gl.store(queue_ptr, 0)
        gl.store(queue_ptr + 1, 0)
