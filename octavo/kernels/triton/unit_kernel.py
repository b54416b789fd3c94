"""The kernel of :mod:`octavo.kernels.triton.unit_gemm`: codes go from memory into registers, once."""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.experts_kernel import activate
from octavo.kernels.triton.grouped_unpack import FLOAT_SCALE, UNIT_SCALE, float_pair, integer_pair
from octavo.kernels.triton.unit_operands import (
    ROUND_ROWS,
    ROUND_UNITS,
    UNIT_INPUTS,
    UNIT_WORDS,
    to_inputs,
    to_weights,
    unit_layout,
)

_INTEGER_SCALE, _FLOAT_SCALE = gl.constexpr(UNIT_SCALE), gl.constexpr(FLOAT_SCALE)


@triton.constexpr_function
def _steps(num_warps, experts, units):
    """How warps share the units of a program's experts, each of which has its own warps.

    Returns:
        Warps per expert, units from a warp's round to its next, rounds, and whether all of these units exist.
    """
    share = num_warps // triton.next_power_of_2(experts)
    step = share * ROUND_UNITS.value
    rounds = -(-units // step)
    return share, step, rounds, experts * share == num_warps and rounds * step == units


@gluon.jit
def _first_units(layout: gl.constexpr, EXPERTS: gl.constexpr, UNITS: gl.constexpr):
    """Of the warps' first rounds, the experts' places and the units, ``[warps, 1, 4]``; none exist past the experts."""
    WARPS: gl.constexpr = gl.num_warps()
    SHARE: gl.constexpr = _steps(WARPS, EXPERTS, UNITS)[0]
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    unit = gl.arange(0, ROUND_UNITS, gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    place = warp // SHARE
    unit += warp % SHARE * ROUND_UNITS
    if EXPERTS * SHARE < WARPS:
        unit = gl.where(place < EXPERTS, unit, UNITS)
        place = gl.minimum(place, EXPERTS - 1)
    return place, unit


@gluon.jit
def _request(spots, units, r, weight: gl.constexpr):
    """Loads of round ``r``: the words of each tile of rows, and what their scales and zeros are; zeros past the end.

    Args:
        spots: of each tile, addresses of the first round's words, and of the first group's scales and zeros.
        units: of the first round, and the first one of each warp.
        weight: form, units, group, distance of a group's scale to the next one's, experts, and whether there are zeros.
    """
    FORM: gl.constexpr = weight[0]
    UNITS: gl.constexpr = weight[1]
    GROUP: gl.constexpr = weight[2]
    STRIDE: gl.constexpr = weight[3]
    STEP: gl.constexpr = _steps(gl.num_warps(), weight[4], UNITS)[1]
    IS_WHOLE: gl.constexpr = _steps(gl.num_warps(), weight[4], UNITS)[3]
    unit, first = units
    loaded = ()
    for tile in gl.static_range(len(spots)):
        words, scales, zeros = spots[tile]
        words += r * (STEP * UNIT_WORDS)
        if IS_WHOLE:
            tile_words = gl.load(words, cache_modifier=".cg")
        else:
            is_unit, _ = gl.broadcast((unit < UNITS - r * STEP)[:, :, :, None], words)
            tile_words = gl.load(words, is_unit, other=0, cache_modifier=".cg")
        base = unit if FORM == "float4" else first
        if STEP % GROUP == 0:
            group = base // GROUP + r * (STEP // GROUP)
        else:
            group = (base + r * STEP) // GROUP
        if not IS_WHOLE:
            group = gl.minimum(group, UNITS // GROUP - 1)
        scale = gl.load(scales + group * STRIDE)
        if weight[5]:
            zero = gl.load(zeros + group * STRIDE)
        else:
            zero = gl.full_like(scale, 64, dtype=gl.uint8)  # the middle of the codes, in eighths
        loaded = loaded + ((tile_words, scale, zero),)  # type: ignore[assignment]
    return loaded


@gluon.jit
def _load_inputs(spots, unit, r, weight: gl.constexpr, PAIRS_NEIGHBOURS: gl.constexpr, mma: gl.constexpr):
    """The inputs of round ``r``, as the second operand; zeros past the end."""
    STEP: gl.constexpr = _steps(gl.num_warps(), weight[4], weight[1])[1]
    spots += r * (STEP * UNIT_INPUTS)
    if _steps(gl.num_warps(), weight[4], weight[1])[3]:
        values = gl.load(spots)
    else:
        is_unit, _ = gl.broadcast((unit < weight[1] - r * STEP)[:, :, :, None], spots)
        values = gl.load(spots, is_unit, other=0.0)
    return to_inputs(values, PAIRS_NEIGHBOURS, mma)


@gluon.jit
def _multiply(totals, loaded, values, FORM: gl.constexpr, mma: gl.constexpr):
    """Add a round's products to the sums of each tile."""
    dtype: gl.constexpr = values.dtype
    later = ()
    for tile in gl.static_range(len(totals)):
        words, scale, zero = loaded[tile]
        if FORM == "float4":
            weights = to_weights(words, float_pair(scale, dtype)[:, :, :, None], FORM, dtype, mma)
            sums = mma_v2(weights, values, totals[tile])
        else:
            weights = to_weights(words, integer_pair(zero, dtype)[:, :, None, None], FORM, dtype, mma)
            sums = mma_v2(weights, values, gl.zeros_like(totals[tile]))
            scale = gl.convert_layout(scale, gl.SliceLayout(2, mma), assert_trivial=True)
            sums = totals[tile] + scale[:, :, None] * sums
        later = later + (sums,)  # type: ignore[assignment]
    return later


@gluon.jit(do_not_specialize=["num_rows"])
def unit_kernel(
    x,
    chosen,
    shares,
    words,
    scales,
    zeros,
    bias,
    out,
    num_rows,
    num_outputs,
    x_eighths,
    row_units,
    num_chosen,
    alpha,
    limit,
    ACTIVATION: gl.constexpr,
    WEIGHS: gl.constexpr,
    FORM: gl.constexpr,
    UNITS: gl.constexpr,
    GROUP: gl.constexpr,
    GROUP_STRIDE: gl.constexpr,
    SCALE_STRIDE: gl.constexpr,
    EXPERTS: gl.constexpr,
    COLUMNS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DEPTH: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes a few outputs of some rows, or of a pair or a token's experts; warps sum their own units.

    Grid: (tiles of outputs, pairs or tokens; without experts, tiles of rows).

    Args:
        x: ``[rows, in]``; rows ``x_eighths`` · 8 elements apart. With several experts, each token's lie together.
        chosen, shares: ``[tokens, num_chosen]``, or None without experts.
        words: codes, eight in each int32.
        scales, zeros: of :class:`octavo.kernels.packed_experts.PackedMatrices`.
        bias: ``[experts, outputs]`` or None.
        out: ``[rows, num_outputs]``, of pairs or tokens with experts; written.
        num_rows: without experts.
        row_units: units from a weight's row to the next.
        ACTIVATION: what joins the halves of an expert's outputs, or ``none``.
        WEIGHS: whether shares weight the sums before the activation rather than its results; without an activation,
            whether they weight biases.
        UNITS: of a weight's row.
        GROUP: units that share a scale.
        GROUP_STRIDE, SCALE_STRIDE: from a scale of an expert to the next group's and to the next row's.
        EXPERTS: experts over which a program sums: those of a token, or 1; 0 without experts.
        COLUMNS: rows of ``x`` in a tile, 8 or 16; with experts, all are the same one.
        DEPTH: rounds of weights in flight.
    """
    WARPS: gl.constexpr = gl.num_warps()
    HAS_CHOICE: gl.constexpr = EXPERTS > 0
    IS_SUM: gl.constexpr = EXPERTS > 1
    SUMMED: gl.constexpr = EXPERTS if IS_SUM else 1
    ROUNDS: gl.constexpr = _steps(WARPS, SUMMED, UNITS)[2]
    EARLY: gl.constexpr = ROUNDS if ROUNDS <= DEPTH else DEPTH
    GATED: gl.constexpr = ACTIVATION != "none"
    FACTORS: gl.constexpr = 2 if GATED else 1
    CHANNELS: gl.constexpr = BLOCK_N // FACTORS
    TILES: gl.constexpr = BLOCK_N // ROUND_ROWS
    # Of experts' codes a pair are inputs eight apart; their inner values are written in that order.
    PAIRS_NEIGHBOURS: gl.constexpr = not HAS_CHOICE or not GATED
    weight: gl.constexpr = (FORM, UNITS, GROUP, GROUP_STRIDE, SUMMED, zeros is not None)
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    layout: gl.constexpr = unit_layout(WARPS, ROUND_ROWS, UNIT_WORDS)
    of_unit: gl.constexpr = gl.SliceLayout(3, layout)
    of_round: gl.constexpr = gl.SliceLayout(2, of_unit)
    num_numbers = num_outputs * FACTORS
    first_channel = gl.program_id(0) * CHANNELS
    row = gl.program_id(1)

    # A pair's expert is the choice of the preceding launch; a token's experts are older when their results are added.
    if HAS_CHOICE and not IS_SUM and PDL:
        gdc_wait()
        gdc_launch_dependents()
    if HAS_CHOICE:
        chosen += row * SUMMED
        shares += row * SUMMED
    place, unit = _first_units(of_unit, SUMMED, UNITS)
    SHARE: gl.constexpr = _steps(WARPS, SUMMED, UNITS)[0]
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, of_round))[:, None]
    expert = gl.to_tensor(0).to(gl.int64)
    round_expert = expert
    if HAS_CHOICE:
        expert = gl.load(chosen + (place if IS_SUM else 0)).to(gl.int64)
        round_expert = gl.load(chosen + (gl.minimum(warp // SHARE, SUMMED - 1) if IS_SUM else 0)).to(gl.int64)
    element = gl.arange(0, UNIT_WORDS, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout))))
    spots = ()
    for tile in gl.static_range(TILES):
        n = tile * ROUND_ROWS + gl.arange(0, ROUND_ROWS, gl.SliceLayout(0, gl.SliceLayout(2, of_unit)))[None, :, None]
        round_n = tile * ROUND_ROWS + gl.arange(0, ROUND_ROWS, gl.SliceLayout(0, of_round))[None, :]
        # Rows past the end read the last one instead; they are not stored.
        n = n // CHANNELS * num_outputs + gl.minimum(first_channel + n % CHANNELS, num_outputs - 1)
        round_n = round_n // CHANNELS * num_outputs + gl.minimum(first_channel + round_n % CHANNELS, num_outputs - 1)
        word_spots = words + ((expert * num_numbers + n) * row_units + unit) * UNIT_WORDS
        word_spots = word_spots[:, :, :, None] + element[None, None, None, :]
        # Floats have a scale for each unit, integers for whole rounds.
        first_scale = round_expert * (num_numbers * (UNITS // GROUP)) + round_n * SCALE_STRIDE
        term_spots, _ = gl.broadcast(first_scale, warp)
        if FORM == "float4":
            first_scale = expert * (num_numbers * (UNITS // GROUP)) + n * SCALE_STRIDE
            term_spots, _ = gl.broadcast(first_scale, unit)
        zero_spots = term_spots if zeros is None else zeros + term_spots
        spots = spots + ((word_spots, scales + term_spots, zero_spots),)  # type: ignore[assignment]

    units = (unit, warp % SHARE * ROUND_UNITS)
    ring = ()
    for i in gl.static_range(EARLY):
        ring = ring + (_request(spots, units, i, weight),)  # type: ignore[assignment]
    if PDL and (IS_SUM or not HAS_CHOICE):
        gdc_wait()
        gdc_launch_dependents()

    first_row = row if HAS_CHOICE else row * COLUMNS
    last_row = row if HAS_CHOICE else num_rows - 1
    x_layout: gl.constexpr = unit_layout(WARPS, COLUMNS, UNIT_INPUTS)
    of_input: gl.constexpr = gl.SliceLayout(3, x_layout)
    x_place, x_unit = _first_units(of_input, SUMMED, UNITS)
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(2, of_input)))[None, :, None]
    element = gl.arange(0, UNIT_INPUTS, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, x_layout))))
    if IS_SUM:
        x_row = row * SUMMED + x_place
    elif HAS_CHOICE:
        x_row = row // num_chosen
    else:
        x_row = gl.minimum(first_row + column, last_row)
    x_spots = x + (x_row * x_eighths * 8 + x_unit * UNIT_INPUTS)
    x_spots, _ = gl.broadcast(x_spots, column)
    x_spots = x_spots[:, :, :, None] + element[None, None, None, :]

    totals = ()
    for _ in gl.static_range(TILES):
        totals = totals + (gl.zeros([WARPS, ROUND_ROWS, COLUMNS], gl.float32, mma),)  # type: ignore[assignment]
    values = _load_inputs(x_spots, x_unit, 0, weight, PAIRS_NEIGHBOURS, mma)
    # Whole turns of the ring that request as much as they multiply; the rest is unrolled.
    TURNS: gl.constexpr = ROUNDS // EARLY - 1
    for turn in range(TURNS):
        start = turn * EARLY
        later = ()
        for j in gl.static_range(EARLY):
            following = _load_inputs(x_spots, x_unit, start + j + 1, weight, PAIRS_NEIGHBOURS, mma)
            later = later + (_request(spots, units, start + EARLY + j, weight),)  # type: ignore[assignment]
            totals = _multiply(totals, ring[j], values, FORM, mma)
            values = following
        ring = later
    DONE: gl.constexpr = TURNS * EARLY
    for j in gl.static_range(ROUNDS - DONE):
        following = values
        if DONE + j + 1 < ROUNDS:
            following = _load_inputs(x_spots, x_unit, DONE + j + 1, weight, PAIRS_NEIGHBOURS, mma)
        if DONE + j + EARLY < ROUNDS:
            ring = ring + (_request(spots, units, DONE + j + EARLY, weight),)  # type: ignore[assignment]
        totals = _multiply(totals, ring[j], values, FORM, mma)
        values = following

    # With a gate, half of the tiles have the gate's outputs, the other half the up projection's of the same channels.
    STORED: gl.constexpr = TILES // 2 if GATED and TILES > 1 else TILES
    WIDTH: gl.constexpr = 8 if GATED and TILES == 1 else ROUND_ROWS
    SCALE: gl.constexpr = _FLOAT_SCALE if FORM == "float4" else _INTEGER_SCALE
    for tile in gl.static_range(STORED):
        result = gl.sum(totals[tile], 0).permute((1, 0))
        other = result
        if GATED:
            if TILES > 1:
                other = gl.sum(totals[tile + STORED], 0).permute((1, 0))
            else:
                result, other = result.reshape((COLUMNS, 2, 8)).permute((0, 2, 1)).split()
        column = gl.arange(0, COLUMNS, gl.SliceLayout(1, result.type.layout))[:, None]
        channel = first_channel + tile * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, result.type.layout))[None, :]
        is_channel = channel < num_outputs
        result *= SCALE
        if GATED:
            own = channel
            other *= SCALE
            if HAS_CHOICE:
                own = expert * num_numbers + channel
                if WEIGHS:
                    share = gl.load(shares)
                    result *= share
                    other *= share
            if bias is not None:
                result += gl.load(bias + own, is_channel, other=0.0).to(gl.float32)
                other += gl.load(bias + own + num_outputs, is_channel, other=0.0).to(gl.float32)
            result = activate(result, other, alpha, limit, ACTIVATION)
            if HAS_CHOICE and not WEIGHS:
                result *= gl.load(shares)
        elif bias is not None:
            for number in gl.static_range(SUMMED):
                own = channel
                share = 1.0
                if HAS_CHOICE:
                    own = gl.load(chosen + number).to(gl.int64) * num_outputs + channel
                    if WEIGHS:
                        share = gl.load(shares + number)
                result += gl.load(bias + own, is_channel, other=0.0).to(gl.float32) * share
        # Of an expert's inner values, those eight apart become neighbours, as its second GEMM pairs them.
        place = channel
        if HAS_CHOICE and GATED:
            place = channel ^ ((channel ^ channel >> 3) & 1) * 9
        spots = out + ((first_row + column).to(gl.int64) * num_outputs + place)
        gl.store(spots, result.to(out.dtype.element_ty), (first_row + column <= last_row) & is_channel)
