"""Warp-specialised GEMMs of few rows for Hopper: ``y = (x Wᵀ) · row scales · channel scales`` of float8 (e4m3).

A program multiplies tiles of 64 to 192 weight rows by up to 256 rows of ``x``, or a part of the K steps of one tile. In
it, one producer warp keeps a ring full of weights, another of rows of ``x``, from one tile to the next; the first does
not wait for the kernel that rounds ``x``. Each warpgroup multiplies 64 of a tile's weight rows by all of its rows of
``x``, both read from shared memory. The programs that share a tile add up their parts in order, each for some rows.

The tensor cores add float8 products with fewer bits than float32 has, so the sum of every 256 features is added to a
float32 sum, if a warpgroup has registers for both.

Or weights have a scale per block of 128 × 128, and ``x`` one per row and 128 features. The ring carries them, too: the
sums of a step, which has 128 features, are multiplied by both as they are added.
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

from octavo.kernels.triton.gluon_names import load_async, reinterpret
from octavo.kernels.triton.hopper_tiles import tile_descriptor
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_workspace import Workspace
from octavo.kernels.triton.specialised_outputs import merge_parts, write_tile

BLOCK = 64
"""Weight rows of a warpgroup; with a gate, every other eight are the gate's."""
MAX_ROWS = 256
"""With more rows, the library is faster, whose thread-block clusters share reads."""

_SCALES_AT_ONCE = gl.constexpr(32)
"""Scales of weights that one copy loads, of which a step reads one: slots are aligned to 128 bytes."""
_MAX_EXACT_ROWS = 128
"""With more rows of a tile, a warpgroup has no registers for a second sum."""
PRODUCER_REGISTERS = 24


@dataclass(frozen=True, slots=True)
class SpecialisedTile:
    """A program's tile and pipeline.

    Attributes:
        num_groups: warpgroups that multiply, one to three.
        num_rows: rows of ``x``: 16, 32, 64, 128 or 256.
        num_columns: input features per stage of the ring.
        num_stages: depth of the ring.
        num_programs: that share the tiles, or a tile's parts, equally.
        num_parts: programs that share a tile's sum (split-K).
    """

    num_groups: int
    num_rows: int
    num_columns: int
    num_stages: int
    num_programs: int
    num_parts: int

    @property
    def num_weights(self) -> int:
        """Weight rows; a gate and its up projection have half of them each."""
        return self.num_groups * BLOCK

    @property
    def is_exact(self) -> bool:
        """Whether float8 sums of 256 features are added to a float32 sum."""
        return self.num_rows <= _MAX_EXACT_ROWS

    @property
    def num_registers(self) -> int:
        """Registers per thread at the launch, where the producers have as many threads as a warpgroup."""
        return min(65536 // (128 * (self.num_groups + 1)) // 8 * 8, 248)

    @property
    def num_group_registers(self) -> int:
        """Registers per thread of a warpgroup that multiplies."""
        left = (self.num_groups + 1) * self.num_registers - PRODUCER_REGISTERS
        return min(left // self.num_groups // 8 * 8, 240)

    def workspace(self, num_rows: int, num_weights: int) -> tuple[int, int]:
        """Number of float32 values and of counters that the programs share."""
        if self.num_parts == 1:
            return 0, 0
        num_tiles = -(-num_weights // self.num_weights) * -(-num_rows // self.num_rows)
        return self.num_programs * self.num_weights * self.num_rows, num_tiles * self.num_groups


def specialised_linear(
    x: torch.Tensor,
    row_scales: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: SpecialisedTile,
    space: Workspace,
) -> None:
    """``y = x Wᵀ · row scales · scales + b``, or with an activation ``act(y₁) · y₂`` for the halves of ``y``.

    Args:
        x: ``[M, K]`` float8; rows contiguous, each aligned to 16 bytes.
        row_scales: ``[M, 1]`` float32; beside scales by block ``[M, K / 128]``, those of a group neighbours in memory.
            Then M may be larger than that of ``out``.
        weight: ``[N, K]`` of the same type, contiguous, aligned to 16 bytes; with an activation, N is a multiple of 16.
        scales: ``[N]`` float32; or by block ``[N / 128, K / 128]``, contiguous, K a multiple of 512 and with an
            activation N of 256.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        space: at least of :meth:`SpecialisedTile.workspace`; launches of one stream may share it.
    """
    num_rows, num_features = len(out), x.shape[1]
    row_tiles = -(-num_rows // tile.num_rows)
    if activation == "none":
        weight_desc = tile_descriptor(weight, (BLOCK, tile.num_columns))
    else:
        weight_desc = _gated_descriptor(weight, tile.num_columns)
    scale_arguments: tuple[Any, ...] = None, None, row_scales, scales
    if scales.dim() == 2:
        blocks = scales.unflatten(0, (1 if activation == "none" else 2, -1))
        at_once = _SCALES_AT_ONCE.value
        x_scale_desc = _scale_descriptor(row_scales.T, [1, max(tile.num_rows, at_once)])
        scale_arguments = x_scale_desc, _scale_descriptor(blocks, [len(blocks), 1, at_once]), None, None
    specialised_linear_kernel[(tile.num_programs,)](
        tile_descriptor(x, (tile.num_rows, tile.num_columns)),
        weight_desc,
        *scale_arguments,
        bias,
        out,
        space.partials,
        space.arrivals,
        num_rows,
        out.shape[1],
        -(-num_features // tile.num_columns),
        tile.num_parts,
        row_tiles,
        -(-len(weight) // tile.num_weights) * row_tiles,
        GROUPS=tile.num_groups,
        STAGES=tile.num_stages,
        EXACT=tile.is_exact,
        ACTIVATION=activation,
        REGISTERS=tile.num_group_registers,
        num_warps=4,
        maxnreg=tile.num_registers,
        **dependent_launch(x.device),
    )


def _gated_descriptor(weight: torch.Tensor, num_columns: int) -> TensorDescriptor:
    """How TMA loads blocks of a gate and its up projection: eight rows of the one, eight of the other, and so on.

    A thread then has the sums of both.
    """
    num_weights, num_features = weight.shape
    shape = [num_weights // 16, 2, 8, num_features]
    strides = [8 * num_features, num_weights // 2 * num_features, num_features, 1]
    return TensorDescriptor(weight, shape, strides, [BLOCK // 16, 2, 8, num_columns], _gated_layout(num_columns))


@functools.cache
def _gated_layout(num_columns: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(min(num_columns, 128), 8, rank=4)


def _scale_descriptor(scales: torch.Tensor, box: list[int]) -> TensorDescriptor:
    """How TMA loads scales of one group of rows, or of one block of weights and some that follow."""
    layout = _scale_layout(scales.dim())
    return TensorDescriptor(scales, list(scales.shape), list(scales.stride()), box, layout)


@functools.cache
def _scale_layout(rank: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(0, 32, rank=rank)


@gluon.jit
def _own_steps(sizes):
    """The range ``[first, last)`` of the steps that a program has of each of its tiles."""
    num_steps, num_parts, _, _ = sizes
    part = gl.program_id(0) % num_parts
    return part * num_steps // num_parts, (part + 1) * num_steps // num_parts


@gluon.jit
def _produce_weights(weight_desc, scale_desc, rings, sizes):
    """A warp: keep the ring full of weights. They are constants, so it waits for no earlier kernel."""
    weight_slots, _, full, empty, scale_slots, _ = rings
    _, num_parts, row_tiles, num_tiles = sizes
    STAGES: gl.constexpr = full.shape[0]
    GROUPS: gl.constexpr = weight_slots.shape[0] // STAGES
    SCALE_BYTES: gl.constexpr = 0 if scale_desc is None else scale_desc.block_type.nbytes
    num_bytes: gl.constexpr = GROUPS * (weight_desc.block_type.nbytes + SCALE_BYTES)
    first, last = _own_steps(sizes)
    i = 0
    for tile in range(gl.program_id(0) // num_parts, num_tiles, gl.num_programs(0) // num_parts):
        block = tile // row_tiles * GROUPS
        for step in range(first, last):
            stage = i % STAGES
            mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), num_bytes)
            column = step * weight_desc.block_shape[-1]
            for group in gl.static_range(GROUPS):
                slot = weight_slots.index(stage * GROUPS + group)
                row = (block + group) * weight_desc.block_shape[0]
                if len(weight_desc.block_shape) == 4:
                    slot = slot.reshape(weight_desc.block_shape)
                    load_async(weight_desc, [row, 0, 0, column], full.index(stage), slot)
                else:
                    load_async(weight_desc, [row, column], full.index(stage), slot)
                if scale_desc is not None:
                    own = (block + group) * (64 // scale_desc.block_shape[0]) // 128
                    scale_slot = scale_slots.index(stage * GROUPS + group)
                    # TMA reads from multiples of 16 bytes on.
                    first_scale = step // _SCALES_AT_ONCE * _SCALES_AT_ONCE
                    load_async(scale_desc, [0, own, first_scale], full.index(stage), scale_slot)
            i += 1


@gluon.jit
def _produce_x(x_desc, scale_desc, rings, sizes, PDL: gl.constexpr):
    """A warp: keep the ring full of rows of ``x``."""
    _, x_slots, full, empty, _, scale_slots = rings
    _, num_parts, row_tiles, num_tiles = sizes
    STAGES: gl.constexpr = full.shape[0]
    SCALE_BYTES: gl.constexpr = 0 if scale_desc is None else scale_desc.block_type.nbytes
    first, last = _own_steps(sizes)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = 0
    for tile in range(gl.program_id(0) // num_parts, num_tiles, gl.num_programs(0) // num_parts):
        row = tile % row_tiles * x_desc.block_shape[0]
        for step in range(first, last):
            stage = i % STAGES
            mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), x_desc.block_type.nbytes + SCALE_BYTES)
            load_async(x_desc, [row, step * x_desc.block_shape[1]], full.index(stage), x_slots.index(stage))
            if scale_desc is not None:
                load_async(scale_desc, [step, row], full.index(stage), scale_slots.index(stage))
            i += 1


@gluon.jit
def _issue(rings, step, sums, use_acc, GROUP: gl.constexpr):
    """Consumer: begin the MMA of a step once its operands are there."""
    weight_slots, x_slots, full, _, _, _ = rings
    STAGES: gl.constexpr = full.shape[0]
    GROUPS: gl.constexpr = weight_slots.shape[0] // STAGES
    stage = step % STAGES
    mbarrier.wait(full.index(stage), step // STAGES & 1)
    x = x_slots.index(stage).permute((1, 0))
    return warpgroup_mma(weight_slots.index(stage * GROUPS + GROUP), x, sums, use_acc=use_acc, is_async=True)


@gluon.jit
def _finished(rings, step, sums, NUM_LATER: gl.constexpr):
    """Consumer: the sums of a step when at most so many later MMAs are under way; its stage can be refilled."""
    empty = rings[3]
    sums = warpgroup_mma_wait(NUM_LATER, deps=[sums])
    mbarrier.arrive(empty.index(step % empty.shape[0]), count=1)
    return sums


@gluon.jit
def _scales(rings, step, origin, GROUP: gl.constexpr, layout: gl.constexpr):
    """Consumer: what a step's sums ``[64, rows]`` are multiplied by; ``origin + step`` is its block of features."""
    weight_scales, x_scales = rings[4], rings[5]
    STAGES: gl.constexpr = x_scales.shape[0]
    GROUPS: gl.constexpr = weight_scales.shape[0] // STAGES
    rows: gl.constexpr = rings[1].shape[1]
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    stage = step % STAGES
    x_slot = reinterpret(x_scales.index(stage), gl.float32, [x_scales.shape[2]], plain)
    x_scale = x_slot.slice(0, rows).load(gl.SliceLayout(0, layout))
    factors: gl.constexpr = weight_scales.shape[1]
    shape: gl.constexpr = [factors * _SCALES_AT_ONCE, 1]
    slot = reinterpret(weight_scales.index(stage * GROUPS + GROUP), gl.float32, shape, plain)
    place = (origin + step) % _SCALES_AT_ONCE
    scale = slot.index(place).load(gl.SliceLayout(1, layout))
    if factors == 2:
        other = slot.index(_SCALES_AT_ONCE + place).load(gl.SliceLayout(1, layout))
        n = gl.arange(0, 64, gl.SliceLayout(1, layout))
        scale = gl.where(n // 8 % 2 == 0, scale, other)
    return scale[:, None] * x_scale[None, :]


@gluon.jit
def _add(total, rings, step, origin, sums, NUM_LATER: gl.constexpr, GROUP: gl.constexpr):
    """Consumer: ``total`` and the sums of a step, times its scales if there are blocks; see :func:`_finished`."""
    layout: gl.constexpr = total.type.layout
    if rings[4] is None:
        total += _finished(rings, step, sums, NUM_LATER)
    else:
        scales = _scales(rings, step, origin, GROUP, layout)
        total += _finished(rings, step, sums, NUM_LATER) * scales
        # There is nothing left to wait for, but the compiler moves no additions past this, behind the next MMA, which
        # would have to wait for them.
        total = warpgroup_mma_wait(NUM_LATER, deps=[total])
    return total


@gluon.jit
def _multiply(
    rings, start, end, origin, GROUP: gl.constexpr, EXACT: gl.constexpr, OVERLAP: gl.constexpr, layout: gl.constexpr
):
    """A warpgroup's sums of a tile, ``[64, rows]``, over the ring's steps from ``start`` to ``end``."""
    weight_slots, x_slots, _, empty, _, _ = rings
    channels: gl.constexpr = weight_slots.shape[1]
    rows: gl.constexpr = x_slots.shape[1]
    none = gl.zeros([channels, rows], gl.float32, layout)
    total = none
    if not EXACT:
        for i in range(start, end):
            sums = _issue(rings, i, total, True, GROUP)
            total = warpgroup_mma_wait(1, deps=[sums])
            # The MMA of the step before is complete.
            mbarrier.arrive(empty.index((i - 1) % empty.shape[0]), count=1, pred=i > start)
        total = _finished(rings, end - 1, total, 0)
    elif OVERLAP:
        # Sums are added while the tensor cores multiply the next step.
        num_pairs = (end - start - 1) // 2
        even = _issue(rings, start, none, False, GROUP)
        for pair in range(num_pairs):
            i = start + 2 * pair
            odd = _issue(rings, i + 1, none, False, GROUP)
            total = _add(total, rings, i, origin, even, 1, GROUP)
            even = _issue(rings, i + 2, none, False, GROUP)
            total = _add(total, rings, i + 1, origin, odd, 1, GROUP)
        last = start + 2 * num_pairs
        if last + 1 < end:
            odd = _issue(rings, last + 1, none, False, GROUP)
            total = _add(total, rings, last, origin, even, 1, GROUP)
            total = _add(total, rings, last + 1, origin, odd, 0, GROUP)
        else:
            total = _add(total, rings, last, origin, even, 0, GROUP)
    else:
        gl.static_assert(rings[4] is None, "tiles with scales by block are small enough")
        CHAIN: gl.constexpr = max(256 // weight_slots.shape[2], 1)
        num_chains = (end - start) // CHAIN
        for chain in range(num_chains):
            i = start + chain * CHAIN
            sums = _issue(rings, i, none, False, GROUP)
            for later in gl.static_range(1, CHAIN):
                sums = _issue(rings, i + later, sums, True, GROUP)
                sums = _finished(rings, i + later - 1, sums, 1)
            total += _finished(rings, i + CHAIN - 1, sums, 0)
        for i in range(start + num_chains * CHAIN, end):
            total += _finished(rings, i, _issue(rings, i, none, False, GROUP), 0)
    return total


@gluon.jit
def _consume(
    GROUP: gl.constexpr,
    rings,
    outputs,
    sizes,
    GROUPS: gl.constexpr,
    EXACT: gl.constexpr,
    ACTIVATION: gl.constexpr,
    REGISTERS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A warpgroup: multiply step by step and write the tiles; channels are the MMA's M, rows of ``x`` its N."""
    _, num_parts, row_tiles, num_tiles = sizes
    rows: gl.constexpr = rings[1].shape[1]
    # With three warpgroups, there are not enough registers for the results of 256 rows in one instruction.
    width: gl.constexpr = rows if GROUPS < 3 else min(rows, 128)
    overlap: gl.constexpr = 3 * rows // 2 + 48 <= REGISTERS
    depth: gl.constexpr = 256 // rings[0].dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, depth])
    first, last = _own_steps(sizes)
    if PDL:
        gdc_wait()
    start = 0
    for tile in range(gl.program_id(0) // num_parts, num_tiles, gl.num_programs(0) // num_parts):
        total = _multiply(rings, start, start + last - first, first - start, GROUP, EXACT, overlap, layout)
        block, first_row = tile // row_tiles * GROUPS + GROUP, tile % row_tiles * rows
        if num_parts == 1:
            write_tile(total, outputs, block, first_row, ACTIVATION)
        else:
            merge_parts(total, outputs, num_parts, tile, block, first_row, GROUP, GROUPS, ACTIVATION)
        start += last - first


@gluon.jit
def _scale_slots(desc, count: gl.constexpr):
    """As many slots for blocks of a descriptor."""
    return gl.allocate_shared_memory(desc.dtype, [count] + desc.block_shape, desc.layout)


@gluon.jit(do_not_specialize=["num_rows", "num_steps", "num_parts", "row_tiles", "num_tiles"])
def specialised_linear_kernel(
    x_desc,  # [M, K], blocks of a tile's rows
    weight_desc,  # [N, K], blocks of a warpgroup; with an activation [N / 16, 2, 8, K]
    x_scale_desc,  # [K / 128, M], of groups; or None
    weight_scale_desc,  # [1, N / 128, K / 128], of blocks; with an activation [2, N / 256, K / 128]; or None
    row_scales,  # [M], or None
    scales,  # [N], or None
    bias,  # [N]
    out,  # [M, N], or with an activation [M, N / 2]
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_steps,
    num_parts,
    row_tiles,
    num_tiles,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    EXACT: gl.constexpr,
    ACTIVATION: gl.constexpr,
    REGISTERS: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid (programs). Tiles of the same weight rows follow each other."""
    columns: gl.constexpr = x_desc.block_shape[1]
    bits: gl.constexpr = weight_desc.dtype.primitive_bitwidth
    slots_layout: gl.constexpr = gl.NVMMASharedLayout(min(columns * bits // 8, 128), bits, rank=2)
    weight_slots = gl.allocate_shared_memory(weight_desc.dtype, [STAGES * GROUPS, 64, columns], slots_layout)
    x_slots = gl.allocate_shared_memory(x_desc.dtype, [STAGES] + x_desc.block_shape, x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=2)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    rings = (weight_slots, x_slots, full, empty, None, None)
    if weight_scale_desc is not None:
        weight_scale_slots = _scale_slots(weight_scale_desc, STAGES * GROUPS)
        rings = (weight_slots, x_slots, full, empty, weight_scale_slots, _scale_slots(x_scale_desc, STAGES))
    outputs = (row_scales, scales, bias, out, partials, arrivals, num_rows, num_channels)
    sizes = (num_steps, num_parts, row_tiles, num_tiles)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, EXACT, ACTIVATION, REGISTERS, PDL)),
                (_produce_weights, (weight_desc, weight_scale_desc, rings, sizes)),
                (_produce_x, (x_desc, x_scale_desc, rings, sizes, PDL)),
            ],
            [1, 1],
            [24, 24],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, EXACT, ACTIVATION, REGISTERS, PDL)),
                (_consume, (1, rings, outputs, sizes, GROUPS, EXACT, ACTIVATION, REGISTERS, PDL)),
                (_produce_weights, (weight_desc, weight_scale_desc, rings, sizes)),
                (_produce_x, (x_desc, x_scale_desc, rings, sizes, PDL)),
            ],
            [4, 1, 1],
            [REGISTERS, 24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, EXACT, ACTIVATION, REGISTERS, PDL)),
                (_consume, (1, rings, outputs, sizes, GROUPS, EXACT, ACTIVATION, REGISTERS, PDL)),
                (_consume, (2, rings, outputs, sizes, GROUPS, EXACT, ACTIVATION, REGISTERS, PDL)),
                (_produce_weights, (weight_desc, weight_scale_desc, rings, sizes)),
                (_produce_x, (x_desc, x_scale_desc, rings, sizes, PDL)),
            ],
            [4, 4, 1, 1],
            [REGISTERS, REGISTERS, 24, 24],
        )
