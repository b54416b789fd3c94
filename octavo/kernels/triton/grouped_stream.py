"""Small-M GEMMs with codes of 4 bits: ``y = x Wᵀ`` at the bandwidth at which the codes of ``W`` can be read.

A program computes all M rows for a few output channels over all of K, so no sum crosses programs. It fills its
shared-memory ring of codes before it waits for the kernel that computes ``x``. Each warp multiplies its own slice of K:
it unpacks codes and subtracts their zeros, which every type of activations has exactly, and adds the sums of a group to
its own float32 sums, times the group's scale. The warps' sums are added at the end. Scales and zeros of the next group
are loaded while this one's codes are multiplied.
"""

import dataclasses
from dataclasses import dataclass

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.grouped import GroupedTensors, pack_unit
from octavo.kernels.triton.gluon_names import copy_async
from octavo.kernels.triton.grouped_unpack import unpack_halves, zero_pair
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import apply_gate

MAX_ROWS = 8
"""Beyond this M, other kernels are faster."""
COLUMNS = 128
"""Input features that a warp multiplies per round."""


@dataclass(frozen=True, slots=True)
class StreamTile:
    """A program's tile and pipeline.

    Attributes:
        num_weights: weight rows, a power of two from 16; a gate and its up projection take half of them each.
        num_warps: warps per program, each with its own slice of K.
        num_stages: depth of the ring of codes in rounds; all but one are requested before the wait for earlier kernels.
        num_x_stages: depth of the ring of ``x`` in rounds.
    """

    num_weights: int
    num_warps: int
    num_stages: int
    num_x_stages: int


def choose_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> StreamTile | None:
    """The tile for a GEMM, or None if another kernel is faster or the weight has another form; tuned on an H200.

    Args:
        num_rows: rows of ``x``.
    """
    has_numbers = weight.bits == 4 and weight.offsets is None and weight.table is None
    is_read = has_numbers and weight.codes.data_ptr() % 16 == 0
    if not 0 < num_rows <= MAX_ROWS or not is_read:
        return None
    num_wide = -(-len(weight.codes) // 64)
    if weight.is_float4:
        tile = StreamTile(32, 8, 6, 6)
    elif num_wide >= 0.7 * num_sms * -(-num_wide // num_sms):  # most multiprocessors are busy until the end
        tile = StreamTile(64, 8, 4, 4)
    else:
        tile = StreamTile(16, 4, 8, 8)
    num_rounds = -(-weight.num_inputs // (tile.num_warps * COLUMNS))
    return dataclasses.replace(
        tile, num_stages=min(tile.num_stages, num_rounds), num_x_stages=min(tile.num_x_stages, num_rounds)
    )


def stream_grouped(
    x: torch.Tensor,
    weight: GroupedTensors,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: StreamTile,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]``; a kernel is compiled for each K.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        tile: of :func:`choose_tile`.
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    factors = 1 if activation == "none" else 2
    stream_grouped_kernel[(-(-num_channels * factors // tile.num_weights),)](
        x,
        weight.codes,
        weight.scales,
        weight.zeros,
        bias,
        out,
        x.stride(0) // 8,
        num_rows,
        num_channels,
        K=num_features,
        UNIT=pack_unit(weight.group),
        GROUP=weight.group,
        BLOCK_M=max(8, 1 << (num_rows - 1).bit_length()),
        BLOCK_N=tile.num_weights,
        STAGES=tile.num_stages,
        X_STAGES=tile.num_x_stages,
        ACTIVATION=activation,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )


@triton.constexpr_function
def byte_layout(rows, row_bytes, num_warps):
    """How a warp holds the bytes of ``[warps, rows, row_bytes]`` codes of 4 bits: those that its MMA wants together.

    A thread's run of bytes in a unit is a quarter of it, and a unit is read in one access.
    """
    run = row_bytes // 4
    registers = [[0, 0, 1 << i] for i in range(run.bit_length() - 1)]
    registers += [[0, 8 << i, 0] for i in range((rows // 8).bit_length() - 1)]
    lanes = [[0, 0, run], [0, 0, 2 * run], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    warps = [[1 << i, 0, 0] for i in range(num_warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [num_warps, rows, row_bytes])


@gluon.jit
def in_order(values, layout: gl.constexpr):
    """Numbers ``[warps, rows, half a unit]`` in the order of their bytes → in that of their inputs, without moving."""
    warps: gl.constexpr = values.shape[0]
    rows: gl.constexpr = values.shape[1]
    size: gl.constexpr = values.shape[2]
    parts = values.reshape((warps, rows, 4, size // 16, 2, 2)).permute((0, 1, 3, 4, 2, 5))
    return gl.convert_layout(parts.reshape((warps, rows, size)), layout, assert_trivial=True)


@gluon.jit
def _places(layout: gl.constexpr, WARPS: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Warp, row and column of the values that each thread copies."""
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    row = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :, None]
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    return warp, row, column


@gluon.jit
def _own_groups(
    layout: gl.constexpr,
    WARPS: gl.constexpr,
    ROWS: gl.constexpr,
    CHANNELS: gl.constexpr,
    num_channels,
    GROUPS: gl.constexpr,
):
    """Of the weight rows of each warp: their first groups, its slice's first column, and whether they exist."""
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, layout))[:, None]
    row = gl.arange(0, ROWS, gl.SliceLayout(0, layout))[None, :]
    channel = gl.program_id(0) * CHANNELS + row % CHANNELS
    return (row // CHANNELS * num_channels + channel) * GROUPS, warp * 128, channel < num_channels


@gluon.jit
def _prefetch_rows(rows, num_bytes):
    """Prefetch so many bytes (a multiple of 16) from each address into the L2 cache."""
    gl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // dummy $0",
        "=r,l,r",
        [rows.to(gl.int64), num_bytes],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def load_scales(scales, spots, mask):
    """Scales of groups, float32."""
    if scales.dtype.element_ty == gl.uint8:
        scale = (gl.load(scales + spots, mask, other=0).to(gl.int32) << 23).to(gl.float32, bitcast=True)
    else:
        scale = gl.load(scales + spots, mask, other=0.0)
    return scale


@gluon.jit
def load_zeros(zeros, spots, mask):
    """Zeros of groups in eighths, int32; without any, the middle of codes of 4 bits."""
    zero = gl.full(spots.shape, 64, gl.int32, spots.type.layout)
    if zeros is not None:
        zero = gl.load(zeros + spots, mask, other=0).to(gl.int32)
    return zero


@gluon.jit
def _copy(spots, mask, is_column, slot):
    """Start the copy of an operand's tile into its ring slot, with zeros past the end."""
    copy_async(slot, spots, mask & is_column, cache_modifier=".cg")


@gluon.jit(do_not_specialize=["num_rows"])
def stream_grouped_kernel(
    x,
    codes,
    scales,
    zeros,
    bias,
    out,
    x_stride,  # in units of 8 values, so that the compiler sees rows aligned to 16 bytes
    num_rows,
    num_channels,
    K: gl.constexpr,
    UNIT: gl.constexpr,
    GROUP: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    X_STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes ``CHANNELS`` outputs of all rows; each warp sums a slice of K; grid (channel tiles)."""
    WARPS: gl.constexpr = gl.num_warps()
    COLUMNS: gl.constexpr = 128
    ROUND: gl.constexpr = WARPS * COLUMNS
    NUM_ROUNDS: gl.constexpr = (K + ROUND - 1) // ROUND
    EARLY: gl.constexpr = NUM_ROUNDS if NUM_ROUNDS <= STAGES else STAGES - 1
    EARLY_X: gl.constexpr = NUM_ROUNDS if NUM_ROUNDS <= X_STAGES else X_STAGES - 1
    GATED: gl.constexpr = ACTIVATION != "none"
    # With a gate, the first half of a program's weight rows are the gate's, the second half the up projection's.
    CHANNELS: gl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    GROUPS: gl.constexpr = K // GROUP
    UNITS: gl.constexpr = COLUMNS // UNIT
    # Inputs of half a unit, and bytes of its codes.
    HALF: gl.constexpr = UNIT // 2
    dtype: gl.constexpr = x.dtype.element_ty
    IS_FLOAT4: gl.constexpr = scales.dtype.element_ty == gl.uint8
    # Warps are distributed over the batched dimension of the MMA: each sums its own slice of K.
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    first_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    second_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 2)
    code_layout: gl.constexpr = byte_layout(BLOCK_N, HALF, WARPS)
    row_layout: gl.constexpr = gl.SliceLayout(2, layout)
    zero_layout: gl.constexpr = gl.SliceLayout(2, code_layout)
    code_copy: gl.constexpr = gl.BlockedLayout([1, 1, 16], [1, 512 // HALF, HALF // 16], [WARPS, 1, 1], [2, 1, 0])
    x_copy: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 256 // HALF, HALF // 8], [WARPS, 1, 1], [2, 1, 0])
    ring_layout: gl.constexpr = gl.SwizzledSharedLayout(16, 1, 1, [2, 1, 0])
    x_layout: gl.constexpr = gl.SwizzledSharedLayout(8, 1 if HALF >= 64 else 64 // HALF, min(8, HALF // 8), [2, 1, 0])
    code_ring = gl.allocate_shared_memory(codes.dtype.element_ty, [STAGES * UNITS, WARPS, BLOCK_N, HALF], ring_layout)
    x_ring = gl.allocate_shared_memory(dtype, [X_STAGES * UNITS * 2, WARPS, BLOCK_M, HALF], x_layout)

    first_channel = gl.program_id(0) * CHANNELS
    code_warp, n, code_column = _places(code_copy, WARPS, BLOCK_N, HALF)
    channel = first_channel + n % CHANNELS
    is_code = (channel < num_channels) & (code_warp >= 0)
    row_of_code = n // CHANNELS * num_channels + channel
    code_column += code_warp * (COLUMNS // 2)
    code_spots = codes + (row_of_code.to(gl.int64) * (K // 2) + code_column)
    x_warp, m, x_column = _places(x_copy, WARPS, BLOCK_M, HALF)
    is_x = (m < num_rows) & (x_warp >= 0)
    x_column += x_warp * COLUMNS
    x_spots = x + (m * (x_stride * 8) + x_column)
    scale_groups, scale_column, is_scale = _own_groups(row_layout, WARPS, BLOCK_N, CHANNELS, num_channels, GROUPS)
    zero_groups, zero_column, is_zero = _own_groups(zero_layout, WARPS, BLOCK_N, CHANNELS, num_channels, GROUPS)

    for i in gl.static_range(EARLY):
        for unit in gl.static_range(UNITS):
            offset = (i * ROUND + unit * UNIT) // 2
            _copy(code_spots + offset, is_code, code_column < K // 2 - offset, code_ring.index(i * UNITS + unit))
        async_copy.commit_group()
    SCALE_BYTES: gl.constexpr = GROUPS * scales.dtype.element_ty.primitive_bitwidth // 8
    if SCALE_BYTES % 16 == 0:
        line = gl.arange(0, BLOCK_N, gl.BlockedLayout([1], [32], [WARPS], [0]))
        line = gl.minimum(first_channel + line % CHANNELS, num_channels - 1) + line // CHANNELS * num_channels
        _prefetch_rows(scales + line * GROUPS, SCALE_BYTES)
        if zeros is not None and GROUPS % 16 == 0:
            _prefetch_rows(zeros + line * GROUPS, GROUPS)
    scale = load_scales(scales, scale_groups + scale_column // GROUP, is_scale & (scale_column < K))
    zero = load_zeros(zeros, zero_groups + zero_column // GROUP, is_zero & (zero_column < K))
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for i in gl.static_range(EARLY_X):
        for half in gl.static_range(UNITS * 2):
            offset = i * ROUND + half * HALF
            _copy(x_spots + offset, is_x, x_column < K - offset, x_ring.index(i * UNITS * 2 + half))
        async_copy.commit_group()

    total = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, layout)
    none = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, layout)
    for i in range(NUM_ROUNDS):
        # This many copy groups were committed after the one that this round needs.
        async_copy.wait_group((EARLY if EARLY < EARLY_X else EARLY_X) - 1)
        if EARLY < NUM_ROUNDS and i + EARLY < NUM_ROUNDS:
            for unit in gl.static_range(UNITS):
                offset = ((i + EARLY) * ROUND + unit * UNIT) // 2
                slot = code_ring.index((i + EARLY) % STAGES * UNITS + unit)
                _copy(code_spots + offset, is_code, code_column < K // 2 - offset, slot)
        if EARLY_X < NUM_ROUNDS and i + EARLY_X < NUM_ROUNDS:
            for half in gl.static_range(UNITS * 2):
                offset = (i + EARLY_X) * ROUND + half * HALF
                slot = x_ring.index((i + EARLY_X) % X_STAGES * (UNITS * 2) + half)
                _copy(x_spots + offset, is_x, x_column < K - offset, slot)
        # Commit one group per round, even if empty, so that the count above holds.
        async_copy.commit_group()
        for unit in gl.static_range(UNITS):
            # The next unit's terms, which arrive while this one's codes are multiplied.
            if unit + 1 < UNITS:
                step = i * ROUND + (unit + 1) * UNIT
            else:
                step = (i + 1) * ROUND
            column = step + scale_column
            next_scale = load_scales(scales, scale_groups + column // GROUP, is_scale & (column < K))
            packed = code_ring.index(i % STAGES * UNITS + unit).load(code_layout)
            x_slot = (i % X_STAGES * UNITS + unit) * 2
            values = x_ring.index(x_slot).permute((0, 2, 1)).load(second_layout)
            column = step + zero_column
            next_zero = load_zeros(zeros, zero_groups + column // GROUP, is_zero & (column < K))
            more = x_ring.index(x_slot + 1).permute((0, 2, 1)).load(second_layout)
            if IS_FLOAT4:
                low, high = unpack_halves(packed, None, dtype)
            else:
                pairs, _ = gl.broadcast(zero_pair(zero, dtype)[:, :, None], packed)
                low, high = unpack_halves(packed, pairs, dtype)
            sums = mma_v2(in_order(low, first_layout), values, none)
            sums = mma_v2(in_order(high, first_layout), more, sums)
            zero = next_zero
            total += scale[:, :, None] * sums
            scale = next_scale

    result = gl.sum(total, 0).permute((1, 0))
    if GATED:
        result, other = result.reshape((BLOCK_M, 2, CHANNELS)).permute((0, 2, 1)).split()
    row = gl.arange(0, BLOCK_M, gl.SliceLayout(1, result.type.layout))[:, None]
    channel = first_channel + gl.arange(0, CHANNELS, gl.SliceLayout(0, result.type.layout))[None, :]
    is_channel = channel < num_channels
    if bias is not None:
        result += gl.load(bias + channel, is_channel, other=0.0).to(gl.float32)
    if GATED:
        if bias is not None:
            other += gl.load(bias + num_channels + channel, is_channel, other=0.0).to(gl.float32)
        result = apply_gate(result, other, ACTIVATION)
    spots = out + (row * num_channels + channel)
    gl.store(spots, result.to(out.dtype.element_ty), (row < num_rows) & is_channel)
