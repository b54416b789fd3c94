"""The grouped GEMM of :mod:`octavo.kernels.triton.packed_experts`, over packed weights."""

import triton
import triton.language as tl

from octavo.kernels.triton.code_floats import bytes_to_floats, halves_to_floats
from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.pair_unpack import (
    INTEGER_SCALE,
    scale_floats,
    unpack_bytes,
    unpack_floats,
    unpack_integers,
    unpack_scaled,
)
from octavo.kernels.triton.value_parts import PARTS, part_factor, store_parts


@triton.jit
def packed_experts_kernel(
    x,
    x_scales,
    codes,
    scales,
    zeros,
    offsets,
    factors,
    bias,
    shares,
    y,
    pairs,
    tiles,
    num_tiles,
    num_outputs,
    num_features,
    row_bytes,
    x_stride,
    num_chosen,
    alpha,
    limit,
    ACTIVATION: tl.constexpr,
    WEIGHS: tl.constexpr,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program multiplies a row tile with ``BLOCK_N`` of its expert's outputs; grid (tiles of outputs, row tiles).

    The weight is the M operand of the tensor cores, in units of 64 rows whatever the tile is. With an activation, eight
    rows of the gate and as many of the up projection take turns, so that a thread has both sums of an output.

    With an activation the program gathers rows of tokens and writes in the order of ``pairs``; without one it reads in
    that order and writes to the pairs' numbers.

    Args:
        x, y: values, or of type e5m2 and their parts (:mod:`.value_parts`), which float8 codes multiply.
        x_scales: float32 scales of float8 ``x``, one per row, or one per row and group; None if ``x`` is not rounded.
        codes, scales, zeros, offsets, factors: see :class:`octavo.kernels.packed_experts.PackedMatrices`; float8 scales
            are their bytes here.
        row_bytes: of codes.
        FORM: ``float8``, ``int8``, ``int4``, ``float4`` or ``nvfp4``.
        GROUP: inputs that share a scale; 0 if all do.
        SCALED: whether integers are scaled one by one, and rounded to the type of ``x``, rather than sums of groups;
            ``GROUP`` is then 16 or 32, and 32 for ``int4``.
        BLOCK_K: input features of a step: divides ``GROUP``, or of 4-bit floats and if ``SCALED`` is a multiple of 32.
    """
    GATED: tl.constexpr = ACTIVATION != "none"
    HALVES: tl.constexpr = 2 if GATED else 1
    ROWS: tl.constexpr = HALVES * BLOCK_N
    IS_ROUNDED: tl.constexpr = x_scales is not None
    LINES: tl.constexpr = PARTS if x.dtype.element_ty == tl.float8e5 else 1  # rows of x for a pair
    row_tile = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # All four at once, so that the codes wait for memory once.
    tile_count, expert = tl.load(num_tiles), tl.load(tiles + row_tile * 3)
    first_place, end_place = tl.load(tiles + row_tile * 3 + 1), tl.load(tiles + row_tile * 3 + 2)
    if row_tile >= tile_count:
        return
    places = first_place + tl.arange(0, BLOCK_M)
    is_row = places < end_place
    own = tl.load(pairs + places, is_row, other=0)
    inputs = (own // num_chosen if GATED else places).to(tl.int64)
    x_rows, is_line = x + inputs * x_stride, is_row
    if LINES > 1:
        lines = tl.arange(0, BLOCK_M * LINES)
        places_of_lines = first_place + lines // LINES
        is_line = (places_of_lines < end_place) & (lines % LINES < LINES - 1)
        inputs_of_lines = places_of_lines
        if GATED:
            inputs_of_lines = tl.load(pairs + places_of_lines, is_line, other=0) // num_chosen
        x_rows = x + (inputs_of_lines.to(tl.int64) * LINES + lines % LINES) * x_stride

    first_n = tl.program_id(0) * BLOCK_N
    rows = tl.arange(0, ROWS)
    half = rows // 8 % HALVES
    # Outputs past the end read the last rows instead: cheaper than a mask, and they are not stored.
    eights = half * num_outputs + tl.minimum(first_n + rows // (8 * HALVES) * 8, num_outputs - 8)
    numbers = tl.max_contiguous(tl.multiple_of(eights + rows % 8, 8), 8)
    num_numbers = num_outputs * HALVES
    code_rows = codes + (expert.to(tl.int64) * num_numbers + numbers) * row_bytes
    first_term = expert.to(tl.int64) * num_numbers
    if GROUP > 0:
        first_term *= num_features // GROUP

    if GROUP == 0:
        # Requested before the codes, or each program would wait for memory once more at its end.
        whole_scale = tl.load(scales + first_term + numbers)
    elif factors is not None:
        whole_scale = tl.load(factors + expert.to(tl.int64) * num_numbers + numbers)
    # A factor that the compiler does not know: it would chain the sums of steps, and wait for each of their parts.
    one = tl.minimum(num_features, 1).to(tl.float32)
    acc = tl.zeros((ROWS, BLOCK_M * LINES), tl.float32)
    dtype: tl.constexpr = x.dtype.element_ty
    if FORM == "float4" or FORM == "nvfp4":  # noqa: PLR1714
        UNITS: tl.constexpr = BLOCK_K // 32
        units = tl.arange(0, UNITS)
        num_units = num_features // 32
        term_spots = scales + first_term + numbers[:, None]
        for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
            columns = k + tl.arange(0, BLOCK_K)
            x_tile = _load_rows(x_rows, columns, num_features, is_row, EVEN_K)
            # Past the end, activations are zero, whatever finite numbers they meet.
            own_units = k // 32 + units if EVEN_K else tl.minimum(k // 32 + units, num_units - 1)
            packed = _load_packed(code_rows, own_units)
            if FORM == "float4":
                exponents = tl.load(term_spots + own_units[None, :] * num_numbers)
                low, high = unpack_floats(packed, exponents.to(tl.int32)[:, :, None], dtype)
            else:
                spots = term_spots + own_units[None, :] * (2 * num_numbers)
                low_scales, high_scales = tl.load(spots), tl.load(spots + num_numbers)
                low, high = unpack_scaled(packed, low_scales[:, :, None], high_scales[:, :, None], dtype)
            acc += one * tl.dot(_in_order(low, high, ROWS, BLOCK_K), x_tile.T, input_precision="ieee")
        acc = scale_floats(acc, dtype)
    elif GROUP == 0:
        for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
            columns = k + tl.arange(0, BLOCK_K)
            # Before the inputs, which wait for the pairs' numbers.
            packed = _load_codes(code_rows, columns, num_features, EVEN_K)
            x_tile = _load_rows(x_rows, columns, num_features, is_line, EVEN_K)
            if IS_ROUNDED:
                acc = tl.dot(packed, x_tile.T, acc)
            elif LINES > 1:
                # The tensor cores add float8 products with fewer bits than float32 has.
                acc += one * tl.dot(packed, x_tile.T)
            else:
                acc += one * tl.dot(unpack_bytes(packed, dtype), x_tile.T, input_precision="ieee")
    elif SCALED:
        num_groups = num_features // GROUP
        term_spots = first_term + numbers[:, None]
        for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
            columns = k + tl.arange(0, BLOCK_K)
            x_tile = _load_rows(x_rows, columns, num_features, is_row, EVEN_K)
            groups = k // GROUP + tl.arange(0, BLOCK_K // GROUP)
            if not EVEN_K:
                groups = tl.minimum(groups, num_groups - 1)  # past the end, activations are zero
            own_terms = term_spots + groups[None, :] * num_numbers
            scale = tl.load(scales + own_terms)
            if FORM == "int4":
                offset = tl.load(offsets + own_terms).to(tl.float32) - scale * 8
                low, high = halves_to_floats(_load_packed(code_rows, groups), FORM)
                low = low * scale[:, :, None] + offset[:, :, None]
                high = high * scale[:, :, None] + offset[:, :, None]
                tile = _in_order(low.to(dtype), high.to(dtype), ROWS, BLOCK_K)
            else:
                tile = bytes_to_floats(_load_groups(code_rows, groups, GROUP), FORM) * scale[:, :, None]
                if offsets is not None:
                    tile += tl.load(offsets + own_terms).to(tl.float32)[:, :, None]
                tile = tl.reshape(tile.to(dtype), (ROWS, BLOCK_K))
            acc += one * tl.dot(tile, x_tile.T, input_precision="ieee")
    else:
        num_groups = num_features // GROUP
        term_spots = scales + first_term + numbers
        x_spots = x_scales + inputs * num_groups if IS_ROUNDED else x_rows
        scale = tl.load(term_spots)
        for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
            columns = k + tl.arange(0, BLOCK_K)
            group = k // GROUP
            next_group = tl.minimum((k + BLOCK_K) // GROUP, num_groups - 1)
            if FORM == "int4":
                packed = _load_packed(code_rows, k // 32 + tl.arange(0, BLOCK_K // 32))
                if zeros is None:
                    zero = tl.full((ROWS,), 64, tl.int32)
                else:
                    zero = tl.load(zeros + first_term + group * num_numbers + numbers).to(tl.int32)
                low, high = unpack_integers(packed, zero[:, None, None], dtype)
                tile = _in_order(low, high, ROWS, BLOCK_K)
            else:
                packed = _load_codes(code_rows, columns, num_features, True)
                tile = packed if IS_ROUNDED else unpack_bytes(packed, dtype)
            x_tile = _load_rows(x_rows, columns, num_features, is_row, True)
            sums = tl.dot(tile, x_tile.T, input_precision="ieee")
            if IS_ROUNDED:
                sums *= tl.load(x_spots + group, is_row, other=0.0)[None, :]
            acc += scale[:, None] * sums
            scale = tl.load(term_spots + next_group * num_numbers)
    if LINES > 1:
        by_pair = tl.reshape(acc * part_factor(lines)[None, :], (ROWS, BLOCK_M, LINES))
        acc = tl.sum(by_pair, 2)
    if FORM == "int4" and not SCALED:
        acc *= INTEGER_SCALE
    if GROUP == 0 or factors is not None:
        acc *= whole_scale[:, None]
        if IS_ROUNDED:
            acc *= tl.load(x_scales + inputs, is_row, other=0.0)[None, :]
    if GATED:
        by_half = tl.reshape(acc, (BLOCK_N // 8, 2, 8, BLOCK_M))
        gate, up = tl.split(tl.permute(by_half, (0, 2, 3, 1)))
        gate, up = tl.reshape(gate, (BLOCK_N, BLOCK_M)), tl.reshape(up, (BLOCK_N, BLOCK_M))
    else:
        gate, up = acc, acc

    n = first_n + tl.arange(0, BLOCK_N)
    is_output = n < num_outputs
    if WEIGHS:
        share = tl.load(shares + own, is_row, other=0.0)[None, :]
        gate *= share
        up *= share
    if bias is not None:
        own_bias = bias + expert * num_numbers + n
        gate += tl.load(own_bias, is_output, other=0.0).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(own_bias + num_outputs, is_output, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate = activate(gate, up, alpha, limit, ACTIVATION)
    targets = (places if GATED else own).to(tl.int64)[None, :] * num_outputs
    is_stored = is_row[None, :] & is_output[:, None]
    if y.dtype.element_ty == tl.float8e5:
        store_parts(y + targets * PARTS + n[:, None], gate, num_outputs, is_stored)
    else:
        tl.store(y + targets + n[:, None], gate.to(y.dtype.element_ty), is_stored)


@triton.jit
def _load_rows(x_rows, columns, num_features, is_row, EVEN_K: tl.constexpr):
    """Activations ``[BLOCK_M, BLOCK_K]``."""
    spots = x_rows[:, None] + columns[None, :]
    if EVEN_K:
        tile = tl.load(spots, is_row[:, None], other=0.0)
    else:
        tile = tl.load(spots, is_row[:, None] & (columns < num_features)[None, :], other=0.0)
    return tile


@triton.jit
def _load_codes(code_rows, columns, num_features, EVEN_K: tl.constexpr):
    """Codes of 8 bits ``[ROWS, BLOCK_K]``; past the end, activations are zero."""
    spots = code_rows[:, None] + columns[None, :]
    if EVEN_K:
        tile = tl.load(spots)
    else:
        tile = tl.load(spots, (columns < num_features)[None, :], other=0.0)
    return tile


@triton.jit
def _load_groups(code_rows, groups, GROUP: tl.constexpr):
    """Codes of 8 bits by their groups, ``[ROWS, groups, GROUP]``."""
    return tl.load(code_rows[:, None, None] + groups[None, :, None] * GROUP + tl.arange(0, GROUP)[None, None, :])


@triton.jit
def _load_packed(code_rows, units):
    """Bytes of two codes each, ``[ROWS, units, 16]``, from the order in which they are stored."""
    ROWS: tl.constexpr = code_rows.shape[0]
    UNITS: tl.constexpr = units.shape[0]
    stored = tl.load(code_rows[:, None, None] + units[None, :, None] * 16 + tl.arange(0, 16)[None, None, :])
    by_thread = tl.reshape(stored, (ROWS, UNITS, 4, 2, 2))
    return tl.reshape(tl.permute(by_thread, (0, 1, 3, 2, 4)), (ROWS, UNITS, 16))


@triton.jit
def _in_order(low, high, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Values of low and high halves, ``[ROWS, units, 16]`` each, in the order of their inputs."""
    return tl.reshape(tl.permute(tl.join(low, high), (0, 1, 3, 2)), (ROWS, BLOCK_K))
