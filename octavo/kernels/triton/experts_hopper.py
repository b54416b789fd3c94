"""Warp-specialised grouped GEMMs for Hopper, for experts of many pairs; terms as in :mod:`.experts`.

Programs are persistent and take tiles of 128 pairs and 256 weight rows in turns; with a gate, these are 128 rows of the
gate and as many of the up projection. One producer warpgroup keeps a ring of weights and inputs full: weights by TMA,
gathered rows of tokens by ``cp.async``, rows in the order of pairs by TMA. Two consumer warpgroups multiply 64 pairs
each; one without pairs of its own only frees the ring. While consumers write a tile's results, the producer loads the
next tile.

Inputs and weights have 16 bits, or are float8 with a scale per row of either, which multiply whole sums.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.gluon_names import copy_async, load_async
from octavo.kernels.triton.hopper_tiles import tile_descriptor
from octavo.kernels.triton.launch import dependent_launch, is_hopper, num_multiprocessors
from octavo.records.experts import ExpertSpec

BLOCK_M = 128
"""Pairs of a tile."""

SPECIALISED_PAIRS = 256
"""Pairs of an expert from which specialised warps are faster on Hopper; with 128, they are not."""

_HALF_N, _STEP_BYTES, _STAGES = 128, 128, 4
"""Weight rows of half a tile, bytes of a row per stage of the ring, and stages, as many as shared memory holds."""

_TYPES = (torch.bfloat16, torch.float16, FLOAT8)


def can_multiply(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the kernel supports these tensors of :func:`hopper_gemm`."""
    are_aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (x, weight, y))
    are_whole = weight.shape[2] * weight.element_size() % _STEP_BYTES == 0 and y.shape[1] % 8 == 0
    has_whole_rows = x.stride(0) * x.element_size() % 16 == 0
    return is_hopper(x.device) and x.dtype in _TYPES and are_aligned and are_whole and has_whole_rows


def hopper_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    shares: torch.Tensor,
    y: torch.Tensor,
    order: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    spec: ExpertSpec | None,
    x_scales: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """One GEMM for each expert's pairs; see :func:`.experts.grouped_gemm`. Row tiles have ``BLOCK_M`` pairs.

    Args:
        x_scales: of float8 ``x``, a float32 per row; None for others.
        scales: of float8 weights, a float32 per expert and weight row; None for others.
    """
    num_outputs, num_features = y.shape[1], weight.shape[2]
    width = _STEP_BYTES // x.element_size()
    hopper_experts_kernel[(num_multiprocessors(x.device),)](
        x,
        tile_descriptor(x, (BLOCK_M, width)) if spec is None else None,
        tile_descriptor(weight.flatten(0, 1), (_HALF_N, width)),
        x_scales,
        scales,
        bias,
        shares,
        y,
        *order,
        num_outputs,
        num_features // width,
        x.stride(0) * x.element_size() // 16,
        1.0 if spec is None else spec.alpha,
        0.0 if spec is None else spec.limit,
        ACTIVATION="none" if spec is None else spec.activation,
        WEIGHS=spec is not None and spec.weighs_inputs,
        NUM_CHOSEN=shares.shape[1],
        BLOCK_M=BLOCK_M,
        STAGES=_STAGES,
        num_warps=4,
        **dependent_launch(x.device),
    )


@gluon.jit
def _count_work(tiles, num_tiles, num_outputs, GATED: gl.constexpr, HALF_N: gl.constexpr):
    """What :func:`_find_tile` needs: row tiles, blocks of outputs per row tile, and tiles in total."""
    num_blocks = gl.cdiv(num_outputs, HALF_N if GATED else 2 * HALF_N)
    return tiles, num_blocks, gl.load(num_tiles) * num_blocks


@gluon.jit
def _find_tile(work, index):
    """A tile's expert, the first and the end place of its pairs, and its block of outputs."""
    tiles, num_blocks, num_items = work
    index = gl.minimum(index, num_items - 1)  # a tile is looked up while the one before it is computed
    spot = tiles + index // num_blocks * 3
    return gl.load(spot), gl.load(spot + 1), gl.load(spot + 2), index % num_blocks


@gluon.jit
def _load_weights(weight_desc, weight_ring, full, stage, row, between, column):
    """Request both halves of a stage's weights, ``between`` rows apart."""
    half: gl.constexpr = weight_desc.block_shape[0]
    slot = weight_ring.index(stage)
    load_async(weight_desc, [row, column], full.index(stage), slot.slice(0, half, dim=0))
    load_async(weight_desc, [row + between, column], full.index(stage), slot.slice(half, half, dim=0))


@gluon.jit
def _advance(stage, phase, STAGES: gl.constexpr):
    """The ring's next stage, and the phase of its barriers."""
    is_last = stage == STAGES - 1
    return gl.where(is_last, 0, stage + 1), gl.where(is_last, phase ^ 1, phase)


@gluon.jit
def _own_tokens(pairs, first, end, local, NUM_CHOSEN: gl.constexpr):
    """Tokens of a tile's pairs; past the end, the last pair's."""
    return gl.load(pairs + gl.minimum(first + local, end - 1)) // NUM_CHOSEN


@gluon.jit
def _produce(
    x,
    x_desc,
    weight_desc,
    rings,
    tiles,
    num_tiles,
    pairs,
    num_outputs,
    num_steps,
    x_stride,
    GATED: gl.constexpr,
    NUM_CHOSEN: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Producer warpgroup: keep the rings full."""
    x_ring, weight_ring, full, empty = rings
    half_m: gl.constexpr = x_ring.shape[1] // 2
    width: gl.constexpr = x_ring.shape[2]
    half_n: gl.constexpr = weight_desc.block_shape[0]
    weight_bytes: gl.constexpr = 2 * weight_desc.block_type.nbytes
    unit: gl.constexpr = 128 // x_ring.dtype.primitive_bitwidth  # values of 16 bytes
    layout: gl.constexpr = gl.BlockedLayout([1, unit], [32 * unit // width, width // unit], [4, 1], [1, 0])
    if PDL:
        gdc_wait()
    work = _count_work(tiles, num_tiles, num_outputs, GATED, half_n)
    local = gl.arange(0, half_m, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, width, layout=gl.SliceLayout(0, layout))
    stage = 0
    phase = 1
    expert, first, end, block = _find_tile(work, gl.program_id(0))
    for index in range(gl.program_id(0), work[2], gl.num_programs(0)):
        next_expert, next_first, next_end, next_block = _find_tile(work, index + gl.num_programs(0))
        if GATED:
            row = expert * num_outputs * 2 + block * half_n
            low = _own_tokens(pairs, first, end, local, NUM_CHOSEN)
            high = _own_tokens(pairs, first + half_m, end, local, NUM_CHOSEN)
            low_spots = x + (low.to(gl.int64) * x_stride * unit)[:, None] + columns[None, :]
            high_spots = x + (high.to(gl.int64) * x_stride * unit)[:, None] + columns[None, :]
            for step in range(num_steps):
                mbarrier.wait(empty.index(stage), phase)
                mbarrier.expect(full.index(stage), weight_bytes)
                _load_weights(weight_desc, weight_ring, full, stage, row, num_outputs, step * width)
                slot = x_ring.index(stage)
                copy_async(slot.slice(0, half_m, dim=0), low_spots + step * width)
                if end - first > half_m:
                    copy_async(slot.slice(half_m, half_m, dim=0), high_spots + step * width)
                async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
                stage, phase = _advance(stage, phase, STAGES)
        else:
            row = expert * num_outputs + block * (2 * half_n)
            for step in range(num_steps):
                mbarrier.wait(empty.index(stage), phase)
                mbarrier.expect(full.index(stage), weight_bytes + x_desc.block_type.nbytes)
                _load_weights(weight_desc, weight_ring, full, stage, row, half_n, step * width)
                load_async(x_desc, [first, step * width], full.index(stage), x_ring.index(stage))
                stage, phase = _advance(stage, phase, STAGES)
        expert, first, end, block = next_expert, next_first, next_end, next_block


@gluon.jit
def _multiply_steps(
    W: gl.constexpr,
    rings,
    total,
    stage,
    phase,
    num_steps,
    GATED: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Add up a tile's steps; the last one's MMA still runs."""
    x_ring, weight_ring, full, empty = rings
    half_m: gl.constexpr = x_ring.shape[1] // 2
    for step in range(num_steps):
        mbarrier.wait(full.index(stage), phase)
        if GATED:
            # Rows of tokens were written by ordinary copies.
            fence_async_shared()
        x = x_ring.index(stage).slice(W * half_m, half_m, dim=0)
        next_total = warpgroup_mma(x, weight_ring.index(stage).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[next_total])
        # The MMA of the previous step is complete, so its stage can be refilled.
        mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES), count=1, pred=step > 0)
        stage, phase = _advance(stage, phase, STAGES)
    return total, stage, phase


@gluon.jit
def _store(values, buffer, y, row_starts, is_row, first_n, num_outputs, layout: gl.constexpr):
    """Write ``[pairs, outputs]`` by way of shared memory."""
    buffer.store(values.to(y.dtype.element_ty))
    n = first_n + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, layout))
    gl.store(y + row_starts[:, None] + n[None, :], buffer.load(layout), is_row[:, None] & (n < num_outputs)[None, :])


@gluon.jit
def _consume_tile(
    W: gl.constexpr,
    rings,
    outputs,
    place,
    stage,
    phase,
    ACTIVATION: gl.constexpr,
    WEIGHS: gl.constexpr,
    NUM_CHOSEN: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Multiply 64 pairs of a tile and write their results."""
    x_ring, weight_ring, _, empty = rings
    x_scales, scales, bias, shares, y, pairs, num_outputs, num_steps, alpha, limit, buffers = outputs
    expert, first, end, block = place
    GATED: gl.constexpr = ACTIVATION != "none"
    half_m: gl.constexpr = x_ring.shape[1] // 2
    first += W * half_m
    half_n: gl.constexpr = weight_ring.shape[1] // 2
    depth: gl.constexpr = 256 // weight_ring.dtype.primitive_bitwidth  # features of an MMA
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * half_n, depth])
    half_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, half_n, depth])
    out_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // half_n, half_n // 8], [4, 1], [1, 0])
    places = first + gl.arange(0, half_m, layout=gl.SliceLayout(1, out_layout))
    is_row = places < end
    targets = places if GATED else gl.load(pairs + places, is_row, other=0)
    own = gl.minimum(first + gl.arange(0, half_m, layout=gl.SliceLayout(1, half_layout)), end - 1)
    if WEIGHS:
        share = gl.load(shares + gl.load(pairs + own))[:, None]
    if x_scales is not None:
        x_scale = gl.load(x_scales + (gl.load(pairs + own) // NUM_CHOSEN if GATED else own))[:, None]
    total = gl.zeros([half_m, 2 * half_n], gl.float32, layout)
    total, stage, phase = _multiply_steps(W, rings, total, stage, phase, num_steps, GATED, STAGES)
    total = warpgroup_mma_wait(0, deps=[total])
    mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES), count=1)

    gate, up = total.reshape((half_m, 2, half_n)).permute((0, 2, 1)).split()
    gate = gl.convert_layout(gate, half_layout, assert_trivial=True)
    up = gl.convert_layout(up, half_layout, assert_trivial=True)
    first_n = block * half_n if GATED else block * (2 * half_n)
    n = first_n + gl.arange(0, half_n, layout=gl.SliceLayout(0, half_layout))
    first_row = expert * num_outputs * (2 if GATED else 1) + n
    second = num_outputs if GATED else half_n  # rows from the first half to the second
    has_second = n + (0 if GATED else half_n) < num_outputs
    if x_scales is not None:
        gate = gate * gl.load(scales + first_row, n < num_outputs, other=0.0)[None, :] * x_scale
        up = up * gl.load(scales + first_row + second, has_second, other=0.0)[None, :] * x_scale
    if WEIGHS:
        gate *= share
        up *= share
    if bias is not None:
        gate += gl.load(bias + first_row, n < num_outputs, other=0.0).to(gl.float32)[None, :]
        up += gl.load(bias + first_row + second, has_second, other=0.0).to(gl.float32)[None, :]
    row_starts = targets.to(gl.int64) * num_outputs
    if GATED:
        values = activate(gate, up, alpha, limit, ACTIVATION)
        _store(values, buffers.index(W), y, row_starts, is_row, first_n, num_outputs, out_layout)
    else:
        _store(gate, buffers.index(W), y, row_starts, is_row, first_n, num_outputs, out_layout)
        _store(up, buffers.index(W), y, row_starts, is_row, first_n + half_n, num_outputs, out_layout)
    return stage, phase


@gluon.jit
def _consume(
    W: gl.constexpr,
    rings,
    tiles,
    num_tiles,
    outputs,
    ACTIVATION: gl.constexpr,
    WEIGHS: gl.constexpr,
    NUM_CHOSEN: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Consumer warpgroup: multiply one half of each tile's pairs; pairs are the MMA's M, weight rows its N."""
    x_ring, weight_ring, full, empty = rings
    _, _, _, _, _, _, num_outputs, num_steps, _, _, _ = outputs
    half_m: gl.constexpr = x_ring.shape[1] // 2
    if PDL:
        gdc_wait()
    work = _count_work(tiles, num_tiles, num_outputs, ACTIVATION != "none", weight_ring.shape[1] // 2)
    stage = 0
    phase = 0
    place = _find_tile(work, gl.program_id(0))
    for index in range(gl.program_id(0), work[2], gl.num_programs(0)):
        next_place = _find_tile(work, index + gl.num_programs(0))
        if place[2] - place[1] > W * half_m:
            stage, phase = _consume_tile(W, rings, outputs, place, stage, phase, ACTIVATION, WEIGHS, NUM_CHOSEN, STAGES)
        else:
            for _step in range(num_steps):
                mbarrier.wait(full.index(stage), phase)
                mbarrier.arrive(empty.index(stage), count=1)
                stage, phase = _advance(stage, phase, STAGES)
        place = next_place
    if PDL:
        gdc_launch_dependents()


@gluon.jit
def hopper_experts_kernel(
    x,  # [T, K] with a gate, otherwise [pairs, K]
    x_desc,  # blocks of a tile's pairs and a step; None with a gate, whose rows are gathered
    weight_desc,  # [E · weight rows, K], blocks of half a tile's rows and a step
    x_scales,  # [rows of x] or None
    scales,  # [E, weight rows] or None
    bias,  # [E, weight rows] or None
    shares,  # [T, NUM_CHOSEN]
    y,  # [pairs, N], as grouped_gemm's
    pairs,  # the three of a PairOrder
    tiles,
    num_tiles,
    num_outputs,
    num_steps,
    x_stride,  # in units of 16 bytes
    alpha,
    limit,
    ACTIVATION: gl.constexpr,
    WEIGHS: gl.constexpr,
    NUM_CHOSEN: gl.constexpr,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """All tiles, distributed over persistent programs; grid (programs)."""
    GATED: gl.constexpr = ACTIVATION != "none"
    dtype: gl.constexpr = weight_desc.dtype
    half_n: gl.constexpr = weight_desc.block_shape[0]
    width: gl.constexpr = weight_desc.block_shape[1]
    x_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, width], dtype)
    half_m: gl.constexpr = BLOCK_M // 2
    out_dtype: gl.constexpr = y.dtype.element_ty
    buffer_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([half_m, half_n], out_dtype)
    weight_ring = gl.allocate_shared_memory(dtype, [STAGES, 2 * half_n, width], weight_desc.layout)
    x_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, width], x_layout)
    buffers = gl.allocate_shared_memory(out_dtype, [2, half_m, half_n], buffer_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    # Each thread of the producer arrives once its own copies are there.
    arrivals: gl.constexpr = 129 if GATED else 1
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=arrivals)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    rings = (x_ring, weight_ring, full, empty)
    outputs = (x_scales, scales, bias, shares, y, pairs, num_outputs, num_steps, alpha, limit, buffers)
    gl.warp_specialize(
        [
            (_consume, (0, rings, tiles, num_tiles, outputs, ACTIVATION, WEIGHS, NUM_CHOSEN, STAGES, PDL)),
            (_consume, (1, rings, tiles, num_tiles, outputs, ACTIVATION, WEIGHS, NUM_CHOSEN, STAGES, PDL)),
            (_produce, (x, x_desc, weight_desc, rings, tiles, num_tiles, pairs, num_outputs, num_steps, x_stride,
                        GATED, NUM_CHOSEN, STAGES, PDL)),
        ],
        [4, 4],
        [232, 40],
    )  # fmt: skip
