"""Small-M GEMMs with integers of 4 bits on tensor cores: a ring of codes that does not run dry between tiles.

A program computes all M rows for tiles of output channels, one after another, each over all of K. Codes, terms and
``x`` pass a ring in shared memory that runs on from one tile to the next, and is filled before the kernel that
computes ``x`` ends: so loads are always in flight. Warps have a quarter of a round's inputs each, a unit of 128; a
thread's 16 bytes are the codes of its MMA operands (see :mod:`octavo.kernels.grouped`). A unit's sums are added to the
warp's own float32 sums, times the group's scale; the warps' sums are added at the end of a tile.
"""

from dataclasses import dataclass

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.triton.gluon_names import copy_async
from octavo.kernels.triton.grouped_unpack import unpack_terms, unpack_units
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import apply_gate
from octavo.kernels.triton.stream_norm import load_factors, norm_arguments, normed_parts, round_columns
from octavo.kernels.triton.stream_sum import (
    AddedStream,
    added_arguments,
    load_squares,
    load_stream,
    row_rates,
    squares_of,
    store_sums,
)

UNIT = 128
"""Input features that a warp multiplies per round: those packed together."""
ROUND = 4 * UNIT
"""Input features of a round."""
MAX_ROWS = 16
"""Beyond this M, unpacking codes once for more rows, in :mod:`grouped_hopper`, is faster."""
MAX_ADDED_ROWS = 8
"""Beyond this M, a norm's sums of squares take registers that the GEMM's sums need; see :mod:`.stream_sum`."""
_RESIDENT_BYTES = 64 << 10
"""Up to this size, all of ``x`` stays in shared memory."""


@dataclass(frozen=True, slots=True)
class DirectTile:
    """A program's tile and pipeline.

    Attributes:
        num_weights: weight rows of a tile, a power of two from 16; a gate and its up projection take half of them each.
        num_warps: warps per program, four for each 16 rows that are multiplied at the same time.
        num_stages: depth of the ring in rounds, 4 or 8.
        num_programs: at most; each has the tiles of its number, and of those that follow at this distance.
    """

    num_weights: int
    num_warps: int
    num_stages: int
    num_programs: int

    def num_tiles(self, num_weights: int) -> int:
        """Tiles of so many weight rows."""
        return -(-num_weights // self.num_weights)


def choose_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> DirectTile | None:
    """The tile for a GEMM with a weight of 4 bits and :data:`.grouped_terms.WIDE` terms, or None if another is faster.

    Tuned on an H100, all linear layers of a layer one after another.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    num_channels, num_rounds = len(weight.codes), -(-weight.num_inputs // ROUND)
    if num_rows > 8 and -(-num_channels // 64) >= 0.7 * num_sms:
        return DirectTile(64, 8, 4, num_sms)
    if num_rows <= 4 and -(-num_channels // 16) > 3 * num_sms:
        return DirectTile(32, 4, 4, 2 * num_sms)
    # A deep ring, unless too many of a tile's rounds, a multiple of its stages, would be empty.
    if num_rows <= 8 and 5 * (-(-num_rounds // 8) * 8) <= 6 * num_rounds:
        return DirectTile(16, 4, 8, (3 if num_rows <= 4 else 2) * num_sms)
    if num_rows > 4 and -(-num_channels // 32) >= num_sms // 2:
        return DirectTile(32, 8, 4, 2 * num_sms)
    return DirectTile(16, 4, 4, 4 * num_sms)


def direct_grouped(
    x: torch.Tensor,
    weight: GroupedTensors,
    terms: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: DirectTile,
    norm: DeferredNorm | None = None,
    added: AddedStream | None = None,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]`` of 4 bits; a kernel is compiled for each K.
        terms: its :data:`.grouped_terms.WIDE` ones.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        norm: of ``x``: a single row that stays in shared memory (see :func:`place_inputs`), settled by this, or of the
            weighted rows that ``x`` is.
        added: what the outputs are added to, without an activation; ``out`` is its residual then.
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    num_tiles = tile.num_tiles(num_channels * (1 if activation == "none" else 2))
    slot_rows, num_slot_rounds, is_resident = place_inputs(num_rows, num_features, tile.num_stages)
    squares = squares_of(norm)
    direct_kernel[(min(num_tiles, tile.num_programs),)](
        x,
        *norm_arguments(norm),
        squares,
        weight.codes.view(torch.int32),
        terms,
        bias,
        out,
        added_arguments(added),
        x.stride(0) // 8,
        num_rows,
        num_channels,
        num_tiles,
        K=num_features,
        SQUARES=0 if squares is None else squares.shape[1],
        GROUP_UNITS=weight.group // UNIT,
        BLOCK_M=slot_rows,
        BLOCK_N=tile.num_weights,
        STAGES=tile.num_stages,
        SHARED=num_slot_rounds,
        IS_RESIDENT=is_resident,
        ACTIVATION=activation,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )


def place_inputs(num_rows: int, num_features: int, num_stages: int) -> tuple[int, int, bool]:
    """How ``x`` lies in shared memory: the rows of a slot, the rounds that share one, and whether all of it stays.

    An MMA takes 8 rows. Where all of ``x`` stays, four rows of two rounds share them, or two rows of four.
    """
    slot_rows = 8 if num_rows <= 8 else 16
    num_turns = -(-num_features // (ROUND * num_stages))
    num_shared = 8 // min(max(triton.next_power_of_2(num_rows), 2), 8)
    num_bytes = num_turns * num_stages // num_shared * slot_rows * ROUND * 2
    if num_bytes <= _RESIDENT_BYTES:
        return slot_rows, num_shared, True
    return slot_rows, 1, False


@triton.constexpr_function
def _word_layout(num_warps, rows):
    """How warps hold the words ``[parts, rows, 16]`` of units: a thread has a quarter of each, as its MMA wants."""
    row_warps = num_warps // 4
    registers = [[0, 0, 1], [0, 0, 2], [0, 8, 0]]
    registers += [[0, 16 * row_warps << i, 0] for i in range((rows // (16 * row_warps)).bit_length() - 1)]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    warps = [[0, 16 << i, 0] for i in range(row_warps.bit_length() - 1)] + [[1, 0, 0], [2, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [4, rows, 16])


@triton.constexpr_function
def _slot_layout(num_warps, rows):
    """The same of words as they lie in a slot, ``[rows, 64]``."""
    words = _word_layout(num_warps, rows)
    registers, lanes, warps = (
        [[row, 16 * part + word] for part, row, word in bases]
        for bases in (words.reg_bases, words.lane_bases, words.warp_bases)
    )
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [rows, 64])


@gluon.jit
def _row(n, tile, num_channels, GATED: gl.constexpr, BLOCK_N: gl.constexpr):
    """The weight row that is row ``n`` of a tile: with a gate, those of the gate and of the other half take turns.

    They do so by 8, so that a thread has both. Rows past the end are the last one instead, and are not stored.
    """
    if GATED:
        channel = tile * (BLOCK_N // 2) + n // 16 * 8 + n % 8
        row = n // 8 % 2 * num_channels + gl.minimum(channel, num_channels - 1)
    else:
        row = gl.minimum(tile * BLOCK_N + n, num_channels - 1)
    return row


@gluon.jit
def _find(
    sources,
    places,
    tile,
    num_channels,
    GATED: gl.constexpr,
    BLOCK_N: gl.constexpr,
    K: gl.constexpr,
    GROUP_UNITS: gl.constexpr,
):
    """Where a tile's codes and terms begin."""
    codes, terms = sources
    n, column, term_n, term_part = places
    n = _row(n, tile, num_channels, GATED, BLOCK_N)
    term_n = _row(term_n, tile, num_channels, GATED, BLOCK_N)
    code_spots = codes + (n.to(gl.int64) * (K // 8) + column)
    term_spots = terms + (term_n // 8 * (K // 128 // GROUP_UNITS * 8) + term_n % 8)
    if GROUP_UNITS == 1:
        term_spots += term_part * 8
    return code_spots, term_spots


@gluon.jit
def _advance(spots, rounds: gl.constexpr, GROUP_UNITS: gl.constexpr):
    """The same of so many rounds later."""
    code_spots, term_spots = spots
    if GROUP_UNITS == 1:
        term_spots += rounds * 32
    return code_spots + rounds * 64, term_spots


@gluon.jit
def _request(
    spots,
    places,
    first,
    j: gl.constexpr,
    is_there,
    slot,
    K: gl.constexpr,
    GROUP_UNITS: gl.constexpr,
    IS_WHOLE: gl.constexpr,
):
    """Start the copies of the codes and terms of round ``first + j``, where ``spots`` are those of ``first``.

    Past the end, or if there is no such tile, zeros are written.
    """
    _, column, _, term_part = places
    code_slot, term_slot = slot
    code_spots, term_spots = _advance(spots, j, GROUP_UNITS)
    if GROUP_UNITS > 1:
        term_spots += ((first + j) * 4 + term_part) // GROUP_UNITS * 8
    has_codes, has_terms = (column >= 0) & is_there, (term_part >= 0) & is_there
    if not IS_WHOLE:
        has_codes &= column < K // 8 - (first + j) * 64
        has_terms &= term_part < K // 128 - (first + j) * 4
    has_codes = gl.broadcast(has_codes, code_spots)[0]
    has_terms = gl.broadcast(has_terms, term_spots)[0]
    copy_async(code_slot, code_spots, has_codes, cache_modifier=".cg")
    copy_async(term_slot, term_spots, has_terms)


@gluon.jit
def _load_words(slot, BLOCK_N: gl.constexpr):
    """The codes of a slot, ``[parts, rows, 16]``."""
    words = slot.load(_slot_layout(gl.num_warps(), BLOCK_N)).reshape((BLOCK_N, 4, 16)).permute((1, 0, 2))
    return gl.convert_layout(words, _word_layout(gl.num_warps(), BLOCK_N), assert_trivial=True)


@gluon.jit
def _copy_x(x, places, r, is_there, slot, K: gl.constexpr, ROWS: gl.constexpr, IS_WHOLE: gl.constexpr):
    """Start the copy of round ``r`` of ``x``, and of those that share its slot, ``ROWS`` rows of each."""
    n, column, x_stride, num_rows = places
    m = n % ROWS
    column += (r + n // ROWS) * 512
    mask = (m < num_rows) & (column >= 0) & is_there
    if not IS_WHOLE:
        mask &= column < K
    copy_async(slot, x + (m * (x_stride * 8) + column), mask, cache_modifier=".cg")


@gluon.jit
def _joined(totals, ROWS: gl.constexpr):
    """The sums of all rounds: of rounds that share a slot of ``x``, those of each are in columns of its own.

    Their order is the same for one to eight rows, and so are the bits of a row.
    """
    parts: gl.constexpr = totals[0].shape[0]
    weights: gl.constexpr = totals[0].shape[1]
    columns: gl.constexpr = totals[0].shape[2]
    column = gl.arange(0, columns, gl.SliceLayout(0, gl.SliceLayout(1, totals[0].type.layout)))[None, None, :]
    if len(totals) == 1:
        total = totals[0]
    elif ROWS == 2:
        low = gl.where(column < 2, totals[0], totals[1])
        high = gl.where(column < 6, totals[2], totals[3])
        total = gl.where(column < 4, low, high).reshape((parts, weights, 2, 2, 2))
        total = gl.sum(gl.sum(total, 2), 2)
    else:
        total, odd = totals[0] + totals[2], totals[1] + totals[3]
        if ROWS == 4:
            total = gl.sum(gl.where(column < 4, total, odd).reshape((parts, weights, 2, 4)), 2)
        else:
            total += odd
    return total


@gluon.jit(do_not_specialize=["num_rows", "num_tiles", "eps"])
def direct_kernel(
    x,
    residual,  # [K], added to x before its norm; or None
    norm,  # [K], the weight of the norm of x, which is one row then and resident; None for none
    eps,
    summed,  # [K], where the sum goes; None without a residual
    squares,  # [M, SQUARES] float32 of the rows whose product with their norm's weight is x; None if x is normed
    codes,
    terms,
    bias,
    out,
    added,  # an AddedStream, whose residual is out; or None
    x_stride,  # in units of 8 values, so that the compiler sees rows aligned to 16 bytes
    num_rows,
    num_channels,
    num_tiles,
    K: gl.constexpr,
    SQUARES: gl.constexpr,
    GROUP_UNITS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    SHARED: gl.constexpr,
    IS_RESIDENT: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes all rows of some tiles of ``CHANNELS`` outputs; grid (programs).

    Args:
        BLOCK_M: rows of a slot of ``x``.
        SHARED: rounds that share a slot of ``x``.
        IS_RESIDENT: whether all of ``x`` stays in shared memory.
    """
    TURNS: gl.constexpr = (K + 512 * STAGES - 1) // (512 * STAGES)
    EARLY: gl.constexpr = STAGES - 1
    IS_WHOLE: gl.constexpr = K % (512 * STAGES) == 0
    ROWS: gl.constexpr = BLOCK_M // SHARED
    # Rounds that may share a slot of ``x`` are added up apart, whether they do or not.
    SUMS: gl.constexpr = 4 if BLOCK_M == 8 else 1
    X_SLOTS: gl.constexpr = TURNS * STAGES // SHARED if IS_RESIDENT else STAGES
    GATED: gl.constexpr = ACTIVATION != "none"
    CHANNELS: gl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    WARPS: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = x.dtype.element_ty
    # Quarters of a round are distributed over the batched dimension of the MMA: their sums stay apart.
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, WARPS // 4, 1], [1, 16, 8])
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    second_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 2)
    code_layout: gl.constexpr = _word_layout(WARPS, BLOCK_N)
    term_layout: gl.constexpr = gl.SliceLayout(2, code_layout)
    code_copy: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
    term_copy: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [2, WARPS // 2], [1, 0])
    x_copy: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 2, 16], [4, WARPS // 4, 1], [2, 1, 0])
    # Slots are allocated one by one, so that the compiler sees that a copy into one does not meet reads of another.
    slots = ()
    for _ in gl.static_range(STAGES):
        code_slot = gl.allocate_shared_memory(gl.int32, [BLOCK_N, 64], gl.SwizzledSharedLayout(16, 1, 2, [1, 0]))
        term_slot = gl.allocate_shared_memory(gl.int32, [4, BLOCK_N], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
        slots = slots + ((code_slot, term_slot),)  # type: ignore[assignment]
    x_layout: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [2, 1, 0])
    if IS_RESIDENT:
        x_slots = gl.allocate_shared_memory(dtype, [X_SLOTS, 4, BLOCK_M, 128], x_layout)
    else:
        x_slots = ()
        for _ in gl.static_range(X_SLOTS):
            x_slot = gl.allocate_shared_memory(dtype, [4, BLOCK_M, 128], x_layout)
            x_slots = x_slots + (x_slot,)

    n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, code_copy))[:, None]
    column = gl.arange(0, 64, gl.SliceLayout(0, code_copy))[None, :]
    term_n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, term_copy))[None, :]
    term_part = gl.arange(0, 4, gl.SliceLayout(1, term_copy))[:, None]
    sources, places = (codes, terms), (n, column, term_n, term_part)
    step = gl.num_programs(0)
    spots = _find(sources, places, gl.program_id(0), num_channels, GATED, BLOCK_N, K, GROUP_UNITS)
    for i in gl.static_range(EARLY):
        _request(spots, places, 0, i, True, slots[i], K, GROUP_UNITS, IS_WHOLE)
    x_part = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, x_copy)))[:, None, None]
    x_n = gl.arange(0, BLOCK_M, gl.SliceLayout(0, gl.SliceLayout(2, x_copy)))[None, :, None]
    x_column = x_part * 128 + gl.arange(0, 128, gl.SliceLayout(0, gl.SliceLayout(1, x_copy)))[None, None, :]
    x_places = (x_n, x_column, x_stride, num_rows)
    if norm is not None:
        gl.static_assert(IS_RESIDENT and ROWS == 2 and WARPS == 4)
        columns = round_columns(X_SLOTS, SHARED, 128)
        factors = load_factors(norm, columns, K)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if norm is not None:
        normed = normed_parts(x, residual, columns, factors, eps, summed, K)
        for i in gl.static_range(X_SLOTS):
            # Each of a slot's rounds has two rows, of which no one reads the second.
            part = normed[i].reshape((SHARED, 4, 128)).permute((1, 0, 2))
            x_slots.index(i).store(gl.join(part, part).permute((0, 1, 3, 2)).reshape((4, BLOCK_M, 128)))
    elif IS_RESIDENT:
        for i in gl.static_range(X_SLOTS):
            _copy_x(x, x_places, i * SHARED, True, x_slots.index(i), K, ROWS, IS_WHOLE)
    for i in gl.static_range(EARLY):
        if not IS_RESIDENT:
            _copy_x(x, x_places, i, True, x_slots[i], K, ROWS, IS_WHOLE)
        # One group per round, even if empty, so that the count in the loop holds.
        async_copy.commit_group()
    zeros = ()
    for _ in gl.static_range(SUMS):
        zeros = zeros + (gl.zeros([4, BLOCK_N, BLOCK_M], gl.float32, layout),)  # type: ignore[assignment]
    sum_layout: gl.constexpr = gl.sum(_joined(zeros, ROWS), 0).type.layout
    if squares is not None:
        row_squares = load_squares(squares, num_rows, SQUARES, ROWS, 32)
        rates = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(0, sum_layout))

    for tile in range(gl.program_id(0), num_tiles, step):
        totals = zeros
        if added is not None:
            streamed = load_stream(added, tile * CHANNELS, num_rows, num_channels, CHANNELS, ROWS, sum_layout)
        has_next = tile + step < num_tiles
        for turn in range(TURNS):
            first = turn * STAGES
            # What the turn requests from its second round on: the next turn's rounds, or the next tile's.
            if turn + 1 < TURNS:
                next_first = first + STAGES
                later = _advance(spots, STAGES, GROUP_UNITS)
            else:
                next_first = 0
                later = _find(sources, places, tile + step, num_channels, GATED, BLOCK_N, K, GROUP_UNITS)
            is_there = (turn + 1 < TURNS) | has_next
            sums = ()
            for j in gl.static_range(STAGES):
                async_copy.wait_group(EARLY - 1)
                code_slot, term_slot = slots[j]
                words = _load_words(code_slot, BLOCK_N)
                scale, zero = unpack_terms(term_slot.load(term_layout), dtype)
                if not IS_RESIDENT:
                    values = x_slots[j].permute((0, 2, 1)).load(second_layout)
                elif j % SHARED == 0:
                    values = x_slots.index((first + j) // SHARED).permute((0, 2, 1)).load(second_layout)
                # Into the slot of the round before, which all warps have read.
                if j == 0:
                    _request(spots, places, first, EARLY, True, slots[EARLY], K, GROUP_UNITS, IS_WHOLE)
                    if not IS_RESIDENT:
                        _copy_x(x, x_places, first + EARLY, True, x_slots[EARLY], K, ROWS, IS_WHOLE)
                else:
                    _request(later, places, next_first, j - 1, is_there, slots[j - 1], K, GROUP_UNITS, IS_WHOLE)
                    if not IS_RESIDENT:
                        _copy_x(x, x_places, next_first + j - 1, is_there, x_slots[j - 1], K, ROWS, IS_WHOLE)
                async_copy.commit_group()
                weights = unpack_units(words, gl.broadcast(zero[:, :, None], words)[0], dtype)
                weights = gl.convert_layout(weights, first_layout, assert_trivial=True)
                scale = gl.convert_layout(scale, gl.SliceLayout(2, layout), assert_trivial=True)
                products = mma_v2(weights, values, gl.zeros_like(totals[0]))
                total = (totals[j] if j < SUMS else sums[j - SUMS]) + scale[:, :, None] * products
                sums = sums + (total,)
            totals = sums[STAGES - SUMS :]  # type: ignore[assignment]
            spots = later

        result = gl.sum(_joined(totals, ROWS), 0)
        if squares is not None:
            if tile == gl.program_id(0):
                rates = row_rates(row_squares, eps, K, gl.SliceLayout(0, sum_layout))
            result = result * rates[None, :]
        result = result.permute((1, 0))
        if GATED:
            result, other = result.reshape((ROWS, CHANNELS // 8, 2, 8)).permute((0, 1, 3, 2)).split()
            result, other = result.reshape((ROWS, CHANNELS)), other.reshape((ROWS, CHANNELS))
        row = gl.arange(0, ROWS, gl.SliceLayout(1, result.type.layout))[:, None]
        channel = tile * CHANNELS + gl.arange(0, CHANNELS, gl.SliceLayout(0, result.type.layout))[None, :]
        is_channel = channel < num_channels
        if bias is not None:
            result += gl.load(bias + channel, is_channel, other=0.0).to(gl.float32)
        if GATED:
            if bias is not None:
                other += gl.load(bias + num_channels + channel, is_channel, other=0.0).to(gl.float32)
            result = apply_gate(result, other, ACTIVATION)
        if added is not None:
            result = result.permute((1, 0))
            store_sums(result, streamed, added, out, num_rows, num_channels, tile, num_tiles)
        else:
            place = out + (row * num_channels + channel)
            gl.store(place, result.to(out.dtype.element_ty), (row < num_rows) & is_channel)
