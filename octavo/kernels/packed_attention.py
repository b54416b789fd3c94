"""Attention in both directions over sequences laid end to end, without a cache."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from octavo.kernels.attention import AttentionSpec
from octavo.kernels.dispatch import kernel
from octavo.platforms.transfer import to_device

_LONGEST_RATIO = 1.5
"""Sequences share a padded batch as long as the longest is at most so many times the shortest, give or take."""
_SHORT = 16


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """Sequences of about one length.

    Attributes:
        tokens: ``[R, L]`` int64, where each token stands among all of the step; padding repeats the first one.
        is_token: ``[R, 1, 1, L]`` bool; None if there is no padding.
    """

    tokens: torch.Tensor
    is_token: torch.Tensor | None


def plan_packed(lengths: NDArray[np.int64], device: torch.device) -> list[PaddedRows]:
    """Group sequences by length, so that little is computed for padding.

    Args:
        lengths: ``[R]`` tokens of each sequence, in the order in which they lie; at least 1 each.
    """
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    groups: list[PaddedRows] = []
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        shortest = longest if longest <= 1 else max(1, int(longest / _LONGEST_RATIO) - _SHORT)
        last = first + int(np.count_nonzero(lengths[order[first:]] >= shortest))
        groups.append(_padded(starts[order[first:last]], lengths[order[first:last]], longest, device))
        first = last
    return groups


def _padded(starts: NDArray[np.int64], lengths: NDArray[np.int64], longest: int, device: torch.device) -> PaddedRows:
    offsets = np.arange(longest)
    is_token = offsets < lengths[:, None]
    tokens = to_device(starts[:, None] + np.where(is_token, offsets, 0), device)
    if is_token.all():
        return PaddedRows(tokens, None)
    return PaddedRows(tokens, to_device(is_token, device)[:, None, None, :])


@kernel
def packed_attention(qkv: torch.Tensor, plan: list[PaddedRows], spec: AttentionSpec) -> torch.Tensor:
    """Every token attends to all tokens of its sequence.

    Args:
        qkv: ``[≥ T, (H + 2·Hkv)·D]``, tokens of the sequences end to end; rows past them are padding.
        plan: from :func:`plan_packed`, on the same device.

    Returns:
        ``[≥ T, H·D]``; padding yields zeros.
    """
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
    output = qkv.new_zeros(len(qkv), heads * size)
    for rows in plan:
        count, length = rows.tokens.shape
        places = rows.tokens.flatten()
        gathered = qkv.index_select(0, places).view(count, length, heads + 2 * kv_heads, size).transpose(1, 2)
        q, k, v = gathered.split((heads, kv_heads, kv_heads), dim=1)  # [R, H, L, D]
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=rows.is_token, scale=spec.scale, enable_gqa=heads != kv_heads
        )
        flat = attended.transpose(1, 2).reshape(count * length, heads * size)
        if rows.is_token is not None:
            chosen = rows.is_token.flatten().nonzero()[:, 0]
            places, flat = places[chosen], flat[chosen]
        output.index_copy_(0, places, flat)
    return output
