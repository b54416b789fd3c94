"""Bidirectional attention over sequences laid end to end, without a cache; encoders use it."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from octavo.kernels.attention import AttentionSpec
from octavo.kernels.dispatch import kernel
from octavo.platforms.transfer import to_device

_LONGEST_RATIO = 1.5
"""Sequences share a padded batch if the longest is at most this many times the shortest, plus :data:`_SHORT` tokens."""
_SHORT = 16


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """Sequences of about one length.

    Attributes:
        tokens: ``[R, L]`` int64, each token's index in the step; padding repeats the sequence's first one.
        is_token: ``[R, 1, 1, L]`` bool; None if there is no padding.
        kept: ``[N]`` int64, which of the R · L entries are tokens; None if all are.
        places: ``[N]`` int64, the index in the step of each kept entry.
    """

    tokens: torch.Tensor
    is_token: torch.Tensor | None
    kept: torch.Tensor | None
    places: torch.Tensor


def plan_packed(lengths: NDArray[np.int64], device: torch.device) -> list[PaddedRows]:
    """Group sequences by length, so that little is computed for padding.

    Args:
        lengths: ``[R]`` tokens of each sequence, in order; at least 1 each.
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
    places = starts[:, None] + np.where(is_token, offsets, 0)
    tokens = to_device(places, device)
    if is_token.all():
        return PaddedRows(tokens, None, None, tokens.flatten())
    kept = np.flatnonzero(is_token)
    mask = to_device(is_token, device)[:, None, None, :]
    return PaddedRows(tokens, mask, to_device(kept, device), to_device(places.flatten()[kept], device))


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
        gathered = (
            qkv.index_select(0, rows.tokens.flatten()).view(count, length, heads + 2 * kv_heads, size).transpose(1, 2)
        )
        q, k, v = gathered.split((heads, kv_heads, kv_heads), dim=1)  # [R, H, L, D]
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=rows.is_token, scale=spec.scale, enable_gqa=heads != kv_heads
        )
        flat = attended.transpose(1, 2).reshape(count * length, heads * size)
        output.index_copy_(0, rows.places, flat if rows.kept is None else flat.index_select(0, rows.kept))
    return output
