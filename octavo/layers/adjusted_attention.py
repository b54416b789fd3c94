"""Attention that bounds queries, keys and values, or has layer norms of each head's query and key."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from octavo import kernels
from octavo.hub.block_fields import HeadNormKind
from octavo.hub.model_config import ModelConfig
from octavo.kernels import HeadNorms, RopeTables
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.norm import LayerNorm
from octavo.quantization.slot import SplitPairs, WeightSlot


class ClippedAttention(RotaryAttention):
    """Attention whose queries, keys and values are between ``-bound`` and ``bound``."""

    def __init__(self, config: ModelConfig, layer: int, build: Build, *, bound: float, **options: Any) -> None:
        super().__init__(config, layer, build, **options)
        self.bound = bound

    def prepare(
        self, qkv: torch.Tensor, ropes: Mapping[str, RopeTables]
    ) -> tuple[torch.Tensor, RopeTables, HeadNorms | None]:
        """See :meth:`RotaryAttention.prepare`."""
        return super().prepare(qkv.clamp_(-self.bound, self.bound), ropes)


class LayerNormAttention(RotaryAttention):
    """Attention with layer norms of each head's query and key.

    Args:
        kind: any but ``none``.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        build: Build,
        *,
        kind: HeadNormKind,
        is_interleaved: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(config, layer, build, is_interleaved=is_interleaved, **options)
        size, eps = config.head_dim, config.rms_norm_eps
        self.q_layernorm: nn.Module
        self.k_layernorm: nn.Module
        if kind == "shared":
            assert not is_interleaved, "its weight is not reordered"
            self.q_layernorm, self.k_layernorm = LayerNorm(size, eps), LayerNorm(size, eps)
        else:
            pairs = SplitPairs(size, config.rope.rotary_dim(size)) if is_interleaved else None
            share = build.tensor_parallel.share
            own_heads = share(config.num_heads, "attention heads")
            own_kv_heads = share(config.num_kv_heads, "key/value heads", may_repeat=True)
            norms = partial(LayerNormByHead, head_dim=size, eps=eps, pairs=pairs, is_listed=kind == "listed")
            self.q_layernorm = norms(config.num_heads, own_heads)
            self.k_layernorm = norms(config.num_kv_heads, own_kv_heads)

    def prepare(
        self, qkv: torch.Tensor, ropes: Mapping[str, RopeTables]
    ) -> tuple[torch.Tensor, RopeTables, HeadNorms | None]:
        """See :meth:`RotaryAttention.prepare`."""
        q, k, v = qkv.split(self.sizes, dim=-1)
        q = self.q_layernorm(q.unflatten(-1, (-1, self.head_dim))).flatten(1)
        k = self.k_layernorm(k.unflatten(-1, (-1, self.head_dim))).flatten(1)
        return torch.cat((q, k, v), -1), ropes[self.rope], None


class LayerNormByHead(nn.Module):
    """Layer norms of heads, with a weight for each head.

    Args:
        num_heads: of the model.
        own: the heads on this device.
        pairs: reorders the rotary pairs of heads, as their projection does.
        is_listed: whether checkpoints have a norm for each head, instead of one weight for all.
    """

    def __init__(
        self, num_heads: int, own: range, head_dim: int, eps: float, pairs: SplitPairs | None, *, is_listed: bool
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(len(own), head_dim), requires_grad=False)
        self.eps = eps
        self._num_heads = num_heads
        self._own = own
        self._pairs = pairs
        self._is_listed = is_listed

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        if self._is_listed:
            for head in range(self._num_heads):
                yield f"{path}.norms.{head}.weight", self._slot_of(head)
        else:
            shape, own = (self._num_heads, self.weight.shape[1]), slice(self._own.start, self._own.stop)
            yield f"{path}.weight", WeightSlot(self.weight.data, (shape,), (own,), self._reordered)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, own heads, D]`` in and out."""
        return kernels.layer_norm(x, None, None, self.eps) * self.weight

    def _slot_of(self, head: int) -> WeightSlot:
        """The slot of a head's norm; nothing is taken of one that another device has."""
        if head in self._own:
            return WeightSlot(self.weight.data[head - self._own.start], transform=self._pairs)
        return WeightSlot(self.weight.data[0, :0], (tuple(self.weight.shape[1:]),), (slice(0, 0),))

    def _reordered(self, weight: torch.Tensor) -> torch.Tensor:
        return weight if self._pairs is None else self._pairs(weight.flatten())
