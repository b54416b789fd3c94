"""Hunyuan 4: configuration parsing."""

from dataclasses import dataclass, replace

from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.families.deepseek import DeepseekFields
from octavo.hub.families.indexed import DEEPSEEK_V32, parse_indexed
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import ExpertSpec, StackedExperts


@dataclass(frozen=True, slots=True)
class Hunyuan4Fields:
    """What Hunyuan 4 adds to DeepSeek V3.2's quantities.

    Attributes:
        num_streams: residual streams between layers.
        stream_magnitude: the largest weight with which a layer's part writes to a stream.
        stream_eps: added to the weights of streams.
    """

    latent: DeepseekFields
    num_streams: int
    stream_magnitude: float
    stream_eps: float


def _hunyuan4(values: ConfigValues, config: ModelConfig) -> Hunyuan4Fields:
    if values.get("learnable_sink") not in (None, True):
        raise invalid("learnable_sink", values.get("learnable_sink"), "true")
    latent = parse_indexed(values, config)
    assert latent.indexer is not None, "it was just parsed"
    indexer = replace(latent.indexer, key_eps=config.rms_norm_eps, rotates_last=True)
    limit = values.optional_number("swiglu_limit")
    spec = None if limit is None else ExpertSpec("clamped_silu", limit=limit)
    return Hunyuan4Fields(
        replace(latent, experts=replace(latent.experts, storage=StackedExperts(), spec=spec), indexer=indexer),
        num_streams=values.count("hc_mult"),
        stream_magnitude=values.number("hc_magnitude"),
        stream_eps=values.number("hc_eps"),
    )


FAMILIES = {
    "HYV4ForCausalLM": replace(
        DEEPSEEK_V32,
        model="octavo.models.hunyuan4:HYV4ForCausalLM",
        model_type="hy_v4",
        defaults=DEEPSEEK_V32.defaults
        | {
            "vocab_size": 120832,
            "hidden_size": 2816,
            "intermediate_size": 6912,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.827,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 120025,
            "index_n_heads": 16,
            "index_topk_freq": 4,
            "hc_mult": 4,
            "hc_magnitude": 2.0,
            "hc_eps": 1e-6,
            "swiglu_limit": 10.0,
        },
        fixed=DEEPSEEK_V32.fixed | {"rope_interleave": False, "indexer_rope_interleave": False},
        parse_own=_hunyuan4,
    ),
}
