"""The two kernels of :mod:`octavo.kernels.triton.token_experts`; :mod:`.token_tiles` has the terms."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.gluon_names import barrier, load_async
from octavo.kernels.triton.token_tiles import (
    ROWS,
    WIDTH,
    add_slices,
    block_columns,
    memory_layout,
    multiply_blocks,
    own_sums,
    row_layout,
    store_block,
)
from octavo.kernels.triton.value_parts import PARTS, store_parts


@gluon.jit
def _find_tile(index, chosen, num_tiles, num_items):
    """A tile of :func:`token_up_kernel`: whether there is one, its pair, expert and first output."""
    is_there = index < num_items
    index = gl.minimum(index, num_items - 1)
    pair = index // num_tiles
    return is_there, pair, gl.load(chosen + pair).to(gl.int32), index % num_tiles * (ROWS // 2)


@gluon.jit
def _request_tile(weight_desc, weights, full, slot, tile, scales, num_outputs, BLOCKS: gl.constexpr):
    """Request a tile's weights, if there is one; its scales."""
    SLICES: gl.constexpr = weight_desc.block_shape[0]
    is_there, _, expert, first = tile
    mbarrier.expect(full.index(slot), BLOCKS * weight_desc.block_type.nbytes, pred=is_there)
    for block in gl.static_range(BLOCKS):
        target = weights.index(slot * BLOCKS + block).reshape(weight_desc.block_shape)
        load_async(weight_desc, [block * SLICES, expert * 2, first, 0], full.index(slot), target, pred=is_there)
    row = gl.arange(0, SLICES * ROWS, row_layout(SLICES)) % ROWS
    number = row // (ROWS // 2) * num_outputs + first + row % (ROWS // 2)
    return gl.load(scales + (expert.to(gl.int64) * 2 * num_outputs + number))


@gluon.jit(do_not_specialize=["num_outputs", "num_tiles", "num_items"])
def token_up_kernel(
    weight_desc,  # [K / WIDTH, 2E, outputs, WIDTH], blocks of a tile of a gate and its up projection
    x,  # [K] bfloat16
    chosen,  # [pairs] int64
    shares,  # [pairs] float32
    scales,  # [E, 2 · outputs] float32
    inner,  # [pairs, PARTS, outputs] e5m2, written
    num_outputs,
    num_tiles,
    num_items,
    alpha,
    limit,
    K: gl.constexpr,
    SLOTS: gl.constexpr,
    LAST: gl.constexpr,
    ACTIVATION: gl.constexpr,
    WEIGHS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes tiles of eight outputs of a pair, as many as there are programs apart; grid (programs).

    Args:
        num_tiles, num_items: of a pair, and of all pairs.
        SLOTS: tiles in shared memory.
        LAST: tiles that a program has left when it lets the next launch start: its weights are to come behind these.
    """
    SLICES: gl.constexpr = weight_desc.block_shape[0]
    BLOCKS: gl.constexpr = (K + SLICES * WIDTH - 1) // (SLICES * WIDTH)
    weights = gl.allocate_shared_memory(weight_desc.dtype, [SLOTS * BLOCKS, SLICES * ROWS, WIDTH], memory_layout())
    values = gl.allocate_shared_memory(gl.float8e5, [BLOCKS, SLICES * PARTS, WIDTH], memory_layout())
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
    fence_async_shared()
    program, step = gl.program_id(0), gl.num_programs(0)
    count = (num_items - program + step - 1) // step
    if PDL:
        gdc_wait()
    tiles = ()
    for slot in gl.static_range(SLOTS):
        tiles = tiles + (_find_tile(program + slot * step, chosen, num_tiles, num_items),)  # type: ignore[assignment]
    found = ()
    for slot in gl.static_range(SLOTS):
        scale = _request_tile(weight_desc, weights, full, slot, tiles[slot], scales, num_outputs, BLOCKS)
        found = found + (scale,)  # type: ignore[assignment]
    for block in gl.static_range(BLOCKS):
        column = block_columns(block, SLICES)
        store_block(gl.load(x + column, column < K, other=0.0), values.index(block))
    fence_async_shared()
    barrier()

    for i in range(count):
        place = i % SLOTS
        if PDL:  # noqa: SIM102 - one is decided when the kernel is compiled, the other when it runs
            if i == gl.maximum(count - LAST, 0):
                gdc_launch_dependents()
        later = _find_tile(program + (i + SLOTS) * step, chosen, num_tiles, num_items)
        _, pair, _, first = tiles[0]  # type: ignore[misc]
        mbarrier.wait(full.index(place), i // SLOTS & 1)
        sums = multiply_blocks(weights, place * BLOCKS, values, 0, BLOCKS, SLICES)
        total = add_slices(own_sums(sums, SLICES) * found[0], SLICES)  # type: ignore[misc]
        barrier()  # no warp reads the slot any more
        scale = _request_tile(weight_desc, weights, full, place, later, scales, num_outputs, BLOCKS)
        tiles, found = tiles[1:] + (later,), found[1:] + (scale,)  # type: ignore[assignment]
        gate, up = total.reshape((2, ROWS // 2)).permute((1, 0)).split()
        if WEIGHS:
            share = gl.load(shares + pair)
            gate *= share
            up *= share
        value = activate(gate, up, alpha, limit, ACTIVATION)
        spots = inner + (pair * PARTS * num_outputs + first + gl.arange(0, ROWS // 2, value.type.layout))
        store_parts(spots, value, num_outputs, first >= 0)


@gluon.jit
def _load_parts(inner, values, turn: gl.constexpr, BLOCKS: gl.constexpr, K: gl.constexpr):
    """Copy the parts of as many pairs' inner values as there are slices, ``[slices x PARTS, K]``, to shared memory."""
    ROWS_OF_PARTS: gl.constexpr = values.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, ROWS_OF_PARTS, gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    spots = inner + ((turn * ROWS_OF_PARTS + row) * K + column)
    loaded = ()
    for block in gl.static_range(BLOCKS):
        is_there = (block * WIDTH + column < K) & (row >= 0)
        loaded = loaded + (gl.load(spots + block * WIDTH, is_there, other=0.0),)  # type: ignore[assignment]
    for block in gl.static_range(BLOCKS):
        values.index(turn * BLOCKS + block).store(loaded[block])


@gluon.jit(do_not_specialize=["num_outputs"])
def token_down_kernel(
    weight_desc,  # [E · outputs, K], blocks of a tile in a slice
    inner,  # [pairs, PARTS, K] e5m2
    chosen,  # [pairs] int64
    shares,  # [pairs] float32
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

    The choice is older than the preceding launch, so all weights are requested before the wait.

    Args:
        PAIRS, SLICES: the pairs, and how many of them are multiplied at once.
    """
    BLOCKS: gl.constexpr = (K + WIDTH - 1) // WIDTH
    TURNS: gl.constexpr = PAIRS // SLICES
    weights = gl.allocate_shared_memory(weight_desc.dtype, [TURNS * BLOCKS, SLICES * ROWS, WIDTH], memory_layout())
    values = gl.allocate_shared_memory(gl.float8e5, [TURNS * BLOCKS, SLICES * PARTS, WIDTH], memory_layout())
    full = gl.allocate_shared_memory(gl.int64, [TURNS, 1], mbarrier.MBarrierLayout())
    for turn in gl.static_range(TURNS):
        mbarrier.init(full.index(turn), count=1)
    fence_async_shared()
    first = gl.program_id(0) * ROWS
    row = gl.arange(0, SLICES * ROWS, row_layout(SLICES))
    rows = ()
    for pair in gl.static_range(PAIRS):
        rows = rows + (gl.load(chosen + pair).to(gl.int32) * num_outputs + first,)  # type: ignore[assignment]
    factors = ()
    for turn in gl.static_range(TURNS):
        mbarrier.expect(full.index(turn), BLOCKS * SLICES * weight_desc.block_type.nbytes)
        for slice in gl.static_range(SLICES):
            for block in gl.static_range(BLOCKS):
                target = weights.index(turn * BLOCKS + block).slice(slice * ROWS, ROWS, dim=0)
                load_async(weight_desc, [rows[turn * SLICES + slice], block * WIDTH], full.index(turn), target)
        own = turn * SLICES + row // ROWS
        factor = gl.load(scales + (gl.load(chosen + own) * num_outputs + first + row % ROWS))
        if WEIGHS:
            factor *= gl.load(shares + own)
        factors = factors + (factor,)  # type: ignore[assignment]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for turn in gl.static_range(TURNS):
        _load_parts(inner, values, turn, BLOCKS, K)
    fence_async_shared()
    barrier()

    total = gl.zeros([SLICES * ROWS], gl.float32, row_layout(SLICES))
    for turn in gl.static_range(TURNS):
        mbarrier.wait(full.index(turn), 0)
        sums = multiply_blocks(weights, turn * BLOCKS, values, turn * BLOCKS, BLOCKS, SLICES)
        total += own_sums(sums, SLICES) * factors[turn]
    outputs = add_slices(total, SLICES)
    gl.store(y + (first + gl.arange(0, ROWS, outputs.type.layout)), outputs.to(y.dtype.element_ty))
