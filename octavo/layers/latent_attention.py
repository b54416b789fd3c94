"""Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv:2405.04434)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import LatentSpec, RopeTables, apply_rope, latent_attention, store_latent
from octavo.layers.build import Build
from octavo.layers.context import CachedLayer, StepContext, compute_type
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import MAIN_ROPE
from octavo.quantization.slot import WeightPart, WeightSlot
from octavo.records import Latent


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Sizes of latent attention.

    Attributes:
        query_rank: size of the compressed query; None if queries are not compressed.
        rank: size of the compressed vector that keys and values are made of.
        plain_dim, rope_dim: of a head's query and key, the part without and with rotary embedding.
        value_dim: of a head's value.
    """

    query_rank: int | None
    rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int


class LatentAttention(CachedLayer):
    """Caches one compressed vector and one rotated key per token, which all heads share.

    Keys and values are never expanded: the projection that makes keys is applied to queries instead, and the one that
    makes values to what attention yields.

    Args:
        scale: factor on attention scores.
    """

    def __init__(self, config: ModelConfig, sizes: LatentSizes, build: Build, *, scale: float, bias: bool) -> None:
        super().__init__({build.name: Latent(sizes.rank + sizes.rope_dim, compute_type())})
        self.name = build.name
        self.sizes = sizes
        heads, hidden = config.num_heads, config.hidden_size
        own_heads = build.tensor_parallel.share(heads, "attention heads")
        self.spec = LatentSpec(len(own_heads), sizes.rank, sizes.rope_dim, scale)
        head_size, latent_size = sizes.plain_dim + sizes.rope_dim, sizes.rank + sizes.rope_dim
        if sizes.query_rank is None:
            self.q_proj = build.linear("q_proj", hidden, heads * head_size, split="column", head_size=head_size)
        else:
            self.q_a_proj = build.linear("q_a_proj", hidden, sizes.query_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(sizes.query_rank, 1e-6)
            self.q_b_proj = build.linear(
                "q_b_proj", sizes.query_rank, heads * head_size, split="column", head_size=head_size
            )
        self.kv_a_proj_with_mqa = build.linear("kv_a_proj_with_mqa", hidden, latent_size, bias=bias)
        self.kv_a_layernorm = RMSNorm(sizes.rank, 1e-6)
        self.kv_b_proj = _Expansion(heads, own_heads, sizes.plain_dim + sizes.value_dim, sizes.rank)
        self.o_proj = build.linear("o_proj", heads * sizes.value_dim, hidden, bias=bias, split="row")

    def forward(self, x: torch.Tensor, ropes: Mapping[str, RopeTables], step: StepContext) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        sizes, inputs = self.sizes, step.inputs[self.name]
        (cache,) = step.caches[self.name]
        rope = ropes[MAIN_ROPE]
        queries = self.q_proj(x) if sizes.query_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        plain, rotary = queries.unflatten(1, (self.spec.num_heads, -1)).split((sizes.plain_dim, sizes.rope_dim), -1)
        compressed, key = self.kv_a_proj_with_mqa(x).split((sizes.rank, sizes.rope_dim), -1)
        key = apply_rope(_as_halves(key)[:, None], *rope)[:, 0]
        store_latent(torch.cat((self.kv_a_layernorm(compressed.contiguous()), key), -1), cache, inputs.slot_mapping)
        to_keys, to_values = self.kv_b_proj.by_head(self.spec.num_heads, sizes.plain_dim)
        absorbed = torch.bmm(plain.transpose(0, 1), to_keys).transpose(0, 1)  # [T, H, rank]
        q = torch.cat((absorbed, apply_rope(_as_halves(rotary), *rope)), -1)
        attended = latent_attention(q, cache, inputs, self.spec)  # [T, H, rank]
        values = torch.bmm(attended.transpose(0, 1), to_values.transpose(1, 2)).transpose(0, 1)
        return self.o_proj(values.flatten(1))


def _as_halves(x: torch.Tensor) -> torch.Tensor:
    """Reorder ``[..., R]`` of pairs ``(2i, 2i + 1)`` to pairs ``(i, i + R/2)``; scores do not depend on the order."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


class _Expansion(nn.Module):
    """The projection from compressed vectors to keys and values; its two parts are applied elsewhere.

    Args:
        num_heads: of the model.
        own: the heads on this device.
        head_size: outputs per head.
    """

    def __init__(self, num_heads: int, own: range, head_size: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(len(own) * head_size, rank), requires_grad=False)
        rows = slice(own.start * head_size, own.stop * head_size)
        source = (rows,) if len(own) < num_heads else ()
        self._part = WeightPart(slice(None), (num_heads * head_size, rank), source)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        yield f"{path}.weight", self._part.weight_slot(self.weight.data)

    def by_head(self, num_heads: int, key_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``[H, key_dim, rank]`` and ``[H, value_dim, rank]``."""
        weight = self.weight.unflatten(0, (num_heads, -1))
        return weight[:, :key_dim], weight[:, key_dim:]
