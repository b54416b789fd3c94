"""The Triton kernels behind :mod:`octavo.kernels.triton.experts`, where the terms are explained."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_pairs", "chunk_size"])
def count_kernel(
    chosen,
    counts,
    num_pairs,
    chunk_size,
    NUM_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program counts each expert's pairs in a chunk of them; grid (chunks), ``counts`` is ``[chunks, NUM_BINS]``."""
    chunk = tl.program_id(0)
    own = tl.zeros((NUM_BINS,), tl.int32)
    end = tl.minimum((chunk + 1) * chunk_size, num_pairs)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for start in range(chunk * chunk_size, end, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_pair = index < end
        own += tl.histogram(tl.load(chosen + index, is_pair, other=0).to(tl.int32), NUM_BINS, is_pair)
    tl.store(counts + chunk * NUM_BINS + tl.arange(0, NUM_BINS), own)


@triton.jit(do_not_specialize=["num_pairs", "chunk_size"])
def order_kernel(
    chosen,
    counts,
    pairs,
    tiles,
    num_tiles,
    num_pairs,
    chunk_size,
    NUM_CHUNKS: tl.constexpr,
    NUM_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program orders one expert's pairs of a chunk; the first chunk's writes the row tiles. Grid (experts, chunks).

    Args:
        counts: see :func:`count_kernel`; None if there is one chunk, whose pairs each program counts for itself.
    """
    expert, chunk = tl.program_id(0), tl.program_id(1)
    bins = tl.arange(0, NUM_BINS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if counts is None:
        totals = tl.zeros((NUM_BINS,), tl.int32)
        for start in range(0, num_pairs, BLOCK):
            index = start + tl.arange(0, BLOCK)
            is_pair = index < num_pairs
            totals += tl.histogram(tl.load(chosen + index, is_pair, other=0).to(tl.int32), NUM_BINS, is_pair)
        earlier = totals * 0
    else:
        chunks = tl.arange(0, NUM_CHUNKS)[:, None]
        table = tl.load(counts + chunks * NUM_BINS + bins[None, :])
        totals = tl.sum(table, 0)
        earlier = tl.sum(tl.where(chunks < chunk, table, 0), 0)
    first = tl.sum(tl.where(bins < expert, totals, 0), 0)
    end = first + tl.sum(tl.where(bins == expert, totals, 0), 0)

    place = first + tl.sum(tl.where(bins == expert, earlier, 0), 0)
    last = tl.minimum((chunk + 1) * chunk_size, num_pairs)
    for start in range(chunk * chunk_size, last, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_own = (tl.load(chosen + index, index < last, other=-1) == expert).to(tl.int32)
        tl.store(pairs + place + tl.cumsum(is_own, 0) - 1, index, is_own != 0)
        place += tl.sum(is_own, 0)
    if chunk == 0:
        tile_counts = (totals + BLOCK_M - 1) // BLOCK_M
        tile = tiles + tl.sum(tl.where(bins < expert, tile_counts, 0), 0) * 3
        for start in range(first, end, BLOCK_M):
            tl.store(tile, expert)
            tl.store(tile + 1, start)
            tl.store(tile + 2, tl.minimum(start + BLOCK_M, end))
            tile += 3
        if expert == 0:
            tl.store(num_tiles, tl.sum(tile_counts, 0))


@triton.jit
def experts_kernel(
    x,
    weight,
    weight_tiles,
    x_tiles,
    bias,
    shares,
    y,
    pairs,
    tiles,
    num_tiles,
    num_outputs,
    num_features,
    x_stride,
    num_chosen,
    alpha,
    limit,
    ACTIVATION: tl.constexpr,
    WEIGHS: tl.constexpr,
    JOINED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program multiplies a row tile with ``BLOCK_N`` of its expert's outputs; grid (tiles of outputs, row tiles).

    The weight is the M operand of the tensor cores, in units of 64 rows whatever the tile is. ``JOINED``, half of such
    a unit are the gate's rows and half the up projection's.

    With an activation the program gathers rows of tokens, multiplies them with ``BLOCK_N`` rows of the gate and as many
    of the up projection, and writes in the order of ``pairs``; without one it reads in that order and writes to the
    pairs' numbers.

    Args:
        weight_tiles, x_tiles: TMA descriptors of ``weight`` and of ``x``, or None to load through pointers.
    """
    GATED: tl.constexpr = ACTIVATION != "none"
    ROWS: tl.constexpr = 2 * BLOCK_N if JOINED else BLOCK_N
    row_tile = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if row_tile >= tl.load(num_tiles):
        return
    expert = tl.load(tiles + row_tile * 3)
    first_place = tl.load(tiles + row_tile * 3 + 1)
    places = first_place + tl.arange(0, BLOCK_M)
    is_row = places < tl.load(tiles + row_tile * 3 + 2)
    own = tl.load(pairs + places, is_row, other=0)
    x_rows = x + (own // num_chosen if GATED else places).to(tl.int64) * x_stride

    first_n = tl.program_id(0) * BLOCK_N
    first_row = expert * num_outputs * (2 if GATED else 1)
    rows = tl.arange(0, ROWS)
    # Outputs past the end read the last row instead: cheaper than a mask, and they are not stored.
    numbers = first_row + rows // BLOCK_N * num_outputs + tl.minimum(first_n + rows % BLOCK_N, num_outputs - 1)
    weight_rows = weight + numbers.to(tl.int64) * num_features
    up_offset = num_outputs.to(tl.int64) * num_features

    gate = tl.zeros((ROWS, BLOCK_M), tl.float32)
    up = tl.zeros((ROWS, BLOCK_M), tl.float32)
    for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
        columns = k + tl.arange(0, BLOCK_K)
        is_column = (columns < num_features)[None, :]
        if x_tiles is not None:
            x_tile = x_tiles.load([first_place, k])
        elif EVEN_K:
            x_tile = tl.load(x_rows[:, None] + columns[None, :], is_row[:, None], other=0.0)
        else:
            x_tile = tl.load(x_rows[:, None] + columns[None, :], is_row[:, None] & is_column, other=0.0)
        if weight_tiles is not None:
            gate_tile = weight_tiles.load([first_row + first_n, k])
        elif EVEN_K:
            gate_tile = tl.load(weight_rows[:, None] + columns[None, :])
        else:
            gate_tile = tl.load(weight_rows[:, None] + columns[None, :], is_column, other=0.0)
        gate = tl.dot(gate_tile, x_tile.T, gate, input_precision="ieee")
        if GATED and not JOINED:
            if weight_tiles is not None:
                up_tile = weight_tiles.load([first_row + num_outputs + first_n, k])
            elif EVEN_K:
                up_tile = tl.load((weight_rows + up_offset)[:, None] + columns[None, :])
            else:
                up_tile = tl.load((weight_rows + up_offset)[:, None] + columns[None, :], is_column, other=0.0)
            up = tl.dot(up_tile, x_tile.T, up, input_precision="ieee")
    if JOINED:
        gate, up = tl.split(tl.permute(tl.reshape(gate, (2, BLOCK_N, BLOCK_M)), (1, 2, 0)))

    n = first_n + tl.arange(0, BLOCK_N)
    is_output = n < num_outputs
    if WEIGHS:
        share = tl.load(shares + own, is_row, other=0.0)[None, :]
        gate *= share
        up *= share
    if bias is not None:
        gate += tl.load(bias + first_row + n, is_output, other=0.0).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(bias + first_row + num_outputs + n, is_output, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate = activate(gate, up, alpha, limit, ACTIVATION)
    targets = places if GATED else own
    spots = y + targets.to(tl.int64)[None, :] * num_outputs + n[:, None]
    tl.store(spots, gate.to(y.dtype.element_ty), is_row[None, :] & is_output[:, None])


@triton.jit
def activate(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """An expert's activation in float32; see :class:`octavo.records.experts.ExpertSpec`."""
    slope = gate
    if ACTIVATION == "clamped_swiglu":
        gate = tl.minimum(gate, limit)
        slope = alpha * gate
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
    elif ACTIVATION == "clamped_silu":
        gate = tl.minimum(gate, limit)
        slope = gate
        up = tl.minimum(tl.maximum(up, -limit), limit)
    elif ACTIVATION == "swiglu_step":
        up = tl.minimum(tl.maximum(up, -limit), limit)
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(z)) / 2 is sigmoid(2z).
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    else:
        tl.static_assert(ACTIVATION == "silu")
    gate *= tl.sigmoid(slope)
    if ACTIVATION == "swiglu_step":
        gate = tl.minimum(gate, limit)
    return gate * up
