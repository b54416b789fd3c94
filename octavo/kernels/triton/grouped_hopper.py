"""Warp-specialised GEMMs with packed 4-bit weights for Hopper: one producer warp loads, warpgroups unpack and multiply.

The steps of all tiles, one after another, are divided evenly among programs (stream-K), and the ring runs on from one
tile to the next. A tile that several programs share is added up in the order of its parts by the program that arrives
last. The producer fills its ring with codes before it waits for the kernel that computes ``x``. Each warpgroup has 64
of a tile's weight rows: it unpacks half of the 128 inputs of a step in registers while the tensor cores multiply the
half before. With few rows it multiplies the sums of a group by its scale, with many the weights themselves, so that
sums stay in the tensor cores.
"""

import functools
from dataclasses import dataclass
from typing import Any

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.triton.gluon_names import barrier, load_async
from octavo.kernels.triton.grouped_unpack import factor_pair, unpack_half, unpack_terms
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_hopper import partial_places, tile_descriptor
from octavo.kernels.triton.linear_stream import apply_gate
from octavo.kernels.triton.linear_workspace import Workspace

STEP = 128
"""Input features per stage of the ring: a unit of packed codes."""
BLOCK = 64
"""Weight rows of a warpgroup; with a gate, half of them are the gate's."""
MAX_ROWS = 256
"""Beyond this M, dequantising the weight for the vendor's library takes less time than unpacking it for each tile."""

_BUSY = 0.88
"""The part of the device that is busy from which whole tiles, or equal parts, take less time than uneven parts."""


@dataclass(frozen=True, slots=True)
class HopperTile:
    """A program's tile and pipeline.

    Attributes:
        num_groups: warpgroups that unpack and multiply, one to three; with one, two programs share a multiprocessor.
        num_rows: rows of ``x``.
        num_stages: depth of the ring.
        num_programs: among which the steps of all tiles are divided.
        is_scaled: whether weights are multiplied by their scales before the product, or else sums after it.
    """

    num_groups: int
    num_rows: int
    num_stages: int
    num_programs: int
    is_scaled: bool

    @property
    def num_weights(self) -> int:
        """Weight rows; a gate and its up projection have half of them each."""
        return self.num_groups * BLOCK


def choose_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> HopperTile | None:
    """The tile for a GEMM, or None if another way is faster; tuned on an H200.

    Args:
        weight: as :func:`octavo.kernels.triton.grouped_direct.reads` takes it.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    num_channels, num_steps = len(weight.codes), weight.num_inputs // STEP
    rows = min(max(1 << (num_rows - 1).bit_length(), 32), 128)
    row_tiles = -(-num_rows // rows)
    num_slots = num_sms
    # Three warpgroups read ``x`` least often, but need whole tiles: to add up parts of such tiles takes long.
    if _fills(_whole_waves(-(-num_channels // (3 * BLOCK)) * row_tiles, num_sms), num_sms):
        num_groups, num_stages = 3, 5 if rows == 32 else 4
    elif rows == 32:
        num_groups, num_stages, num_slots = 1, 6, 2 * num_sms
    else:
        num_groups, num_stages = 2, 6 if rows == 64 else 4
    num_tiles = -(-num_channels // (num_groups * BLOCK)) * row_tiles
    num_programs = _choose_programs(num_tiles, num_steps, num_slots)
    return HopperTile(num_groups, rows, num_stages, num_programs, is_scaled=rows > 64)


def _choose_programs(num_tiles: int, num_steps: int, num_slots: int) -> int:
    """Programs with whole tiles or equal parts of one, if they keep the device busy; else as many as fit.

    A program has at least four steps, if its tile has.
    """
    most = num_tiles * max(num_steps // 4, 1)
    if num_tiles > num_slots:
        even = _whole_waves(num_tiles, num_slots)
    else:
        even = min(num_slots // num_tiles * num_tiles, most)
    return even if _fills(even, num_slots) else min(num_slots, most)


def _whole_waves(num_tiles: int, num_slots: int) -> int:
    """The programs that have equally many of the tiles, or one less."""
    return -(-num_tiles // -(-num_tiles // num_slots))


def _fills(num_programs: int, num_slots: int) -> bool:
    return num_programs >= _BUSY * num_slots


def gates(weight: GroupedTensors) -> bool:
    """Whether the kernel takes a gate and its up projection at once: scales and zeros lie by eight channels."""
    return len(weight.codes) % 16 == 0


def workspace_size(num_rows: int, num_weights: int, tile: HopperTile) -> tuple[int, int]:
    """Number of float32 values and of counters that the programs share."""
    num_tiles = -(-num_weights // tile.num_weights) * -(-num_rows // tile.num_rows)
    if num_tiles % tile.num_programs == 0:
        return 0, 0
    return 2 * tile.num_programs * tile.num_weights * tile.num_rows, num_tiles * tile.num_groups


def hopper_grouped(
    x: torch.Tensor,
    weight: GroupedTensors,
    terms: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: HopperTile,
    space: Workspace,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]``, as :func:`octavo.kernels.triton.grouped_direct.reads` takes it; with an activation, one
            that :func:`gates` takes.
        terms: of :func:`octavo.kernels.triton.grouped_direct.make_terms`.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        space: at least of :func:`workspace_size`; launches of one stream may share it.
    """
    num_rows, num_features = x.shape
    factors = 1 if activation == "none" else 2
    row_tiles = -(-num_rows // tile.num_rows)
    options: dict[str, Any] = {"maxnreg": 128} if tile.num_groups == 1 else {}
    hopper_grouped_kernel[(tile.num_programs,)](
        tile_descriptor(x, (tile.num_rows, STEP // 2)),
        _part_descriptor(weight.codes.view(torch.int32), factors, BLOCK, STEP // 8),
        _part_descriptor(terms.flatten(1), factors, BLOCK // 8, 8),
        bias,
        out,
        space.partials,
        space.arrivals,
        num_rows,
        out.shape[1],
        num_features // STEP,
        row_tiles,
        -(-len(weight.codes) // tile.num_weights) * row_tiles,
        GROUP_STEPS=weight.group // STEP,
        GROUPS=tile.num_groups,
        STAGES=tile.num_stages,
        SCALED=tile.is_scaled,
        ACTIVATION=activation,
        num_warps=4,
        **options,
        **dependent_launch(x.device),
    )


def _part_descriptor(values: torch.Tensor, factors: int, rows: int, columns: int) -> TensorDescriptor:
    """How TMA loads as many rows of each factor's part of an int32 matrix, ``rows`` in all, and some columns."""
    parts = values.unflatten(0, (factors, -1))
    box = [factors, rows // factors, columns]
    return TensorDescriptor(parts, list(parts.shape), list(parts.stride()), box, _part_layout(4 * columns))


@functools.cache
def _part_layout(row_bytes: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(row_bytes, 32, rank=3)


@triton.constexpr_function
def _word_layout():
    """How a warpgroup's threads hold a block's words ``[64, 16]``: those that their MMA wants together."""
    registers = [[0, 1], [0, 2], [8, 0]]
    lanes = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [BLOCK, 16])


@triton.constexpr_function
def _slot_layout(factors):
    """The same of words as they lie in the ring, ``[factors, 64 / factors, 16]``: a thread has rows of both factors."""
    if factors == 1:
        second, warps = [0, 8, 0], [[0, 16, 0], [0, 32, 0]]
    else:
        second, warps = [1, 0, 0], [[0, 8, 0], [0, 16, 0]]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout([[0, 0, 1], [0, 0, 2], second], lanes, warps, [], [factors, BLOCK // factors, 16])


@triton.constexpr_function
def _term_slot_layout(factors):
    """Likewise for terms, ``[factors, 8 / factors, 8]``."""
    if factors == 1:
        second, warps = [0, 1, 0], [[0, 2, 0], [0, 4, 0]]
    else:
        second, warps = [1, 0, 0], [[0, 1, 0], [0, 2, 0]]
    lanes = [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]]
    return gl.DistributedLinearLayout([second], lanes, warps, [], [factors, 8 // factors, 8])


@gluon.jit
def _own_steps(num_tiles, num_steps):
    """The range ``[first, last)`` of a program's steps, of those of all tiles one after another."""
    total = num_tiles * num_steps
    program = gl.program_id(0)
    return program * total // gl.num_programs(0), (program + 1) * total // gl.num_programs(0)


@gluon.jit
def _load_weights(descs, rings, step, stage, sizes, GROUP_STEPS: gl.constexpr):
    """Producer: request a step's codes and terms."""
    _, code_desc, term_desc = descs
    _, code_ring, term_ring, full, _ = rings
    num_steps, row_tiles, _ = sizes
    groups: gl.constexpr = code_ring.shape[0] // full.shape[0]
    code_rows: gl.constexpr = code_desc.block_shape[1]
    term_rows: gl.constexpr = term_desc.block_shape[1]
    own = step % num_steps
    first = step // num_steps // row_tiles * groups
    for group in gl.static_range(groups):
        slot = stage * groups + group
        spot = [0, (first + group) * code_rows, own * 16]
        load_async(code_desc, spot, full.index(stage), code_ring.index(slot))
        spot = [0, (first + group) * term_rows, own // GROUP_STEPS * 8]
        load_async(term_desc, spot, full.index(stage), term_ring.index(slot))


@gluon.jit
def _load_x(descs, rings, step, stage, sizes):
    """Producer: request a step's rows of ``x``."""
    x_desc = descs[0]
    x_ring, _, _, full, _ = rings
    num_steps, row_tiles, _ = sizes
    row = step // num_steps % row_tiles * x_desc.block_shape[0]
    column = step % num_steps * 128
    load_async(x_desc, [row, column], full.index(stage), x_ring.index(2 * stage))
    load_async(x_desc, [row, column + 64], full.index(stage), x_ring.index(2 * stage + 1))


@gluon.jit
def _produce(descs, rings, sizes, GROUP_STEPS: gl.constexpr, PDL: gl.constexpr):
    """Producer warp: keep the rings full; the first codes are requested before the wait for earlier kernels."""
    x_desc, code_desc, term_desc = descs
    _, code_ring, _, full, empty = rings
    num_steps, _, num_tiles = sizes
    STAGES: gl.constexpr = full.shape[0]
    groups: gl.constexpr = code_ring.shape[0] // STAGES
    weight_bytes: gl.constexpr = code_desc.block_type.nbytes + term_desc.block_type.nbytes
    num_bytes: gl.constexpr = groups * weight_bytes + 2 * x_desc.block_type.nbytes
    first, last = _own_steps(num_tiles, num_steps)
    num_early = gl.minimum(last - first, STAGES)
    for i in range(num_early):
        mbarrier.expect(full.index(i), num_bytes)
        _load_weights(descs, rings, first + i, i, sizes, GROUP_STEPS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for i in range(num_early):
        _load_x(descs, rings, first + i, i, sizes)
    for i in range(num_early, last - first):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), num_bytes)
        _load_weights(descs, rings, first + i, stage, sizes, GROUP_STEPS)
        _load_x(descs, rings, first + i, stage, sizes)


@gluon.jit
def _load_block(rings, slot, dtype: gl.constexpr):
    """A block's words ``[64, 16]``, and the scales and zeros ``[64]`` of their rows."""
    _, code_ring, term_ring, _, _ = rings
    factors: gl.constexpr = code_ring.shape[1]
    words = code_ring.index(slot).load(_slot_layout(factors))
    terms = term_ring.index(slot).load(_term_slot_layout(factors))
    if factors == 2:
        words = words.reshape((2, 4, 8, 16)).permute((1, 0, 2, 3))
        terms = terms.permute((1, 0, 2))
    words = gl.convert_layout(words.reshape((64, 16)), _word_layout(), assert_trivial=True)
    terms = gl.convert_layout(terms.reshape((64,)), gl.SliceLayout(1, _word_layout()), assert_trivial=True)
    scale, zero = unpack_terms(terms, dtype)
    return words, scale, zero


@gluon.jit
def _unpacked(block, HALF: gl.constexpr, SCALED: gl.constexpr, first_layout: gl.constexpr, dtype: gl.constexpr):
    """Half of a block's values, ``[64, 64]``, as an operand in registers."""
    words, scale, zero = block
    zeros, _ = gl.broadcast(zero[:, None], words)
    if SCALED:
        factors, _ = gl.broadcast(factor_pair(scale, dtype)[:, None], words)
        values = unpack_half(words, zeros, factors, HALF, dtype)
    else:
        values = unpack_half(words, zeros, None, HALF, dtype)
    return gl.convert_layout(values, first_layout, assert_trivial=True)


@gluon.jit
def _multiply(state, rings, bounds, GROUP: gl.constexpr, SCALED: gl.constexpr, layout: gl.constexpr):
    """A warpgroup's sums of a tile, ``[64, rows]``, over the program's steps in ``bounds``.

    Args:
        state: of its next step: codes and terms, and the first half's values; those of the step after, on return.
    """
    block, low = state
    x_ring, code_ring, _, full, empty = rings
    start, end, num_own = bounds
    STAGES: gl.constexpr = full.shape[0]
    groups: gl.constexpr = code_ring.shape[0] // STAGES
    rows: gl.constexpr = x_ring.shape[1]
    dtype: gl.constexpr = x_ring.dtype
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    none = gl.zeros([64, rows], gl.float32, layout)
    total = none
    for i in range(start, end):
        stage = i % STAGES
        x_low = x_ring.index(2 * stage).permute((1, 0))
        x_high = x_ring.index(2 * stage + 1).permute((1, 0))
        if SCALED:
            sums = warpgroup_mma(low, x_low, total, is_async=True)
        else:
            sums = warpgroup_mma(low, x_low, none, use_acc=False, is_async=True)
        # Unpack while the tensor cores multiply: the other half, then the next step's first, of this tile or the next.
        high = _unpacked(block, 1, SCALED, first_layout, dtype)
        sums = warpgroup_mma(high, x_high, sums, is_async=True)
        scale = gl.convert_layout(block[1], gl.SliceLayout(1, layout), assert_trivial=True)
        following = gl.minimum(i + 1, num_own - 1)
        mbarrier.wait(full.index(following % STAGES), following // STAGES & 1)
        block = _load_block(rings, following % STAGES * groups + GROUP, dtype)
        sums, low = warpgroup_mma_wait(1, deps=[sums, low])
        low = _unpacked(block, 0, SCALED, first_layout, dtype)
        sums, high = warpgroup_mma_wait(0, deps=[sums, high])
        mbarrier.arrive(empty.index(stage), count=1)
        total = sums if SCALED else total + scale[:, None] * sums
    return (block, low), total


@gluon.jit
def _consume(
    GROUP: gl.constexpr,
    rings,
    outputs,
    sizes,
    GROUPS: gl.constexpr,
    SCALED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A warpgroup: multiply step by step and write the tiles; channels are the MMA's M, rows of ``x`` its N."""
    x_ring, _, _, full, _ = rings
    num_steps, _, num_tiles = sizes
    dtype: gl.constexpr = x_ring.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, x_ring.shape[1], 16])
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    first, last = _own_steps(num_tiles, num_steps)
    if PDL:
        gdc_wait()
    mbarrier.wait(full.index(0), 0)
    block = _load_block(rings, GROUP, dtype)
    state = block, _unpacked(block, 0, SCALED, first_layout, dtype)
    for tile in range(first // num_steps, (last - 1) // num_steps + 1):
        start = gl.maximum(first, tile * num_steps)
        end = gl.minimum(last, (tile + 1) * num_steps)
        state, total = _multiply(state, rings, (start - first, end - first, last - first), GROUP, SCALED, layout)
        _finish(total, outputs, sizes, tile, start, end, GROUP, GROUPS, ACTIVATION)


@gluon.jit
def _finish(
    total,
    outputs,
    sizes,
    tile,
    start,
    end,
    GROUP: gl.constexpr,
    GROUPS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Write a warpgroup's part of a tile; of one that programs share, add up the parts in the last that arrives."""
    bias, out, partials, arrivals, num_rows, num_channels = outputs
    num_steps, row_tiles, num_tiles = sizes
    rows: gl.constexpr = total.shape[1]
    size: gl.constexpr = 64 * rows
    layout: gl.constexpr = total.type.layout
    spots = partials + GROUP * size + partial_places(rows, rows, layout)
    # The programs that have a tile's first and last step: the last that begins at or before the step.
    num_programs, num_all = gl.num_programs(0), num_tiles * num_steps
    first_program = ((tile * num_steps + 1) * num_programs - 1) // num_all
    last_program = ((tile + 1) * num_steps * num_programs - 1) // num_all
    is_shared = end - start < num_steps
    is_last = end - start == num_steps
    if is_shared:
        # A program may share its first tile with earlier programs, and its last one with later ones: two slots.
        own = 2 * gl.program_id(0) + (start == tile * num_steps).to(gl.int32)
        gl.store(spots + own * (GROUPS * size), total)
        # All threads' stores come before the arrival; the last program's loads come after it.
        barrier()
        arrival = arrivals + tile * GROUPS + GROUP
        is_last = gl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == last_program - first_program
        if is_last:
            gl.store(arrival, 0)
    if is_last:
        if is_shared:
            # Bypass L1: other multiprocessors wrote this.
            total = gl.load(spots + (2 * first_program + 1) * (GROUPS * size), cache_modifier=".cg")
            for program in range(first_program + 1, last_program + 1):
                total += gl.load(spots + 2 * program * (GROUPS * size), cache_modifier=".cg")
        block = tile // row_tiles * GROUPS + GROUP
        _write(total, bias, out, block, tile % row_tiles * rows, num_rows, num_channels, ACTIVATION)


@gluon.jit
def _write(total, bias, out, block, first_row, num_rows, num_channels, ACTIVATION: gl.constexpr):
    """Write a block's outputs of some rows, from its sums ``[64, rows]``."""
    rows: gl.constexpr = total.shape[1]
    channels: gl.constexpr = 64 if ACTIVATION == "none" else 32
    if ACTIVATION != "none":
        total, other = total.reshape((4, 2, 8, rows)).permute((0, 2, 3, 1)).split()
        total, other = total.reshape((channels, rows)), other.reshape((channels, rows))
    n = block * channels + gl.arange(0, channels, gl.SliceLayout(1, total.type.layout))
    m = first_row + gl.arange(0, rows, gl.SliceLayout(0, total.type.layout))
    is_channel = n < num_channels
    if bias is not None:
        total += gl.load(bias + n, is_channel, other=0.0).to(gl.float32)[:, None]
    if ACTIVATION != "none":
        if bias is not None:
            other += gl.load(bias + num_channels + n, is_channel, other=0.0).to(gl.float32)[:, None]
        total = apply_gate(total, other, ACTIVATION)
    spots = out + (m[None, :] * num_channels + n[:, None])
    gl.store(spots, total.to(out.dtype.element_ty), (m < num_rows)[None, :] & is_channel[:, None])


@gluon.jit(do_not_specialize=["num_rows", "num_steps", "row_tiles", "num_tiles"])
def hopper_grouped_kernel(
    x_desc,  # [M, K], blocks of half a step
    code_desc,  # [factors, N / factors, K / 8], blocks of a step
    term_desc,  # [factors, N / 8 / factors, 8 groups], blocks of a group
    bias,  # [N]
    out,  # [M, N], or with an activation [M, N / 2]
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_steps,
    row_tiles,
    num_tiles,
    GROUP_STEPS: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    SCALED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid (programs). Tiles of the same weight rows follow each other."""
    slots: gl.constexpr = STAGES * GROUPS
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES] + x_desc.block_shape, x_desc.layout)
    code_ring = gl.allocate_shared_memory(gl.int32, [slots] + code_desc.block_shape, code_desc.layout)
    term_ring = gl.allocate_shared_memory(gl.int32, [slots] + term_desc.block_shape, term_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    descs = (x_desc, code_desc, term_desc)
    rings = (x_ring, code_ring, term_ring, full, empty)
    outputs = (bias, out, partials, arrivals, num_rows, num_channels)
    sizes = (num_steps, row_tiles, num_tiles)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, SCALED, ACTIVATION, PDL)),
                (_produce, (descs, rings, sizes, GROUP_STEPS, PDL)),
            ],
            [1],
            [24],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, SCALED, ACTIVATION, PDL)),
                (_consume, (1, rings, outputs, sizes, GROUPS, SCALED, ACTIVATION, PDL)),
                (_produce, (descs, rings, sizes, GROUP_STEPS, PDL)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, SCALED, ACTIVATION, PDL)),
                (_consume, (1, rings, outputs, sizes, GROUPS, SCALED, ACTIVATION, PDL)),
                (_consume, (2, rings, outputs, sizes, GROUPS, SCALED, ACTIVATION, PDL)),
                (_produce, (descs, rings, sizes, GROUP_STEPS, PDL)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
