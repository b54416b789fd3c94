"""OLMo 2 and 3, EXAONE 4: norms of what is added to the residual stream, and of queries and keys."""

from functools import partial

from octavo.hub.families.olmo import OlmoFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.attention_variants import ProjectionNormAttention
from octavo.layers.build import Build
from octavo.layers.decoder import PostNormLayer, RotaryAttention
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import LOCAL_ROPE, MAIN_ROPE
from octavo.models.base import DecoderLM


class Olmo2ForCausalLM(DecoderLM):
    """arXiv:2501.00656, arXiv:2512.13961; EXAONE 4: arXiv:2507.11407."""

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(OlmoFields)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        attention_of = partial(RotaryAttention, head_norm=RMSNorm) if own.has_head_norms else ProjectionNormAttention

        def layer(index: int, build: Build) -> PostNormLayer:
            attention = attention_of(
                config,
                index,
                build.at("self_attn"),
                rope=LOCAL_ROPE if config.layer_types[index] == "sliding_attention" else MAIN_ROPE,
                qkv_bias=own.attention_bias,
                output_bias=own.attention_bias,
            )
            feed_forward = GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, build.at("mlp"))
            return PostNormLayer(attention, feed_forward, norm)

        ropes = {MAIN_ROPE: own.full_rope}
        if config.sliding_window is not None:
            ropes[LOCAL_ROPE] = own.sliding_rope
        super().__init__(config, build, layer, max_positions, ropes=ropes)
