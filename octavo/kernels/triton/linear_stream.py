"""Small-M GEMMs (M ≤ 32) on tensor cores: ``y = x Wᵀ`` at the bandwidth at which ``W`` can be read.

A program computes all M rows for a few output channels over all of K, so no sum crosses programs. It fills its
shared-memory ring of weights before it waits for the kernel that computes ``x``: while one kernel computes, the next
one's weights are already being loaded. Each warp accumulates its own slice of K; the slices are added at the end.

Float8 weights (e4m3) are converted on their way from shared memory to the tensor cores, to the type of ``x``, which
holds them exactly; sums are multiplied by the channels' scales.

The norm of a single row is computed by each of its programs (:mod:`.stream_norm`), which saves a launch;
:mod:`.linear_normed_rows` does so for a few short rows. Up to 16 rows, a GEMM may add its outputs to the residual
stream and share the work of the norm that follows with the GEMM behind it (:mod:`.stream_sum`).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.triton.gluon_names import copy_async, reinterpret
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.stream_norm import (
    load_factors,
    norm_arguments,
    normed_parts,
    padded_rounds,
    round_columns,
    rounds_at_once,
)
from octavo.kernels.triton.stream_sum import (
    AddedStream,
    added_arguments,
    load_squares,
    load_stream,
    row_rates,
    squares_of,
    store_sums,
)
from octavo.kernels.triton.widening import widen_values

MAX_ROWS = 32
"""Beyond this M, programs would spend more time reading ``x`` than their weights."""

_LONG_SUM = 4096

MAX_ADDED_ROWS = 16
"""Beyond this M, a norm's sums of squares take registers that the GEMM's sums need; see :mod:`.stream_sum`."""

MAX_FLOAT8_ROWS = 8
"""Beyond this M, reading float8 weights takes less time than reading an ``x`` of 16 bits and converting weights."""


@dataclass(frozen=True, slots=True)
class StreamGemmTile:
    """A program's tile and pipeline.

    Attributes:
        num_weights: weight rows, a power of two: at least 8, or 16 with ``weight_first`` or a gate; a gate and its up
            projection take half of them each.
        num_columns: input features that a warp multiplies per round: 32, 64, 128 or 256.
        num_stages: depth of the weight ring in rounds; all but one are requested before the wait for earlier kernels.
        num_x_stages: depth of the ring of ``x`` in rounds.
        weight_first: whether the weight is the MMA operand with 16 rows and ``x`` the one with 8.
        num_warps: warps per program.
    """

    num_weights: int
    num_columns: int
    num_stages: int
    num_x_stages: int
    weight_first: bool
    num_warps: int

    def block_m(self, num_rows: int) -> int:
        """Rows of ``x`` in the tile: M rounded up to a power of two."""
        return max(8 if self.weight_first else 16, 1 << (num_rows - 1).bit_length())

    def num_programs(self, num_weights: int) -> int:
        """Programs that multiply so many weight rows."""
        return -(-num_weights // self.num_weights)


def choose_tile(
    num_rows: int, num_channels: int, num_features: int, *, is_gated: bool, num_sms: int
) -> StreamGemmTile | None:
    """The tile for a GEMM, or None if it would not be fast; tuned on an H200.

    Up to 8 rows the tile, and so the bits of a row, are the same for every number of rows.

    Args:
        num_channels: outputs per row, after the gate if there is one.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    # Rings are as deep as shared memory allows with all programs resident, else with three per multiprocessor.
    num_tiles = -(-num_channels * (2 if is_gated else 1) // 16)
    is_few, is_one_wave, is_many = num_tiles < num_sms, num_tiles <= 2 * num_sms, num_tiles > 8 * num_sms
    if num_rows <= 8:
        depth = 9 if is_one_wave else 6
        tile = StreamGemmTile(16, 64, depth, depth, weight_first=True, num_warps=4)
    elif is_few and not is_gated:
        depth, x_depth = (9, 9) if num_rows <= 16 else (7, 5)
        tile = StreamGemmTile(8, 64, depth, x_depth, weight_first=False, num_warps=4)
    elif num_rows > 16 and num_features <= 1024 and is_one_wave and not is_gated:
        # One program per multiprocessor, which reads x once and requests all its weights before any of x.
        num_rounds = -(-num_features // 256)
        return StreamGemmTile(32, 64, num_rounds, min(num_rounds, 3), weight_first=False, num_warps=4)
    elif is_many:
        tile = StreamGemmTile(64, 64, 3, 3, weight_first=False, num_warps=2)
    elif (num_rows <= 16) + (num_features < 2048) + (not is_one_wave) >= 2:
        depth = 9 if num_rows <= 16 else 6
        tile = StreamGemmTile(16, 64, depth, depth, weight_first=False, num_warps=2)
    else:
        depth = (7 if num_rows <= 16 else 4) if is_one_wave else 3
        tile = StreamGemmTile(16, 64, depth, depth, weight_first=False, num_warps=4)
    num_rounds = -(-num_features // (tile.num_warps * tile.num_columns))
    depth = min(tile.num_stages, num_rounds, max(num_rounds - 1, 3))
    return dataclasses.replace(tile, num_stages=depth, num_x_stages=min(tile.num_x_stages, depth))


def choose_float8_tile(
    num_rows: int, num_channels: int, num_features: int, *, is_gated: bool, num_sms: int
) -> StreamGemmTile | None:
    """The tile for a GEMM with float8 weights, or None if it would not be fast; tuned on an H200.

    It is the same for every number of rows, and so are the bits of a row.

    Args:
        num_channels: outputs per row, after the gate if there is one.
    """
    if not 0 < num_rows <= MAX_FLOAT8_ROWS:
        return None
    num_programs = -(-num_channels * (2 if is_gated else 1) // 16)
    num_columns = 128 if num_features >= 2048 else 64
    num_rounds = -(-num_features // (4 * num_columns))
    if num_programs > 8 * num_sms:
        # 16 float8 rows have as many bytes as eight of x: twice as many leave more of the memory to weights.
        depth = min(3, num_rounds)
        return StreamGemmTile(32, num_columns, depth, depth, weight_first=True, num_warps=4)
    depth = min(4 if num_programs > 2 * num_sms else 6, num_rounds)
    # Of an attention's output: with a shorter ring of x, a program has room beside the attention's blocks.
    is_output = num_sms < num_programs <= 2 * num_sms and num_features <= _LONG_SUM
    return StreamGemmTile(16, num_columns, depth, min(depth, 4) if is_output else depth, weight_first=True, num_warps=4)


def stream_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: StreamGemmTile,
    scales: torch.Tensor | None = None,
    norm: DeferredNorm | None = None,
    added: AddedStream | None = None,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16, K a multiple of 8; rows contiguous, row stride a multiple of 8, aligned to
            16 bytes.
        weight: ``[N, K]`` contiguous, aligned to 16 bytes, of the type of ``x``, or float8 with ``scales`` and K a
            multiple of 16; a kernel is compiled for each K.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        scales: ``[N]`` float32, factors of the channels' sums. Float8 weights need a tile with ``weight_first``.
        norm: of ``x``: of one row, settled by this, or of the weighted rows that ``x`` is. It needs a tile with
            ``weight_first``.
        added: what the outputs are added to, without an activation; ``out`` is its residual then.
    """
    grid, args, constants = arguments(x, weight, bias, out, activation, tile, scales, norm, added)
    stream_kernel[grid](*args, **constants, **dependent_launch(x.device))


def arguments(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: StreamGemmTile,
    scales: torch.Tensor | None = None,
    norm: DeferredNorm | None = None,
    added: AddedStream | None = None,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """Grid, arguments and constants of :func:`stream_linear`'s launch, also to compile its kernel ahead."""
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    block_m = tile.block_m(num_rows)
    squares = squares_of(norm)
    is_normed = norm is not None and squares is None
    # One row leaves memory that rings of eight take: in long sums another round of weights pays.
    num_stages = tile.num_stages + (is_normed and num_features >= _LONG_SUM)
    constants = {
        "K": num_features,
        "SQUARES": 0 if squares is None else squares.shape[1],
        "BLOCK_M": block_m,
        "ROWS": 1 if is_normed else block_m,
        "BLOCK_N": tile.num_weights,
        "BLOCK_K": tile.num_columns,
        "STAGES": num_stages,
        "X_STAGES": tile.num_x_stages,
        "WEIGHT_FIRST": tile.weight_first,
        "ACTIVATION": activation,
        "num_warps": tile.num_warps,
    }
    grid = (tile.num_programs(num_channels * (1 if activation == "none" else 2)),)
    sizes = (x.stride(0) // 8, num_rows, num_channels)
    args = (x, *norm_arguments(norm), squares, weight, scales, bias, out, added_arguments(added), *sizes)
    return grid, args, constants


@gluon.jit
def copy_places(layout: gl.constexpr, WARPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_K: gl.constexpr):
    """Row and column (within one round of all warps) of the values that each thread copies."""
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    row = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :, None]
    column = gl.arange(0, BLOCK_K, gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    return row, warp * BLOCK_K + column


@gluon.jit
def weight_places(
    weight,
    first_channel,
    num_channels,
    K: gl.constexpr,
    CHANNELS: gl.constexpr,
    layout: gl.constexpr,
    WARPS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    """Addresses of a program's weight rows, of a gate and its up projection in turn, the mask and the columns."""
    n, column = copy_places(layout, WARPS, BLOCK_N, BLOCK_K)
    channel = first_channel + n % CHANNELS
    is_weight = (channel < num_channels) & (column >= 0)
    return weight + ((n // CHANNELS * num_channels + channel).to(gl.int64) * K + column), is_weight, column


@gluon.jit
def copy_round(spots, is_row, column, slot, i, K: gl.constexpr, ROUND: gl.constexpr):
    """Start the copy of round ``i`` of an operand into its ring slot, with zeros past the end."""
    mask = is_row
    if K % ROUND != 0:
        mask = mask & (column < K - i * ROUND)
    copy_async(slot, spots + i * ROUND, mask, cache_modifier=".cg")


@gluon.jit
def apply_gate(gate, factor, ACTIVATION: gl.constexpr):
    """``act(gate) · factor``, of float32."""
    if ACTIVATION == "silu":
        slope = gate
    else:
        gl.static_assert(ACTIVATION == "gelu_tanh")
        # (1 + tanh(z)) / 2 is sigmoid(2z).
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + gl.exp(-slope)) * factor


@triton.constexpr_function
def slices_layout(num_slices, num_warps, num_parts, num_channels):
    """How threads hold ``[slices, parts, channels, rows]``: all slices of an output and of its gate in one."""
    channels = min(num_channels, 32)
    return gl.BlockedLayout(
        [num_slices, num_parts, 1, 1], [1, 1, channels, 32 // channels], [1, 1, 1, num_warps], [2, 3, 1, 0]
    )


@gluon.jit
def add_slices(sums, PARTS: gl.constexpr, CHANNELS: gl.constexpr, BLOCK_M: gl.constexpr):
    """Add up slices of sums, ``[SLICES, PARTS * CHANNELS, BLOCK_M]``, to ``[BLOCK_M, CHANNELS, PARTS]``.

    By way of shared memory: a reduction over warps would shuffle each value through their threads.
    """
    SLICES: gl.constexpr = sums.shape[0]
    shape: gl.constexpr = [SLICES, PARTS, CHANNELS, BLOCK_M]
    slices = gl.allocate_shared_memory(gl.float32, shape, gl.SwizzledSharedLayout(1, 1, 1, [2, 3, 1, 0]))
    slices.store(sums.reshape(shape))
    return gl.sum(slices.load(slices_layout(SLICES, gl.num_warps(), PARTS, CHANNELS)), 0).permute((2, 1, 0))


@gluon.jit
def store_outputs(
    result,
    scales,
    bias,
    out,
    first_channel,
    num_rows,
    num_channels,
    ACTIVATION: gl.constexpr,
    added=None,
    streamed=None,
):
    """Scale, bias and gate a program's sums of :func:`add_slices` and store its outputs from ``first_channel``.

    Args:
        added, streamed: the stream to add them to, and what :func:`load_stream` read of it; None for none.
    """
    BLOCK_M: gl.constexpr = result.shape[0]
    CHANNELS: gl.constexpr = result.shape[1]
    if ACTIVATION != "none":
        result, factor = result.split()
    else:
        result = result.reshape([BLOCK_M, CHANNELS])
    row = gl.arange(0, BLOCK_M, gl.SliceLayout(1, result.type.layout))[:, None]
    channel = first_channel + gl.arange(0, CHANNELS, gl.SliceLayout(0, result.type.layout))[None, :]
    is_channel = channel < num_channels
    if scales is not None:
        result = result * gl.load(scales + channel, is_channel, other=0.0)
    if bias is not None:
        result += gl.load(bias + channel, is_channel, other=0.0).to(gl.float32)
    if ACTIVATION != "none":
        if scales is not None:
            factor = factor * gl.load(scales + num_channels + channel, is_channel, other=0.0)
        if bias is not None:
            factor += gl.load(bias + num_channels + channel, is_channel, other=0.0).to(gl.float32)
        result = apply_gate(result, factor, ACTIVATION)
    if added is not None:
        result = result.permute((1, 0))
        store_sums(result, streamed, added, out, num_rows, num_channels, gl.program_id(0), gl.num_programs(0))
    else:
        gl.store(out + (row * num_channels + channel), result.to(out.dtype.element_ty), (row < num_rows) & is_channel)


@gluon.jit(do_not_specialize=["num_rows", "eps"])
def stream_kernel(
    x,
    residual,  # [K], added to x before its norm; or None
    norm,  # [K], the weight of the norm of x; None for none
    eps,
    summed,  # [K], where the sum goes; None without a residual
    squares,  # [M, SQUARES] float32 of the rows whose product with their norm's weight is x; None if x is normed
    weight,
    scales,  # [N] float32 or None
    bias,
    out,
    added,  # an AddedStream, whose residual is out; or None
    x_stride,  # in units of 8 values, so that the compiler sees rows aligned to 16 bytes
    num_rows,
    num_channels,
    K: gl.constexpr,
    SQUARES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    X_STAGES: gl.constexpr,
    WEIGHT_FIRST: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes ``CHANNELS`` outputs of all rows; each warp sums a slice of K; grid (channel tiles).

    ``ROWS`` is ``BLOCK_M``, or 1 with a norm: then all columns of the MMA multiply the same row.
    """
    WARPS: gl.constexpr = gl.num_warps()
    ROUND: gl.constexpr = WARPS * BLOCK_K
    NUM_ROUNDS: gl.constexpr = (K + ROUND - 1) // ROUND
    EARLY: gl.constexpr = NUM_ROUNDS if NUM_ROUNDS <= STAGES else STAGES - 1
    NORMS: gl.constexpr = norm is not None
    # A normed row is in shared memory as a whole.
    X_ROUNDS: gl.constexpr = padded_rounds(NUM_ROUNDS, BLOCK_K) if NORMS else X_STAGES
    EARLY_X: gl.constexpr = NUM_ROUNDS if NUM_ROUNDS <= X_ROUNDS else X_ROUNDS - 1
    GATED: gl.constexpr = ACTIVATION != "none"
    # With a gate, the first half of a program's weight rows are the gate's, the second half the up projection's.
    CHANNELS: gl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    # Warps are distributed over the batched dimension of the MMA: each sums its own slice of K.
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    # A thread loads 8 adjacent columns (16 bytes) of both operands; K may be permuted if both permute alike.
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 8)
    second_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 8)
    copy_layout: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 256 // BLOCK_K, BLOCK_K // 8], [WARPS, 1, 1], [2, 1, 0])
    # Four threads read 64 bytes of a row, the next four 64 bytes of the next row: the swizzle puts them in other banks.
    ring_layout: gl.constexpr = gl.SwizzledSharedLayout(32, 1, 1 if BLOCK_K == 32 else 2, [2, 1, 0])
    dtype: gl.constexpr = x.dtype.element_ty
    weight_dtype: gl.constexpr = weight.dtype.element_ty
    gl.static_assert(WEIGHT_FIRST or (weight_dtype == dtype and norm is None))
    # Copies are of 16 bytes; four threads read 32 bytes of a row of float8 values, the next four of the next row.
    vec: gl.constexpr = 128 // weight_dtype.primitive_bitwidth
    weight_copy: gl.constexpr = gl.BlockedLayout(
        [1, 1, vec], [1, 32 * vec // BLOCK_K, BLOCK_K // vec], [WARPS, 1, 1], [2, 1, 0]
    )
    weight_layout: gl.constexpr = gl.SwizzledSharedLayout(32, 1, min(BLOCK_K // 32, vec // 4), [2, 1, 0])
    weight_ring = gl.allocate_shared_memory(weight_dtype, [STAGES, WARPS, BLOCK_N, BLOCK_K], weight_layout)
    x_ring = gl.allocate_shared_memory(dtype, [X_ROUNDS, WARPS, ROWS, BLOCK_K], ring_layout)

    first_channel = gl.program_id(0) * CHANNELS
    weight_spots, is_weight, weight_column = weight_places(
        weight, first_channel, num_channels, K, CHANNELS, weight_copy, WARPS, BLOCK_N, BLOCK_K
    )
    m, x_column = copy_places(copy_layout, WARPS, ROWS, BLOCK_K)
    is_x = (m < num_rows) & (x_column >= 0)
    x_spots = x + (m * (x_stride * 8) + x_column)

    for i in gl.static_range(EARLY):
        copy_round(weight_spots, is_weight, weight_column, weight_ring.index(i), i, K, ROUND)
        async_copy.commit_group()
    if NORMS:
        AT_ONCE: gl.constexpr = rounds_at_once(BLOCK_K)
        columns = round_columns((NUM_ROUNDS + AT_ONCE - 1) // AT_ONCE, AT_ONCE, BLOCK_K)
        factors = load_factors(norm, columns, K)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if NORMS:
        # The same places, for values of several rounds.
        rounds_layout: gl.constexpr = gl.SwizzledSharedLayout(32, 1, ring_layout.max_phase, [3, 2, 1, 0])
        row_slots = reinterpret(x_ring, dtype, x_ring.shape, rounds_layout)
        normed = normed_parts(x, residual, columns, factors, eps, summed, K)
        for part in gl.static_range(len(columns)):
            row_slots.slice(part * AT_ONCE, AT_ONCE).store(normed[part])
    else:
        for i in gl.static_range(EARLY_X):
            copy_round(x_spots, is_x, x_column, x_ring.index(i), i, K, ROUND)
            async_copy.commit_group()
    slices: gl.constexpr = slices_layout(WARPS, WARPS, BLOCK_N // CHANNELS, CHANNELS)
    sum_layout: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, slices))
    if squares is not None:
        row_squares = load_squares(squares, num_rows, SQUARES, BLOCK_M, min(CHANNELS, 32))
    streamed = None
    if added is not None:
        streamed = load_stream(added, first_channel, num_rows, num_channels, CHANNELS, BLOCK_M, sum_layout)

    sums = gl.zeros([WARPS, BLOCK_N, BLOCK_M] if WEIGHT_FIRST else [WARPS, BLOCK_M, BLOCK_N], gl.float32, layout)
    for i in range(NUM_ROUNDS):
        # This many copy groups were committed after the one that this round needs.
        async_copy.wait_group((EARLY if EARLY < EARLY_X else EARLY_X) - 1)
        if EARLY < NUM_ROUNDS and i + EARLY < NUM_ROUNDS:
            slot = weight_ring.index((i + EARLY) % STAGES)
            copy_round(weight_spots, is_weight, weight_column, slot, i + EARLY, K, ROUND)
        if EARLY_X < NUM_ROUNDS and i + EARLY_X < NUM_ROUNDS:
            copy_round(x_spots, is_x, x_column, x_ring.index((i + EARLY_X) % X_ROUNDS), i + EARLY_X, K, ROUND)
        # Commit one group per round, even if empty, so that the count above holds.
        async_copy.commit_group()
        weights, values = weight_ring.index(i % STAGES), x_ring.index(i % X_ROUNDS)
        if WEIGHT_FIRST:
            first = weights.load(first_layout)
            if weight_dtype != dtype:
                first = widen_values(first, dtype)
            second = values.permute((0, 2, 1)).load(second_layout)
            if ROWS < BLOCK_M:
                second, _ = gl.broadcast(second, gl.zeros([WARPS, BLOCK_K, BLOCK_M], dtype, second_layout))
            sums = mma_v2(first, second, sums)
        else:
            sums = mma_v2(values.load(first_layout), weights.permute((0, 2, 1)).load(second_layout), sums)

    if not WEIGHT_FIRST:
        sums = sums.permute((0, 2, 1))
    result = add_slices(sums, BLOCK_N // CHANNELS, CHANNELS, BLOCK_M)
    if squares is not None:
        rates = row_rates(row_squares, eps, K, gl.SliceLayout(1, gl.SliceLayout(2, result.type.layout)))
        result = result * rates[:, None, None]
    store_outputs(result, scales, bias, out, first_channel, num_rows, num_channels, ACTIVATION, added, streamed)
