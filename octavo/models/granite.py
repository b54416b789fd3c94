"""Granite: Llama's layer with factors on embeddings, scores, logits, and on what is added to the residual stream."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

from torch import nn

from octavo.hub.families.granite import GraniteFields
from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer, RotaryAttention, SandwichNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import feed_forward
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import MAIN_ROPE
from octavo.models.base import DecoderLM
from octavo.models.deepseek import latent_attention


class GraniteForCausalLM(DecoderLM):
    """IBM's Granite 3 and 4, dense.

    The residual stream is kept divided by the factor ``m`` on what is added to it, which saves that multiplication:
    embeddings are divided instead, and norms do not notice, apart from their epsilon, which is then ``eps / m²``.
    """

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(GraniteFields)
        post_norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        config = replace(config, rms_norm_eps=config.rms_norm_eps / own.residual_multiplier**2)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)

        def layer(index: int, build: Build) -> PreNormLayer | SandwichNormLayer:
            attention = self.attention(config, own, index, build.at("self_attn"))
            mlp = self.feed_forward(config, own, index, build.at("mlp"))
            if own.has_post_norms:
                return SandwichNormLayer(attention, mlp, norm, post_norm)
            return PreNormLayer(attention, mlp, norm)

        super().__init__(
            config,
            build,
            layer,
            max_positions,
            embedding_scale=own.embedding_multiplier / own.residual_multiplier,
            given_scale=own.given_multiplier / own.residual_multiplier,
            ropes=self.tables(config, own),
            logit_scale=own.logit_scale,
        )

    def tables(self, config: ModelConfig, own: GraniteFields) -> dict[str, RopeConfig | None]:
        """The rotary tables that layers use; see :class:`DecoderLM`."""
        return {MAIN_ROPE: config.rope if own.has_rope else None}

    def attention(self, config: ModelConfig, own: GraniteFields, index: int, build: Build) -> nn.Module:
        """The attention module of the layer of an index."""
        return RotaryAttention(
            config,
            index,
            build,
            qkv_bias=own.attention_bias,
            output_bias=own.attention_bias,
            scale=own.attention_multiplier,
        )

    def feed_forward(self, config: ModelConfig, own: GraniteFields, index: int, build: Build) -> nn.Module:
        """The feed-forward part of the layer of an index."""
        return GatedMLP(
            config.hidden_size,
            config.intermediate_size,
            config.hidden_act,
            build,
            bias=own.mlp_bias,
            is_fused=own.has_fused_gate_up,
        )


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """Granite 3's models with experts, and a feed-forward layer for all tokens beside them."""

    module_names: ClassVar[Mapping[str, str]] = {
        "mlp": "",
        "gate": "block_sparse_moe.router.layer",
        "shared_experts": "shared_mlp",
        "gate_up_proj": "input_linear",
        "down_proj": "output_linear",
    }

    def feed_forward(self, config: ModelConfig, own: GraniteFields, index: int, build: Build) -> nn.Module:
        """See :meth:`GraniteForCausalLM.feed_forward`."""
        assert own.experts is not None, "its configuration has experts"
        return feed_forward(config, own.experts, index, build)


class GraniteMoeHybridForCausalLM(GraniteForCausalLM):
    """Granite 4 without experts and with attention in all layers."""

    module_names: ClassVar[Mapping[str, str]] = {
        "mlp": "shared_mlp",
        "gate_up_proj": "input_linear",
        "down_proj": "output_linear",
    }


class HyperCLOVAXForCausalLM(GraniteForCausalLM):
    """Granite with norms of what is added to the stream (arXiv:2506.22403)."""

    module_names: ClassVar[Mapping[str, str]] = {
        "post_attention_layernorm": "post_norm1",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_norm2",
    }


class MiniCPM3ForCausalLM(GraniteForCausalLM):
    """MiniCPM 3, with latent attention."""

    def attention(self, config: ModelConfig, own: GraniteFields, index: int, build: Build) -> nn.Module:
        """See :meth:`GraniteForCausalLM.attention`."""
        assert own.latent is not None, "its configuration has the sizes"
        return latent_attention(config, own.latent, build)
