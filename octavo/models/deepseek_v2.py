"""DeepSeek-V2: latent attention, and experts from some layer on."""

from functools import partial

from octavo.hub.families.deepseek import DeepseekV2Fields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.decoder import PreNormLayer
from octavo.layers.latent_attention import LatentAttention, LatentSizes
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import Experts, Router, Routing, SparseMLP
from octavo.layers.norm import RMSNorm
from octavo.models.base import DecoderLM


class DeepseekV2ForCausalLM(DecoderLM):
    """arXiv:2405.04434."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(DeepseekV2Fields)
        hidden = config.hidden_size
        sizes = LatentSizes(own.q_lora_rank, own.kv_lora_rank, own.qk_nope_head_dim, config.head_dim, own.v_head_dim)
        norm = partial(RMSNorm, hidden, config.rms_norm_eps)

        def dense(size: int, build: Build) -> GatedMLP:
            return GatedMLP(hidden, size, config.hidden_act, build, bias=own.mlp_bias)

        def sparse(build: Build) -> SparseMLP:
            routing = Routing(
                own.n_routed_experts,
                own.num_experts_per_tok,
                own.n_group,
                own.topk_group,
                own.routed_scaling_factor,
            )
            experts = Experts(
                own.n_routed_experts, hidden, own.moe_intermediate_size, config.hidden_act, build.tensor_parallel
            )
            shared = dense(own.moe_intermediate_size * own.n_shared_experts, build.at("shared_experts"))
            return SparseMLP(Router(hidden, routing), experts, shared)

        def layer(index: int, build: Build) -> PreNormLayer:
            attention = LatentAttention(
                config, sizes, build.at("self_attn"), scale=own.score_scale, bias=own.attention_bias
            )
            is_dense = index < own.first_k_dense_replace
            mlp = build.at("mlp")
            return PreNormLayer(attention, dense(config.intermediate_size, mlp) if is_dense else sparse(mlp), norm)

        super().__init__(config, build, layer, max_positions)
