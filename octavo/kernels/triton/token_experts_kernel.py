"""The two kernels of :mod:`octavo.kernels.triton.token_experts`; :mod:`.token_tiles` has the terms."""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.gluon_names import barrier, load_async, reinterpret
from octavo.kernels.triton.token_choice import (
    await_experts,
    choose_until,
    find_shares,
    load_experts,
    pick,
    rank_experts,
    store_all,
)
from octavo.kernels.triton.token_tiles import (
    ROWS,
    WIDTH,
    add_slices,
    block_columns,
    memory_blocks,
    memory_layout,
    multiply_blocks,
    own_sums,
    row_layout,
    store_block,
    transfer_barriers,
)
from octavo.kernels.triton.value_parts import PARTS, store_parts

OUTPUTS_OF_TILE = gl.constexpr(8)
"""Outputs of a tile of the first kernel, whose rows are those of gates and of up projections."""
_AT_ONCE = gl.constexpr(8)
"""Tiles of a program of the first kernel that go through the activation together."""


@triton.constexpr_function
def _last_pair(tile, num_programs, num_tiles, num_pairs):
    """The last pair that a tile of any program may be of."""
    return min((tile * num_programs + num_programs - 1) // num_tiles, num_pairs - 1)


@triton.constexpr_function
def _value_layout(slices):
    """Of ``[slices, 2, outputs, tiles]`` sums: a thread adds up all slices of a gate and its up projection."""
    return gl.BlockedLayout([slices, 2, 1, 1], [1, 1, 4, 8], [1, 1, slices, 1], [3, 2, 1, 0])


@gluon.jit
def _find_item(tile: gl.constexpr, ITEMS: gl.constexpr, PROGRAMS: gl.constexpr):
    """Whether a program has a tile of a number, and which of all pairs' tiles that is."""
    index = gl.program_id(0) + tile * PROGRAMS
    return index < ITEMS, gl.minimum(index, ITEMS - 1)


@gluon.jit
def _request_tile(
    weight_desc,
    slot,
    full,
    experts,
    scales,
    tile: gl.constexpr,
    OUTPUTS: gl.constexpr,
    PAIRS: gl.constexpr,
    PROGRAMS: gl.constexpr,
):
    """Request a tile's weights, if a program has so many; its scales."""
    SLICES: gl.constexpr = gl.num_warps()
    BOX_SLICES: gl.constexpr = weight_desc.block_shape[0]
    BOXES: gl.constexpr = slot.shape[0] * SLICES // BOX_SLICES
    TILES: gl.constexpr = OUTPUTS // OUTPUTS_OF_TILE
    is_there, index = _find_item(tile, TILES * PAIRS, PROGRAMS)
    FIRST_PAIR: gl.constexpr = tile * PROGRAMS // TILES
    expert = pick(experts, index // TILES, FIRST_PAIR, _last_pair(tile, PROGRAMS, TILES, PAIRS))
    first = index % TILES * OUTPUTS_OF_TILE
    mbarrier.expect(full, BOXES * weight_desc.block_type.nbytes, pred=is_there)
    boxes = reinterpret(slot, weight_desc.dtype, [BOXES] + weight_desc.block_shape, weight_desc.layout)
    for box in gl.static_range(BOXES):
        load_async(weight_desc, [box * BOX_SLICES, expert * 2, first, 0], full, boxes.index(box), pred=is_there)
    row = gl.arange(0, SLICES * ROWS, row_layout(SLICES)) % ROWS
    number = row // OUTPUTS_OF_TILE * OUTPUTS + first + row % OUTPUTS_OF_TILE
    return gl.load(scales + (expert.to(gl.int64) * 2 * OUTPUTS + number))


@gluon.jit
def _blocks_of(slot):
    """A slot's blocks, a tuple."""
    BLOCKS: gl.constexpr = slot.shape[0]
    blocks = ()
    for block in gl.static_range(BLOCKS):
        blocks = blocks + (slot.index(block),)  # type: ignore[assignment]
    return blocks


@gluon.jit
def _stack_eight(values):
    """A tuple of up to eight tensors ``[N]`` as ``[N, 2, 2, 2]``; the last one stands for those that are missing."""
    last: gl.constexpr = len(values) - 1
    pairs = ()
    for place in gl.static_range(4):
        pairs = pairs + (gl.join(values[min(place, last)], values[min(place + 4, last)]),)  # type: ignore[assignment]
    return gl.join(gl.join(pairs[0], pairs[2]), gl.join(pairs[1], pairs[3]))  # type: ignore[misc]


@gluon.jit
def token_up_kernel(
    weight_desc,  # [K / WIDTH, 2E, OUTPUTS, WIDTH], boxes of a tile of a gate and its up projection
    x,  # [K] bfloat16
    chosen,  # [PAIRS] int64; None if this kernel chooses
    shares,  # [PAIRS] float32; written if this kernel chooses
    places,  # [PAIRS] int32, written if this kernel chooses; else None
    logits,  # [LOGIT_PARTS, EXPERTS] float32, to choose by
    bias,  # [EXPERTS] float32, of the logits, or None
    correction,  # [EXPERTS] float32, of the ranking, or None
    factor,  # on shares
    scales,  # [E, 2 · OUTPUTS] float32
    inner,  # [PAIRS, PARTS, OUTPUTS] e5m2, written
    alpha,
    limit,
    K: gl.constexpr,
    OUTPUTS: gl.constexpr,
    PAIRS: gl.constexpr,
    PROGRAMS: gl.constexpr,
    EXPERTS: gl.constexpr,
    LOGIT_PARTS: gl.constexpr,
    SCORE: gl.constexpr,
    RENORMALISES: gl.constexpr,
    SLOTS: gl.constexpr,
    LAST: gl.constexpr,
    ACTIVATION: gl.constexpr,
    WEIGHS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes tiles of eight outputs of a pair, ``PROGRAMS`` apart; grid (PROGRAMS).

    All that follows a tile's sums waits until all sums are there, since it takes longer than a tile's weights. The
    first tiles are requested as soon as their experts are known, which are the first of the choice.

    Args:
        SLOTS: tiles in shared memory.
        LAST: tiles that a program has left when it lets the next launch start: its weights are to come behind these.
    """
    SLICES: gl.constexpr = gl.num_warps()
    BLOCKS: gl.constexpr = (K + SLICES * WIDTH - 1) // (SLICES * WIDTH)
    TILES_OF_PAIR: gl.constexpr = OUTPUTS // OUTPUTS_OF_TILE
    ITEMS: gl.constexpr = TILES_OF_PAIR * PAIRS
    TILES: gl.constexpr = (ITEMS + PROGRAMS - 1) // PROGRAMS
    EARLY: gl.constexpr = min(SLOTS, TILES)
    IS_LOGIT: gl.constexpr = SCORE == "softmax" and correction is None
    slots = ()
    for _ in gl.static_range(SLOTS):
        slot = gl.allocate_shared_memory(weight_desc.dtype, [BLOCKS, SLICES * ROWS, WIDTH], memory_layout())
        slots = slots + (slot,)  # type: ignore[assignment]
    values = memory_blocks(gl.float8e5, BLOCKS, SLICES * PARTS)
    full = transfer_barriers(SLOTS)
    fence_async_shared()
    if PDL:
        gdc_wait()
    if chosen is None:
        expert, logit, scores, keys = rank_experts(logits, bias, correction, EXPERTS, LOGIT_PARTS, SCORE)
        count: gl.constexpr = _last_pair(EARLY - 1, PROGRAMS, TILES_OF_PAIR, PAIRS) + 1
        experts, own, keys = choose_until((), (), keys, scores, expert, count, correction is None)
    else:
        experts = load_experts(chosen, PAIRS)
    found = ()
    for tile in gl.static_range(EARLY):
        scale = _request_tile(weight_desc, slots[tile], full[tile], experts, scales, tile, OUTPUTS, PAIRS, PROGRAMS)
        found = found + (scale,)  # type: ignore[assignment]
    if chosen is None:
        # By way of memory: else the assembler chooses all experts before it requests the first one's weights.
        key_memory = gl.allocate_shared_memory(gl.int32, [keys.shape[0]], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        key_memory.store(keys)
    for block in gl.static_range(BLOCKS):
        column = block_columns(block, SLICES)
        store_block(gl.load(x + column, column < K, other=0.0), values[block])
    fence_async_shared()
    barrier()
    if chosen is None:
        keys_left = key_memory.load(keys.type.layout)
        experts, own, keys_left = choose_until(experts, own, keys_left, scores, expert, PAIRS, correction is None)
        if WEIGHS:
            weighing = find_shares(own, logit, factor, IS_LOGIT, RENORMALISES)
        if gl.program_id(0) == 0:
            store_all(places, experts)
            store_all(shares, find_shares(own, logit, factor, IS_LOGIT, RENORMALISES))

    sums = ()
    for tile in gl.static_range(TILES):
        slot, is_full = slots[tile % SLOTS], full[tile % SLOTS]
        if PDL and tile == max(TILES - LAST, 0):
            gdc_launch_dependents()
        is_there, _ = _find_item(tile, ITEMS, PROGRAMS)
        mbarrier.wait(is_full, tile // SLOTS & 1, pred=is_there)
        total = multiply_blocks(_blocks_of(slot), values, SLICES)
        if tile + SLOTS < TILES:
            barrier()  # no warp reads the slot any more
            scale = _request_tile(weight_desc, slot, is_full, experts, scales, tile + SLOTS, OUTPUTS, PAIRS, PROGRAMS)
            found = found + (scale,)  # type: ignore[assignment]
        sums = sums + (own_sums(total, SLICES) * found[tile],)  # type: ignore[assignment]

    for start in gl.static_range(0, TILES, _AT_ONCE):
        stacked = _stack_eight(sums[start : start + _AT_ONCE]).reshape((SLICES, 2, OUTPUTS_OF_TILE, _AT_ONCE))
        both = gl.sum(gl.convert_layout(stacked, _value_layout(SLICES)), 0)
        gate, up = both.permute((1, 2, 0)).split()
        tile_number = start + gl.arange(0, _AT_ONCE, gl.SliceLayout(0, gate.type.layout))[None, :]
        output = gl.arange(0, OUTPUTS_OF_TILE, gl.SliceLayout(1, gate.type.layout))[:, None]
        index = gl.program_id(0) + tile_number * PROGRAMS
        is_own = (tile_number < TILES) & (index < ITEMS)
        pair = index // TILES_OF_PAIR
        if WEIGHS:
            share = pick(weighing, pair) if chosen is None else gl.load(shares + pair, is_own, other=0.0)
            gate *= share
            up *= share
        value = activate(gate, up, alpha, limit, ACTIVATION)
        spots = inner + (pair * (PARTS * OUTPUTS) + index % TILES_OF_PAIR * OUTPUTS_OF_TILE + output)
        store_parts(spots, value, OUTPUTS, is_own & (output >= 0))


@gluon.jit
def _load_parts(inner, values, turn: gl.constexpr, BLOCKS: gl.constexpr, K: gl.constexpr):
    """Copy the parts of as many pairs' inner values as there are slices, ``[slices x PARTS, K]``, to shared memory."""
    ROWS_OF_PARTS: gl.constexpr = values[0].shape[0]
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, ROWS_OF_PARTS, gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    spots = inner + ((turn * ROWS_OF_PARTS + row) * K + column)
    loaded = ()
    for block in gl.static_range(BLOCKS):
        is_there = (block * WIDTH + column < K) & (row >= 0)
        loaded = loaded + (gl.load(spots + block * WIDTH, is_there, other=0.0),)  # type: ignore[assignment]
    for block in gl.static_range(BLOCKS):
        values[turn * BLOCKS + block].store(loaded[block])


@gluon.jit(do_not_specialize=["num_outputs"])
def token_down_kernel(
    weight_desc,  # [E · outputs, K], blocks of a tile in a slice
    inner,  # [PAIRS, PARTS, K] e5m2
    chosen,  # [PAIRS] int64; None if the first kernel chooses
    shares,  # [PAIRS] float32
    places,  # [PAIRS] int32, where the first kernel writes its choice; else None
    scales,  # [E, outputs] float32
    y,  # [outputs], written
    num_outputs,
    K: gl.constexpr,
    PAIRS: gl.constexpr,
    SLICES: gl.constexpr,
    WEIGHS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes a tile of outputs, summed over all pairs; grid (tiles).

    All weights are requested before the wait: either the choice is older than the preceding launch, or that launch
    writes it at its beginning, over numbers that a still older one left.

    Args:
        PAIRS, SLICES: the pairs, and how many of them are multiplied at once.
    """
    BLOCKS: gl.constexpr = (K + WIDTH - 1) // WIDTH
    TURNS: gl.constexpr = PAIRS // SLICES
    weights = memory_blocks(weight_desc.dtype, TURNS * BLOCKS, SLICES * ROWS)
    values = memory_blocks(gl.float8e5, TURNS * BLOCKS, SLICES * PARTS)
    full = transfer_barriers(TURNS * BLOCKS)
    for block in gl.static_range(TURNS * BLOCKS):
        mbarrier.expect(full[block], SLICES * weight_desc.block_type.nbytes)
    fence_async_shared()
    first = gl.program_id(0) * ROWS
    row = gl.arange(0, SLICES * ROWS, row_layout(SLICES))
    experts = await_experts(places, PAIRS) if chosen is None else load_experts(chosen, PAIRS)
    own_scales = ()
    for turn in gl.static_range(TURNS):
        for slice in gl.static_range(SLICES):
            first_row = experts[turn * SLICES + slice] * num_outputs + first
            for block in gl.static_range(BLOCKS):
                target = weights[turn * BLOCKS + block].slice(slice * ROWS, ROWS, dim=0)
                load_async(weight_desc, [first_row, block * WIDTH], full[turn * BLOCKS + block], target)
        own_expert = pick(experts, turn * SLICES + row // ROWS).to(gl.int64)
        own_scale = gl.load(scales + (own_expert * num_outputs + first + row % ROWS))
        own_scales = own_scales + (own_scale,)  # type: ignore[assignment]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    factors = ()
    for turn in gl.static_range(TURNS):
        factor = own_scales[turn]  # type: ignore[var-annotated]
        if WEIGHS:
            factor *= gl.load(shares + (turn * SLICES + row // ROWS))
        factors = factors + (factor,)  # type: ignore[assignment]
        _load_parts(inner, values, turn, BLOCKS, K)
    fence_async_shared()
    barrier()

    total = gl.zeros([SLICES * ROWS], gl.float32, row_layout(SLICES))
    for turn in gl.static_range(TURNS):
        for block in gl.static_range(BLOCKS):
            mbarrier.wait(full[turn * BLOCKS + block], 0)
        own_weights = weights[turn * BLOCKS : (turn + 1) * BLOCKS]
        own_values = values[turn * BLOCKS : (turn + 1) * BLOCKS]
        sums = multiply_blocks(own_weights, own_values, SLICES)
        total += own_sums(sums, SLICES) * factors[turn]
    outputs = add_slices(total, SLICES)
    gl.store(y + (first + gl.arange(0, ROWS, outputs.type.layout)), outputs.to(y.dtype.element_ty))
