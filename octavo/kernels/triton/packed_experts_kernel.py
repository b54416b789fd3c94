"""The grouped GEMM of :mod:`octavo.kernels.triton.packed_experts`, over packed weights."""

import triton
import triton.language as tl

from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.grouped_unpack import _INT8_HALF, _INT8_WIDE
from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.kernels.triton.scaled import _rounded
from octavo.kernels.triton.widen_float8 import _TO_BFLOAT16, _TO_FLOAT16

_INT4 = """{{
.reg .b32 low, high, one;
shl.b32 low, $4, 3;
shr.u32 high, $4, 1;
lop3.b32 low, low, 0x78787878, {fixed}, 0xEA;
lop3.b32 high, high, 0x78787878, {fixed}, 0xEA;
mov.b32 one, {one};
prmt.b32 $0, low, one, 0x4140;
prmt.b32 $1, low, one, 0x4342;
prmt.b32 $2, high, one, 0x4140;
prmt.b32 $3, high, one, 0x4342;
sub.rn.{dtype} $0, $0, $5;
sub.rn.{dtype} $1, $1, $7;
sub.rn.{dtype} $2, $2, $5;
sub.rn.{dtype} $3, $3, $7;
}}"""
"""Four bytes to the values of their low halves and of their high halves, less their zeros (pairs).

As of :mod:`octavo.kernels.triton.grouped_unpack`, but each two bytes have a zero of their own: the compiler may give a
thread neighbours of two rows.
"""
_INT4_WIDE = tl.constexpr(_INT4.format(one="0x41414141", fixed="0x80808080", dtype="bf16x2"))
_INT4_HALF = tl.constexpr(_INT4.format(one="0x58585858", fixed="0", dtype="f16x2"))

_FLOAT4_PAIR = """
prmt.b32 p, {source}, 0, {bytes};
shr.u32 q, p, 6;
and.b32 q, q, 0x01C001C0;
lop3.b32 p, p, 0x80008000, q, 0xEA;
mul.rn.bf16x2 {target}, p, {factor};
"""
_FLOAT4_PAIRS = "".join(
    _FLOAT4_PAIR.format(source=source, bytes=chosen, target=f"${target}", factor=f"${factor}")
    for target, (source, chosen, factor) in enumerate(
        (("up", "0x1404", 5), ("up", "0x3424", 7), ("$4", "0x1404", 5), ("$4", "0x3424", 7))
    )
)
_FLOAT4_SCALED = tl.constexpr("{\n.reg .b32 up, p, q;\nshl.b32 up, $4, 4;" + _FLOAT4_PAIRS + "}")
"""Likewise for floats: sign, exponent and fraction are moved to where bfloat16 has them, which makes them 2⁻¹²⁶ of
themselves, and multiplied by factors (pairs)."""

_EMULATED: tl.constexpr = tl.constexpr(IS_INTERPRETED)


@triton.jit
def packed_experts_kernel(
    x,
    x_scales,
    codes,
    scales,
    zeros,
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
    HAS_LARGE_SCALES: tl.constexpr,
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
        x_scales: float32 scales of float8 ``x``, one per row, or one per row and group; None if ``x`` is not rounded.
        codes, scales, zeros: see :class:`octavo.kernels.packed_experts.PackedMatrices`.
        row_bytes: of codes.
        FORM: ``float8``, ``int8``, ``int4`` or ``float4``.
        GROUP: inputs that share a scale; 0 if all do.
        HAS_LARGE_SCALES: whether exponents of ``float4`` may be above 128.
        BLOCK_K: input features of a step: divides ``GROUP``, or of ``float4`` is a multiple of it.
    """
    GATED: tl.constexpr = ACTIVATION != "none"
    HALVES: tl.constexpr = 2 if GATED else 1
    ROWS: tl.constexpr = HALVES * BLOCK_N
    IS_ROUNDED: tl.constexpr = x_scales is not None
    row_tile = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if row_tile >= tl.load(num_tiles):
        return
    expert = tl.load(tiles + row_tile * 3)
    places = tl.load(tiles + row_tile * 3 + 1) + tl.arange(0, BLOCK_M)
    is_row = places < tl.load(tiles + row_tile * 3 + 2)
    own = tl.load(pairs + places, is_row, other=0)
    inputs = (own // num_chosen if GATED else places).to(tl.int64)
    x_rows = x + inputs * x_stride

    first_n = tl.program_id(0) * BLOCK_N
    rows = tl.arange(0, ROWS)
    half = rows // 8 % HALVES
    channels = rows // (8 * HALVES) * 8 + rows % 8
    # Outputs past the end read the last row instead: cheaper than a mask, and they are not stored.
    numbers = half * num_outputs + tl.minimum(first_n + channels, num_outputs - 1)
    num_numbers = num_outputs * HALVES
    code_rows = codes + (expert.to(tl.int64) * num_numbers + numbers) * row_bytes
    first_term = expert.to(tl.int64) * num_numbers
    if GROUP > 0:
        first_term *= num_features // GROUP

    acc = tl.zeros((ROWS, BLOCK_M), tl.float32)
    dtype: tl.constexpr = x.dtype.element_ty
    if FORM == "float4":
        UNITS: tl.constexpr = BLOCK_K // 32
        units = tl.arange(0, UNITS)
        num_units = num_features // 32
        term_spots = scales + first_term + numbers[:, None]
        exponents = _load_units(term_spots, units, num_units, num_numbers, EVEN_K)
        for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
            columns = k + tl.arange(0, BLOCK_K)
            x_tile = _load_rows(x_rows, columns, num_features, is_row, EVEN_K)
            packed = _load_packed(code_rows, k // 32 + units, num_units, EVEN_K)
            tile = _float4_tile(packed, exponents, dtype, HAS_LARGE_SCALES, ROWS, BLOCK_K)
            # The next step's scales arrive while this one's codes are multiplied.
            exponents = _load_units(
                term_spots, (k + BLOCK_K) // 32 + units, num_units, num_numbers, False
            )
            acc = tl.dot(tile, x_tile.T, acc, input_precision="ieee")
    elif GROUP == 0:
        for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
            columns = k + tl.arange(0, BLOCK_K)
            x_tile = _load_rows(x_rows, columns, num_features, is_row, EVEN_K)
            packed = _load_codes(code_rows, columns, num_features, EVEN_K)
            if IS_ROUNDED:
                acc = tl.dot(packed, x_tile.T, acc)
            else:
                acc = tl.dot(_byte_tile(packed, dtype), x_tile.T, acc, input_precision="ieee")
    else:
        num_groups = num_features // GROUP
        term_spots = scales + first_term + numbers
        x_spots = x_scales + inputs * num_groups if IS_ROUNDED else x_rows
        scale = tl.load(term_spots)
        for k in tl.range(0, num_features, BLOCK_K, num_stages=STAGES):
            columns = k + tl.arange(0, BLOCK_K)
            group = k // GROUP
            next_group = tl.minimum((k + BLOCK_K) // GROUP, num_groups - 1)
            x_tile = _load_rows(x_rows, columns, num_features, is_row, True)
            if FORM == "int4":
                packed = _load_packed(code_rows, k // 32 + tl.arange(0, BLOCK_K // 32), num_features // 32, True)
                if zeros is None:
                    zero = tl.full((ROWS,), 64, tl.int32)
                else:
                    zero = tl.load(zeros + first_term + group * num_numbers + numbers).to(tl.int32)
                tile = _int4_tile(packed, zero, dtype, ROWS, BLOCK_K)
            else:
                packed = _load_codes(code_rows, columns, num_features, True)
                tile = packed if IS_ROUNDED else _byte_tile(packed, dtype)
            sums = tl.dot(tile, x_tile.T, input_precision="ieee")
            if IS_ROUNDED:
                sums *= tl.load(x_spots + group, is_row, other=0.0)[None, :]
            acc += scale[:, None] * sums
            scale = tl.load(term_spots + next_group * num_numbers)
    if GROUP == 0:
        acc *= tl.load(scales + first_term + numbers)[:, None]
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
    targets = places if GATED else own
    spots = y + targets.to(tl.int64)[None, :] * num_outputs + n[:, None]
    tl.store(spots, gate.to(y.dtype.element_ty), is_row[None, :] & is_output[:, None])


@triton.jit
def round_groups_kernel(
    x,
    values,
    scales,
    num_groups,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUND: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program rounds ``BLOCK`` groups to float8, each with a scale of its own; grid (blocks of groups)."""
    groups = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_group = groups < num_groups
    places = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    wide = tl.load(x + places, is_group[:, None], other=1.0).to(tl.float32)
    largest = tl.max(tl.abs(wide), 1)
    # A NaN or an infinity has no scale, and makes its group NaN.
    is_finite = tl.sum(tl.where(tl.abs(wide) < float("inf"), 0, 1), 1) == 0
    scale = tl.where(is_finite, tl.maximum(tl.div_rn(largest, 448.0), 1e-12), float("nan"))
    scaled = tl.div_rn(wide, tl.broadcast_to(scale[:, None], (BLOCK, GROUP)))
    if ROUND:
        scaled = _rounded(scaled)
    tl.store(scales + groups, scale, is_group)
    tl.store(values + places, scaled.to(values.dtype.element_ty), is_group[:, None])


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
def _load_packed(code_rows, units, num_units, EVEN_K: tl.constexpr):
    """Bytes of two codes each, ``[ROWS, units, 16]``; past the end, activations are zero."""
    spots = code_rows[:, None, None] + units[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    if EVEN_K:
        tile = tl.load(spots)
    else:
        tile = tl.load(spots, (units < num_units)[None, :, None], other=0)
    return tile


@triton.jit
def _load_units(term_spots, units, num_units, num_numbers, EVEN_K: tl.constexpr):
    """Exponents of the groups of a step, ``[ROWS, units]``."""
    spots = term_spots + units[None, :] * num_numbers
    if EVEN_K:
        tile = tl.load(spots)
    else:
        tile = tl.load(spots, (units < num_units)[None, :], other=127)
    return tile


@triton.jit
def _byte_tile(codes, dtype: tl.constexpr):
    """Float8 values, or codes of 8 bits less 128, in the type of the activations."""
    if _EMULATED or dtype == tl.float32:
        tile = codes.to(tl.float32) - 128 if codes.dtype == tl.uint8 else codes.to(tl.float32)
        tile = tile.to(dtype)
    elif codes.dtype == tl.uint8:
        integers: tl.constexpr = _INT8_WIDE if dtype == tl.bfloat16 else _INT8_HALF
        tile = tl.inline_asm_elementwise(integers, "=r,=r,r", [codes], dtype=dtype.value, is_pure=True, pack=4)
    else:
        floats: tl.constexpr = _TO_BFLOAT16 if dtype == tl.bfloat16 else _TO_FLOAT16
        tile = tl.inline_asm_elementwise(floats, "=r,=r,r", [codes], dtype=dtype.value, is_pure=True, pack=4)
    return tile


@triton.jit
def _int4_tile(packed, zero, dtype: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Codes less their zeros, ``[ROWS, BLOCK_K]``.

    Args:
        zero: ``[ROWS]`` int32, in eighths.
    """
    zero = zero[:, None, None]
    if _EMULATED or dtype == tl.float32:
        low = ((packed & 15).to(tl.float32) - zero * 0.125).to(dtype)
        high = ((packed >> 4).to(tl.float32) - zero * 0.125).to(dtype)
    else:
        integers: tl.constexpr = _INT4_WIDE if dtype == tl.bfloat16 else _INT4_HALF
        first: tl.constexpr = 0x4180 if dtype == tl.bfloat16 else 0x5800
        pair = (zero + first) * 0x10001
        low, high = tl.inline_asm_elementwise(
            integers, "=r,=r,=r,=r,r,r,r,r,r", [packed, pair], dtype=(dtype.value, dtype.value), is_pure=True, pack=4
        )
    return _in_order(low, high, ROWS, BLOCK_K)


@triton.jit
def _float4_tile(
    packed, exponents, dtype: tl.constexpr, HAS_LARGE_SCALES: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Values of 4-bit floats times their groups' powers of two, ``[ROWS, BLOCK_K]``.

    Args:
        exponents: ``[ROWS, units]``.
    """
    exponents = exponents.to(tl.int32)[:, :, None]
    if _EMULATED or HAS_LARGE_SCALES or dtype != tl.bfloat16:
        # The exponent 0 is the least power of two, which float32 has as a subnormal number.
        bits = tl.where(exponents > 0, exponents << 23, 1 << 22)
        scale = bits.to(tl.float32, bitcast=True)
        low, high = (_float4_values(packed & 15) * scale).to(dtype), (_float4_values(packed >> 4) * scale).to(dtype)
    else:
        factor = ((exponents + 126) << 7) * 0x10001
        low, high = tl.inline_asm_elementwise(
            _FLOAT4_SCALED,
            "=r,=r,=r,=r,r,r,r,r,r",
            [packed, factor],
            dtype=(dtype.value, dtype.value),
            is_pure=True,
            pack=4,
        )
    return _in_order(low, high, ROWS, BLOCK_K)


@triton.jit
def _float4_values(codes):
    numbers = codes.to(tl.int32)
    exponent = (numbers >> 1) & 3
    size = ((numbers & 1) + tl.where(exponent > 0, 2, 0)) << (tl.maximum(exponent, 1) - 1)
    return tl.where(numbers < 8, size, -size).to(tl.float32) * 0.5


@triton.jit
def _in_order(low, high, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Values of low and high halves, ``[ROWS, units, 16]`` each, in the order of their inputs."""
    return tl.reshape(tl.permute(tl.join(low, high), (0, 1, 3, 2)), (ROWS, BLOCK_K))
