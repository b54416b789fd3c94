"""Attention that does more to queries and keys than to norm each head and to rotate it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from octavo.hub.model_config import ModelConfig
from octavo.kernels import HeadNorms, RopeTables, rotate_heads
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import NO_ROPE, QUERY_SCALE
from octavo.parallel import TensorParallel
from octavo.quantization.slot import WeightSlot


class ProjectionNorm(RMSNorm):
    """An RMS norm over all heads of a projection, of which each device has some."""

    def __init__(self, num_heads: int, head_dim: int, eps: float, tensor_parallel: TensorParallel) -> None:
        own = tensor_parallel.share(num_heads, "attention heads", may_repeat=True)
        super().__init__(len(own) * head_dim, eps)
        self._tensor_parallel = tensor_parallel
        rows = slice(own.start * head_dim, own.stop * head_dim)
        self._slot = (num_heads * head_dim,), (rows,) if tensor_parallel.size > 1 else ()

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        shape, source = self._slot
        yield f"{path}.weight", WeightSlot(self.weight.data, (shape,), source)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, own heads · D]`` in and out."""
        if self._tensor_parallel.size == 1:
            return super().forward(x)
        wide = x.float()
        # Where devices have the same heads, each sum has all of them equally often, and so the mean is right.
        mean = self._tensor_parallel.all_reduce(wide.square().mean(-1, keepdim=True)) / self._tensor_parallel.size
        return (wide * torch.rsqrt(mean + self.eps) * self.weight.float()).to(x.dtype)


class ProjectionNormAttention(RotaryAttention):
    """Attention with norms over the whole query and key projections, as in OLMo 2."""

    def __init__(self, config: ModelConfig, layer: int, build: Build, **options: Any) -> None:
        super().__init__(config, layer, build, **options)
        tp = build.tensor_parallel
        self.q_norm = ProjectionNorm(config.num_heads, config.head_dim, config.rms_norm_eps, tp)
        self.k_norm = ProjectionNorm(config.num_kv_heads, config.head_dim, config.rms_norm_eps, tp)

    def prepare(
        self, qkv: torch.Tensor, ropes: Mapping[str, RopeTables]
    ) -> tuple[torch.Tensor, RopeTables, HeadNorms | None]:
        """See :meth:`RotaryAttention.prepare`."""
        assert self.q_norm is not None and self.k_norm is not None
        q, k, v = qkv.split(self.sizes, dim=-1)
        return torch.cat((self.q_norm(q), self.k_norm(k), v), -1), ropes[self.rope], None


class LateNormAttention(RotaryAttention):
    """Attention with norms of each head's query and key after the rotation, as in Hunyuan.

    The model needs the table :data:`NO_ROPE`, as nothing is left to rotate when keys are stored.
    """

    def prepare(
        self, qkv: torch.Tensor, ropes: Mapping[str, RopeTables]
    ) -> tuple[torch.Tensor, RopeTables, HeadNorms | None]:
        """See :meth:`RotaryAttention.prepare`."""
        q_size, k_size, v_size = self.sizes
        qk, v = qkv.split((q_size + k_size, v_size), dim=-1)
        rotated = rotate_heads(qk.unflatten(-1, (-1, self.head_dim)), *ropes[self.rope]).flatten(1)
        return torch.cat((rotated, v), -1), ropes[NO_ROPE], self.head_norms


class ScaledQueryAttention(RotaryAttention):
    """Attention with a factor on each query by its position; the model needs the table :data:`QUERY_SCALE`."""

    def prepare(
        self, qkv: torch.Tensor, ropes: Mapping[str, RopeTables]
    ) -> tuple[torch.Tensor, RopeTables, HeadNorms | None]:
        """See :meth:`RotaryAttention.prepare`; a factor may come before the rotation as well as after it."""
        factors, _ = ropes[QUERY_SCALE]
        qkv[:, : self.sizes[0]].mul_(factors[:, 0])
        return qkv, ropes[self.rope], self.head_norms
