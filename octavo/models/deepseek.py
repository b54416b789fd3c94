"""DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5, A.X K1: latent attention, and experts from some layer on."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import nn

from octavo.hub.families.deepseek import DeepseekFields
from octavo.hub.model_config import ModelConfig
from octavo.kernels import DeferredOutput, RopeTables, output_of
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.decoder import PreNormLayer
from octavo.layers.indexer import Indexer
from octavo.layers.latent_attention import LatentAttention, LatentSizes
from octavo.layers.moe import feed_forward
from octavo.layers.norm import Norm, RMSNorm
from octavo.models.base import DecoderLM


def latent_attention(
    config: ModelConfig,
    own: DeepseekFields,
    build: Build,
    kind: type[LatentAttention] = LatentAttention,
    indexer: Indexer | None = None,
) -> LatentAttention:
    """A layer's attention module."""
    return kind(
        config,
        LatentSizes(own.q_lora_rank, own.kv_lora_rank, own.qk_nope_head_dim, config.head_dim, own.v_head_dim),
        build,
        scale=own.score_scale,
        bias=own.attention_bias,
        is_interleaved=own.rope_interleave,
        latent_scale=own.latent_scale,
        has_kv_by_head=own.has_kv_by_head,
        indexer=indexer,
    )


def make_indexer(
    config: ModelConfig, own: DeepseekFields, index: int, build: Build, max_positions: int
) -> Indexer | None:
    """The indexer of the layer of an index; None if it has none.

    Args:
        build: of the attention module.
    """
    if own.indexer is None or not own.indexer.is_own[index]:
        return None
    assert own.q_lora_rank is not None, "the configuration was checked"
    return Indexer(config, own.indexer, own.q_lora_rank, build.at("indexer"), max_positions)


def shared_indexers(own: DeepseekFields) -> tuple[str, ...]:
    """Beginnings of the names of indexers' tensors in layers that use another one's choice."""
    is_own = () if own.indexer is None else own.indexer.is_own
    return tuple(f"model.layers.{index}.self_attn.indexer." for index, has_one in enumerate(is_own) if not has_one)


class DeepseekDecoder(DecoderLM):
    """arXiv:2405.04434 (V2), arXiv:2412.19437 (V3), arXiv:2512.02556 (V3.2).

    Attributes:
        sparse_layer: class of the layers with experts.
    """

    sparse_layer: ClassVar[type[PreNormLayer]] = PreNormLayer

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(DeepseekFields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer:
            inner = build.at("self_attn")
            indexer = make_indexer(config, own, index, inner, max_positions)
            attention = latent_attention(config, own, inner, indexer=indexer)
            mlp = feed_forward(config, own.experts, index, build.at("mlp"))
            kind = self.sparse_layer if own.experts.is_sparse[index] else PreNormLayer
            return kind(attention, mlp, norm)

        super().__init__(config, build, layer, max_positions)
        self.unused_weights = shared_indexers(own)


class NormedOutputLayer(PreNormLayer):
    """Llama's layer with a norm of what the feed-forward part adds to the stream."""

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norm: Callable[[], Norm]) -> None:
        super().__init__(attention, feed_forward, norm)
        self.post_mlp_layernorm = norm()

    def forward(
        self,
        x: torch.Tensor | DeferredOutput,
        residual: torch.Tensor | None,
        ropes: Mapping[str, RopeTables],
        step: StepContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`PreNormLayer.forward`."""
        added, residual = super().forward(x, residual, ropes, step)
        return self.post_mlp_layernorm(output_of(added)), residual


class AXK1ForCausalLM(DeepseekDecoder):
    """SK Telecom's A.X K1."""

    sparse_layer: ClassVar[type[PreNormLayer]] = NormedOutputLayer

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        super().__init__(config, build, max_positions)
        is_sparse = config.own_as(DeepseekFields).experts.is_sparse
        self.unused_weights = tuple(
            f"model.layers.{index}.post_mlp_layernorm."
            for index, has_experts in enumerate(is_sparse)
            if not has_experts
        )
