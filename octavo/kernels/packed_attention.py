"""Bidirectional attention over sequences laid end to end, without a cache; encoders use it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from octavo.errors import UnsupportedModelError
from octavo.kernels.attention import NO_TERMS, AttentionSpec, HeadNorms, HeadTerms, LayerAttention, RopeTables
from octavo.kernels.basic import apply_rope, rms_norm
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.dispatch import kernel
from octavo.platforms.transfer import to_device

_LONGEST_RATIO = 1.5
"""Sequences share a padded batch if the longest is at most this many times the shortest, plus :data:`_SHORT` tokens."""
_SHORT = 16
_NEAR_QUERIES = 512
"""Local attention computes so many queries at a time, so that its cost does not grow with the square of the length."""

_TILE, _GROUP = 48, 16
"""Tokens that compiled kernels work on together, and store together; see ``native/packed_attention.h``."""


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

    def is_everything(self, num_tokens: int) -> bool:
        """Whether these are all tokens of a step, in its order: sorting by length moves no sequence among equals."""
        return self.kept is None and self.tokens.numel() == num_tokens


@dataclass(frozen=True)
class PackedPlan:
    """What all layers share in a step.

    Attributes:
        lengths: ``[R]`` tokens of each sequence, in order; at least 1 each.
        device: where the step's tensors are.
    """

    lengths: NDArray[np.int64]
    device: torch.device

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.lengths.sum())

    @cached_property
    def groups(self) -> list[PaddedRows]:
        """The sequences by length, so that little is computed for padding."""
        lengths = self.lengths
        starts = np.cumsum(lengths) - lengths
        order = np.argsort(-lengths, kind="stable")
        groups: list[PaddedRows] = []
        first = 0
        while first < len(order):
            longest = int(lengths[order[first]])
            shortest = longest if longest <= 1 else max(1, int(longest / _LONGEST_RATIO) - _SHORT)
            last = first + int(np.count_nonzero(lengths[order[first:]] >= shortest))
            groups.append(_padded(starts[order[first:last]], lengths[order[first:last]], longest, self.device))
            first = last
        return groups

    @cached_property
    def tiles(self) -> tuple[NDArray[np.int32], int]:
        """The sequences in tiles of :data:`_TILE` tokens, the last ones shorter, for compiled kernels.

        Returns:
            ``[N, 4]``: a tile's sequence begins at this token and has so many, its memory begins at this place, and the
            tile at this token of it; and the number of places. A sequence has a multiple of :data:`_GROUP` places.
        """
        padded = -(-self.lengths // _GROUP) * _GROUP
        counts = -(-self.lengths // _TILE)
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        of_sequences = np.cumsum(self.lengths) - self.lengths, self.lengths, np.cumsum(padded) - padded
        columns = [np.repeat(column, counts) for column in of_sequences] + [numbers * _TILE]
        return np.stack(columns, 1).astype(np.int32), int(padded.sum())


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


def _rotate(qkv: torch.Tensor, rope: RopeTables, spec: AttentionSpec) -> torch.Tensor:
    """Rotate queries and keys; ``[T, (H + 2·Hkv)·D]`` in and out."""
    heads = qkv.view(len(qkv), -1, spec.head_dim)
    num_rotated = spec.num_heads + spec.num_kv_heads
    return torch.cat((apply_rope(heads[:, :num_rotated], *rope), heads[:, num_rotated:]), dim=1).flatten(1)


@kernel
def packed_attention(
    qkv: torch.Tensor,
    plan: PackedPlan,
    spec: AttentionSpec,
    window: int | None = None,
    rope: RopeTables | None = None,
    norms: HeadNorms | None = None,
) -> torch.Tensor:
    """Every token attends to all tokens of its sequence, or to those near it.

    Args:
        qkv: ``[≥ T, (H + 2·Hkv)·D]``, tokens of the sequences end to end, may be overwritten; the rest is padding.
        plan: of the step, on the same device.
        window: number of tokens on each side that a token attends to, itself included; None for all.
        rope: queries and keys are rotated, after the norms; None for no rotation.
        norms: of queries and keys; None for none.

    Returns:
        ``[≥ T, H·D]``; padding yields zeros.
    """
    if norms is not None:
        qkv = _normed(qkv, norms, spec)
    if rope is not None:
        qkv = _rotate(qkv, rope, spec)
    groups = plan.groups
    if len(groups) == 1 and groups[0].is_everything(len(qkv)):
        return _attend_rows(qkv, groups[0], spec, window)
    output = qkv.new_zeros(len(qkv), spec.num_heads * spec.head_dim)
    for rows in groups:
        flat = _attend_rows(qkv.index_select(0, rows.tokens.flatten()), rows, spec, window)
        output.index_copy_(0, rows.places, flat if rows.kept is None else flat.index_select(0, rows.kept))
    return output


def _attend_rows(qkv: torch.Tensor, rows: PaddedRows, spec: AttentionSpec, window: int | None) -> torch.Tensor:
    """Attention of sequences of one length, ``[R · L, (H + 2·Hkv)·D]`` to ``[R · L, H·D]``."""
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
    count, length = rows.tokens.shape
    per_head = qkv.view(count, length, heads + 2 * kv_heads, size).transpose(1, 2)
    q, k, v = per_head.split((heads, kv_heads, kv_heads), dim=1)  # [R, H, L, D]
    if window is None or window >= length:
        attended = _attend(q, k, v, rows.is_token, spec)
    else:
        attended = _attend_near(q, k, v, rows.is_token, spec, window)
    return attended.transpose(1, 2).reshape(count * length, heads * size)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, spec: AttentionSpec
) -> torch.Tensor:
    """``[R, H, L, D]``; a mask is what each query may see."""
    if spec.softcap is not None:
        return _attend_capped(q, k, v, mask, spec, spec.softcap)
    grouped = spec.num_heads != spec.num_kv_heads
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=grouped)


def _attend_near(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_token: torch.Tensor | None, spec: AttentionSpec, window: int
) -> torch.Tensor:
    """Attention within a window, for some queries and the keys near them at a time."""
    length = q.shape[2]
    positions = torch.arange(length, device=q.device)
    parts = []
    for start in range(0, length, _NEAR_QUERIES):
        end = min(length, start + _NEAR_QUERIES)
        near = slice(max(0, start - window + 1), min(length, end + window - 1))
        mask = (positions[start:end, None] - positions[near]).abs() < window
        if is_token is not None:
            mask = mask & is_token[..., near]
        parts.append(_attend(q[:, :, start:end], k[:, :, near], v[:, :, near], mask, spec))
    return torch.cat(parts, dim=2)


def _attend_capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, spec: AttentionSpec, cap: float
) -> torch.Tensor:
    """The same with capped scores, which PyTorch's attention lacks."""
    groups = spec.num_heads // spec.num_kv_heads
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = cap * torch.tanh((q @ k.transpose(-1, -2)).float() * (spec.scale / cap))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v


@dataclass(frozen=True, slots=True)
class PackedRows:
    """What :class:`BidirectionalAttention` needs to know for a layer: the step's sequences, and the layer's window."""

    plan: PackedPlan
    window: int | None


class BidirectionalAttention(LayerAttention):
    """Attention of a decoder's layers in both directions; nothing is stored."""

    def run(
        self,
        qkv: torch.Tensor,
        rope: RopeTables,
        norms: HeadNorms | None,
        kv_cache: torch.Tensor,
        plan: PackedRows,
        spec: AttentionSpec,
        terms: HeadTerms = NO_TERMS,
        scales: CacheScales | None = None,
    ) -> torch.Tensor:
        """See :meth:`LayerAttention.run`.

        Args:
            kv_cache, scales: not read.

        Raises:
            UnsupportedModelError: there are terms.
        """
        if not terms.are_none:
            raise UnsupportedModelError("A model with attention sinks or ALiBi cannot attend in both directions.")
        return packed_attention(qkv, plan.plan, spec, plan.window, rope, norms)


def _normed(qkv: torch.Tensor, norms: HeadNorms, spec: AttentionSpec) -> torch.Tensor:
    heads = qkv.view(len(qkv), -1, spec.head_dim)
    q, k, v = heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)
    normed = rms_norm(q, norms.query, norms.eps), rms_norm(k, norms.key, norms.eps)
    return torch.cat((*normed, v), dim=1).flatten(1)
