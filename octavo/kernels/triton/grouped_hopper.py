"""Warp-specialised GEMMs with packed weights for Hopper: a producer warp loads, warpgroups unpack and multiply.

The steps of all tiles, one after another, are divided evenly among programs (stream-K), and the ring runs on from one
tile to the next. A tile that several programs share is added up in the order of its parts by the program that arrives
last. The producer fills its ring with codes before it waits for the kernel that computes ``x``. Each warpgroup has 64
of a tile's weight rows: it unpacks half of the 128 inputs of a step in registers while the tensor cores multiply the
half before (:mod:`.grouped_hopper_operands`). With few rows it multiplies the sums of a group by its scale, with many,
and with groups of less than a step, the weights themselves, so that sums stay in the tensor cores.
"""

import functools
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.triton.gluon_names import barrier, load_async
from octavo.kernels.triton.grouped_hopper_operands import has_halves, load_codes, load_terms, sum_scale, unpack_values
from octavo.kernels.triton.grouped_hopper_tiles import BLOCK, STEP, HopperTile
from octavo.kernels.triton.grouped_terms import TermKind
from octavo.kernels.triton.hopper_tiles import partial_places, tile_descriptor
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_stream import apply_gate
from octavo.kernels.triton.linear_workspace import Workspace

_CODE_WORDS = {4: torch.int32, 8: torch.int16}
"""Codes that are unpacked together: eight of 4 bits, or two of 8."""


def gates(weight: GroupedTensors) -> bool:
    """Whether the kernel takes a gate and its up projection at once: scales and zeros lie by eight channels."""
    return len(weight.codes) % 16 == 0


def hopper_grouped(
    x: torch.Tensor,
    weight: GroupedTensors,
    terms: torch.Tensor,
    kind: TermKind,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: HopperTile,
    space: Workspace,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16; rows contiguous, row stride a multiple of 8, aligned to 16 bytes.
        weight: ``[N, K]``; with an activation, one that :func:`gates` takes. Rows of 4-bit floats are bfloat16.
        terms: of :func:`octavo.kernels.triton.grouped_terms.make_terms`, of this ``kind``.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        space: at least of :func:`.grouped_hopper_tiles.workspace_size`; launches of one stream may share it.
    """
    num_rows, num_features = x.shape
    factors = 1 if activation == "none" else 2
    weight_tiles = -(-len(weight.codes) // tile.num_weights)
    num_tiles = weight_tiles * -(-num_rows // tile.num_rows)
    options: dict[str, Any] = {"maxnreg": 128} if tile.num_groups == 1 else {}
    hopper_grouped_kernel[(tile.num_programs,)](
        tile_descriptor(x, (tile.num_rows, STEP // 2)),
        _part_descriptor(weight.codes.view(_CODE_WORDS[weight.bits]), factors, BLOCK, STEP * weight.bits // 8),
        _part_descriptor(terms.flatten(1), factors, BLOCK // 8, 32 * terms.shape[3]),
        bias,
        out,
        space.partials,
        space.arrivals,
        num_rows,
        out.shape[1],
        num_features // STEP,
        num_tiles,
        weight_tiles,
        BITS=weight.bits,
        GROUP=weight.group,
        SCALING=_scaling(weight, kind, tile, x.dtype),
        GROUPS=tile.num_groups,
        STAGES=tile.num_stages,
        ACTIVATION=activation,
        num_warps=4,
        **options,
        **dependent_launch(x.device),
    )


def _scaling(weight: GroupedTensors, kind: TermKind, tile: HopperTile, dtype: torch.dtype) -> str:
    """What scales multiply; codes only where the same instruction takes off their zero and rounds once."""
    if kind != "wide":
        return "powers" if kind == "powers" else "offsets"
    if not tile.is_scaled:
        return "sums"
    return "codes" if weight.zeros is None and dtype is torch.bfloat16 else "values"


def _part_descriptor(values: torch.Tensor, factors: int, rows: int, row_bytes: int) -> TensorDescriptor:
    """How TMA loads as many rows of each factor's part of a matrix, ``rows`` in all, and some bytes of them."""
    parts = values.unflatten(0, (factors, -1))
    box = [factors, rows // factors, row_bytes // values.itemsize]
    return TensorDescriptor(
        parts, list(parts.shape), list(parts.stride()), box, _part_layout(values.itemsize, row_bytes)
    )


@functools.cache
def _part_layout(itemsize: int, row_bytes: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(min(row_bytes, 128), 8 * itemsize, rank=3)


@gluon.jit
def _own_steps(sizes):
    """The range ``[first, last)`` of a program's steps, of those of all tiles one after another."""
    _, num_steps, num_tiles, _ = sizes
    total = num_tiles * num_steps
    program = gl.program_id(0)
    return program * total // gl.num_programs(0), (program + 1) * total // gl.num_programs(0)


@gluon.jit
def _place(tile, sizes):
    """A tile's number among those of the weights, and among those of the rows of ``x``.

    Programs that run at the same time read the same weights: those of neighbouring tiles, or if a program has several
    tiles, which then have the same rows, those of tiles far apart. A program's last tile is no longer in the L2 cache.
    """
    _, _, num_tiles, weight_tiles = sizes
    row_tiles = num_tiles // weight_tiles
    if num_tiles <= gl.num_programs(0):
        weight_tile, row_tile = tile // row_tiles, tile % row_tiles
    else:
        weight_tile, row_tile = tile % weight_tiles, tile // weight_tiles
    return weight_tile, row_tile


@gluon.jit
def _load_weights(descs, rings, step, stage, sizes, form: gl.constexpr):
    """Producer: request a step's codes and terms."""
    TERM_STEPS: gl.constexpr = max(form[1] // 128, 1)
    _, code_desc, term_desc = descs
    _, code_ring, term_ring, full, _ = rings
    num_steps = sizes[1]
    groups: gl.constexpr = code_ring.shape[0] // full.shape[0]
    code_rows: gl.constexpr = code_desc.block_shape[1]
    term_rows: gl.constexpr = term_desc.block_shape[1]
    own = step % num_steps
    first = _place(step // num_steps, sizes)[0] * groups
    for group in gl.static_range(groups):
        slot = stage * groups + group
        spot = [0, (first + group) * code_rows, own * code_desc.block_shape[2]]
        load_async(code_desc, spot, full.index(stage), code_ring.index(slot))
        spot = [0, (first + group) * term_rows, own // TERM_STEPS * term_desc.block_shape[2]]
        load_async(term_desc, spot, full.index(stage), term_ring.index(slot))


@gluon.jit
def _first_row(row, num_rows, ROWS: gl.constexpr):
    """The first row of ``x`` that a tile whose own rows begin at ``row`` loads.

    The last tile begins earlier, so that it has no missing rows: copies that fill these with zeros are slow.
    """
    return gl.minimum(row, gl.maximum(num_rows - ROWS, 0))


@gluon.jit
def _load_x(descs, rings, step, stage, sizes):
    """Producer: request a step's rows of ``x``."""
    x_desc = descs[0]
    x_ring, _, _, full, _ = rings
    num_rows, num_steps, _, _ = sizes
    rows: gl.constexpr = x_desc.block_shape[0]
    row = _first_row(_place(step // num_steps, sizes)[1] * rows, num_rows, rows)
    column = step % num_steps * 128
    load_async(x_desc, [row, column], full.index(stage), x_ring.index(2 * stage))
    load_async(x_desc, [row, column + 64], full.index(stage), x_ring.index(2 * stage + 1))


@gluon.jit
def _produce(descs, rings, sizes, form: gl.constexpr, PDL: gl.constexpr):
    """Producer warp: keep the rings full; the first codes are requested before the wait for earlier kernels."""
    x_desc, code_desc, term_desc = descs
    _, code_ring, _, full, empty = rings
    STAGES: gl.constexpr = full.shape[0]
    groups: gl.constexpr = code_ring.shape[0] // STAGES
    weight_bytes: gl.constexpr = code_desc.block_type.nbytes + term_desc.block_type.nbytes
    num_bytes: gl.constexpr = groups * weight_bytes + 2 * x_desc.block_type.nbytes
    first, last = _own_steps(sizes)
    num_early = gl.minimum(last - first, STAGES)
    for i in range(num_early):
        mbarrier.expect(full.index(i), num_bytes)
        _load_weights(descs, rings, first + i, i, sizes, form)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for i in range(num_early):
        _load_x(descs, rings, first + i, i, sizes)
    for i in range(num_early, last - first):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), num_bytes)
        _load_weights(descs, rings, first + i, stage, sizes, form)
        _load_x(descs, rings, first + i, stage, sizes)


@gluon.jit
def _multiply(state, rings, bounds, OWN: gl.constexpr, form: gl.constexpr, layout: gl.constexpr):
    """A warpgroup's sums of a tile, ``[64, rows]``, over the program's steps in ``bounds``.

    Args:
        state: of its next step: codes, terms and the first half's values; those of the step after, on return.
    """
    codes, terms, low = state
    x_ring, code_ring, _, full, empty = rings
    start, end, num_own = bounds
    STAGES: gl.constexpr = full.shape[0]
    groups: gl.constexpr = code_ring.shape[0] // STAGES
    rows: gl.constexpr = x_ring.shape[1]
    dtype: gl.constexpr = x_ring.dtype
    none = gl.zeros([64, rows], gl.float32, layout)
    total = none
    for i in range(start, end):
        stage = i % STAGES
        x_low = x_ring.index(2 * stage).permute((1, 0))
        x_high = x_ring.index(2 * stage + 1).permute((1, 0))
        if form[2] != "sums":
            sums = warpgroup_mma(low, x_low, total, is_async=True)
        else:
            sums = warpgroup_mma(low, x_low, none, use_acc=False, is_async=True)
        # Unpack while the tensor cores multiply: the other half, then the next step's first, of this tile or the next.
        if has_halves(form[0], form[1]):
            codes = load_codes(rings, stage * groups + OWN, 1, form)
        high = unpack_values(codes, terms, 1, form, layout, dtype)
        sums = warpgroup_mma(high, x_high, sums, is_async=True)
        if form[2] == "sums":
            scale = gl.convert_layout(terms[0], gl.SliceLayout(1, layout), assert_trivial=True)
        following = gl.minimum(i + 1, num_own - 1)
        mbarrier.wait(full.index(following % STAGES), following // STAGES & 1)
        codes = load_codes(rings, following % STAGES * groups + OWN, 0, form)
        terms = load_terms(rings, following % STAGES * groups + OWN, form)
        sums, low = warpgroup_mma_wait(1, deps=[sums, low])
        low = unpack_values(codes, terms, 0, form, layout, dtype)
        sums, high = warpgroup_mma_wait(0, deps=[sums, high])
        mbarrier.arrive(empty.index(stage), count=1)
        if form[2] == "sums":
            total += scale[:, None] * sums
        else:
            total = sums
    SCALE: gl.constexpr = sum_scale(form[2])
    if SCALE != 1:
        total *= SCALE
    return (codes, terms, low), total


@gluon.jit
def _consume(
    OWN: gl.constexpr,
    rings,
    outputs,
    sizes,
    GROUPS: gl.constexpr,
    form: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """A warpgroup: multiply step by step and write the tiles; channels are the MMA's M, rows of ``x`` its N."""
    x_ring, _, _, full, _ = rings
    num_steps = sizes[1]
    dtype: gl.constexpr = x_ring.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, x_ring.shape[1], 16])
    first, last = _own_steps(sizes)
    if PDL:
        gdc_wait()
    mbarrier.wait(full.index(0), 0)
    codes, terms = load_codes(rings, OWN, 0, form), load_terms(rings, OWN, form)
    state = codes, terms, unpack_values(codes, terms, 0, form, layout, dtype)
    for tile in range(first // num_steps, (last - 1) // num_steps + 1):
        start = gl.maximum(first, tile * num_steps)
        end = gl.minimum(last, (tile + 1) * num_steps)
        state, total = _multiply(state, rings, (start - first, end - first, last - first), OWN, form, layout)
        _finish(total, outputs, sizes, tile, start, end, OWN, GROUPS, ACTIVATION)


@gluon.jit
def _finish(
    total,
    outputs,
    sizes,
    tile,
    start,
    end,
    OWN: gl.constexpr,
    GROUPS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Write a warpgroup's part of a tile; of one that programs share, add up the parts in the last that arrives."""
    bias, out, partials, arrivals, num_channels = outputs
    num_rows, num_steps, num_tiles, _ = sizes
    rows: gl.constexpr = total.shape[1]
    size: gl.constexpr = 64 * rows
    layout: gl.constexpr = total.type.layout
    spots = partials + OWN * size + partial_places(rows, rows, layout)
    # The programs that have a tile's first and last step: the last that begins at or before the step.
    num_programs, num_all = gl.num_programs(0), num_tiles * num_steps
    first_program = ((tile * num_steps + 1) * num_programs - 1) // num_all
    last_program = ((tile + 1) * num_steps * num_programs - 1) // num_all
    is_shared = end - start < num_steps
    is_last = end - start == num_steps
    if is_shared:
        # A program may share its first tile with earlier programs, and its last one with later ones: two slots.
        own = 2 * gl.program_id(0) + (start == tile * num_steps).to(gl.int32)
        gl.store(spots + own * (GROUPS * size), total)
        # All threads' stores come before the arrival; the last program's loads come after it.
        barrier()
        arrival = arrivals + tile * GROUPS + OWN
        is_last = gl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == last_program - first_program
        if is_last:
            gl.store(arrival, 0)
    if is_last:
        if is_shared:
            # Bypass L1: other multiprocessors wrote this.
            total = gl.load(spots + (2 * first_program + 1) * (GROUPS * size), cache_modifier=".cg")
            for program in range(first_program + 1, last_program + 1):
                total += gl.load(spots + 2 * program * (GROUPS * size), cache_modifier=".cg")
        weight_tile, row_tile = _place(tile, sizes)
        block = weight_tile * GROUPS + OWN
        _write(total, bias, out, block, row_tile * rows, num_rows, num_channels, ACTIVATION)


@gluon.jit
def _write(total, bias, out, block, row, num_rows, num_channels, ACTIVATION: gl.constexpr):
    """Write a block's outputs of the rows from ``row`` on, from its sums ``[64, rows]``."""
    rows: gl.constexpr = total.shape[1]
    channels: gl.constexpr = 64 if ACTIVATION == "none" else 32
    if ACTIVATION != "none":
        total, other = total.reshape((4, 2, 8, rows)).permute((0, 2, 3, 1)).split()
        total, other = total.reshape((channels, rows)), other.reshape((channels, rows))
    n = block * channels + gl.arange(0, channels, gl.SliceLayout(1, total.type.layout))
    m = _first_row(row, num_rows, rows) + gl.arange(0, rows, gl.SliceLayout(0, total.type.layout))
    is_channel = n < num_channels
    if bias is not None:
        total += gl.load(bias + n, is_channel, other=0.0).to(gl.float32)[:, None]
    if ACTIVATION != "none":
        if bias is not None:
            other += gl.load(bias + num_channels + n, is_channel, other=0.0).to(gl.float32)[:, None]
        total = apply_gate(total, other, ACTIVATION)
    spots = out + (m[None, :] * num_channels + n[:, None])
    is_row = (m >= row) & (m < num_rows)
    gl.store(spots, total.to(out.dtype.element_ty), is_row[None, :] & is_channel[:, None])


@gluon.jit(do_not_specialize=["num_rows", "num_steps", "num_tiles", "weight_tiles"])
def hopper_grouped_kernel(
    x_desc,  # [M, K], blocks of half a step
    code_desc,  # [factors, N / factors, K / 8], blocks of a step
    term_desc,  # [factors, N / 8 / factors, 8 rows x words of all steps], blocks of a step
    bias,  # [N]
    out,  # [M, N], or with an activation [M, N / 2]
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_steps,
    num_tiles,
    weight_tiles,
    BITS: gl.constexpr,
    GROUP: gl.constexpr,
    SCALING: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid (programs).

    Args:
        GROUP: inputs that share a scale.
        SCALING: what scales multiply; see :mod:`.grouped_hopper_operands`.
        GROUPS: warpgroups that multiply.
    """
    form: gl.constexpr = (BITS, GROUP, SCALING)
    slots: gl.constexpr = STAGES * GROUPS
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES] + x_desc.block_shape, x_desc.layout)
    code_ring = gl.allocate_shared_memory(code_desc.dtype, [slots] + code_desc.block_shape, code_desc.layout)
    term_ring = gl.allocate_shared_memory(gl.int32, [slots] + term_desc.block_shape, term_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    descs = (x_desc, code_desc, term_desc)
    rings = (x_ring, code_ring, term_ring, full, empty)
    outputs = (bias, out, partials, arrivals, num_channels)
    sizes = (num_rows, num_steps, num_tiles, weight_tiles)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, form, ACTIVATION, PDL)),
                (_produce, (descs, rings, sizes, form, PDL)),
            ],
            [1],
            [24],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, form, ACTIVATION, PDL)),
                (_consume, (1, rings, outputs, sizes, GROUPS, form, ACTIVATION, PDL)),
                (_produce, (descs, rings, sizes, form, PDL)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (0, rings, outputs, sizes, GROUPS, form, ACTIVATION, PDL)),
                (_consume, (1, rings, outputs, sizes, GROUPS, form, ACTIVATION, PDL)),
                (_consume, (2, rings, outputs, sizes, GROUPS, form, ACTIVATION, PDL)),
                (_produce, (descs, rings, sizes, form, PDL)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
