"""Kernels that work on each token by itself: norms, activations, rotary embedding."""

import torch
import torch.nn.functional as F

from octavo.kernels.dispatch import kernel


@kernel
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension (arXiv:1910.07467), computed in float32.

    Args:
        x: ``[..., N]``.
        weight: ``[N]``, of any floating type.

    Returns:
        Same shape and type as ``x``.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight.dtype == x.dtype:
        return wide.to(x.dtype) * weight
    return (wide * weight).to(x.dtype)


@kernel
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add ``x`` to the residual stream and norm the sum.

    Returns:
        The normed sum and the sum, both of ``x``'s shape; the sum may reuse ``residual``'s memory.
    """
    residual = residual + x
    return rms_norm(residual, weight, eps), residual


@kernel
def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """SwiGLU's gate: ``silu(x[..., :N]) * x[..., N:]`` for ``x`` of ``[..., 2N]``."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


@kernel
def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """GeGLU's gate with the tanh approximation, for ``x`` of ``[..., 2N]``."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


@kernel
def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs ``(i, i + R/2)`` of each head's first ``R`` values; the rest passes through.

    Args:
        x: ``[T, H, D]``.
        cos: ``[T, 1, R]``.
        sin: ``[T, 1, R]``, its first half negated, so that ``x·cos + roll(x, R/2)·sin`` is the rotation.

    Returns:
        ``[T, H, D]``, new memory.
    """
    rotary = cos.shape[-1]
    if rotary < x.shape[-1]:
        rotated = apply_rope(x[..., :rotary], cos, sin)
        return torch.cat((rotated, x[..., rotary:]), dim=-1)
    return torch.addcmul(x * cos, x.roll(rotary // 2, dims=-1), sin)
