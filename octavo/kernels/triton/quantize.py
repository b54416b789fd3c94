"""Activations rounded to 8 bits on NVIDIA GPUs, with a scale per row or per group of a row; alone or after a norm."""

from functools import cache

import torch
import triton
import triton.language as tl

from octavo.kernels import scaled
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.scaled import FLOAT8, LARGEST
from octavo.kernels.triton.launch import IS_INTERPRETED, dependent_launch
from octavo.kernels.triton.norm import add_rounded, scale_normed
from octavo.kernels.triton.pair_sum import load_rows
from octavo.platforms import compute_capability

_SMALLEST_SCALE = tl.constexpr(scaled.SMALLEST_SCALE)
_MAX_BLOCK = 16384
_VALUES_AT_ONCE = 2048
"""Values of short groups that a program rounds."""
_FEW_PROGRAMS = 512
_MANY_PROGRAMS = 1024
"""With fewer, all run at once, and each rounds one group."""


@cache
def _converts(device: torch.device) -> bool:
    """Whether a device's Triton kernels convert to float8."""
    return IS_INTERPRETED or compute_capability(device) >= (8, 9)


@triton.jit
def _rounded(x, LARGEST: tl.constexpr):
    """Float32 values rounded to those that float8 has; to nearest, ties to even. What is too large becomes 448."""
    x = tl.clamp(x, -LARGEST, LARGEST, tl.PropagateNan.ALL)
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    subnormal = (x + 24576.0) - 24576.0  # 1.5 · 2²³ steps of 2⁻⁹
    return tl.where(tl.abs(x) <= 448.0, tl.where(tl.abs(x) < 0.015625, subnormal, normal), x)  # NaN stays


@triton.jit
def _whole(x):
    """Float32 values of int8's range rounded to whole numbers; to nearest, ties to even. NaN becomes 0."""
    below = tl.floor(x)
    rest, is_odd = x - below, below != 2 * tl.floor(below / 2)
    rounded = tl.where((rest > 0.5) | ((rest == 0.5) & is_odd), below + 1, below)
    return tl.where(tl.abs(x) < 128.0, rounded, 0.0)


@triton.jit
def _scale_of(largest, LARGEST: tl.constexpr):
    """The scales of groups from magnitudes of their values, ``[..., values] → [...]``; NaN of one with an infinity."""
    AXIS: tl.constexpr = len(largest.shape) - 1
    scale = tl.maximum(tl.div_rn(tl.max(largest, axis=AXIS), LARGEST), _SMALLEST_SCALE)
    return scale + tl.sum(tl.where(largest < float("inf"), 0.0, float("nan")), axis=AXIS)


@triton.jit(do_not_specialize=["num_groups"])
def _quantize_kernel(
    x,
    values,
    scales,
    num_groups,
    x_stride,
    row_stride,
    group_stride,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUND: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program rounds ``AT_ONCE`` groups, reading them twice if longer than ``BLOCK``; grid (blocks of groups).

    Args:
        num_groups: of all rows.
        x_stride: between rows of ``x``.
        row_stride, group_stride: of ``scales``.
        SIZE, GROUPS: values of a group, groups of a row.
    """
    groups = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    is_group = groups < num_groups
    rows, places = (groups // GROUPS).to(tl.int64), (groups % GROUPS).to(tl.int64)
    spots = (x + rows * x_stride + places * SIZE)[:, None]
    columns = tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    largest = tl.zeros([AT_ONCE, BLOCK], tl.float32)
    part = largest
    for start in tl.static_range(0, SIZE, BLOCK):
        mask = is_group[:, None] & (start + columns < SIZE)[None, :]
        part = tl.load(spots + start + columns[None, :], mask, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(part), propagate_nan=tl.PropagateNan.ALL)
    scale = _scale_of(largest, LARGEST)
    tl.store(scales + rows * row_stride + places * group_stride, scale, is_group)
    inverse = tl.div_rn(tl.full([AT_ONCE], 1.0, tl.float32), scale)[:, None]
    targets = (values + groups.to(tl.int64) * SIZE)[:, None]
    for start in tl.static_range(0, SIZE, BLOCK):
        mask = is_group[:, None] & (start + columns < SIZE)[None, :]
        if SIZE > BLOCK:
            part = tl.load(spots + start + columns[None, :], mask, other=0.0).to(tl.float32)
        if values.dtype.element_ty == tl.int8:
            # The quotient of zero takes a slow path, for all of a thread's values one after another.
            scaled = _whole(
                tl.div_rn(tl.where(mask, part, scale[:, None]), tl.broadcast_to(scale[:, None], part.shape))
            )
        else:
            scaled = part * inverse
            if ROUND:
                scaled = _rounded(scaled, LARGEST)
        tl.store(targets + start + columns[None, :], scaled.to(values.dtype.element_ty), mask)


def _num_warps(num_values: int, num_programs: int) -> int:
    """Of a program that rounds so many values. With few programs, a value's way takes longer than all the reading."""
    is_long = num_values >= 4096 and num_programs <= _FEW_PROGRAMS
    return 8 if is_long else min(max(num_values // 1024, 1), 8)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype = FLOAT8) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows; see :func:`octavo.kernels.scaled.quantize_rows`."""
    if dtype is FLOAT8 and not _converts(x.device):
        return scaled.quantize_rows.reference(x, dtype)
    return quantize_groups(x, x.shape[1], dtype)


def quantize_groups(
    x: torch.Tensor, group: int, dtype: torch.dtype = FLOAT8, *, by_group: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows with a scale for each group of inputs.

    Args:
        x: ``[T, K]``, K a multiple of ``group``.
        by_group: whether the scales of a group, instead of those of a row, are neighbours in memory. Rows of anything
            then follow up to a multiple of four.

    Returns:
        ``[T, K]`` values and ``[T, K / group]`` float32 scales; ``T`` rounded up with ``by_group``.
    """
    rows = x if x.stride(-1) == 1 else x.contiguous()
    num_rows, size = rows.shape
    values, scales = _empty_rounded(num_rows, size, group, dtype, x.device, by_group=by_group)
    per_row = size // group
    if num_rows:
        block = min(triton.next_power_of_2(group), _MAX_BLOCK)
        at_once = max(min(_VALUES_AT_ONCE // block, triton.next_power_of_2(num_rows * per_row // _MANY_PROGRAMS)), 1)
        num_programs = triton.cdiv(num_rows * per_row, at_once)
        _quantize_kernel[(num_programs,)](
            rows,
            values,
            scales,
            num_rows * per_row,
            rows.stride(0),
            *scales.stride(),
            SIZE=group,
            GROUPS=per_row,
            BLOCK=block,
            AT_ONCE=at_once,
            LARGEST=LARGEST[dtype],
            ROUND=IS_INTERPRETED,  # the interpreter's conversion loses the carry into the exponent
            num_warps=_num_warps(block * at_once, num_programs),
            **dependent_launch(x.device),
        )
    return values, scales


def _empty_rounded(
    num_rows: int, size: int, group: int, dtype: torch.dtype, device: torch.device, *, by_group: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for what :func:`quantize_groups` returns."""
    num_stored = triton.cdiv(num_rows, 4) * 4 if by_group else num_rows
    values = torch.empty(num_stored, size, dtype=dtype, device=device)
    shape = (size // group, num_stored) if by_group else (num_stored, size // group)
    scales = torch.empty(shape, dtype=torch.float32, device=device)
    return values, scales.T if by_group else scales


@triton.jit
def _quantize_normed_kernel(
    x,
    shares,
    residual,
    weight,
    values,
    scales,
    eps,
    x_stride,
    residual_stride,
    row_stride,
    group_stride,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUND: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program norms a row, after adding it to ``residual`` if that is given, and rounds the result; grid (rows).

    Args:
        shares: see ``NUM_CHOSEN``.
        row_stride, group_stride: of ``scales``.
        NUM_CHOSEN: 0, or a row is the sum of so many, which are next to each other in ``x``, times its ``shares`` if
            those are not None.
        GROUP: values that share a scale: a power of two, of which ``BLOCK`` is a multiple.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    norm_weight = tl.load(weight + columns, mask, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    spots = x + row * x_stride + columns
    added = load_rows(spots, shares, row, SIZE, mask, NUM_CHOSEN)
    if residual is not None:
        place = residual + row * residual_stride + columns
        added = add_rounded(added, tl.load(place, mask, other=0.0))
        tl.store(place, added, mask)
    wide = added.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    normed = scale_normed(wide, norm_weight, added.dtype).to(tl.float32)
    GROUPS: tl.constexpr = BLOCK // GROUP
    normed = tl.reshape(normed, [GROUPS, GROUP])
    scale = _scale_of(tl.abs(normed), LARGEST)
    groups = tl.arange(0, GROUPS)
    tl.store(scales + row * row_stride + groups * group_stride, scale, groups * GROUP < SIZE)
    rounded = normed * tl.div_rn(tl.full([GROUPS], 1.0, tl.float32), scale)[:, None]
    if ROUND:
        rounded = _rounded(rounded, LARGEST)
    rounded = tl.reshape(rounded, [BLOCK])
    tl.store(values + row * SIZE + columns, rounded.to(values.dtype.element_ty), mask)


def quantize_normed(norm: DeferredNorm, group: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a norm rounded to float8, as :func:`quantize_rows` rounds them; settles the norm.

    The sum overwrites ``norm.residual``, as :func:`octavo.kernels.basic.add_rms_norm` has it.

    Args:
        group: for scales of groups instead, as :func:`quantize_groups` has them by group; a power of two.
    """
    total, pairs = norm.residual, norm.pairs
    if pairs is None:
        x, shares, num_chosen = norm.x if norm.x.stride(-1) == 1 else norm.x.contiguous(), None, 0
    else:
        results, shares, num_chosen = pairs.take()
        x = results[::num_chosen]  # of the tokens' first pairs
    if total is not None and total.stride(-1) != 1:
        total = total.contiguous()
    num_rows, size = x.shape
    values, scales = _empty_rounded(num_rows, size, group or size, FLOAT8, x.device, by_group=group is not None)
    if num_rows:
        block = triton.next_power_of_2(size)
        _quantize_normed_kernel[(num_rows,)](
            x,
            shares,
            total,
            norm.weight,
            values,
            scales,
            norm.eps,
            x.stride(0),
            0 if total is None else total.stride(0),
            *scales.stride(),
            SIZE=size,
            GROUP=group or block,
            NUM_CHOSEN=num_chosen,
            BLOCK=block,
            LARGEST=LARGEST[FLOAT8],
            ROUND=IS_INTERPRETED,  # as above
            num_warps=_num_warps(block, num_rows),
            **dependent_launch(x.device),
        )
    norm.settle(x if total is None else total)
    return values, scales
