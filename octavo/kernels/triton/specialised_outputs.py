"""A tile's sums in the GEMMs of :mod:`.linear_specialised`: its parts are added up, scaled, gated and written."""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.triton.gluon_names import barrier
from octavo.kernels.triton.hopper_tiles import partial_places
from octavo.kernels.triton.linear_stream import apply_gate


@gluon.jit
def merge_parts(
    total,
    outputs,
    num_parts,
    tile,
    block,
    first_row,
    GROUP: gl.constexpr,
    GROUPS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Add up the parts of a tile and write it."""
    MOST: gl.constexpr = min(total.shape[1] // 8, 4)  # pieces of eight rows or more
    if GROUPS > 1:  # with few registers
        _add_parts(total, outputs, num_parts, tile, block, first_row, GROUP, GROUPS, ACTIVATION)
    elif num_parts == 2:
        _exchange(total, outputs, tile, block, first_row, 2, ACTIVATION)
    elif num_parts == MOST:
        _exchange(total, outputs, tile, block, first_row, MOST, ACTIVATION)
    else:
        _add_parts(total, outputs, num_parts, tile, block, first_row, GROUP, GROUPS, ACTIVATION)


@gluon.jit
def _exchange(total, outputs, tile, block, first_row, PARTS: gl.constexpr, ACTIVATION: gl.constexpr):
    """:func:`_add_parts` of one warpgroup and two or four parts: sums of the rows that it writes stay in registers."""
    partials, arrivals = outputs[4], outputs[5]
    rows: gl.constexpr = total.shape[1]
    piece_rows: gl.constexpr = rows // PARTS
    piece_size: gl.constexpr = 64 * piece_rows
    part = gl.program_id(0) % PARTS
    first, second = _halves(total)
    if PARTS == 2:
        pieces = (first, second)
    else:
        pieces = _halves(first) + _halves(second)
    own = pieces[0]
    layout: gl.constexpr = own.type.layout
    spots = partials + tile * (PARTS * 64 * rows) + partial_places(piece_rows, piece_rows, layout)
    for piece in gl.static_range(PARTS):
        if piece == part:
            own = pieces[piece]
        else:
            gl.store(spots + (part * (64 * rows) + piece * piece_size), pieces[piece])
    # All threads' stores come before the arrival, and their loads after those of the others.
    barrier()
    arrival = arrivals + tile
    num_arrived = gl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") + 1
    while num_arrived < PARTS:
        num_arrived = gl.atomic_add(arrival, 0, sem="acquire", scope="gpu")
    for step in gl.static_range(1, PARTS):
        other = (part + step) % PARTS
        # Bypass L1: another multiprocessor wrote this.
        own += gl.load(spots + (other * (64 * rows) + part * piece_size), cache_modifier=".cg")
    write_tile(own, outputs, block, first_row + part * piece_rows, ACTIVATION)
    # The last of those that have waited resets the counter.
    if gl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") + 1 == 2 * PARTS:
        gl.store(arrival, 0)


@gluon.jit
def _add_parts(
    total,
    outputs,
    num_parts,
    tile,
    block,
    first_row,
    GROUP: gl.constexpr,
    GROUPS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Exchange the parts of a tile's sums with the programs that share it, add up those of some rows and write these.

    All programs fit on the device at once and have no other tile, so that each may wait for the others.
    """
    partials, arrivals = outputs[4], outputs[5]
    rows: gl.constexpr = total.shape[1]
    CHUNK: gl.constexpr = min(rows, 32)
    CHUNKS: gl.constexpr = rows // CHUNK
    sums_layout: gl.constexpr = total.type.layout
    own = partials + (gl.program_id(0) * GROUPS + GROUP) * (64 * rows)
    gl.store(own + partial_places(rows, rows, sums_layout), total)
    # All threads' stores come before the arrival, and their loads after those of the others.
    barrier()
    arrival = arrivals + tile * GROUPS + GROUP
    num_arrived = gl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") + 1
    part = gl.program_id(0) % num_parts
    first_chunk, last_chunk = part * CHUNKS // num_parts, (part + 1) * CHUNKS // num_parts
    if first_chunk < last_chunk:
        while num_arrived < num_parts:
            num_arrived = gl.atomic_add(arrival, 0, sem="acquire", scope="gpu")
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 32])
        spots = partials + (tile * num_parts * GROUPS + GROUP) * (64 * rows) + partial_places(rows, CHUNK, layout)
        for chunk in range(first_chunk, last_chunk):
            sums = gl.zeros([64, CHUNK], gl.float32, layout)
            for four in range(0, num_parts, 4):
                for i in gl.static_range(4):
                    spots_of_part = spots + (chunk * (CHUNK // 8 * 128) + (four + i) * (GROUPS * 64 * rows))
                    # Bypass L1: other multiprocessors wrote this.
                    sums += gl.load(spots_of_part, four + i < num_parts, other=0.0, cache_modifier=".cg")
            _write_rows(sums, outputs, block, first_row + chunk * CHUNK, ACTIVATION)
        # The last of those that have waited resets the counter.
        if gl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") + 1 == num_parts + gl.minimum(num_parts, CHUNKS):
            gl.store(arrival, 0)


@triton.constexpr_function
def _write_layout(channels, rows):
    """How threads hold outputs ``[channels, rows]``: eight channels of a row each, a warp those of its sums."""
    pieces = [[8, 0]] if channels == 64 else []
    row_bits = [[0, 1 << bit] for bit in range(rows.bit_length() - 1)]
    num_lane_bits = 5 - len(pieces)
    lanes = pieces + row_bits[:num_lane_bits]
    lanes += [[0, 0]] * (5 - len(lanes))  # copies, of which one is stored
    warps = [[channels // 4, 0], [channels // 2, 0]]
    registers = [[1, 0], [2, 0], [4, 0], *row_bits[num_lane_bits:]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [channels, rows])


@gluon.jit
def _halves(total):
    """The sums ``[64, rows]`` of the first and of the second half of the rows."""
    channels: gl.constexpr = total.shape[0]
    half: gl.constexpr = total.shape[1] // 2
    first, second = total.reshape((channels, 2, half)).permute((0, 2, 1)).split()
    return first, second


@gluon.jit
def write_tile(total, outputs, block, first_row, ACTIVATION: gl.constexpr):
    """Write a block's outputs of some rows, from its sums ``[64, rows]``; 64 rows at a time, to save registers."""
    rows: gl.constexpr = total.shape[1]
    if rows > 64:
        first, second = _halves(total)
        write_tile(first, outputs, block, first_row, ACTIVATION)
        write_tile(second, outputs, block, first_row + rows // 2, ACTIVATION)
    else:
        _write_rows(total, outputs, block, first_row, ACTIVATION)


@gluon.jit
def _write_rows(total, outputs, block, first_row, ACTIVATION: gl.constexpr):
    """Write a block's outputs of some rows, from its sums ``[64, rows]``."""
    row_scales, scales, bias, out, _, _, num_rows, num_channels = outputs
    rows: gl.constexpr = total.shape[1]
    channels: gl.constexpr = 64 if ACTIVATION == "none" else 32
    m = first_row + gl.arange(0, rows, gl.SliceLayout(0, total.type.layout))
    if row_scales is not None:
        total *= gl.load(row_scales + m, m < num_rows, other=0.0)[None, :]
    if ACTIVATION != "none":
        total, other = total.reshape((4, 2, 8, rows)).permute((0, 2, 3, 1)).split()
        total, other = total.reshape((channels, rows)), other.reshape((channels, rows))
    n = block * channels + gl.arange(0, channels, gl.SliceLayout(1, total.type.layout))
    is_channel = n < num_channels
    if scales is not None:
        total *= gl.load(scales + n, is_channel, other=0.0)[:, None]
    if bias is not None:
        total += gl.load(bias + n, is_channel, other=0.0).to(gl.float32)[:, None]
    if ACTIVATION != "none":
        if scales is not None:
            other *= gl.load(scales + num_channels + n, is_channel, other=0.0)[:, None]
        if bias is not None:
            other += gl.load(bias + num_channels + n, is_channel, other=0.0).to(gl.float32)[:, None]
        total = apply_gate(total, other, ACTIVATION)
    # Warps exchange values among their threads, so that each stores eight channels of a row at once.
    layout: gl.constexpr = _write_layout(channels, rows)
    values = gl.convert_layout(total.to(out.dtype.element_ty), layout)
    n = block * channels + gl.arange(0, channels, gl.SliceLayout(1, layout))
    m = first_row + gl.arange(0, rows, gl.SliceLayout(0, layout))
    spots = out + (m.to(gl.int64)[None, :] * num_channels + n[:, None])
    gl.store(spots, values, (m < num_rows)[None, :] & (n < num_channels)[:, None])
