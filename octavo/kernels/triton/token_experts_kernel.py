"""The two kernels of :mod:`octavo.kernels.triton.token_experts`; parts of values are those of :mod:`.value_parts`."""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.gluon_names import barrier, load_async
from octavo.kernels.triton.value_parts import PARTS, part_factor, split_value, store_parts

WIDTH = gl.constexpr(128)
"""Inputs of a block of weights."""
SLICES = gl.constexpr(4)
"""Slices of the sum, each with an expert or a quarter of its inputs: a warp multiplies one."""
ROWS = gl.constexpr(16)
"""Weight rows of a tile."""
_CHAIN = gl.constexpr(2)
"""Blocks whose sums the tensor cores add up, with fewer bits than float32 has."""


@triton.constexpr_function
def _memory_layout():
    return gl.NVMMASharedLayout(WIDTH.value, 8, rank=2)


@triton.constexpr_function
def _sum_layout():
    """Of sums ``[slices x rows, slices x parts]``."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SLICES.value * PARTS.value, 32])


@gluon.jit
def _multiply(weights, first_weights, parts, first_parts, BLOCKS: gl.constexpr):
    """Sums of a tile, ``[slices x rows]`` in a slice of :func:`_sum_layout`.

    All slices of weights meet all slices of values; those that belong together are kept.

    Args:
        weights, parts: ``[n, 64, WIDTH]`` and ``[n, 16, WIDTH]``.
        first_weights, first_parts: of the blocks.
    """
    layout: gl.constexpr = _sum_layout()
    none = gl.zeros([SLICES * ROWS, SLICES * PARTS], gl.float32, layout)
    chains = ()
    for start in gl.static_range(0, BLOCKS, _CHAIN):
        sums = none
        for block in gl.static_range(start, start + _CHAIN):
            if block < BLOCKS:
                values = parts.index(first_parts + block).permute((1, 0))
                sums = warpgroup_mma(
                    weights.index(first_weights + block), values, sums, use_acc=block > start, is_async=True
                )
        chains = chains + (sums,)  # type: ignore[assignment]
    total = none
    for index in gl.static_range(len(chains)):
        total += warpgroup_mma_wait(len(chains) - 1 - index, deps=[chains[index]])
    row = gl.arange(0, SLICES * ROWS, gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, SLICES * PARTS, gl.SliceLayout(0, layout))[None, :]
    # The row of parts that is not used may hold anything.
    is_own = (row // ROWS == column // PARTS) & (column % PARTS < PARTS - 1)
    return gl.sum(gl.where(is_own, total * part_factor(column), 0.0), 1)


@gluon.jit
def _store_values(x, parts, SIZE: gl.constexpr):
    """Split a row of ``SLICES * SIZE`` values in shared memory, ``[blocks, slices x parts, WIDTH]``."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    BLOCKS: gl.constexpr = parts.shape[0]
    of_slice = gl.arange(0, SLICES, gl.SliceLayout(1, layout))[:, None] * SIZE
    for block in gl.static_range(BLOCKS):
        column = block * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
        values = gl.load(x + (of_slice + column), (column < SIZE) & (of_slice >= 0), other=0.0)
        first, second, third = split_value(values.to(gl.float32))
        joined = gl.join(gl.join(first, second), gl.join(third, third)).permute((0, 3, 2, 1))
        parts.index(block).store(joined.reshape((SLICES * PARTS, WIDTH)))


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
    is_there, _, expert, first = tile
    row = gl.arange(0, SLICES * ROWS, gl.SliceLayout(1, _sum_layout())) % ROWS
    number = row // (ROWS // 2) * num_outputs + first + row % (ROWS // 2)
    mbarrier.expect(full.index(slot), BLOCKS * SLICES * ROWS * WIDTH, pred=is_there)
    for block in gl.static_range(BLOCKS):
        target = weights.index(slot * BLOCKS + block).reshape(weight_desc.block_shape)
        load_async(
            weight_desc, [0, expert * 2, first, block * WIDTH], full.index(slot), target, pred=is_there
        )
    return gl.load(scales + (expert.to(gl.int64) * 2 * num_outputs + number))


@gluon.jit(do_not_specialize=["num_outputs", "num_tiles", "num_items"])
def token_up_kernel(
    weight_desc,  # [slices, 2E, outputs, K / slices], blocks of the slices of eight rows of a gate and its up projection
    x,  # [K], of 16 bits
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
    ACTIVATION: gl.constexpr,
    WEIGHS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes tiles of eight outputs of a pair, as many as there are programs apart; grid (programs)."""
    SIZE: gl.constexpr = K // SLICES
    BLOCKS: gl.constexpr = (SIZE + WIDTH - 1) // WIDTH
    weights = gl.allocate_shared_memory(
        weight_desc.dtype, [SLOTS * BLOCKS, SLICES * ROWS, WIDTH], _memory_layout()
    )
    parts = gl.allocate_shared_memory(gl.float8e5, [BLOCKS, SLICES * PARTS, WIDTH], _memory_layout())
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
    fence_async_shared()
    program, step = gl.program_id(0), gl.num_programs(0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    tiles = ()
    for slot in gl.static_range(SLOTS):
        tiles = tiles + (_find_tile(program + slot * step, chosen, num_tiles, num_items),)  # type: ignore[assignment]
    found = ()
    for slot in gl.static_range(SLOTS):
        scale = _request_tile(weight_desc, weights, full, slot, tiles[slot], scales, num_outputs, BLOCKS)
        found = found + (scale,)  # type: ignore[assignment]
    _store_values(x, parts, SIZE)
    fence_async_shared()
    barrier()

    for i in range((num_items - program + step - 1) // step):
        place = i % SLOTS
        later = _find_tile(program + (i + SLOTS) * step, chosen, num_tiles, num_items)
        _, pair, _, first = tiles[0]
        mbarrier.wait(full.index(place), i // SLOTS & 1)
        sums = _multiply(weights, place * BLOCKS, parts, 0, BLOCKS) * found[0]
        total = gl.sum(sums.reshape((SLICES, ROWS)), 0)
        barrier()  # no warp reads the slot any more
        scale = _request_tile(weight_desc, weights, full, place, later, scales, num_outputs, BLOCKS)
        tiles, found = tiles[1:] + (later,), found[1:] + (scale,)
        gate, up = total.reshape((2, ROWS // 2)).permute((1, 0)).split()
        if WEIGHS:
            share = gl.load(shares + pair)
            gate *= share
            up *= share
        value = activate(gate, up, alpha, limit, ACTIVATION)
        spots = inner + (pair * PARTS * num_outputs + first + gl.arange(0, ROWS // 2, value.type.layout))
        store_parts(spots, value, num_outputs, first >= 0)


@gluon.jit(do_not_specialize=["num_outputs"])
def token_down_kernel(
    weight_desc,  # [E · outputs, K], blocks of a tile's rows
    inner_desc,  # [pairs · PARTS, K], blocks of the parts of as many pairs as there are slices
    chosen,  # [pairs] int64
    shares,  # [pairs] float32
    scales,  # [E, outputs] float32
    y,  # [outputs], written
    num_outputs,
    K: gl.constexpr,
    PAIRS: gl.constexpr,
    WEIGHS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes a tile of outputs, summed over all pairs; grid (tiles).

    The choice is older than the preceding launch, so all weights are requested before the wait.
    """
    BLOCKS: gl.constexpr = (K + WIDTH - 1) // WIDTH
    TURNS: gl.constexpr = PAIRS // SLICES
    weights = gl.allocate_shared_memory(
        weight_desc.dtype, [TURNS * BLOCKS, SLICES * ROWS, WIDTH], _memory_layout()
    )
    parts = gl.allocate_shared_memory(inner_desc.dtype, [TURNS * BLOCKS, SLICES * PARTS, WIDTH], inner_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2 * TURNS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * TURNS):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    first = gl.program_id(0) * ROWS
    row = gl.arange(0, SLICES * ROWS, gl.SliceLayout(1, _sum_layout()))
    rows = ()
    for pair in gl.static_range(PAIRS):
        rows = rows + (gl.load(chosen + pair).to(gl.int32) * num_outputs + first,)  # type: ignore[assignment]
    factors = ()
    for turn in gl.static_range(TURNS):
        mbarrier.expect(full.index(turn), BLOCKS * SLICES * ROWS * WIDTH)
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
        arrived = full.index(TURNS + turn)
        mbarrier.expect(arrived, BLOCKS * SLICES * PARTS * WIDTH)
        for block in gl.static_range(BLOCKS):
            target = parts.index(turn * BLOCKS + block)
            load_async(inner_desc, [turn * (SLICES * PARTS), block * WIDTH], arrived, target)

    total = gl.zeros([SLICES * ROWS], gl.float32, gl.SliceLayout(1, _sum_layout()))
    for turn in gl.static_range(TURNS):
        mbarrier.wait(full.index(turn), 0)
        mbarrier.wait(full.index(TURNS + turn), 0)
        total += _multiply(weights, turn * BLOCKS, parts, turn * BLOCKS, BLOCKS) * factors[turn]
    outputs = gl.sum(total.reshape((SLICES, ROWS)), 0)
    gl.store(y + (first + gl.arange(0, ROWS, outputs.type.layout)), outputs.to(y.dtype.element_ty))
