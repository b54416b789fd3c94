"""The Triton kernel for wide and for deterministic small-M GEMMs ``y = x Wᵀ``; :mod:`linear_plan` chooses its tiles.

The weight is the M operand of the tensor cores: a program multiplies a tile of 64 or 128 weight rows (output channels)
by 16 to 256 batch rows, so a batch of one wastes tensor-core work but no bandwidth. The sum over the input features is
split into parts, one program each, to keep every multiprocessor reading. The last program of a tile to arrive adds the
parts in their fixed order, so the bits do not depend on which program was first.

Bits do not depend on the tile either: a tensor-core instruction adds 16 products to each output independently of the
other columns of the tile, and instructions run in the order of the input features. So an output's bits depend only on
its own row, its channel's weights and the part boundaries.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "num_parts", "prefetch"])
def linear_kernel(
    x,
    weight,
    x_tiles,
    weight_tiles,
    bias,
    y,
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_features,
    x_stride,
    num_parts,
    prefetch,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MODE: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes a tile of ``y`` or a part of its sum; grid (channel tiles, programs per tile, row tiles).

    Args:
        x: ``[num_rows, num_features]``, rows ``x_stride`` apart.
        weight: ``[num_channels, num_features]``; with an activation the gate's rows, then as many of the up projection.
        x_tiles, weight_tiles: TMA descriptors of the two, or None to load through pointers.
        bias: one value per weight row, or None.
        y: ``[num_rows, num_channels]``.
        partials: float32 ``[num_parts, (2,) num_rows, channels padded to whole tiles]`` in mode "split".
        arrivals: int32, one counter per tile, zero before and after the launch; in mode "split".
        num_parts: number of parts of the sum.
        prefetch: columns of each weight row to prefetch into the L2 cache before waiting for earlier kernels.
        ACTIVATION: "none", or a gate: "silu", "gelu_tanh".
        MODE: "one" part; "split": one program per part; "whole": one program adds all parts, bit-equal to "split".
    """
    GATED: tl.constexpr = ACTIVATION != "none"
    tile_n = tl.program_id(0)
    tile_m = tl.program_id(2)
    part = tl.program_id(1)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    # Rows past the end read the last row instead: cheaper than a mask, and they are not stored.
    weight_rows = weight + tl.minimum(n, num_channels - 1).to(tl.int64) * num_features
    x_rows = x + m.to(tl.int64) * x_stride
    up_offset = num_channels.to(tl.int64) * num_features
    if PDL:
        if prefetch > 0:
            start, end = _part_borders(part, num_parts, num_features, BLOCK_K)
            columns = tl.minimum(prefetch, end - start)
            _prefetch_rows(weight_rows + start, columns)
            if GATED:
                _prefetch_rows(weight_rows + up_offset + start, columns)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    gate, up = _multiply(
        x_rows, weight_rows, x_tiles, weight_tiles, tile_m, tile_n, m < num_rows, up_offset, part, num_parts,
        num_channels, num_features, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GATED, MODE == "whole", EVEN_K,
    )  # fmt: skip

    is_last = part >= 0
    if MODE == "split":
        width = tl.num_programs(0) * BLOCK_N
        factor = num_rows.to(tl.int64) * width
        stride = factor * 2 if GATED else factor
        spots = partials + m[None, :] * width + n[:, None]
        is_row = (m < num_rows)[None, :]
        tl.store(spots + part * stride, gate, mask=is_row)
        if GATED:
            tl.store(spots + part * stride + factor, up, mask=is_row)
        # All threads' stores come before the arrival; the last program's loads come after it.
        tl.debug_barrier()
        arrival = arrivals + tile_m * tl.num_programs(0) + tile_n
        is_last = tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == num_parts - 1
        if is_last:
            tl.store(arrival, 0)
            gate = add_parts(spots, stride, num_parts, is_row, BLOCK_M, BLOCK_N)
            if GATED:
                up = add_parts(spots + factor, stride, num_parts, is_row, BLOCK_M, BLOCK_N)
    if is_last:
        if bias is not None:
            gate += tl.load(bias + n, mask=n < num_channels, other=0.0).to(tl.float32)[:, None]
        if GATED:
            if bias is not None:
                up += tl.load(bias + num_channels + n, mask=n < num_channels, other=0.0).to(tl.float32)[:, None]
            gate = _activate(gate, ACTIVATION) * up
        spots_y = y + m[None, :].to(tl.int64) * num_channels + n[:, None]
        tl.store(spots_y, gate.to(y.dtype.element_ty), mask=(m < num_rows)[None, :] & (n < num_channels)[:, None])


@triton.jit
def _multiply(
    x_rows,
    weight_rows,
    x_tiles,
    weight_tiles,
    tile_m,
    tile_n,
    is_row,
    up_offset,
    part,
    num_parts,
    num_channels,
    num_features,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    GATED: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """A part's sums, ``[BLOCK_N, BLOCK_M]`` float32, and those of the up projection (zeros if there is none).

    If ``WHOLE``, the sum over all parts, each accumulated separately; one loop, so that the load pipeline never drains.
    """
    start, border = _part_borders(part, num_parts, num_features, BLOCK_K)
    end = border
    gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if WHOLE:
        end = num_features
        whole_gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        whole_up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in tl.range(start, end, BLOCK_K, num_stages=STAGES):
        columns = k + tl.arange(0, BLOCK_K)
        if weight_tiles is not None:
            gate_tile = weight_tiles.load([tile_n * BLOCK_N, k])
            x_tile = x_tiles.load([tile_m * BLOCK_M, k])
        elif EVEN_K:
            gate_tile = tl.load(weight_rows[:, None] + columns[None, :])
            x_tile = tl.load(x_rows[:, None] + columns[None, :], mask=is_row[:, None], other=0.0)
        else:
            is_column = (columns < num_features)[None, :]
            gate_tile = tl.load(weight_rows[:, None] + columns[None, :], mask=is_column, other=0.0)
            x_tile = tl.load(x_rows[:, None] + columns[None, :], mask=is_row[:, None] & is_column, other=0.0)
        gate = tl.dot(gate_tile, x_tile.T, gate)
        if GATED:
            if weight_tiles is not None:
                up_tile = weight_tiles.load([num_channels + tile_n * BLOCK_N, k])
            elif EVEN_K:
                up_tile = tl.load((weight_rows + up_offset)[:, None] + columns[None, :])
            else:
                is_column = (columns < num_features)[None, :]
                up_tile = tl.load((weight_rows + up_offset)[:, None] + columns[None, :], mask=is_column, other=0.0)
            up = tl.dot(up_tile, x_tile.T, up)
        if WHOLE and k + BLOCK_K >= border:
            whole_gate += gate
            gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            if GATED:
                whole_up += up
                up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            part += 1
            _, border = _part_borders(part, num_parts, num_features, BLOCK_K)
    if WHOLE:
        gate, up = whole_gate, whole_up
    return gate, up


@triton.jit
def _part_borders(part, num_parts, num_features, BLOCK_K: tl.constexpr):
    """The columns ``[start, end)`` of a part: whole units, split evenly; the same for every ``BLOCK_K`` up to 128."""
    UNIT: tl.constexpr = 128 if BLOCK_K <= 128 else BLOCK_K
    units = tl.cdiv(num_features, UNIT)
    start = part * units // num_parts * UNIT
    end = (part + 1) * units // num_parts * UNIT
    return start, tl.minimum(end, num_features)


@triton.jit
def add_parts(spots, stride, num_parts, is_row, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The sum of all parts in order; small tiles load several parts at a time to hide the latency."""
    AT_ONCE: tl.constexpr = 8 if BLOCK_M * BLOCK_N <= 2048 else 4 if BLOCK_M * BLOCK_N <= 4096 else 1
    total = tl.zeros((BLOCK_N, BLOCK_M), spots.dtype.element_ty)
    for first in range(0, num_parts, AT_ONCE):
        for ahead in tl.static_range(AT_ONCE):
            spot = spots + (first + ahead) * stride
            # Bypass L1: another multiprocessor wrote this.
            total += tl.load(spot, mask=is_row & (first + ahead < num_parts), other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _prefetch_rows(rows, columns):
    """Prefetch ``columns`` values of each row into the L2 cache (16-byte multiples)."""
    num_bytes = columns * (rows.dtype.element_ty.primitive_bitwidth // 8)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // dummy $0",
        "=r,l,r",
        [rows.to(tl.int64), num_bytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _activate(gate, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        slope = gate
    else:
        tl.static_assert(ACTIVATION == "gelu_tanh")
        # (1 + tanh(z)) / 2 is sigmoid(2z).
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(slope)
