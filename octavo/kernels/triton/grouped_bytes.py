"""Small-M GEMMs with codes of 8 bits in groups on tensor cores: a ring of codes that does not run dry between tiles.

A program computes all M rows for tiles of output channels, one after another, each over all of K. Codes, scales and
``x`` pass a ring in shared memory that runs on from one tile to the next, and is filled with codes before the kernel
that computes ``x`` ends: so loads are always in flight. A single row of ``x`` stays in shared memory instead, normed if
need be. Warps have a quarter of a round's inputs each; the sums of a group's inputs are added to the warp's own float32
sums, times the group's scale; the warps' sums are added at the end of a tile. Two codes become 16-bit floats by two or
three instructions, which leave them too small by a power of two; sums make up for it.
"""

from dataclasses import dataclass, replace

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.grouped import GroupedTensors, pack_unit
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton.block_float8 import BLOCK, shares_scales
from octavo.kernels.triton.gluon_names import copy_async, reinterpret
from octavo.kernels.triton.grouped_small import (
    add_groups,
    adjacent_inputs,
    fit_inputs,
    is_raw,
    multiply_groups,
    no_sums,
)
from octavo.kernels.triton.grouped_unpack import move_bytes, moved_factors
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import add_slices, copy_places, store_outputs
from octavo.kernels.triton.stream_norm import (
    load_factors,
    norm_arguments,
    normed_parts,
    padded_rounds,
    round_columns,
    rounds_at_once,
)

UNIT = 128
"""Input features that a warp multiplies per round."""
ROUND = 4 * UNIT
_MEMORY = 228 << 10
"""Shared memory of a multiprocessor, of which each program takes 1 KiB more than its own."""
MAX_ROWS = 16
"""Beyond this M, converting codes once for more rows, in warp-specialised kernels, is faster."""
MAX_SMALL_ROWS = 8
"""The same of groups of 16 or 32 inputs."""


@dataclass(frozen=True, slots=True)
class BytesTile:
    """A program's tile and pipeline.

    Attributes:
        num_weights: weight rows of a tile, a power of two from 16; a gate and its up projection take half of them each.
        num_warps: warps per program, four for each 16 or more rows that are multiplied at the same time.
        num_stages: depth of the ring in rounds.
        num_programs: at most; each has the tiles of its number, and of those that follow at this distance.
    """

    num_weights: int
    num_warps: int
    num_stages: int
    num_programs: int


def reads(weight: GroupedTensors) -> bool:
    """Whether the kernel takes a weight without terms: codes of 8 bits less 128, or float8 values."""
    has_other_zeros = weight.offsets is not None or weight.zeros is not None
    has_units = pack_unit(weight.group) >= 32 and weight.codes.data_ptr() % 16 == 0
    return weight.bits == 8 and not has_other_zeros and has_units


def count_sharing(weight: GroupedTensors) -> int:
    """How many outputs that follow each other have the same scales: the height of a block of float8 values, else 1."""
    return BLOCK if weight.codes.dtype is FLOAT8 and shares_scales(weight) else 1


def _step_unit(weight: GroupedTensors, has_terms: bool) -> int:
    """Inputs that a warp multiplies in a step: of one group, or with terms of several."""
    return UNIT if has_terms else pack_unit(weight.group)


def norms(weight: GroupedTensors, tile: BytesTile, *, has_terms: bool = False) -> bool:
    """Whether a program norms a single row of ``x`` itself."""
    return tile.num_warps == 4 and _step_unit(weight, has_terms) >= 64


def choose_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> BytesTile | None:
    """The tile for a GEMM with a weight that :func:`reads` takes, or None if another kernel is faster.

    Tuned on an H100, all linear layers of a layer one after another. There are as many programs as fit, so that no
    multiprocessor gets more of them than another, whose tiles would be waited for; or one for each of very many tiles.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    num_tiles = -(-len(weight.codes) // 16)
    is_wide = num_rows <= 8 and num_tiles > (32 if num_rows == 1 else 6) * num_sms
    num_weights, num_warps, depth = (32, 8, 4) if num_rows > 8 or (num_rows > 1 and is_wide) else (16, 4, 8)
    num_stages = _fitting_stages(-(-weight.num_inputs // ROUND), depth)
    tile = BytesTile(num_weights, num_warps, num_stages, num_tiles)
    if is_wide:
        return tile
    num_resident = min(_MEMORY // (shared_bytes(num_rows, weight, tile) + 1024), 16 // num_warps)
    return replace(tile, num_programs=num_resident * num_sms)


def choose_small_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> BytesTile | None:
    """The same of a weight with small terms; tuned on an H100 and an H200.

    There are as many programs as fit, of which registers allow three or four per multiprocessor.
    """
    if not 0 < num_rows <= MAX_SMALL_ROWS:
        return None
    depth, most = (8, 4) if num_rows == 1 and weight.group == 32 else (4, 3)
    tile = BytesTile(16, 4, _fitting_stages(-(-weight.num_inputs // ROUND), depth), num_sms)
    num_resident = min(_MEMORY // (shared_bytes(num_rows, weight, tile) + 1024), most)
    return replace(tile, num_programs=num_resident * num_sms)


def _fitting_stages(num_rounds: int, depth: int) -> int:
    """About so many stages, of which a tile's rounds fill multiples, or nearly."""
    for num_stages in (depth, *range(depth + 1, 2, -1)):
        if 10 * (-(-num_rounds // num_stages) * num_stages) <= 11 * num_rounds:
            return num_stages
    return 2


def shared_bytes(num_rows: int, weight: GroupedTensors, tile: BytesTile) -> int:
    """Shared memory of a program, if groups are multiples of 128 inputs or there are terms."""
    rows, num_slots = _slot_rows(num_rows), tile.num_stages
    if rows == 1:
        num_slots = padded_rounds(-(-weight.num_inputs // (ROUND * num_slots)) * num_slots, UNIT)
    sums = 4 * tile.num_weights * max(rows, 8) * 4
    row_bytes = ROUND * weight.bits // 8 + 16 * max(UNIT // weight.group, 1)
    return tile.num_stages * tile.num_weights * row_bytes + num_slots * rows * ROUND * 2 + sums


def _slot_rows(num_rows: int) -> int:
    """Rows of ``x`` in shared memory."""
    return 1 if num_rows == 1 else 8 if num_rows <= 8 else 16


def bytes_grouped(
    x: torch.Tensor,
    weight: GroupedTensors,
    num_sharing: int,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: BytesTile,
    norm: DeferredNorm | None = None,
    terms: torch.Tensor | None = None,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]``, as :func:`reads` takes it, or with terms; a kernel is compiled for each K.
        num_sharing: of :func:`count_sharing`.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        norm: of ``x``, a single row; settled by this.
        terms: of small groups; see :mod:`.grouped_terms`.
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    num_tiles = -(-num_channels * (1 if activation == "none" else 2) // tile.num_weights)
    bytes_kernel[(min(num_tiles, tile.num_programs),)](
        x,
        *norm_arguments(norm),
        weight.codes if weight.bits == 8 else weight.codes.view(torch.int32),
        weight.scales if terms is None else terms,
        bias,
        out,
        x.stride(0) // 8,
        num_rows,
        num_channels,
        num_tiles,
        K=num_features,
        UNIT=_step_unit(weight, terms is not None),
        GROUP=weight.group,
        SHARING=num_sharing,
        HAS_OFFSETS=weight.offsets is not None or weight.zeros is not None,
        ROWS=_slot_rows(num_rows),
        BLOCK_N=tile.num_weights,
        STAGES=tile.num_stages,
        ACTIVATION=activation,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )


@gluon.jit
def _row(n, tile, num_channels, CHANNELS: gl.constexpr):
    """The weight row that is row ``n`` of a tile: those of a gate come first, then those of the other half.

    Rows past the end are the last one instead, and are not stored.
    """
    return n // CHANNELS * num_channels + gl.minimum(tile * CHANNELS + n % CHANNELS, num_channels - 1)


@triton.constexpr_function
def _scale_stride(unit, group):
    """From a part's scales, or terms of eight rows, to the next part's; 0 if parts share a group."""
    return 0 if group > unit else 1 if group == unit else 8 * (unit // group)


@gluon.jit
def _find(
    sources,
    places,
    tile,
    num_channels,
    K: gl.constexpr,
    CHANNELS: gl.constexpr,
    UNIT: gl.constexpr,
    GROUP: gl.constexpr,
    SHARING: gl.constexpr,
):
    """Where a tile's codes and scales, or terms, begin."""
    codes, scales = sources
    n, column, scale_n, part, group = places
    ROW: gl.constexpr = K // 8 if codes.dtype.element_ty == gl.int32 else K
    code_spots = codes + (_row(n, tile, num_channels, CHANNELS).to(gl.int64) * ROW + column)
    scale_row = _row(scale_n, tile, num_channels, CHANNELS)
    if GROUP < UNIT:
        scale_spots = scales + (scale_row // 8 * (K // GROUP * 8) + scale_row % 8 * (UNIT // GROUP) + group)
    else:
        scale_spots = scales + scale_row // SHARING * (SHARING * (K // GROUP))
    if GROUP <= UNIT:
        scale_spots += part * _scale_stride(UNIT, GROUP)
    return code_spots, scale_spots


@gluon.jit
def _advance(spots, parts: gl.constexpr, WIDTH: gl.constexpr, STRIDE: gl.constexpr):
    """The same of so many parts later, each ``WIDTH`` elements of codes."""
    code_spots, scale_spots = spots
    if STRIDE > 0:
        scale_spots += parts * STRIDE
    return code_spots + parts * WIDTH, scale_spots


@gluon.jit
def _request(
    spots,
    places,
    first,
    j: gl.constexpr,
    is_there,
    slot,
    K: gl.constexpr,
    UNIT: gl.constexpr,
    GROUP: gl.constexpr,
    IS_WHOLE: gl.constexpr,
):
    """Start the copies of the codes and scales, or terms, of step ``first + j``; ``spots`` are those of ``first``.

    Past the end, or if there is no such tile, zeros are written.
    """
    PARTS: gl.constexpr = slot[0].shape[0]
    WIDTH: gl.constexpr = slot[0].shape[2]
    STRIDE: gl.constexpr = _scale_stride(UNIT, GROUP)
    _, column, _, part, _ = places
    code_slot, scale_slot = slot
    code_spots, scale_spots = _advance(spots, j * PARTS, WIDTH, STRIDE)
    if STRIDE == 0:
        scale_spots += ((first + j) * PARTS + part) // (GROUP // UNIT)
    has_codes, has_scales = (column >= 0) & is_there, (part >= 0) & is_there
    if not IS_WHOLE:
        has_codes &= column < K // UNIT * WIDTH - (first + j) * (PARTS * WIDTH)
        has_scales &= part < K // UNIT - (first + j) * PARTS
    has_codes = gl.broadcast(has_codes, code_spots)[0]
    has_scales = gl.broadcast(has_scales, scale_spots)[0]
    copy_async(code_slot, code_spots, has_codes, cache_modifier=".cg")
    copy_async(scale_slot, scale_spots, has_scales)


@gluon.jit
def _copy_x(x, places, i, is_there, slot, K: gl.constexpr, STEP: gl.constexpr, IS_WHOLE: gl.constexpr):
    """Start the copy of step ``i`` of ``x``."""
    row, column, x_stride, num_rows = places
    mask = (row < num_rows) & (column >= 0) & is_there
    if not IS_WHOLE:
        mask &= column < K - i * STEP
    copy_async(slot, x + (row * (x_stride * 8) + column + i * STEP), mask, cache_modifier=".cg")


@triton.constexpr_function
def _row_layout(num_warps, unit):
    """How threads hold a row's ``[steps, parts, 1, unit]`` inputs, 16 bytes at a time."""
    return gl.BlockedLayout([1, 1, 1, 8], [1, 256 // unit, 1, unit // 8], [num_warps // 2, 2, 1, 1], [3, 2, 1, 0])


@gluon.jit
def _row_columns(slots):
    """The columns of a single row in shared memory, ``[steps, parts, 1, unit]``."""
    UNIT: gl.constexpr = slots.shape[3]
    layout: gl.constexpr = _row_layout(gl.num_warps(), UNIT)
    steps: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    parts: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    features: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    unit = gl.arange(0, slots.shape[0], steps)[:, None, None, None] * slots.shape[1]
    unit += gl.arange(0, slots.shape[1], parts)[None, :, None, None]
    return unit * UNIT + gl.arange(0, UNIT, features)[None, None, None, :]


@gluon.jit(do_not_specialize=["num_rows", "num_tiles", "eps"])
def bytes_kernel(
    x,
    residual,  # [K], added to x before its norm; or None
    norm,  # [K], the weight of the norm of x, which is one row then; None for none
    eps,
    summed,  # [K], where the sum goes; None without a residual
    codes,  # [N, K] bytes, or words of eight codes
    scales,  # [N, K / GROUP], or terms of groups of less than UNIT inputs
    bias,
    out,
    x_stride,  # in units of 8 values, so that the compiler sees rows aligned to 16 bytes
    num_rows,
    num_channels,
    num_tiles,
    K: gl.constexpr,
    UNIT: gl.constexpr,
    GROUP: gl.constexpr,
    SHARING: gl.constexpr,
    HAS_OFFSETS: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes all rows of some tiles of ``CHANNELS`` outputs; grid (programs).

    Args:
        UNIT: inputs that a warp multiplies in a step, of one group, or with terms of several. A round has one step for
            128 inputs, or several.
        SHARING: outputs that share scales.
        HAS_OFFSETS: whether terms have offsets other than zero.
        ROWS: rows of ``x`` in shared memory. A single one stays there, and all columns of the MMA multiply it.
    """
    IS_SINGLE: gl.constexpr = ROWS == 1
    BLOCK_M: gl.constexpr = max(ROWS, 8)
    WARPS: gl.constexpr = gl.num_warps()
    PARTS: gl.constexpr = 4
    STEP: gl.constexpr = PARTS * UNIT
    STEPS: gl.constexpr = 128 // UNIT
    SLOTS: gl.constexpr = STAGES * STEPS
    EARLY: gl.constexpr = SLOTS - STEPS
    TURNS: gl.constexpr = (K + SLOTS * STEP - 1) // (SLOTS * STEP)
    IS_WHOLE: gl.constexpr = K % (SLOTS * STEP) == 0
    CHANNELS: gl.constexpr = BLOCK_N if ACTIVATION == "none" else BLOCK_N // 2
    dtype: gl.constexpr = x.dtype.element_ty
    code_dtype: gl.constexpr = codes.dtype.element_ty
    IS_SMALL: gl.constexpr = GROUP < UNIT
    BITS: gl.constexpr = 4 if code_dtype == gl.int32 else 8
    WIDTH: gl.constexpr = UNIT * BITS // code_dtype.primitive_bitwidth
    form: gl.constexpr = (GROUP, BITS, HAS_OFFSETS, IS_SINGLE)
    # Slices of K are distributed over the batched dimension of the MMA: their sums stay apart.
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [PARTS, WARPS // PARTS, 1], [1, 16, 8])
    # A thread loads 8 adjacent columns of both operands, if it can; K may be permuted if both permute alike.
    ADJACENT: gl.constexpr = adjacent_inputs(BITS, GROUP) if IS_SMALL else 8
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, ADJACENT)
    second_layout: gl.constexpr = gl.DotOperandLayout(1, layout, ADJACENT)
    scale_layout: gl.constexpr = gl.SliceLayout(2, layout)
    RUN: gl.constexpr = 128 // code_dtype.primitive_bitwidth
    code_copy: gl.constexpr = gl.BlockedLayout(
        [1, 1, RUN], [1, 32 * RUN // WIDTH, WIDTH // RUN], [PARTS, WARPS // PARTS, 1], [2, 1, 0]
    )
    x_copy: gl.constexpr = gl.BlockedLayout(
        [1, 1, 8], [1, 256 // UNIT, UNIT // 8], [PARTS, WARPS // PARTS, 1], [2, 1, 0]
    )
    GROUPS: gl.constexpr = max(UNIT // GROUP, 1)
    # Four threads read a run of 32 bytes of codes, or of 64 of x, and the next four one of the next row.
    code_vector: gl.constexpr = 4 if BITS == 4 else 32
    code_ring: gl.constexpr = gl.SwizzledSharedLayout(
        code_vector, 2 if BITS == 4 else 128 // UNIT, WIDTH // code_vector, [2, 1, 0]
    )
    x_vector: gl.constexpr = 32 if ADJACENT == 8 else 8
    x_ring: gl.constexpr = gl.SwizzledSharedLayout(x_vector, 1, min(UNIT // x_vector, 64 // x_vector), [2, 1, 0])
    scale_ring: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    term_ring: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    # Slots are allocated one by one, so that the compiler sees that a copy into one does not meet reads of another.
    slots = ()
    for _ in gl.static_range(SLOTS):
        code_slot = gl.allocate_shared_memory(code_dtype, [PARTS, BLOCK_N, WIDTH], code_ring)
        if IS_SMALL:
            scale_slot = gl.allocate_shared_memory(gl.int32, [PARTS, BLOCK_N, GROUPS], term_ring)
        else:
            scale_slot = gl.allocate_shared_memory(gl.float32, [BLOCK_N, PARTS], scale_ring)
        slots = slots + ((code_slot, scale_slot),)  # type: ignore[assignment]
    if IS_SINGLE:
        X_ROUNDS: gl.constexpr = padded_rounds(TURNS * SLOTS, UNIT)
        x_slots = gl.allocate_shared_memory(dtype, [X_ROUNDS, PARTS, ROWS, UNIT], x_ring)
    else:
        x_slots = ()
        for _ in gl.static_range(SLOTS):
            x_slots = x_slots + (gl.allocate_shared_memory(dtype, [PARTS, ROWS, UNIT], x_ring),)

    n, column = copy_places(code_copy, PARTS, BLOCK_N, WIDTH)
    if IS_SMALL:
        term_threads: gl.constexpr = [1, 128 // GROUPS, GROUPS // 4]
        term_copy: gl.constexpr = gl.BlockedLayout([1, 1, 4], term_threads, [PARTS, WARPS // PARTS, 1], [2, 1, 0])
        part = gl.arange(0, PARTS, gl.SliceLayout(1, gl.SliceLayout(2, term_copy)))[:, None, None]
        scale_n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, gl.SliceLayout(2, term_copy)))[None, :, None]
        group = gl.arange(0, GROUPS, gl.SliceLayout(0, gl.SliceLayout(1, term_copy)))[None, None, :]
    else:
        scale_copy: gl.constexpr = gl.BlockedLayout([1, PARTS], [32, 1], [WARPS, 1], [1, 0])
        scale_n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, scale_copy))[:, None]
        part = gl.arange(0, PARTS, gl.SliceLayout(0, scale_copy))[None, :]
        group = part
    sources, places = (codes, scales), (n, column, scale_n, part, group)
    step = gl.num_programs(0)
    spots = _find(sources, places, gl.program_id(0), num_channels, K, CHANNELS, UNIT, GROUP, SHARING)
    for i in gl.static_range(EARLY):
        _request(spots, places, 0, i, True, slots[i], K, UNIT, GROUP, IS_WHOLE)
    m, x_column = copy_places(x_copy, PARTS, ROWS, UNIT)
    x_places = (m, x_column, x_stride, num_rows)
    if norm is not None:
        gl.static_assert(IS_SINGLE and WARPS == PARTS)
        AT_ONCE: gl.constexpr = rounds_at_once(UNIT)
        norm_columns = round_columns((TURNS * SLOTS + AT_ONCE - 1) // AT_ONCE, AT_ONCE, UNIT)
        factors = load_factors(norm, norm_columns, K)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if IS_SINGLE:
        # The same places, of several steps.
        steps_layout: gl.constexpr = gl.SwizzledSharedLayout(x_ring.vec, 1, x_ring.max_phase, [3, 2, 1, 0])
        row_slots = reinterpret(x_slots, dtype, x_slots.shape, steps_layout)
    if norm is not None:
        normed = normed_parts(x, residual, norm_columns, factors, eps, summed, K)
        for i in gl.static_range(len(norm_columns)):
            fitted = fit_inputs(normed[i], norm_columns[i], form) if IS_SMALL else normed[i]
            row_slots.slice(i * AT_ONCE, AT_ONCE).store(fitted)
    elif IS_SINGLE:
        column = _row_columns(row_slots)
        if IS_SMALL and is_raw(form, dtype):
            row_slots.store(fit_inputs(gl.load(x + column, column < K, other=0.0), column, form))
        else:
            copy_async(row_slots, x + column, column < K, cache_modifier=".cg")
    for i in gl.static_range(EARLY):
        if not IS_SINGLE:
            _copy_x(x, x_places, i, True, x_slots[i], K, STEP, IS_WHOLE)
        # One group per round, even if empty, so that the count in the loop holds.
        if i % STEPS == STEPS - 1:
            async_copy.commit_group()

    # Terms make up for what codes are too small by.
    X_FACTOR: gl.constexpr = 1 if IS_SMALL else moved_factors(code_dtype, dtype)[0]
    SUM_FACTOR: gl.constexpr = moved_factors(code_dtype, dtype)[1]
    for tile in range(gl.program_id(0), num_tiles, step):
        if IS_SMALL:
            total = no_sums(BLOCK_N, BLOCK_M, form, layout)
        else:
            total = gl.zeros([PARTS, BLOCK_N, BLOCK_M], gl.float32, layout)
        has_next = tile + step < num_tiles
        for turn in range(TURNS):
            first = turn * SLOTS
            # What the turn requests from its second round on: the next turn's rounds, or the next tile's.
            if turn + 1 < TURNS:
                next_first = first + SLOTS
                later = _advance(spots, SLOTS * PARTS, WIDTH, _scale_stride(UNIT, GROUP))
            else:
                next_first = 0
                later = _find(sources, places, tile + step, num_channels, K, CHANNELS, UNIT, GROUP, SHARING)
            is_there = (turn + 1 < TURNS) | has_next
            for j in gl.static_range(SLOTS):
                if j % STEPS == 0:
                    async_copy.wait_group(STAGES - 2)
                code_slot, scale_slot = slots[j]
                if not IS_SMALL:
                    packed = code_slot.load(first_layout)  # type: ignore[var-annotated]
                    scale = scale_slot.permute((1, 0)).load(scale_layout)
                x_slot = x_slots.index(first + j) if IS_SINGLE else x_slots[j]
                values = x_slot.permute((0, 2, 1)).load(second_layout)
                # Into a slot of the round before, which all warps have read.
                if j < STEPS:
                    _request(spots, places, first, EARLY + j, True, slots[EARLY + j], K, UNIT, GROUP, IS_WHOLE)
                    if not IS_SINGLE:
                        _copy_x(x, x_places, first + EARLY + j, True, x_slots[EARLY + j], K, STEP, IS_WHOLE)
                else:
                    slot = slots[j - STEPS]  # type: ignore[var-annotated]
                    _request(later, places, next_first, j - STEPS, is_there, slot, K, UNIT, GROUP, IS_WHOLE)
                    if not IS_SINGLE:
                        _copy_x(x, x_places, next_first + j - STEPS, is_there, x_slots[j - STEPS], K, STEP, IS_WHOLE)
                if j % STEPS == STEPS - 1:
                    async_copy.commit_group()
                if X_FACTOR != 1:
                    values *= X_FACTOR
                if IS_SINGLE:
                    values = gl.broadcast(values, gl.zeros([PARTS, UNIT, BLOCK_M], dtype, second_layout))[0]
                if IS_SMALL:
                    total = multiply_groups(total, code_slot, scale_slot, values, form, layout)
                else:
                    products = mma_v2(move_bytes(packed, dtype), values, gl.zeros_like(total))
                    total += scale[:, :, None] * products  # type: ignore[has-type]
            spots = later
        if IS_SMALL:
            total = add_groups(total, form, dtype)
        else:
            total *= SUM_FACTOR
        result = add_slices(total, BLOCK_N // CHANNELS, CHANNELS, total.shape[2])
        store_outputs(result, None, bias, out, tile * CHANNELS, num_rows, num_channels, ACTIVATION)
