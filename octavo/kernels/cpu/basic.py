"""CPU versions of the per-token kernels, from PyTorch's fused operations."""

import torch
import torch.nn.functional as F

from octavo.kernels import basic


@basic.rms_norm.register("cpu")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm; see :func:`octavo.kernels.basic.rms_norm`."""
    if weight.dtype == x.dtype:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)


@basic.add_rms_norm.register("cpu")
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual add and norm; the sum takes ``x``'s memory."""
    residual = x.add_(residual)
    return rms_norm(residual, weight, eps), residual
