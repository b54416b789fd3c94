"""The lightning indexer, which chooses the tokens that attention sees (DeepSeek-V3.2, arXiv:2512.02556)."""

from collections.abc import Iterator

import torch
from torch import nn

from octavo.hub.families.deepseek import IndexerFields
from octavo.hub.model_config import ModelConfig
from octavo.kernels import RopeTables, choose_tokens, rotate_heads, store_latent
from octavo.kernels.routing import LogitsOp, make_logits
from octavo.layers.build import Build
from octavo.layers.context import CachedLayer, StepContext, compute_type
from octavo.layers.norm import LayerNorm
from octavo.quantization.slot import WeightSlot
from octavo.records import Latent


class Indexer(CachedLayer):
    """Caches a key per token; scores all tokens before a query and chooses those with the highest scores.

    The published code turns queries and keys by a Hadamard matrix, which changes no score, and rounds them to FP8; here
    both keep the compute type. Every device computes the whole indexer, so all choose the same.

    Args:
        query_rank: size of the compressed queries.
        build: its name is the cache's.
        max_positions: maximum sequence length in tokens. If no sequence is longer than what is chosen, nothing is
            computed or stored.

    Attributes:
        num_chosen: tokens that a query attends to, at most.
    """

    def __init__(
        self, config: ModelConfig, fields: IndexerFields, query_rank: int, build: Build, max_positions: int
    ) -> None:
        super().__init__({build.name: Latent(fields.head_dim, compute_type())})
        self.name = build.name
        self._fields = fields
        self.num_chosen = fields.num_chosen
        self._is_needed = max_positions > self.num_chosen
        self.wq_b = build.linear("wq_b", query_rank, fields.num_heads * fields.head_dim)
        self.wk = build.linear("wk", config.hidden_size, fields.head_dim)
        self.k_norm = LayerNorm(fields.head_dim, fields.key_eps)
        self.weights_proj = HeadWeights(config.hidden_size, fields.num_heads)

    def forward(self, x: torch.Tensor, query: torch.Tensor, rope: RopeTables, step: StepContext) -> torch.Tensor | None:
        """Choose tokens for each of a step's.

        Args:
            x: ``[T, hidden]``, the layer's input.
            query: ``[T, query_rank]``.

        Returns:
            See :func:`octavo.kernels.indexer.choose_tokens`; None for all tokens.
        """
        if not self._is_needed:
            return None
        inputs, (cache,) = step.inputs[self.name], step.caches[self.name]
        key = self._rotated(self.k_norm(self.wk(x))[:, None], rope)[:, 0]
        store_latent(key, cache, inputs.slot_mapping)
        queries = self._rotated(self.wq_b(query).unflatten(1, (self._fields.num_heads, -1)), rope)
        return choose_tokens(queries, self.weights_proj(x), cache, inputs, self.num_chosen)

    def _rotated(self, x: torch.Tensor, rope: RopeTables) -> torch.Tensor:
        """``[T, H, D]`` with positions; the values that rotate come first, as scores do not depend on the order."""
        fields = self._fields
        return rotate_heads(x, *rope, is_interleaved=fields.rope_interleave, is_last=fields.rotates_last)


class HeadWeights(nn.Module):
    """How much each head of an indexer counts for a token, computed in float32 whatever the model's type."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, hidden_size, dtype=torch.float32), requires_grad=False)
        self._op: LogitsOp | None = None

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        yield f"{path}.weight", WeightSlot(self.weight.data)

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        self._op = make_logits(self.weight.data, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden] → [T, H]`` float32."""
        assert self._op is not None, "finish_weights() was called"
        return self._op(x)
