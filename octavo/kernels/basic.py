"""Per-token operations and their PyTorch references: gathers, norms, activations, rotary embedding, logit masks."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from octavo.kernels.dispatch import kernel


@kernel
def gather_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of a table, such as embeddings: ``[N, ...]`` contiguous and ``[T]`` int64 → ``[T, ...]``."""
    return table.index_select(0, index)


@kernel
def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """``cap · tanh(x / cap)``, in the memory of ``x``."""
    return x.div_(cap).tanh_().mul_(cap)


@kernel
def square_root(x: torch.Tensor) -> torch.Tensor:
    """The square root of each value, the same bits wherever in ``x`` it stands; see :func:`.routing.sigmoid`."""
    return x.sqrt()


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
def layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Layer norm over the last dimension (arXiv:1607.06450), computed in float32.

    Args:
        x: ``[..., N]``.
        weight, bias: ``[N]`` of ``x``'s type; None for one and nought.

    Returns:
        Same shape and type as ``x``.
    """
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@kernel
def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add ``x`` to the residual stream and norm the sum; see :func:`add_rms_norm`."""
    residual = residual + x
    return layer_norm(residual, weight, bias, eps), residual


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
def activate(x: torch.Tensor, kind: str, times: torch.Tensor | None = None) -> torch.Tensor:
    """``act(x)``, or ``act(x) · times``.

    Args:
        x: ``[..., N]``, may be overwritten and returned.
        kind: a name in :data:`ACTIVATIONS`.
        times: of ``x``'s shape.
    """
    y = ACTIVATIONS[kind](x)
    return y if times is None else y * times


def _relu_squared(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": _relu_squared,
    "silu": F.silu,
}
"""Activations by name, in PyTorch."""


@kernel
def xielu(x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """xIELU of each value (arXiv:2411.13010), in float32.

    Args:
        slopes: ``[4]`` float32: factors on the squares of positive values, on ``exp(x) − 1 − x`` of others, and on all
            values; the upper bound of an exponent.
    """
    above, below, beta, largest = slopes.unbind()
    wide = x.float()
    curve = torch.where(wide > 0, above * wide * wide, below * (torch.expm1(torch.minimum(wide, largest)) - wide))
    return (curve + beta * wide).to(x.dtype)


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


@kernel
def rotate_heads(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    is_interleaved: bool = False,
    is_last: bool = False,
) -> torch.Tensor:
    """Rotate a part of each head, which comes first in the result; the rest follows as it is.

    Args:
        x: ``[T, H, D]`` of any strides.
        cos, sin: ``[T, 1, R]``; see :func:`apply_rope`.
        out: ``[T, H, D]`` of any strides, for the result; None for new memory.
        is_interleaved: whether pairs that turn together are neighbours in ``x``; see :func:`as_halves`.
        is_last: whether the part is a head's last in ``x``.
    """
    rotary = cos.shape[-1]
    if is_last and rotary < x.shape[-1]:
        x = x.roll(rotary, -1)
    if is_interleaved:
        halves = as_halves(x[..., :rotary])
        x = halves if rotary == x.shape[-1] else torch.cat((halves, x[..., rotary:]), -1)
    rotated = apply_rope(x, cos, sin)
    return rotated if out is None else out.copy_(rotated)


def as_halves(x: torch.Tensor) -> torch.Tensor:
    """Reorder ``[..., R]`` of pairs ``(2i, 2i + 1)`` to pairs ``(i, i + R/2)``; scores do not depend on the order."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


@kernel
def qk_rope_store(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    """Norm and rotate queries and keys in place, then store keys and values in the cache.

    The norm's result is rounded as :func:`rms_norm` does, the rotation is computed in float32.

    Args:
        qkv: ``[≥T, H + 2·Hkv, D]``, contiguous: a token's queries, keys and values.
        q_norm, k_norm: ``[D]``, weights of the norms of each query and each key head; None for no norm.
        cos, sin: ``[≥T, 1, R]``; see :func:`apply_rope`.
        kv_cache: ``[2, blocks, Hkv, block_size, D]``.
        slot_mapping: ``[T]`` integers, where each token goes, ``block · block_size + offset``; −1 stores nothing.
    """
    num_tokens, block_size = len(slot_mapping), kv_cache.shape[3]
    q, k, v = qkv[:num_tokens].split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    for heads, weight in ((q, q_norm), (k, k_norm)):
        normed = heads if weight is None else rms_norm(heads, weight, eps)
        heads.copy_(apply_rope(normed.float(), cos[:num_tokens].float(), sin[:num_tokens].float()))
    is_stored = slot_mapping >= 0
    places = slot_mapping[is_stored].long()
    kv_cache[0][places // block_size, :, places % block_size] = k[is_stored]
    kv_cache[1][places // block_size, :, places % block_size] = v[is_stored]


@kernel
def mask_logits(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Set the logits of tokens that a mask does not allow to minus infinity, in place.

    Args:
        logits: ``[R, V]``, rows contiguous.
        rows: ``[M]`` integers, each at most once.
        masks: ``[M, ceil(V / 32)]`` int32, one bit per token for each of these rows, lowest bit first; 1 is allowed.
    """
    vocab_size = logits.shape[1]
    bits = torch.arange(32, dtype=torch.int32, device=masks.device)
    is_allowed = ((masks[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab_size]
    logits[rows] = logits[rows].masked_fill(~is_allowed, float("-inf"))
