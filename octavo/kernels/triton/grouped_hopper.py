"""Warp-specialised GEMMs with packed 4-bit weights for Hopper: one producer warp loads, warpgroups unpack and multiply.

A program multiplies a tile of weight rows by a tile of rows of ``x``, over all of K or a part of it; the program that
arrives last adds the parts in their order. The producer fills its ring with codes before it waits for the kernel that
computes ``x``. Each warpgroup has 64 weight rows: it unpacks the next 128 inputs in registers while the tensor cores
multiply the last ones, and adds their sums to its own, times the group's scale.
"""

from dataclasses import dataclass

import torch
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

from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.triton.grouped_stream import load_scales, load_zeros
from octavo.kernels.triton.grouped_unpack import unpack_halves, zero_pair
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_hopper import async_load, barrier, own_steps, tile_descriptor
from octavo.kernels.triton.linear_workspace import Workspace

STEP = 128
"""Input features per stage of the ring: a unit of packed codes."""
MAX_ROWS = 256
"""Beyond this M, dequantising the weight for the vendor's library takes less time than unpacking it for each tile."""


@dataclass(frozen=True, slots=True)
class HopperTile:
    """A program's tile and pipeline.

    Attributes:
        num_weights: weight rows, 64 per warpgroup.
        num_rows: rows of ``x``.
        num_parts: programs that share a tile's sum (split-K).
        num_stages: depth of the ring.
    """

    num_weights: int
    num_rows: int
    num_parts: int
    num_stages: int


def choose_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> HopperTile | None:
    """The tile for a GEMM, or None if another way is faster; tuned on an H200.

    Args:
        weight: as :func:`octavo.kernels.triton.grouped_direct.reads` takes it.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    num_channels, num_steps = len(weight.codes), weight.num_inputs // STEP
    rows = min(max(1 << (num_rows - 1).bit_length(), 16), 128)
    is_one_wave = -(-num_channels // 64) * -(-num_rows // rows) <= num_sms
    num_weights = 64 if is_one_wave or 32 < num_rows <= 128 else 128
    num_tiles = -(-num_channels // num_weights) * -(-num_rows // rows)
    num_parts = max(min(num_sms // num_tiles, num_steps // 4, 8), 1)
    if num_rows <= 32:
        deepest = 8
    elif num_rows <= 64:
        deepest = 4
    elif num_rows <= 128:  # two programs share a multiprocessor
        deepest = 3
    else:
        deepest = 6 if is_one_wave else 5
    return HopperTile(num_weights, rows, num_parts, min(deepest, -(-num_steps // num_parts)))


def workspace_size(num_rows: int, num_channels: int, tile: HopperTile) -> tuple[int, int]:
    """Number of float32 values and of counters that the programs share."""
    if tile.num_parts == 1:
        return 0, 0
    num_tiles = -(-num_channels // tile.num_weights) * -(-num_rows // tile.num_rows)
    return num_tiles * tile.num_parts * tile.num_weights * tile.num_rows, num_tiles


def hopper_grouped(
    x: torch.Tensor,
    weight: GroupedTensors,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: HopperTile,
    space: Workspace,
) -> None:
    """``x Wᵀ + b`` for integers of 4 bits in groups of a multiple of 128 inputs.

    Args:
        x: ``[M, K]``, bfloat16 or float16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]``, K a multiple of 128.
        out: ``[M, N]``, contiguous.
        space: at least of :func:`workspace_size`; launches of one stream may share it.
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    grid = -(-num_channels // tile.num_weights), tile.num_parts, -(-num_rows // tile.num_rows)
    hopper_grouped_kernel[grid](
        tile_descriptor(x, (tile.num_rows, STEP // 2)),
        tile_descriptor(weight.codes, (tile.num_weights, STEP // 2)),
        weight.scales,
        weight.zeros,
        bias,
        out,
        space.partials,
        space.arrivals,
        num_rows,
        num_channels,
        num_features // STEP,
        GROUP_STEPS=weight.group // STEP,
        STAGES=tile.num_stages,
        num_warps=tile.num_weights // 16,
        **dependent_launch(x.device),
    )


@triton.constexpr_function
def _byte_layout(rows, num_warps):
    """How threads hold the bytes ``[rows, 64]`` of a unit: those that their MMA wants together."""
    registers = [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]]
    lanes = [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]]
    warps = [[16 << i, 0] for i in range(num_warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [rows, 64])


@gluon.jit
def _produce(x_desc, code_desc, rings, num_steps, STAGES: gl.constexpr, PDL: gl.constexpr):
    """Producer warp: keep the rings full; the first codes are requested before the wait for earlier kernels."""
    x_ring, code_ring, full, empty = rings
    num_bytes: gl.constexpr = code_desc.block_type.nbytes + 2 * x_desc.block_type.nbytes
    width: gl.constexpr = code_desc.block_shape[1]
    first_row = gl.program_id(2) * x_desc.block_shape[0]
    first_channel = gl.program_id(0) * code_desc.block_shape[0]
    first, last = own_steps(num_steps)
    num_early = gl.minimum(last - first, STAGES)
    for step in range(num_early):
        mbarrier.expect(full.index(step), num_bytes)
        async_load(code_desc, [first_channel, (first + step) * width], full.index(step), code_ring.index(step))
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for step in range(num_early):
        column = (first + step) * (2 * width)
        async_load(x_desc, [first_row, column], full.index(step), x_ring.index(2 * step))
        async_load(x_desc, [first_row, column + width], full.index(step), x_ring.index(2 * step + 1))
    for step in range(num_early, last - first):
        stage = step % STAGES
        column = (first + step) * (2 * width)
        mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), num_bytes)
        async_load(code_desc, [first_channel, (first + step) * width], full.index(stage), code_ring.index(stage))
        async_load(x_desc, [first_row, column], full.index(stage), x_ring.index(2 * stage))
        async_load(x_desc, [first_row, column + width], full.index(stage), x_ring.index(2 * stage + 1))


@gluon.jit
def _unpacked(code_ring, stage, zero, first_layout: gl.constexpr, dtype: gl.constexpr):
    """The halves of a unit, each ``[rows, 64]``, less their zeros in eighths ``[rows]``, as operands in registers."""
    rows: gl.constexpr = code_ring.shape[1]
    packed = code_ring.index(stage).load(_byte_layout(rows, gl.num_warps()))
    pairs, _ = gl.broadcast(zero_pair(zero, dtype)[:, None], packed)
    low, high = unpack_halves(packed, pairs, dtype)
    low = low.reshape((rows, 4, 4, 2, 2)).permute((0, 2, 3, 1, 4)).reshape((rows, 64))
    high = high.reshape((rows, 4, 4, 2, 2)).permute((0, 2, 3, 1, 4)).reshape((rows, 64))
    return (
        gl.convert_layout(low, first_layout, assert_trivial=True),
        gl.convert_layout(high, first_layout, assert_trivial=True),
    )


@gluon.jit
def _consume(rings, outputs, STAGES: gl.constexpr, GROUP_STEPS: gl.constexpr, PDL: gl.constexpr):
    """Consumer warps: multiply step by step and write the tile; channels are the MMA's M, rows of ``x`` its N."""
    x_ring, code_ring, full, empty = rings
    scales, zeros, bias, out, partials, arrivals, num_rows, num_channels, num_steps = outputs
    rows: gl.constexpr = x_ring.shape[1]
    channels: gl.constexpr = code_ring.shape[1]
    dtype: gl.constexpr = x_ring.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, rows, 16])
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    local_n = gl.arange(0, channels, layout=gl.SliceLayout(1, layout))
    local_m = gl.arange(0, rows, layout=gl.SliceLayout(0, layout))
    n = gl.program_id(0) * channels + local_n
    is_channel = n < num_channels
    num_groups = num_steps // GROUP_STEPS
    groups = gl.minimum(n, num_channels - 1) * num_groups
    zero_layout: gl.constexpr = gl.SliceLayout(1, _byte_layout(channels, gl.num_warps()))
    zero_n = gl.program_id(0) * channels + gl.arange(0, channels, layout=zero_layout)
    is_zero = zero_n < num_channels
    zero_groups = gl.minimum(zero_n, num_channels - 1) * num_groups
    total = gl.zeros([channels, rows], gl.float32, layout)
    first, last = own_steps(num_steps)
    # Terms are loaded a step before they are needed: zeros for unpacking, scales after the product.
    scale = load_scales(scales, groups + first // GROUP_STEPS, is_channel)
    zero = load_zeros(zeros, zero_groups + first // GROUP_STEPS, is_zero)
    following = gl.minimum(first + 1, last - 1)
    next_zero = load_zeros(zeros, zero_groups + following // GROUP_STEPS, is_zero)
    if PDL:
        gdc_wait()
    mbarrier.wait(full.index(0), 0, pred=last > first)
    low, high = _unpacked(code_ring, 0, zero, first_layout, dtype)
    for step in range(last - first):
        stage = step % STAGES
        values = x_ring.index(2 * stage).permute((1, 0))
        more = x_ring.index(2 * stage + 1).permute((1, 0))
        sums = gl.zeros([channels, rows], gl.float32, layout)
        running = warpgroup_mma(low, values, sums, use_acc=False, is_async=True)
        running = warpgroup_mma(high, more, running, is_async=True)
        # Unpack the next step's codes while the tensor cores multiply.
        following = gl.minimum(step + 1, last - first - 1)
        next_scale = load_scales(scales, groups + (first + following) // GROUP_STEPS, is_channel)
        third = gl.minimum(first + step + 2, last - 1)
        third_zero = load_zeros(zeros, zero_groups + third // GROUP_STEPS, is_zero)
        mbarrier.wait(full.index(following % STAGES), following // STAGES & 1)
        next_low, next_high = _unpacked(code_ring, following % STAGES, next_zero, first_layout, dtype)
        sums, low, high = warpgroup_mma_wait(0, deps=[running, low, high])
        mbarrier.arrive(empty.index(stage), count=1)
        total += scale[:, None] * sums
        low, high, scale, next_zero = next_low, next_high, next_scale, third_zero

    num_parts = gl.num_programs(1)
    is_last = num_parts == 1
    if num_parts > 1:
        size: gl.constexpr = channels * rows
        tile = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
        # Ordered by thread and register, so that a warp's stores are contiguous.
        place_n = local_n // 16 * (16 * rows) + local_n // 8 % 2 * 64 + local_n % 8 * 8
        place_m = local_m // 8 * 128 + local_m % 8
        spots = partials + tile * num_parts * size + (place_n[:, None] + place_m[None, :])
        gl.store(spots + gl.program_id(1) * size, total)
        # All threads' stores come before the arrival; the last program's loads come after it.
        barrier()
        is_last = gl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == num_parts - 1
        if is_last:
            gl.store(arrivals + tile, 0)
            total = gl.load(spots, cache_modifier=".cg")
            for part in range(1, num_parts):
                # Bypass L1: another multiprocessor wrote this.
                total += gl.load(spots + part * size, cache_modifier=".cg")
    if is_last:
        m = gl.program_id(2) * rows + local_m
        if bias is not None:
            total += gl.load(bias + n, is_channel, other=0.0).to(gl.float32)[:, None]
        spots_y = out + (m[None, :] * num_channels + n[:, None])
        gl.store(spots_y, total.to(out.dtype.element_ty), (m < num_rows)[None, :] & is_channel[:, None])


@gluon.jit(do_not_specialize=["num_rows", "num_steps"])
def hopper_grouped_kernel(
    x_desc,  # [M, K], blocks of half a step
    code_desc,  # [N, K / 2]
    scales,
    zeros,
    bias,  # [N]
    out,  # [M, N]
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_steps,
    GROUP_STEPS: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid (tiles of channels, parts of a tile, tiles of rows)."""
    channels: gl.constexpr = code_desc.block_shape[0]
    rows: gl.constexpr = x_desc.block_shape[0]
    code_ring = gl.allocate_shared_memory(gl.uint8, [STAGES, channels, code_desc.block_shape[1]], code_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES, rows, x_desc.block_shape[1]], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    rings = (x_ring, code_ring, full, empty)
    outputs = (scales, zeros, bias, out, partials, arrivals, num_rows, num_channels, num_steps)
    gl.warp_specialize(
        [
            (_consume, (rings, outputs, STAGES, GROUP_STEPS, PDL)),
            (_produce, (x_desc, code_desc, rings, num_steps, STAGES, PDL)),
        ],
        [1],
        [24],
    )
