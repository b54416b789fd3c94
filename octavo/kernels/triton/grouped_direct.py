"""Small-M GEMMs with integers of 4 bits on tensor cores: codes go from memory to registers, past shared memory.

A program computes all M rows for a few output channels over all of K. Each warp has its own units of 128 inputs: a
thread's 16-byte load holds the codes of its MMA operands (see :mod:`octavo.kernels.grouped`), so warps wait for nothing
but their own loads, and a ring of ``depth`` rounds of codes is in flight before the kernel that computes ``x`` ends.
A unit's sums are added to the warp's own float32 sums, times the group's scale; the warps' sums are added at the end.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.triton.grouped_unpack import UNIT_SCALE, unpack_terms, unpack_units
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import apply_gate

# Triton 3.9 has renamed it.
_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

UNIT = 128
"""Input features that a warp multiplies per round: those packed together."""
MAX_ROWS = 16
"""Beyond this M, unpacking codes once for more rows, in :mod:`grouped_hopper`, is faster."""


@dataclass(frozen=True, slots=True)
class DirectTile:
    """A program's tile and pipeline.

    Attributes:
        num_weights: weight rows, a power of two from 16; a gate and its up projection take half of them each.
        num_warps: warps per program, each with its own units.
        depth: rounds of codes in flight per warp, in registers.
        num_x_stages: depth of the ring of ``x`` in rounds.
    """

    num_weights: int
    num_warps: int
    depth: int
    num_x_stages: int


def reads(weight: GroupedTensors) -> bool:
    """Whether the kernel takes a weight: integers of 4 bits in groups of a multiple of 128 inputs."""
    is_int4 = weight.bits == 4 and not weight.is_float4 and weight.minimums is None
    return is_int4 and weight.group % UNIT == 0 and weight.codes.data_ptr() % 16 == 0


def choose_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> DirectTile | None:
    """The tile for a GEMM with a weight that :func:`reads` takes, or None if another kernel is faster.

    Tuned on an H200. Where few programs share a multiprocessor, each has more of its sum in flight.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    num_channels, num_rounds = len(weight.codes), -(-weight.num_inputs // (4 * UNIT))
    num_weights = 16 if num_rows <= 8 or -(-num_channels // 32) < num_sms // 2 else 32
    are_few = -(-num_channels // num_weights) <= 2 * num_sms
    if num_rows <= 8:
        depth = 8 if are_few else 4
    else:
        depth = 4 if are_few and num_rounds <= 8 else 2
    return DirectTile(num_weights, 4, min(depth, num_rounds), min(3, num_rounds))


def make_terms(weight: GroupedTensors) -> torch.Tensor:
    """Scales and zeros of groups as the kernel reads them: ``[out / 8, groups, 8]`` int32.

    The lowest byte is the zero in eighths, the rest the upper 24 bits of a float32, which have every scale of 16 bits.
    """
    scales = ((weight.scales * UNIT_SCALE).view(torch.int32) + 0x80) & -0x100
    terms = scales | (64 if weight.zeros is None else weight.zeros.int())
    terms = F.pad(terms, (0, 0, 0, -len(terms) % 8))
    return terms.unflatten(0, (-1, 8)).transpose(1, 2).contiguous()


def direct_grouped(
    x: torch.Tensor,
    weight: GroupedTensors,
    terms: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: DirectTile,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]``, as :func:`reads` takes it; a kernel is compiled for each K.
        terms: of :func:`make_terms`.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    factors = 1 if activation == "none" else 2
    direct_kernel[(-(-num_channels * factors // tile.num_weights),)](
        x,
        weight.codes.view(torch.int32),
        terms,
        bias,
        out,
        x.stride(0) // 8,
        num_rows,
        num_channels,
        K=num_features,
        GROUP_UNITS=weight.group // UNIT,
        BLOCK_M=max(8, triton.next_power_of_2(num_rows)),
        BLOCK_N=tile.num_weights,
        DEPTH=tile.depth,
        X_STAGES=tile.num_x_stages,
        ACTIVATION=activation,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )


@triton.constexpr_function
def _word_layout(num_warps):
    """How warps hold the words ``[warps, 16 rows, 16]`` of a unit: a thread has a quarter, as its MMA wants."""
    registers = [[0, 0, 1], [0, 0, 2], [0, 8, 0]]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    warps = [[1 << i, 0, 0] for i in range(num_warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [num_warps, 16, 16])


@gluon.jit
def _request(spots, warp, term_warp, start, j, K: gl.constexpr, GROUP_UNITS: gl.constexpr):
    """Loads of the codes and terms of round ``start + j``, the spots being those of ``start``; zeros past the end."""
    WARPS: gl.constexpr = warp.shape[0]
    UNITS: gl.constexpr = K // 128
    loaded = ()
    for tile in gl.static_range(len(spots)):
        codes, words = spots[tile]
        codes += j * (WARPS * 16)
        if GROUP_UNITS == 1:
            words += j * (WARPS * 8)
        else:
            words += ((start + j) * WARPS + term_warp) // GROUP_UNITS * 8
        if UNITS % WARPS == 0:
            packed, terms = gl.load(codes, cache_modifier=".cg"), gl.load(words)
        else:
            first = (start + j) * WARPS
            is_unit, _ = gl.broadcast(first + warp < UNITS, codes)
            has_terms, _ = gl.broadcast(first + term_warp < UNITS, words)
            packed = gl.load(codes, is_unit, other=0, cache_modifier=".cg")
            terms = gl.load(words, has_terms, other=0)
        loaded = loaded + ((packed, terms),)  # type: ignore[assignment]
    return loaded


@gluon.jit
def _advance(spots, by: gl.constexpr, GROUP_UNITS: gl.constexpr):
    """The spots of codes and terms so many units later."""
    later = ()
    for tile in gl.static_range(len(spots)):
        codes, words = spots[tile]
        codes += by * 16
        if GROUP_UNITS == 1:
            words += by * 8
        later = later + ((codes, words),)  # type: ignore[assignment]
    return later


@gluon.jit
def _multiply(totals, loaded, x_slot, layout: gl.constexpr):
    """Add a round's products to the sums of each tile."""
    dtype: gl.constexpr = x_slot.dtype
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    second_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 2)
    values = x_slot.permute((0, 2, 1)).load(second_layout)
    later = ()
    for tile in gl.static_range(len(totals)):
        packed, words = loaded[tile]
        scale, zero = unpack_terms(words, dtype)
        zeros, _ = gl.broadcast(zero[:, :, None], packed)
        weights = gl.convert_layout(unpack_units(packed, zeros, dtype), first_layout, assert_trivial=True)
        sums = mma_v2(weights, values, gl.zeros_like(totals[tile]))
        scale = gl.convert_layout(scale, gl.SliceLayout(2, layout), assert_trivial=True)
        later = later + (totals[tile] + scale[:, :, None] * sums,)  # type: ignore[assignment]
    return later


@gluon.jit
def _copy_x(spots, column, is_row, x_ring, slot, i, K: gl.constexpr, ROUND: gl.constexpr):
    """Start the copy of round ``i`` of ``x`` into its ring slot, with zeros past the end."""
    mask = is_row
    if K % ROUND != 0:
        mask = mask & (column < K - i * ROUND)
    _async_load(x_ring.index(slot), spots + i * ROUND, mask, cache_modifier=".cg")


@gluon.jit(do_not_specialize=["num_rows"])
def direct_kernel(
    x,
    codes,
    terms,
    bias,
    out,
    x_stride,  # in units of 8 values, so that the compiler sees rows aligned to 16 bytes
    num_rows,
    num_channels,
    K: gl.constexpr,
    GROUP_UNITS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DEPTH: gl.constexpr,
    X_STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes ``CHANNELS`` outputs of all rows; each warp sums its own units; grid (channel tiles)."""
    WARPS: gl.constexpr = gl.num_warps()
    ROUND: gl.constexpr = WARPS * 128
    NUM_ROUNDS: gl.constexpr = (K + ROUND - 1) // ROUND
    EARLY: gl.constexpr = NUM_ROUNDS if NUM_ROUNDS <= DEPTH else DEPTH
    EARLY_X: gl.constexpr = NUM_ROUNDS if NUM_ROUNDS <= X_STAGES else X_STAGES - 1
    GATED: gl.constexpr = ACTIVATION != "none"
    # With a gate, the first half of a program's weight rows are the gate's, the second half the up projection's.
    FACTORS: gl.constexpr = 2 if GATED else 1
    CHANNELS: gl.constexpr = BLOCK_N // FACTORS
    TILES: gl.constexpr = BLOCK_N // 16
    # Warps are distributed over the batched dimension of the MMA: each sums its own units.
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    code_layout: gl.constexpr = _word_layout(WARPS)
    term_layout: gl.constexpr = gl.SliceLayout(2, code_layout)
    x_copy: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 2, 16], [WARPS, 1, 1], [2, 1, 0])
    x_ring = gl.allocate_shared_memory(
        x.dtype.element_ty, [X_STAGES, WARPS, BLOCK_M, 128], gl.SwizzledSharedLayout(8, 1, 8, [2, 1, 0])
    )

    first_channel = gl.program_id(0) * CHANNELS
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, code_layout)))[:, None, None]
    column = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, code_layout)))[None, None, :]
    term_warp = gl.arange(0, WARPS, gl.SliceLayout(1, term_layout))[:, None]
    spots = ()
    for tile in gl.static_range(TILES):
        n = tile * 16 + gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, code_layout)))[None, :, None]
        term_n = tile * 16 + gl.arange(0, 16, gl.SliceLayout(0, term_layout))[None, :]
        # Rows past the end read the last one instead; they are not stored.
        n = n // CHANNELS * num_channels + gl.minimum(first_channel + n % CHANNELS, num_channels - 1)
        term_n = term_n // CHANNELS * num_channels + gl.minimum(first_channel + term_n % CHANNELS, num_channels - 1)
        code_spots = codes + (n.to(gl.int64) * (K // 8) + warp * 16 + column)
        term_spots = terms + (term_n // 8 * (K // 128 // GROUP_UNITS * 8) + term_n % 8)
        if GROUP_UNITS == 1:
            term_spots += term_warp * 8
        spots = spots + ((code_spots, term_spots),)  # type: ignore[assignment]

    ring = ()
    for i in gl.static_range(EARLY):
        ring = ring + (_request(spots, warp, term_warp, 0, i, K, GROUP_UNITS),)  # type: ignore[assignment]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x_warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, x_copy)))[:, None, None]
    m = gl.arange(0, BLOCK_M, gl.SliceLayout(0, gl.SliceLayout(2, x_copy)))[None, :, None]
    x_column = x_warp * 128 + gl.arange(0, 128, gl.SliceLayout(0, gl.SliceLayout(1, x_copy)))[None, None, :]
    x_spots = x + (m * (x_stride * 8) + x_column)
    is_row = (m < num_rows) & (x_column >= 0)
    for i in gl.static_range(EARLY_X):
        _copy_x(x_spots, x_column, is_row, x_ring, i, i, K, ROUND)
        async_copy.commit_group()
    if EARLY_X == NUM_ROUNDS:
        async_copy.wait_group(0)

    totals = ()
    for _ in gl.static_range(TILES):
        totals = totals + (gl.zeros([WARPS, 16, BLOCK_M], gl.float32, layout),)  # type: ignore[assignment]
    # Whole turns of the ring that request as much as they multiply; the rest is unrolled.
    TURNS: gl.constexpr = NUM_ROUNDS // EARLY - 1
    for turn in range(TURNS):
        start = turn * EARLY
        later = ()
        for j in gl.static_range(EARLY):
            if EARLY_X < NUM_ROUNDS:
                async_copy.wait_group(EARLY_X - 1)
                following = start + j + EARLY_X
                if following < NUM_ROUNDS:
                    _copy_x(x_spots, x_column, is_row, x_ring, following % X_STAGES, following, K, ROUND)
                # Commit one group per round, even if empty, so that the count above holds.
                async_copy.commit_group()
            later = later + (_request(spots, warp, term_warp, start, j + EARLY, K, GROUP_UNITS),)  # type: ignore[assignment]
            totals = _multiply(totals, ring[j], x_ring.index((start + j) % X_STAGES), layout)
        ring = later
        spots = _advance(spots, EARLY * WARPS, GROUP_UNITS)
    DONE: gl.constexpr = TURNS * EARLY
    for j in gl.static_range(NUM_ROUNDS - DONE):
        if EARLY_X < NUM_ROUNDS:
            async_copy.wait_group(EARLY_X - 1)
            if DONE + j + EARLY_X < NUM_ROUNDS:
                slot = (DONE + j + EARLY_X) % X_STAGES
                _copy_x(x_spots, x_column, is_row, x_ring, slot, DONE + j + EARLY_X, K, ROUND)
            async_copy.commit_group()
        if DONE + j + EARLY < NUM_ROUNDS:
            ring = ring + (_request(spots, warp, term_warp, DONE, j + EARLY, K, GROUP_UNITS),)  # type: ignore[assignment]
        totals = _multiply(totals, ring[j], x_ring.index((DONE + j) % X_STAGES), layout)

    # With a gate, half of the tiles have the gate's outputs, the other half the up projection's of the same channels.
    STORED: gl.constexpr = TILES // 2 if GATED and TILES > 1 else TILES
    WIDTH: gl.constexpr = 8 if GATED and TILES == 1 else 16
    for tile in gl.static_range(STORED):
        result = gl.sum(totals[tile], 0).permute((1, 0))
        if GATED:
            if TILES > 1:
                other = gl.sum(totals[tile + STORED], 0).permute((1, 0))
            else:
                result, other = result.reshape((BLOCK_M, 2, 8)).permute((0, 2, 1)).split()
        row = gl.arange(0, BLOCK_M, gl.SliceLayout(1, result.type.layout))[:, None]
        channel = first_channel + tile * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, result.type.layout))[None, :]
        is_channel = channel < num_channels
        if bias is not None:
            result += gl.load(bias + channel, is_channel, other=0.0).to(gl.float32)
        if GATED:
            if bias is not None:
                other += gl.load(bias + num_channels + channel, is_channel, other=0.0).to(gl.float32)
            result = apply_gate(result, other, ACTIVATION)
        gl.store(out + (row * num_channels + channel), result.to(out.dtype.element_ty), (row < num_rows) & is_channel)
