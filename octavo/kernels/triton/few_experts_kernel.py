"""The two kernels of :mod:`octavo.kernels.triton.few_experts`: weights go from memory into registers, once."""

import triton
import triton.language as tl

from octavo.kernels.triton.code_floats import FLOAT4_SCALE, bytes_to_floats, halves_to_floats
from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.pair_unpack import float8_values, powers_of_two


@triton.jit
def few_up_kernel(
    x,
    chosen,
    shares,
    codes,
    scales,
    zeros,
    offsets,
    factors,
    bias,
    inner,
    num_outputs,
    num_units,
    row_stride,
    x_stride,
    num_chosen,
    alpha,
    limit,
    ACTIVATION: tl.constexpr,
    WEIGHS: tl.constexpr,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes ``ROWS`` outputs of one pair, the activation included; grid (outputs / ROWS, pairs).

    Args:
        codes, scales, zeros, offsets, factors: of :class:`octavo.kernels.packed_experts.PackedMatrices`, or plain
            weights as codes; float8 scales are their bytes here.
        inner: ``[pairs, num_outputs]``, written.
        num_units, row_stride: 16-byte units of a weight's row, and elements from a row to the next.
        FORM: ``plain``, ``float8``, ``int8``, ``int4``, ``float4`` or ``nvfp4``.
        GROUP: units that share a scale; 0 if all do, 1 for ``nvfp4``, whose halves of units have their own.
        UNITS: units that are loaded at once.
    """
    pair = tl.program_id(1)
    # Rows past the end are the last one several times, with the same result.
    numbers = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), num_outputs - 1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.load(chosen + pair).to(tl.int64)
    x_row = x + (pair // num_chosen).to(tl.int64) * x_stride
    num_numbers = num_outputs * 2
    own = expert * num_numbers + numbers
    first_term = expert * num_numbers
    if GROUP > 0:
        first_term *= _count_groups(num_units, FORM, GROUP)
    terms = first_term + numbers
    if GROUP == 0 and FORM != "plain":
        # Requested before the codes, or each program would wait for memory once more at its end.
        gate_scale, up_scale = tl.load(scales + terms), tl.load(scales + terms + num_outputs)
    elif factors is not None:
        gate_scale, up_scale = tl.load(factors + own), tl.load(factors + own + num_outputs)
    gates = tl.zeros((ROWS, UNITS), tl.float32)
    ups = tl.zeros((ROWS, UNITS), tl.float32)
    for start in range(0, num_units, UNITS):
        gate_codes = _load_units(codes + own * row_stride, start, num_units, FORM, UNITS)
        up_codes = _load_units(codes + (own + num_outputs) * row_stride, start, num_units, FORM, UNITS)
        low, high = _load_inputs(x_row, start, num_units, FORM, UNITS)
        gates += _sums(gate_codes, low, high, scales, zeros, offsets, terms, start, num_units, num_numbers, FORM, GROUP)
        ups += _sums(
            up_codes, low, high, scales, zeros, offsets, terms + num_outputs, start, num_units, num_numbers, FORM, GROUP
        )
    gate, up = tl.sum(gates, 1), tl.sum(ups, 1)
    if FORM == "float4" or FORM == "nvfp4":  # noqa: PLR1714
        gate *= FLOAT4_SCALE
        up *= FLOAT4_SCALE
    if (GROUP == 0 and FORM != "plain") or factors is not None:
        gate *= gate_scale
        up *= up_scale
    if WEIGHS:
        share = tl.load(shares + pair)
        gate *= share
        up *= share
    if bias is not None:
        gate += tl.load(bias + own).to(tl.float32)
        up += tl.load(bias + own + num_outputs).to(tl.float32)
    values = activate(gate, up, alpha, limit, ACTIVATION)
    tl.store(inner + pair * num_outputs + numbers, values.to(inner.dtype.element_ty))


@triton.jit
def few_down_kernel(
    inner,
    chosen,
    shares,
    codes,
    scales,
    zeros,
    offsets,
    factors,
    bias,
    y,
    num_outputs,
    num_units,
    row_stride,
    inner_stride,
    WEIGHS: tl.constexpr,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes ``ROWS`` outputs of one token, summed over its experts; grid (outputs / ROWS, tokens).

    The choice is older than the preceding launch, so weights are loaded before the wait.

    Args:
        inner: ``[pairs, inputs]``.
        WEIGHS: whether a result is multiplied by its expert's share.
        AT_ONCE: experts whose weights are loaded before the wait.
    """
    first_pair = tl.program_id(1) * NUM_CHOSEN
    numbers = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), num_outputs - 1)
    early, whole_scales = (), ()
    for place in tl.static_range(NUM_CHOSEN):
        if GROUP == 0 and FORM != "plain":
            expert = tl.load(chosen + first_pair + place).to(tl.int64)
            whole_scales = whole_scales + (tl.load(scales + expert * num_outputs + numbers),)  # type: ignore[assignment]
        elif factors is not None:
            expert = tl.load(chosen + first_pair + place).to(tl.int64)
            whole_scales = whole_scales + (tl.load(factors + expert * num_outputs + numbers),)  # type: ignore[assignment]
    for place in tl.static_range(AT_ONCE):
        expert = tl.load(chosen + first_pair + place).to(tl.int64)
        rows = codes + (expert * num_outputs + numbers) * row_stride
        early = early + (_load_units(rows, 0, num_units, FORM, UNITS),)  # type: ignore[assignment]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    sums = tl.zeros((ROWS, UNITS), tl.float32)
    biases = tl.zeros((ROWS,), tl.float32)
    for place in tl.static_range(NUM_CHOSEN):
        expert = tl.load(chosen + first_pair + place).to(tl.int64)
        own = expert * num_outputs + numbers
        terms = own
        if GROUP > 0:
            terms = expert * num_outputs * _count_groups(num_units, FORM, GROUP) + numbers
        if place < AT_ONCE:
            tile = early[place]  # type: ignore[var-annotated]
        else:
            tile = _load_units(codes + own * row_stride, 0, num_units, FORM, UNITS)
        row = inner + (first_pair + place) * inner_stride
        low, high = _load_inputs(row, 0, num_units, FORM, UNITS)
        own_sums = _sums(tile, low, high, scales, zeros, offsets, terms, 0, num_units, num_outputs, FORM, GROUP)
        for start in range(UNITS, num_units, UNITS):
            tile = _load_units(codes + own * row_stride, start, num_units, FORM, UNITS)
            low, high = _load_inputs(row, start, num_units, FORM, UNITS)
            own_sums += _sums(
                tile, low, high, scales, zeros, offsets, terms, start, num_units, num_outputs, FORM, GROUP
            )
        share = tl.load(shares + first_pair + place) if WEIGHS else 1.0
        if (GROUP == 0 and FORM != "plain") or factors is not None:
            own_sums *= (whole_scales[place] * share)[:, None]  # type: ignore[index]
        else:
            own_sums *= share
        sums += own_sums
        if bias is not None:
            biases += tl.load(bias + own).to(tl.float32) * share
    total = tl.sum(sums, 1)
    if FORM == "float4" or FORM == "nvfp4":  # noqa: PLR1714
        total *= FLOAT4_SCALE
    tl.store(y + tl.program_id(1) * num_outputs + numbers, (total + biases).to(y.dtype.element_ty))


@triton.jit
def _count_groups(num_units, FORM: tl.constexpr, GROUP: tl.constexpr):
    """Groups of a row of so many units."""
    if FORM == "nvfp4":
        count = num_units * 2
    else:
        count = num_units // GROUP
    return count


@triton.jit
def _load_units(rows, start, num_units, FORM: tl.constexpr, UNITS: tl.constexpr):
    """Codes ``[rows, UNITS, 16]``, or plain weights ``[rows, UNITS, 8]``."""
    WIDTH: tl.constexpr = 8 if FORM == "plain" else 16
    # The compiler gives threads of a two-dimensional load whole units, row by row.
    places = start * WIDTH + tl.arange(0, UNITS * WIDTH)[None, :]
    tile = tl.load(rows[:, None] + places, places < num_units * WIDTH, other=0.0)
    return tl.reshape(tile, (rows.shape[0], UNITS, WIDTH))


@triton.jit
def _load_inputs(row, start, num_units, FORM: tl.constexpr, UNITS: tl.constexpr):
    """What units are multiplied by, ``[1, UNITS, values]``, in two parts.

    They are what low and high halves of bytes are multiplied by, and of codes of 8 bits the first and the last eight.

    Args:
        row: address of a row of inputs.
    """
    IS_PACKED: tl.constexpr = FORM == "int4" or FORM == "float4" or FORM == "nvfp4"  # noqa: PLR1714
    WIDTH: tl.constexpr = 32 if IS_PACKED else 8 if FORM == "plain" else 16
    places = start * WIDTH + tl.arange(0, UNITS * WIDTH)
    values = tl.load(row + places, places < num_units * WIDTH, other=0.0)
    if IS_PACKED:
        # In the order of the stored bytes; see octavo.kernels.packed_experts.
        by_half = tl.permute(tl.reshape(values, (UNITS, 2, 2, 4, 2)), (0, 3, 2, 4, 1))
        low, high = tl.split(tl.reshape(by_half, (1, UNITS, 16, 2)))
    elif FORM != "plain":
        low, high = _halves(tl.reshape(values, (1, UNITS, WIDTH)))
    else:
        low = tl.reshape(values, (1, UNITS, WIDTH))
        high = low
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def _halves(units):
    """``[rows, units, 16] → [rows, units, 8]``, first and last ones; so a thread has the same unit of both operands."""
    shape: tl.constexpr = (units.shape[0], units.shape[1], 2, 8)
    return tl.split(tl.permute(tl.reshape(units, shape), (0, 1, 3, 2)))


@triton.jit
def _sums(
    codes,
    low,
    high,
    scales,
    zeros,
    offsets,
    terms,
    start,
    num_units,
    num_numbers,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Sums of each row and unit, ``[rows, UNITS]``, scaled if units have scales of their own.

    Args:
        terms: of each row, the place of its first scale.
    """
    if GROUP > 0:
        units = start + tl.arange(0, codes.shape[1])
        is_unit = (units < num_units)[None, :]
        places = terms[:, None] + (units // GROUP)[None, :] * num_numbers
    if FORM == "plain":
        sums = tl.sum(codes.to(tl.float32) * low, 2)
    elif FORM == "float8" or FORM == "int8":  # noqa: PLR1714
        first, last = _halves(codes)
        sums = tl.sum(bytes_to_floats(first, FORM) * low, 2) + tl.sum(bytes_to_floats(last, FORM) * high, 2)
    elif FORM == "nvfp4":
        own_low, own_high = halves_to_floats(codes, "float4")
        spots = terms[:, None] + units[None, :] * (2 * num_numbers)
        low_scales = float8_values(tl.load(scales + spots, is_unit, other=0))
        high_scales = float8_values(tl.load(scales + spots + num_numbers, is_unit, other=0))
        sums = tl.sum(own_low * low, 2) * low_scales + tl.sum(own_high * high, 2) * high_scales
    else:
        own_low, own_high = halves_to_floats(codes, FORM)
        sums = tl.sum(own_low * low, 2) + tl.sum(own_high * high, 2)
    if FORM == "int4":
        zero = 8.0
        if zeros is not None:
            zero = tl.load(zeros + places, is_unit, other=0).to(tl.float32) * 0.125
        sums -= tl.sum(low + high, 2) * zero
    if FORM == "float4":
        exponents = tl.load(scales + places, is_unit, other=0).to(tl.int32)
        sums *= powers_of_two(exponents)
    elif GROUP > 0 and FORM != "nvfp4":
        sums *= tl.load(scales + places, is_unit, other=0.0)
    if offsets is not None:
        sums += tl.sum(low + high, 2) * tl.load(offsets + places, is_unit, other=0.0).to(tl.float32)
    return sums
