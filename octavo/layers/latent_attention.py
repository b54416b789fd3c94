"""Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv:2405.04434)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from octavo.hub.model_config import ModelConfig
from octavo.kernels import (
    DeferredNorm,
    HeadLinear,
    LatentSpec,
    RopeTables,
    head_linear,
    latent_attention,
    latent_inputs,
    rows_of,
)
from octavo.layers.build import Build
from octavo.layers.cache_scales import LayerScales, stored_type
from octavo.layers.context import CachedLayer, StepContext
from octavo.layers.indexer import Indexer
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import MAIN_ROPE
from octavo.layers.weights import sibling
from octavo.parallel import Section
from octavo.quantization.grouped_weight import GroupedWeight, Layout
from octavo.quantization.pending import PendingTensors
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
        is_interleaved: whether rotary embedding turns pairs of neighbours, ``(2i, 2i + 1)``, not ``(i, i + R/2)``.
        latent_scale: factor on normed compressed vectors.
        has_kv_by_head: whether checkpoints have the projections to keys and to values apart and by head.
        indexer: chooses the tokens that queries attend to; without one they attend to what was chosen last in the step.
    """

    takes_deferred_norms = True

    def __init__(
        self,
        config: ModelConfig,
        sizes: LatentSizes,
        build: Build,
        *,
        scale: float,
        bias: bool,
        is_interleaved: bool = True,
        latent_scale: float = 1.0,
        has_kv_by_head: bool = False,
        indexer: Indexer | None = None,
    ) -> None:
        stored = build.cache.of_layer(build.name).of_latents()
        size, has_scales = sizes.rank + sizes.rope_dim, stored.has_own_scales
        super().__init__({build.name: Latent(size, stored_type(stored), has_scales=has_scales)})
        self.name = build.name
        self.scales = LayerScales(build.name, stored, ("k_scale",))
        self.sizes = sizes
        self._is_interleaved = is_interleaved
        heads, hidden = config.num_heads, config.hidden_size
        own_heads = build.tensor_parallel.share(heads, "attention heads")
        self.spec = LatentSpec(len(own_heads), sizes.rank, sizes.rope_dim, scale)
        head_size, latent_size = sizes.plain_dim + sizes.rope_dim, sizes.rank + sizes.rope_dim
        latent = {"kv_a_proj_with_mqa": Section(latent_size, latent_size)}  # of a single unit, so whole on every device
        if sizes.query_rank is None:
            inputs, biased = {"q_proj": Section(heads * head_size, head_size)} | latent, latent
        else:
            inputs = biased = {"q_a_proj": Section(sizes.query_rank, sizes.query_rank)} | latent
            self.q_a_layernorm = RMSNorm(sizes.query_rank, 1e-6)
            self.q_b_proj = build.linear(
                "q_b_proj", sizes.query_rank, heads * head_size, split="column", head_size=head_size
            )
        self.qkv_a_proj = build.linear("qkv_a_proj", hidden, inputs, bias=biased if bias else False, split="column")
        self.kv_a_layernorm = RMSNorm(sizes.rank, 1e-6) if latent_scale == 1 else _ScaledNorm(sizes.rank, latent_scale)
        layout = build.layout(f"{build.prefix}kv_b_proj")
        expansion = _ExpansionByHead if has_kv_by_head else _Expansion
        self.kv_b_proj = expansion(heads, own_heads, (sizes.plain_dim, sizes.value_dim), sizes.rank, layout)
        self.o_proj = build.linear("o_proj", heads * sizes.value_dim, hidden, bias=bias, split="row")
        self.indexer = indexer

    def forward(
        self, x: torch.Tensor | DeferredNorm, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        inputs = step.inputs[self.name]
        cache, scales = self.scales.beside(step.caches[self.name])
        rope, sizes, norm = ropes[MAIN_ROPE], self.sizes, self.kv_a_layernorm
        query, latent = self.qkv_a_proj(x).tensor_split((-sizes.rank - sizes.rope_dim,), 1)
        if sizes.query_rank is None:
            queries = query
        elif self.indexer is None:
            queries, _ = self.q_a_layernorm.into(self.q_b_proj, query, None)
        else:
            query = self.q_a_layernorm(query)
            queries = self.q_b_proj(query)
        if self.indexer is not None:
            step.chosen = self.indexer(rows_of(x), query, rope, step)
        q = latent_inputs(
            queries.unflatten(1, (self.spec.num_heads, -1)),
            latent,
            self.kv_b_proj.to_latents,
            norm.weight,
            norm.eps,
            rope,
            cache,
            inputs.slot_mapping,
            scales,
            is_interleaved=self._is_interleaved,
        )
        attended = latent_attention(q, cache, inputs, self.spec, scales, self.sinks(), step.chosen)  # [T, H, rank]
        values = attended.new_empty(*attended.shape[:2], sizes.value_dim)
        self.kv_b_proj.to_values(attended, values)
        return self.o_proj(self.weighted(values.flatten(1), x))

    def sinks(self) -> torch.Tensor | None:
        """Attention sinks of the heads on this device; see :func:`octavo.kernels.latent_attention`."""
        return None

    def weighted(self, values: torch.Tensor, x: torch.Tensor | DeferredNorm) -> torch.Tensor:
        """What the output projection gets of attention's values, ``[T, H · V]``, and the layer's input."""
        return values


class _ScaledNorm(RMSNorm):
    """A norm with a factor behind it, which its weight contains, in float32 to keep the product's precision."""

    def __init__(self, size: int, scale: float) -> None:
        super().__init__(size, 1e-6)
        self.weight = nn.Parameter(torch.ones(size, dtype=torch.float32), requires_grad=False)
        self._scale = scale

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        yield f"{path}.weight", WeightSlot(self.weight.data, transform=lambda weight: weight.float() * self._scale)


class _Expansion(nn.Module):
    """The projection from compressed vectors to keys and values, of which queries and what attention yields are made.

    Args:
        num_heads: of the model.
        own: the heads on this device.
        head_sizes: a head's outputs that are its key and its value.
        layout: how the checkpoint stores it; None for its values.
    """

    def __init__(
        self, num_heads: int, own: range, head_sizes: tuple[int, int], rank: int, layout: Layout | None
    ) -> None:
        super().__init__()
        self._layout = layout
        self._num_heads = num_heads
        self._own = own
        self._key_dim, head_size = head_sizes[0], sum(head_sizes)
        self._shape = len(own) * head_size, rank
        self._gemms: tuple[HeadLinear, HeadLinear] | None = None
        self.weight = nn.Parameter(torch.empty(self._shape), requires_grad=False)
        rows = slice(own.start * head_size, own.stop * head_size)
        source = (rows,) if len(own) < num_heads else ()
        self._part = WeightPart(slice(None), (num_heads * head_size, rank), source)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        self._restore_weight()
        if self._layout is None:
            yield f"{path}.weight", self._part.weight_slot(self.weight.data)
            return
        pending = PendingTensors(self._layout, self._part.shape, self._store)
        for name, slot in pending.slots(self.weight.data):
            yield f"{path}.{name}", slot

    def _store(self, weight: GroupedWeight) -> None:
        self.weight.data.copy_(self._part.taken(weight.values()))

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`. The weight is freed where packed copies take its place."""
        if self.weight.numel() == 0:
            return
        keys, values = self.by_head()
        if self._gemms is None:
            self._gemms = head_linear(keys.transpose(1, 2)), head_linear(values)
        else:
            self._gemms[0].update(keys.transpose(1, 2))
            self._gemms[1].update(values)
        if all(gemm.is_copy for gemm in self._gemms):
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def _restore_weight(self) -> None:
        if self.weight.numel() == 0:
            self.weight = nn.Parameter(self.weight.new_empty(self._shape), requires_grad=False)

    @property
    def to_latents(self) -> HeadLinear:
        """Each head's queries as compressed vectors are compared with them: ``[T, H, key_dim] → [T, H, rank]``."""
        assert self._gemms is not None, "weights are used before they are finished"
        return self._gemms[0]

    @property
    def to_values(self) -> HeadLinear:
        """Each head's values: ``[T, H, rank] → [T, H, value_dim]``."""
        assert self._gemms is not None, "weights are used before they are finished"
        return self._gemms[1]

    def by_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``[H, key_dim, rank]`` and ``[H, value_dim, rank]``."""
        weight = self.weight.unflatten(0, (len(self._own), -1))
        return weight[:, : self._key_dim], weight[:, self._key_dim :]


class _ExpansionByHead(_Expansion):
    """The same of checkpoints that have its two parts apart: ``[H, rank, key_dim]`` and ``[H, value_dim, rank]``."""

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        self._restore_weight()
        keys, values = (part.data for part in self.by_head())
        heads = (slice(self._own.start, self._own.stop),)
        shape = (self._num_heads, keys.shape[2], keys.shape[1])
        yield sibling(path, "k_b_proj.weight"), WeightSlot(keys, (shape,), heads, lambda weight: weight.transpose(1, 2))
        yield sibling(path, "v_b_proj.weight"), WeightSlot(values, ((self._num_heads, *values.shape[1:]),), heads)
