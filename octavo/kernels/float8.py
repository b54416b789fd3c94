"""GEMMs of float8 values (e4m3fn): rows of activations are rounded when they come, weights have a scale per output."""

import torch

from octavo.kernels.dispatch import kernel
from octavo.kernels.linear import ComposedLinear, LinearOp, linear

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest float8 value."""
SMALLEST_SCALE = 1e-12
"""The least scale of a row, so that a row of zeros has one."""


@kernel
def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row to float8, with the scale that makes its largest magnitude 448.

    Args:
        x: ``[T, K]``. A row with an infinity or a NaN becomes NaN where it is used, and no other row does.

    Returns:
        ``[T, K]`` float8 values and ``[T, 1]`` float32 scales, whose product is about ``x``.
    """
    wide = x.float()
    scales = (wide.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=SMALLEST_SCALE)
    return (wide / scales).to(FLOAT8), scales


@kernel
def float8_linear(
    weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
) -> tuple[LinearOp, bool]:
    """``x Wᵀ + b`` with ``x`` rounded by :func:`quantize_rows`, products accumulated in float32 and scaled afterwards.

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
        values, row_scales = quantize_rows(x.reshape(-1, x.shape[-1]))
        y = gemm(values.to(weight.dtype)).float() * row_scales * scales
        y = y if bias is None else y + bias
        return y.to(x.dtype).view(*x.shape[:-1], len(scales))

    return ComposedLinear(apply), is_copied
