"""Decoders with experts in Llama's layer: Mixtral, Qwen2-MoE, Qwen3-MoE, GLM-4.5 and others."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

from torch import nn

from octavo.hub.families.sparse import LayerKind, NormKind, QueryNorms, SparseFields
from octavo.hub.model_config import ModelConfig, QueryScaling, RopeConfig
from octavo.layers.adjusted_attention import ClippedAttention
from octavo.layers.attention_variants import LateNormAttention, ProjectionNormAttention
from octavo.layers.build import Build
from octavo.layers.decoder import PostNormLayer, PreNormLayer, RotaryAttention, SandwichNormLayer
from octavo.layers.gated_attention import GatedAttention
from octavo.layers.head_terms import AttentionTerms
from octavo.layers.moe import feed_forward
from octavo.layers.norm import LayerNorm, Norm, RMSNorm, UnitOffsetRMSNorm
from octavo.layers.older_layers import ParallelLayer
from octavo.layers.rotary import LOCAL_ROPE, MAIN_ROPE, NO_ROPE
from octavo.models.base import DecoderLM

_ATTENTION: Mapping[QueryNorms, type[RotaryAttention]] = {
    "none": RotaryAttention,
    "heads": RotaryAttention,
    "rotated heads": LateNormAttention,
    "projections": ProjectionNormAttention,
}
_LAYERS: Mapping[LayerKind, Callable[[nn.Module, nn.Module, Callable[[], Norm]], nn.Module]] = {
    "pre-norm": PreNormLayer,
    "post-norm": PostNormLayer,
    "sandwich": SandwichNormLayer,
    "parallel": ParallelLayer,
}
_NORMS: Mapping[NormKind, Callable[[int, float], Norm]] = {
    "rms": RMSNorm,
    "offset rms": UnitOffsetRMSNorm,
    "layer": LayerNorm,
    "layer without bias": partial(LayerNorm, has_bias=False),
}


class SparseDecoder(DecoderLM):
    """Qwen3-MoE (arXiv:2505.09388), GLM-4.5 (arXiv:2508.06471), and the base of what has other names only."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(SparseFields)
        norm = partial(_NORMS[own.norm], config.hidden_size, config.rms_norm_eps)
        attention_of: Callable[..., RotaryAttention] = _ATTENTION[own.query_norms]
        if own.clip_qkv is not None:
            attention_of = partial(ClippedAttention, bound=own.clip_qkv)
        elif own.gate is not None:
            attention_of = partial(GatedAttention, gate=own.gate)

        head_norm = UnitOffsetRMSNorm if own.norm == "offset rms" else RMSNorm

        def rope_of(index: int) -> str:
            if index in own.unrotated:
                return NO_ROPE
            is_local = own.local_rope is not None and config.layer_types[index] == "sliding_attention"
            return LOCAL_ROPE if is_local else MAIN_ROPE

        def layer(index: int, build: Build) -> nn.Module:
            heads = config.num_heads if own.heads is None else own.heads[index]
            attention = attention_of(
                replace(config, num_heads=heads),
                index,
                build.at("self_attn"),
                rope=rope_of(index),
                head_norm=head_norm if own.query_norms in ("heads", "rotated heads") else None,
                qkv_bias=own.qkv_bias,
                output_bias=own.output_bias,
                is_fused=own.has_fused_qkv,
                is_interleaved=own.is_interleaved,
                terms=AttentionTerms(heads, build, has_sinks=True) if own.has_sinks else None,
            )
            experts = own.other_experts.get(index, own.experts)
            return _LAYERS[own.layer](attention, feed_forward(config, experts, index, build.at("mlp")), norm)

        ropes: dict[str, RopeConfig | QueryScaling | None] = {MAIN_ROPE: config.rope}
        if own.local_rope is not None:
            ropes[LOCAL_ROPE] = own.local_rope
        if own.unrotated or own.query_norms == "rotated heads":
            ropes[NO_ROPE] = None
        super().__init__(
            config,
            build,
            layer,
            max_positions,
            norm=_NORMS[own.norm],
            embedding_scale=own.embedding_scale,
            given_scale=own.embedding_scale,
            ropes=ropes,
            head_bias=own.head_bias,
            logit_scale=own.logit_scale,
        )


class MixtralForCausalLM(SparseDecoder):
    """arXiv:2401.04088."""

    module_names: ClassVar[Mapping[str, str]] = {"mlp": "block_sparse_moe"}


class DbrxForCausalLM(SparseDecoder):
    """Databricks' model of 2024."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.": "transformer.wte.",
        "model.norm.": "transformer.norm_f.",
        "model.layers.": "transformer.blocks.",
    }
    module_names: ClassVar[Mapping[str, str]] = {
        "input_layernorm": "norm_attn_norm.norm_1",
        "self_attn": "norm_attn_norm.attn",
        "qkv_proj": "Wqkv",
        "o_proj": "out_proj",
        "post_attention_layernorm": "norm_attn_norm.norm_2",
        "mlp": "ffn",
        "gate": "router.layer",
        "expert_rows": "experts.mlp",
    }
    base_prefix: ClassVar[str] = "transformer."


class Qwen2MoeForCausalLM(SparseDecoder):
    """arXiv:2407.10671."""

    module_names: ClassVar[Mapping[str, str]] = {"shared_experts": "shared_expert"}


class HunYuanMoEV1ForCausalLM(SparseDecoder):
    """arXiv:2411.02265."""

    module_names: ClassVar[Mapping[str, str]] = {
        "q_norm": "query_layernorm",
        "k_norm": "key_layernorm",
        "gate": "gate.wg",
        "shared_experts": "shared_mlp",
    }


class HYV3ForCausalLM(SparseDecoder):
    """Hunyuan 3."""

    module_names: ClassVar[Mapping[str, str]] = {"gate": "router.gate", "shared_experts": "shared_mlp"}


class AfmoeForCausalLM(SparseDecoder):
    """Arcee's Trinity."""

    module_names: ClassVar[Mapping[str, str]] = {
        "pre_feedforward_layernorm": "pre_mlp_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
        "gate": "router.gate",
    }


class LagunaForCausalLM(SparseDecoder):
    """Poolside's Laguna."""

    module_names: ClassVar[Mapping[str, str]] = {"shared_experts": "shared_expert"}


class Step3p5ForCausalLM(SparseDecoder):
    """StepFun's Step-3.5-Flash (arXiv:2602.10604)."""

    module_names: ClassVar[Mapping[str, str]] = {
        "mlp.gate": "moe.gate",
        "mlp.router_bias": "moe.router_bias",
        "mlp.stacks": "moe",
        "mlp.experts": "moe.experts",
        "mlp.shared_experts": "share_expert",
    }


class FlintForCausalLM(SparseDecoder):
    """Recursive's Flint."""

    module_names: ClassVar[Mapping[str, str]] = {"shared_experts": "shared_expert", "sinks": "softmax_offset"}
