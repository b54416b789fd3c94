"""Root-mean-square and layer norms, alone and after the residual add."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.pair_sum import load_rows


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm; see :func:`octavo.kernels.basic.rms_norm`."""
    return _norm(x, weight, None, eps, centred=False)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual add and norm; the sum overwrites ``residual``. See :func:`octavo.kernels.basic.add_rms_norm`."""
    return _add_norm(x, residual, weight, None, eps, centred=False)


def add_rms_norm_of_pairs(
    results: torch.Tensor,
    shares: torch.Tensor | None,
    num_chosen: int,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum overwrites ``residual``; see :func:`octavo.kernels.pair_sum.add_rms_norm_of_pairs`."""
    total = as_rows(residual)
    normed = torch.empty(residual.shape, dtype=results.dtype, device=results.device)
    tile = choose_tile(residual.shape[-1])
    rows = results[::num_chosen][:, None]  # of the tokens' first pairs
    launch(rows, total, weight, None, normed, eps, tile, centred=False, pairs=(shares, num_chosen))
    return normed, total.view(residual.shape)


def layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Layer norm; see :func:`octavo.kernels.basic.layer_norm`."""
    return _norm(x, weight, bias, eps, centred=True)


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual add and norm; the sum overwrites ``residual``. See :func:`octavo.kernels.basic.add_layer_norm`."""
    return _add_norm(x, residual, weight, bias, eps, centred=True)


def _norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, *, centred: bool
) -> torch.Tensor:
    rows = as_rows(x)
    normed = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    launch(rows, None, weight, bias, normed, eps, choose_tile(rows.shape[-1]), centred=centred)
    return normed.view(x.shape)


def _add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, total = as_rows(x), as_rows(residual)
    normed = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    launch(rows, total, weight, bias, normed, eps, choose_tile(rows.shape[-1]), centred=centred)
    return normed.view(x.shape), total.view(x.shape)


class NormTile(NamedTuple):
    """A program's work: ``num_rows`` whole rows, shared by ``num_warps`` warps."""

    num_rows: int
    num_warps: int


def choose_tile(size: int) -> NormTile:
    """The tile for rows of ``size`` values; it does not depend on the number of rows, so neither do a row's bits.

    Measured on an H200: 32 bytes per thread are within a few per cent of the best for one row and for 16,384.
    """
    block = triton.next_power_of_2(size)
    return NormTile(max(1024 // block, 1), min(max(block // 512, 1), 16))


@triton.jit
def add_rounded(values, added):
    """The sum of values and of what the residual stream has, in the values' type."""
    return (values.to(tl.float32) + added.to(tl.float32)).to(values.dtype)


@triton.jit
def scale_normed(wide, weight, dtype: tl.constexpr):
    """Multiply float32 values by the norm's weight; if the weight has ``dtype``, they are rounded to it before, too."""
    if weight.dtype == dtype:
        wide = wide.to(dtype).to(tl.float32)
    return (wide * weight.to(tl.float32)).to(dtype)


@triton.jit(do_not_specialize=["num_rows"])
def _norm_kernel(
    x,
    shares,
    residual,
    weight,
    bias,
    normed,
    eps,
    num_rows,
    x_outer_stride,
    x_inner_stride,
    residual_outer_stride,
    residual_inner_stride,
    NUM_INNER: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    CENTRED: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program norms ``ROWS`` whole rows, after adding them to ``residual`` if it is given; grid (blocks of rows).

    ``CENTRED`` takes each row's mean off first: a layer norm, whose ``weight`` and ``bias`` may be None.

    Args:
        shares: see ``NUM_CHOSEN``.
        NUM_CHOSEN: 0, or a row is the sum of so many, which are next to each other in ``x``, times its ``shares`` if
            those are not None.
    """
    columns = tl.arange(0, BLOCK)[None, :]
    if weight is not None:
        scale = tl.load(weight + columns, columns < SIZE, other=0.0)
    if bias is not None:
        shift = tl.load(bias + columns, columns < SIZE, other=0.0)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    mask = (rows < num_rows) & (columns < SIZE)
    outer, inner = (rows // NUM_INNER).to(tl.int64), rows % NUM_INNER
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    spots = x + outer * x_outer_stride + inner * x_inner_stride + columns
    values = load_rows(spots, shares, tl.minimum(rows, num_rows - 1), SIZE, mask, NUM_CHOSEN)
    if residual is not None:
        place = residual + outer * residual_outer_stride + inner * residual_inner_stride + columns
        values = add_rounded(values, tl.load(place, mask, other=0.0))
        tl.store(place, values, mask)
    wide = values.to(tl.float32)
    if CENTRED:
        # Taken off before values are squared: squares of large values would hide the small differences.
        wide = tl.where(columns < SIZE, wide - tl.sum(wide, axis=1, keep_dims=True) / SIZE, 0.0)
    wide *= tl.rsqrt(tl.sum(wide * wide, axis=1, keep_dims=True) / SIZE + eps)
    if CENTRED:
        if weight is not None:
            wide *= scale.to(tl.float32)
        if bias is not None:
            wide += shift.to(tl.float32)
        result = wide.to(values.dtype)
    else:
        result = scale_normed(wide, scale, values.dtype)
    tl.store(normed + rows.to(tl.int64) * SIZE + columns, result, mask)


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """``[outer, inner, N]`` with a contiguous last dimension: a view wherever the strides allow one."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    if x.dim() < 3:
        return x.view(-1, 1, x.shape[-1]) if x.dim() == 1 else x[:, None]
    return x.flatten(0, -3)


def launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    normed: torch.Tensor,
    eps: float,
    tile: NormTile,
    *,
    centred: bool,
    pairs: tuple[torch.Tensor | None, int] = (None, 0),
) -> None:
    """Norm ``x`` of ``[outer, inner, N]`` into ``normed``: by root mean square, or, ``centred``, as a layer norm.

    Args:
        pairs: shares and experts of a token if ``x`` is the first of each token's pairs; see :class:`.PairSum`.
    """
    outer, inner, size = x.shape
    num_rows = outer * inner
    if num_rows == 0:
        return
    residual_strides = (0, 0) if residual is None else residual.stride()[:2]
    shares, num_chosen = pairs
    _norm_kernel[(triton.cdiv(num_rows, tile.num_rows),)](
        x,
        shares,
        residual,
        weight,
        bias,
        normed,
        eps,
        num_rows,
        *x.stride()[:2],
        *residual_strides,
        NUM_INNER=inner,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        ROWS=tile.num_rows,
        NUM_CHOSEN=num_chosen,
        CENTRED=centred,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )
