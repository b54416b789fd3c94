"""Triton kernels for weights of packed integers: a small-M GEMM that unpacks them, and one that writes their values.

The weight is the M operand of the tensor cores. A program multiplies 64 outputs by 16 to 64 rows, one unit of inputs at
a time: codes less their zeros, in eighths, are small integers, which every type of activations has exactly, and the
sums of a unit are scaled in float32. Codes of a table become its values, in the type of activations. A unit of two
groups has two sums, one for each half. The sum over the inputs is split into parts, one program each, so that every
multiprocessor reads. The last program of a tile to arrive adds them in their order.

Where the parts are divided follows from the weight alone. So an output's bits depend only on its own row and weights.
"""

import triton
import triton.language as tl

from octavo.kernels.triton.linear_kernel import add_parts
from octavo.kernels.triton.pair_unpack import float8_values

BLOCK_N = 64


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def grouped_kernel(
    x,
    codes,
    scales,
    zeros,
    offsets,
    table,
    factors,
    bias,
    y,
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_features,
    x_stride,
    num_parts,
    BITS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    MIDDLE: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP_UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes a tile of ``y`` or a part of its sum; grid (channel tiles, programs per tile, row tiles).

    Args:
        x: ``[num_rows, num_features]``, rows ``x_stride`` apart.
        codes, scales, zeros, offsets, table, factors: see :class:`octavo.kernels.grouped.GroupedTensors`; scales
            that are float8 values are their bytes here, and the table is of the type of ``x``.
        bias: one value per channel, or None.
        y: ``[num_rows, num_channels]``.
        partials: float32 ``[num_parts, num_rows, channels padded to whole tiles]`` if ``SPLIT``.
        arrivals: int32, one counter per tile, zero before and after the launch; if ``SPLIT``.
        num_parts: number of parts of the sum.
        IS_FLOAT: whether codes are 4-bit floats, with exponents as scales.
        MIDDLE: the zero of groups that have none of their own, as zeros are stored.
        UNIT: inputs that are packed together and multiplied at a time.
        GROUP_UNITS: units of a group; 0 if a group is half a unit.
        SPLIT: whether a program computes one part; otherwise it adds all parts, bit-equal.
    """
    tile_n, part, tile_m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    num_units = num_features // UNIT
    num_groups = _groups(num_units, GROUP_UNITS)
    # Rows past the end read the last row instead: cheaper than a mask, and they are not stored.
    rows = tl.minimum(n, num_channels - 1).to(tl.int64)
    code_rows = codes + rows * (num_features * BITS // 8)
    x_rows = x + m.to(tl.int64) * x_stride
    is_row = m < num_rows
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if SPLIT:
        total = _multiply(
            x_rows, code_rows, scales, zeros, offsets, table, rows * num_groups, is_row, part, num_parts, num_units,
            BITS, IS_FLOAT, MIDDLE, UNIT, GROUP_UNITS, BLOCK_M, BLOCK_N, STAGES,
        )  # fmt: skip
    else:
        total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for each in range(num_parts):
            total += _multiply(
                x_rows, code_rows, scales, zeros, offsets, table, rows * num_groups, is_row, each, num_parts, num_units,
                BITS, IS_FLOAT, MIDDLE, UNIT, GROUP_UNITS, BLOCK_M, BLOCK_N, STAGES,
            )  # fmt: skip
    is_last = part >= 0
    if SPLIT:
        width = tl.num_programs(0) * BLOCK_N
        stride = num_rows.to(tl.int64) * width
        spots = partials + m[None, :] * width + n[:, None]
        tl.store(spots + part * stride, total, mask=is_row[None, :])
        # All threads' stores come before the arrival; the last program's loads come after it.
        tl.debug_barrier()
        arrival = arrivals + tile_m * tl.num_programs(0) + tile_n
        is_last = tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == num_parts - 1
        if is_last:
            tl.store(arrival, 0)
            total = add_parts(spots, stride, num_parts, is_row[None, :], BLOCK_M, BLOCK_N)
    if is_last:
        if factors is not None:
            total *= tl.load(factors + n, mask=n < num_channels, other=0.0)[:, None]
        if bias is not None:
            total += tl.load(bias + n, mask=n < num_channels, other=0.0).to(tl.float32)[:, None]
        spots_y = y + m[None, :].to(tl.int64) * num_channels + n[:, None]
        tl.store(spots_y, total.to(y.dtype.element_ty), mask=is_row[None, :] & (n < num_channels)[:, None])


@triton.jit
def _multiply(
    x_rows,
    code_rows,
    scales,
    zeros,
    offsets,
    table,
    group_rows,
    is_row,
    part,
    num_parts,
    num_units,
    BITS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    MIDDLE: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP_UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A part's sums, ``[BLOCK_N, BLOCK_M]`` float32."""
    # Loads of 4 bits are half a unit long, and each serves two products.
    WIDTH: tl.constexpr = UNIT * BITS // 8
    columns = tl.arange(0, WIDTH)
    dtype: tl.constexpr = x_rows.dtype.element_ty
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for unit in tl.range(part * num_units // num_parts, (part + 1) * num_units // num_parts, num_stages=STAGES):
        packed = tl.load(code_rows[:, None] + unit * WIDTH + columns[None, :])
        if BITS == 4:
            packed = _in_order(packed, BLOCK_N, WIDTH)
        x_spots = x_rows[:, None] + unit * UNIT + columns[None, :]
        x_low = tl.load(x_spots, mask=is_row[:, None], other=0.0)
        spots = group_rows + _groups(unit, GROUP_UNITS)
        scale = _scale(tl.load(scales + spots), table, BITS, IS_FLOAT)
        zero = tl.full((BLOCK_N,), MIDDLE, tl.int16)
        if zeros is not None:
            zero = tl.load(zeros + spots).to(tl.int16)
        if BITS == 4:
            x_high = tl.load(x_spots + WIDTH, mask=is_row[:, None], other=0.0)
            product = tl.dot(_numbers(packed & 15, zero[:, None], table, IS_FLOAT).to(dtype), x_low.T)
            high = _numbers(packed >> 4, zero[:, None], table, IS_FLOAT).to(dtype)
            if GROUP_UNITS == 0:
                total += scale[:, None] * product
                scale = _scale(tl.load(scales + spots + 1), table, BITS, IS_FLOAT)
                product = tl.dot(high, x_high.T)
            else:
                product = tl.dot(high, x_high.T, product)
        elif packed.dtype == tl.uint8:
            product = tl.dot((packed.to(tl.int16) - zero[:, None]).to(dtype), x_low.T)
        else:
            product = tl.dot(packed.to(dtype), x_low.T)
        if offsets is not None:  # times the sum of the inputs
            ones = tl.full((BLOCK_N, WIDTH), 1.0, dtype)
            sums = tl.dot(ones, x_low.T)
            if BITS == 4:
                sums = tl.dot(ones, x_high.T, sums)
            total += tl.load(offsets + spots).to(tl.float32)[:, None] * sums
        total += scale[:, None] * product
    return total


@triton.jit
def _in_order(packed, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Bytes of a unit in the order of their inputs; see :func:`octavo.kernels.grouped.byte_order`."""
    return packed.reshape(ROWS, 4, WIDTH // 16, 2, 2).permute(0, 2, 4, 1, 3).reshape(ROWS, WIDTH)


@triton.jit
def _groups(units, GROUP_UNITS: tl.constexpr):
    """The whole groups of so many units."""
    if GROUP_UNITS == 0:
        count = units * 2
    else:
        count = units // GROUP_UNITS
    return count


@triton.jit
def _numbers(codes, zero, table, IS_FLOAT: tl.constexpr):
    """Codes of 4 bits before they are scaled: values of a table, or small integers, which are eight times the value,
    and of floats twice."""
    numbers = codes.to(tl.int16)
    if table is not None:
        numbers = tl.load(table + numbers)
    elif IS_FLOAT:
        exponent = (numbers >> 1) & 3
        size = ((numbers & 1) + tl.where(exponent > 0, 2, 0)) << (tl.maximum(exponent, 1) - 1)
        numbers = tl.where(numbers < 8, size, -size).to(tl.int16)
    else:
        numbers = (numbers << 3) - zero
    return numbers


@triton.jit
def _scale(stored, table, BITS: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Scales of :func:`_numbers`, or as they are for 8 bits; those of floats are powers of two by their exponents.

    Beside a table, bytes are float8 values.
    """
    scale = stored.to(tl.float32)
    if table is not None:
        if stored.dtype == tl.uint8:
            scale = float8_values(stored)
    elif IS_FLOAT:
        scale = (stored.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 0.5
    elif BITS == 4:
        scale = scale * 0.125
    return scale


@triton.jit
def dequantize_kernel(
    codes,
    scales,
    zeros,
    offsets,
    table,
    factors,
    index,  # the channels, int64; None for those in order
    values,
    num_channels,
    num_features,
    BITS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    MIDDLE: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP_UNITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program writes a unit of inputs of some channels, ``[num_channels, in]``; grid (units, channel tiles)."""
    unit = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_channel = n < num_channels
    places = n.to(tl.int64)
    rows = places
    if index is not None:
        _wait(PDL)
        rows = tl.load(index + n, is_channel, other=0)
    spots = rows * _groups(num_features // UNIT, GROUP_UNITS) + _groups(unit, GROUP_UNITS)
    scale = _scale(tl.load(scales + spots, is_channel), table, BITS, IS_FLOAT)[:, None]
    high_scale = scale
    if GROUP_UNITS == 0:
        high_scale = _scale(tl.load(scales + spots + 1, is_channel), table, BITS, IS_FLOAT)[:, None]
    if factors is not None:
        factor = tl.load(factors + rows, is_channel)[:, None]
        scale, high_scale = scale * factor, high_scale * factor
    zero = tl.full((BLOCK_N,), MIDDLE, tl.int16)
    if zeros is not None:
        zero = tl.load(zeros + spots, is_channel).to(tl.int16)
    offset = tl.zeros((BLOCK_N,), tl.float32)
    if offsets is not None:
        offset = tl.load(offsets + spots, is_channel).to(tl.float32)
    zero, offset = zero[:, None], offset[:, None]
    dtype: tl.constexpr = values.dtype.element_ty
    spots_y = values + (places * num_features)[:, None] + unit * UNIT
    if BITS == 4:
        # Of the 8 neighbours that a thread stores at once, each word has two, and as many of the other half.
        HALF: tl.constexpr = UNIT // 2
        PAIRS: tl.constexpr = UNIT // 16
        WORDS: tl.constexpr = UNIT // 32
        pair = tl.arange(0, PAIRS)[None, :]
        words = codes.to(tl.pointer_type(tl.uint32)) + (rows * (num_features // 8))[:, None] + unit * (UNIT // 8)
        words += pair // 2
        mask = is_channel[:, None]
        first, second = _pair(words, pair, mask), _pair(words + WORDS, pair, mask)
        third, fourth = _pair(words + 2 * WORDS, pair, mask), _pair(words + 3 * WORDS, pair, mask)
        both = tl.join(tl.join(first, third), tl.join(second, fourth)).reshape(BLOCK_N, HALF // 2)
        packed = tl.join(both & 255, both >> 16).reshape(BLOCK_N, HALF)
        low = _numbers(packed & 15, zero, table, IS_FLOAT).to(tl.float32) * scale + offset
        high = _numbers(packed >> 4, zero, table, IS_FLOAT).to(tl.float32) * high_scale + offset
        spots_y += tl.arange(0, HALF)[None, :]
        if index is None:
            _wait(PDL)
        tl.store(spots_y, low.to(dtype), mask)
        tl.store(spots_y + HALF, high.to(dtype), mask)
    else:
        columns = tl.arange(0, UNIT)[None, :]
        mask = is_channel[:, None] & (columns >= 0)
        packed = tl.load(codes + (rows * num_features)[:, None] + unit * UNIT + columns, mask)
        found = (packed.to(tl.float32) - zero.to(tl.float32)) * scale + offset
        if index is None:
            _wait(PDL)
        tl.store(spots_y + columns, found.to(dtype), mask)


@triton.jit
def _pair(words, pair, mask):
    """The bytes of two neighbours, in the low bits of the halves of a word: even pairs are in a word's even bytes."""
    return (tl.load(words, mask) >> (pair % 2 * 8)) & 0x00FF00FF


@triton.jit
def _wait(PDL: tl.constexpr):
    """Until an earlier GEMM no longer reads the values that are to be replaced."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
