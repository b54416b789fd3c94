"""Attention whose output is weighted by a gate."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from octavo.hub.families.sparse import OutputGate
from octavo.hub.model_config import ModelConfig
from octavo.kernels import NO_TERMS, DeferredNorm, RopeTables, rows_of
from octavo.kernels.routing import sigmoid, softplus
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.decoder import RotaryAttention


class GatedAttention(RotaryAttention):
    """Attention with a gate before the output projection (arXiv:2505.06708)."""

    def __init__(self, config: ModelConfig, layer: int, build: Build, *, gate: OutputGate, **options: Any) -> None:
        super().__init__(config, layer, build, **options)
        size = 1 if gate.is_by_head else config.head_dim
        self.output_gate = build.linear(
            gate.name, config.hidden_size, {gate.name: config.num_heads * size}, split="column", head_size=size
        )
        self._activation = _ACTIVATIONS[gate.activation]
        self._size = size

    def forward(
        self, x: torch.Tensor | DeferredNorm, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> torch.Tensor:
        """See :meth:`RotaryAttention.forward`."""
        x = rows_of(x)
        terms = NO_TERMS if self.terms is None else self.terms.values()
        weights = self._activation(self.output_gate(x).float()).to(x.dtype)
        attended = self.attention(*self.prepare(self.qkv_proj(x), ropes), step, terms)
        heads = attended.unflatten(1, (-1, self.head_dim)) * weights.unflatten(1, (-1, self._size))
        return self.o_proj(heads.flatten(1))


_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"sigmoid": sigmoid, "softplus": softplus}
