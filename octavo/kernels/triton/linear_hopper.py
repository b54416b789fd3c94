"""Warp-specialised small-M GEMMs for Hopper (M from 33 to 128): one producer warp loads, four consumer warps multiply.

A program multiplies 64 weight rows (128 with a gate) by 64 rows of ``x``, over all of K or a part of it; the program
that arrives last adds the parts in their order. The producer fills its ring with weights before it waits for the
kernel that computes ``x``: while one kernel ends, the next one's weights are already being loaded.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.gluon_names import barrier, load_async
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import apply_gate
from octavo.kernels.triton.linear_workspace import Workspace

TILE = 64
"""Output channels, and rows of ``x``, per program."""

FEWEST_ROWS, MOST_ROWS = 33, 128
"""With fewer rows, :mod:`linear_stream` is faster; with more, the library, whose thread-block clusters share reads."""

_LONG_SUM = 4096
"""From this K on, reading the weight once per tile of rows takes too long."""

_RING_BYTES, _HALF_RING_BYTES = 222 << 10, 110 << 10
"""Shared memory for the rings of a program that has a multiprocessor to itself, and of one of two that share it."""
_ELEMENTS = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.uint8: gl.uint8,
}


@dataclass(frozen=True, slots=True)
class HopperGemmTile:
    """A program's tile and pipeline.

    Attributes:
        num_columns: input features per stage of the ring.
        num_parts: programs that share a tile's sum (split-K).
        num_stages: depth of the ring.
        is_shared: whether two programs, or this one and the next kernel's, fit on a multiprocessor.
    """

    num_columns: int
    num_parts: int
    num_stages: int
    is_shared: bool


def choose_tile(
    num_rows: int, num_channels: int, num_features: int, *, is_gated: bool, num_sms: int
) -> HopperGemmTile | None:
    """The tile for a GEMM, or None if it would not be fast; tuned on an H200.

    Args:
        num_channels: outputs per row, after the gate if there is one.
    """
    most_rows = MOST_ROWS if num_features < _LONG_SUM else TILE
    if not FEWEST_ROWS <= num_rows <= most_rows:
        return None
    num_columns = 128
    num_tiles = -(-num_channels // TILE) * -(-num_rows // TILE)
    num_steps = -(-num_features // num_columns)
    num_parts = min(max(num_sms // num_tiles, 1), num_steps)
    stage_bytes = 2 * num_columns * TILE * (3 if is_gated else 2)
    most_stages = (_HALF_RING_BYTES if num_tiles > num_sms else _RING_BYTES) // stage_bytes
    # Only even depths, since a kernel is compiled for each.
    num_stages = min(-(-num_steps // (2 * num_parts)) * 2, most_stages)
    return HopperGemmTile(num_columns, num_parts, num_stages, is_shared=num_stages * stage_bytes <= _HALF_RING_BYTES)


def workspace_size(num_rows: int, num_channels: int, tile: HopperGemmTile, *, is_gated: bool) -> tuple[int, int]:
    """Number of float32 values and of counters that the programs share."""
    if tile.num_parts == 1:
        return 0, 0
    num_tiles = -(-num_channels // TILE) * -(-num_rows // TILE)
    return num_tiles * tile.num_parts * (2 if is_gated else 1) * TILE * TILE, num_tiles


def hopper_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: HopperGemmTile,
    space: Workspace,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16, K a multiple of 8; rows contiguous, row stride a multiple of 8, aligned to
            16 bytes.
        weight: ``[N, K]`` contiguous, aligned to 16 bytes.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        space: at least of :func:`workspace_size`; launches of one stream may share it.
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    options: dict[str, Any] = {"maxnreg": 128} if tile.is_shared else {}
    hopper_linear_kernel[-(-num_channels // TILE), tile.num_parts, -(-num_rows // TILE)](
        tile_descriptor(x, (TILE, tile.num_columns)),
        tile_descriptor(weight, (TILE, tile.num_columns)),
        bias,
        out,
        space.partials,
        space.arrivals,
        num_rows,
        num_channels,
        -(-num_features // tile.num_columns),
        STAGES=tile.num_stages,
        ACTIVATION=activation,
        num_warps=4,
        **options,
        **dependent_launch(x.device),
    )


def tile_descriptor(x: torch.Tensor, box: tuple[int, int]) -> TensorDescriptor:
    """How TMA loads blocks of some rows and columns of a matrix."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(box), _layout(x.dtype, box))


@functools.cache
def _layout(dtype: torch.dtype, box: tuple[int, int]) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(box), _ELEMENTS[dtype])


@gluon.jit
def partial_places(rows: gl.constexpr, count: gl.constexpr, layout: gl.constexpr):
    """Where a warpgroup's sums of the first ``count`` rows lie in a slot of ``[64, rows]``: a warp's are contiguous."""
    n = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    m = gl.arange(0, count, layout=gl.SliceLayout(0, layout))
    place_n = n // 16 * (16 * rows) + n // 8 % 2 * 64 + n % 8 * 8
    return place_n[:, None] + (m // 8 * 128 + m % 8)[None, :]


@gluon.jit
def _own_steps(num_steps):
    """The range ``[first, last)`` of a program's K steps."""
    part = gl.program_id(1)
    return part * num_steps // gl.num_programs(1), (part + 1) * num_steps // gl.num_programs(1)


@gluon.jit
def _load_weights(weight_desc, ring, full, column, stage, num_channels, FACTORS: gl.constexpr):
    """Request a stage of a program's weights, those of the gate and of the up projection if there are two factors."""
    first = gl.program_id(0) * weight_desc.block_shape[0]
    for factor in gl.static_range(FACTORS):
        spot = [first + factor * num_channels, column]
        load_async(weight_desc, spot, full.index(stage), ring.index(stage * FACTORS + factor))


@gluon.jit
def _produce(
    x_desc,
    weight_desc,
    rings,
    num_channels,
    num_steps,
    FACTORS: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Producer warp: keep the rings full; the first weights are requested before the wait for earlier kernels."""
    x_ring, weight_ring, full, empty = rings
    columns: gl.constexpr = weight_desc.block_shape[1]
    num_bytes: gl.constexpr = weight_desc.block_type.nbytes * FACTORS + x_desc.block_type.nbytes
    first_row = gl.program_id(2) * x_desc.block_shape[0]
    first, last = _own_steps(num_steps)
    num_early = gl.minimum(last - first, STAGES)
    for step in range(num_early):
        mbarrier.expect(full.index(step), num_bytes)
        _load_weights(weight_desc, weight_ring, full, (first + step) * columns, step, num_channels, FACTORS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for step in range(num_early):
        load_async(x_desc, [first_row, (first + step) * columns], full.index(step), x_ring.index(step))
    for step in range(num_early, last - first):
        stage = step % STAGES
        column = (first + step) * columns
        mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), num_bytes)
        _load_weights(weight_desc, weight_ring, full, column, stage, num_channels, FACTORS)
        load_async(x_desc, [first_row, column], full.index(stage), x_ring.index(stage))


@gluon.jit
def _add_parts(spots, num_parts, stride):
    """The sum of a tile's parts, in order."""
    total = gl.load(spots, cache_modifier=".cg")
    for part in range(1, num_parts):
        # Bypass L1: another multiprocessor wrote this.
        total += gl.load(spots + part * stride, cache_modifier=".cg")
    return total


@gluon.jit
def _finish_tile(
    total,  # [channels, rows] float32
    factor,  # the up projection's, if there are two factors
    local_n,  # the tile's channels and rows, counted from its first
    local_m,
    bias,
    out,
    partials,
    arrivals,
    num_rows,
    num_channels,
    FACTORS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Add up the parts of a tile, in the program that arrives last, and write its outputs."""
    channels: gl.constexpr = total.shape[0]
    rows: gl.constexpr = total.shape[1]
    num_parts = gl.num_programs(1)
    is_last = num_parts == 1
    if num_parts > 1:
        size: gl.constexpr = channels * rows
        tile = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
        # Ordered by thread and register, so that a warp's stores are contiguous.
        place_n = local_n // 8 % 2 * (4 * channels) + local_n // 16 * 32 + local_n % 8 * 4
        place_m = local_m // 8 * (8 * channels) + local_m % 2 * (2 * channels) + local_m % 8 // 2
        spots = partials + tile * num_parts * (FACTORS * size) + (place_n[:, None] + place_m[None, :])
        own = spots + gl.program_id(1) * (FACTORS * size)
        gl.store(own, total)
        if FACTORS == 2:
            gl.store(own + size, factor)
        # All threads' stores come before the arrival; the last program's loads come after it.
        barrier()
        is_last = gl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == num_parts - 1
        if is_last:
            gl.store(arrivals + tile, 0)
            total = _add_parts(spots, num_parts, FACTORS * size)
            if FACTORS == 2:
                factor = _add_parts(spots + size, num_parts, FACTORS * size)
    if is_last:
        n = gl.program_id(0) * channels + local_n
        m = gl.program_id(2) * rows + local_m
        is_channel = n < num_channels
        if bias is not None:
            total += gl.load(bias + n, is_channel, other=0.0).to(gl.float32)[:, None]
        if FACTORS == 2:
            if bias is not None:
                factor += gl.load(bias + num_channels + n, is_channel, other=0.0).to(gl.float32)[:, None]
            total = apply_gate(total, factor, ACTIVATION)
        spots = out + (m[None, :] * num_channels + n[:, None])
        gl.store(spots, total.to(out.dtype.element_ty), (m < num_rows)[None, :] & is_channel[:, None])


@gluon.jit
def _consume(
    rings,
    outputs,
    FACTORS: gl.constexpr,
    STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Consumer warps: multiply stage by stage and write the tile; channels are the MMA's M, rows of ``x`` its N."""
    x_ring, weight_ring, full, empty = rings
    bias, out, partials, arrivals, num_rows, num_channels, num_steps = outputs
    rows: gl.constexpr = x_ring.shape[1]
    channels: gl.constexpr = weight_ring.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])
    local_n = gl.arange(0, channels, layout=gl.SliceLayout(1, layout))
    local_m = gl.arange(0, rows, layout=gl.SliceLayout(0, layout))
    if PDL:
        gdc_wait()
    total = gl.zeros([channels, rows], gl.float32, layout)
    factor = gl.zeros([channels, rows], gl.float32, layout)
    first, last = _own_steps(num_steps)
    for step in range(last - first):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        x = x_ring.index(stage).permute((1, 0))
        slot = stage * FACTORS
        next_total = warpgroup_mma(weight_ring.index(slot), x, total, is_async=True)
        if FACTORS == 2:
            next_factor = warpgroup_mma(weight_ring.index(slot + 1), x, factor, is_async=True)
            total, factor = warpgroup_mma_wait(2, deps=[next_total, next_factor])
        else:
            total = warpgroup_mma_wait(1, deps=[next_total])
        # The MMA of the previous step is complete, so its stage can be refilled.
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    if FACTORS == 2:
        total, factor = warpgroup_mma_wait(0, deps=[total, factor])
    else:
        total = warpgroup_mma_wait(0, deps=[total])

    _finish_tile(
        total,
        factor,
        local_n,
        local_m,
        bias,
        out,
        partials,
        arrivals,
        num_rows,
        num_channels,
        FACTORS,
        ACTIVATION,
    )


@gluon.jit(do_not_specialize=["num_rows", "num_steps"])
def hopper_linear_kernel(
    x_desc,  # [M, K], blocks of a tile's rows
    weight_desc,  # [N, K], blocks of a program's channels
    bias,  # [N]
    out,  # [M, N], or with an activation [M, N / 2]
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_steps,
    STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid (tiles of channels, parts of a tile, tiles of rows)."""
    FACTORS: gl.constexpr = 1 if ACTIVATION == "none" else 2
    dtype: gl.constexpr = x_desc.dtype
    channels: gl.constexpr = weight_desc.block_shape[0]
    columns: gl.constexpr = weight_desc.block_shape[1]
    weight_ring = gl.allocate_shared_memory(dtype, [STAGES * FACTORS, channels, columns], weight_desc.layout)
    x_ring = gl.allocate_shared_memory(dtype, [STAGES, x_desc.block_shape[0], columns], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    rings = (x_ring, weight_ring, full, empty)
    outputs = (bias, out, partials, arrivals, num_rows, num_channels, num_steps)
    gl.warp_specialize(
        [
            (_consume, (rings, outputs, FACTORS, STAGES, ACTIVATION, PDL)),
            (_produce, (x_desc, weight_desc, rings, num_channels, num_steps, FACTORS, STAGES, PDL)),
        ],
        [1],
        [24],
    )
