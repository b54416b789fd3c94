"""GEMMs of values of 8 bits: rows of activations are rounded when they come, weights have a scale per output."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from octavo.kernels.dispatch import kernel
from octavo.kernels.linear import ComposedLinear, LinearOp, linear

FLOAT8 = torch.float8_e4m3fn
INT8 = torch.int8
LARGEST = {FLOAT8: 448.0, INT8: 127.0}
"""The largest value that rows are rounded to, by its type."""
SMALLEST_SCALE = 1e-12
"""The least scale of a row, so that a row of zeros has one."""
_MAX_ROWS = 1024
_EXACT_INPUTS = 1024
"""Float32 holds the sum of so many products of 8-bit integers exactly, in whatever order they are added."""


@kernel
def quantize_rows(x: torch.Tensor, dtype: torch.dtype = FLOAT8) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row, with the scale that makes its largest magnitude that of the type; see :data:`LARGEST`.

    Args:
        x: ``[T, K]``. A row with an infinity or a NaN becomes NaN where it is used, and no other row does.
        dtype: of the values, float8 (e4m3fn) or int8.

    Returns:
        ``[T, K]`` values and ``[T, 1]`` float32 scales, whose product is about ``x``.
    """
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True)
    # A device multiplies by the inverse where it divides by a number of the host's, which may round the other way.
    scales = (largest / torch.full_like(largest, LARGEST[dtype])).clamp(min=SMALLEST_SCALE)
    scales = torch.where(largest.isfinite(), scales, torch.nan)
    if dtype is INT8:
        return (wide / scales).round_().nan_to_num_().to(dtype), scales
    scaled = wide * (torch.ones_like(scales) / scales)  # a division per row
    return scaled.clamp_(-LARGEST[dtype], LARGEST[dtype]).to(dtype), scales


@kernel
def float8_linear(
    weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
) -> tuple[LinearOp, bool]:
    """``x Wᵀ + b`` with ``x`` rounded by :func:`quantize_rows`, products accumulated in float32 and scaled afterwards.

    A device may multiply a few rows as they are, where that takes no longer.

    Args:
        weight: ``[out, in]`` values of float8, in the type that they are multiplied in.
        scales: ``[out]`` float32, one per output.
        bias: ``[out]`` or None.
        deterministic: whether a row's bits must not depend on the other rows.

    Returns:
        The operation, and whether it holds a copy, so that the weight itself is no longer read.
    """
    gemm, is_copied = linear(weight, None, deterministic=deterministic)

    def apply(x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x)
        y = gemm(values.to(weight.dtype)).float().mul_(row_scales).mul_(scales)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    return ComposedLinear(partial(in_parts, apply)), is_copied


@kernel
def int8_linear(weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> tuple[LinearOp, bool]:
    """``x Wᵀ + b`` with ``x`` rounded to int8 by :func:`quantize_rows`; sums are exact, and scaled afterwards.

    So a row's bits do not depend on the other rows, nor on the order of the sums.

    Args:
        weight: ``[out, in]`` int8.
        scales: ``[out]`` float32, one per output.
        bias: ``[out]`` or None.

    Returns:
        The operation, and whether it holds a copy, so that the weight itself is no longer read.
    """

    def apply(x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x, INT8)
        y = _exact_sums(values, weight).float().mul_(row_scales).mul_(scales)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    return ComposedLinear(partial(in_parts, apply)), False


def _exact_sums(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x Wᵀ`` of int8 values, ``[T, out]`` int32."""
    total = torch.zeros(len(x), len(weight), dtype=torch.int32, device=x.device)
    for values, weights in zip(x.split(_EXACT_INPUTS, 1), weight.split(_EXACT_INPUTS, 1), strict=True):
        total += F.linear(values.float(), weights.float()).int()
    return total


def in_parts(apply: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A GEMM applied to some rows at a time, so that float32 results of all of them never exist at once.

    Args:
        apply: ``[T, in] → [T, out]``.
        x: ``[..., in]``.
    """
    parts = [apply(rows) for rows in x.reshape(-1, x.shape[-1]).split(_MAX_ROWS)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts)
    return y.view(*x.shape[:-1], y.shape[-1])
