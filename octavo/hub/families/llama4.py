"""Llama 4 (text): configuration parsing."""

from dataclasses import dataclass, replace

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing
from octavo.hub.model_config import ModelConfig, QueryScaling
from octavo.records.experts import ExpertSpec, StackedExperts

_NORM_COMMUTES_WITH = ("default", "linear", "llama3")
"""Rotary scalings without a factor on cosines and sines, which a norm after the rotation would undo."""


@dataclass(frozen=True, slots=True)
class Llama4Fields:
    """Llama 4's own quantities.

    Attributes:
        unrotated: layers without rotary embedding.
        has_query_norms: whether each head's query and key are normed in the other layers.
        query_scaling: of queries in layers without rotary embedding; None for none.
        chunk: layers with rotary embedding attend within chunks of so many tokens; None for none.
    """

    experts: ExpertFields
    attention_bias: bool
    unrotated: frozenset[int]
    has_query_norms: bool
    query_scaling: QueryScaling | None
    chunk: int | None


def _parse_own(values: ConfigValues, config: ModelConfig) -> Llama4Fields:
    has_norms = values.flag("use_qk_norm")
    if has_norms and config.rope.kind not in _NORM_COMMUTES_WITH:
        raise UnsupportedModelError(f"Llama 4 with the rotary scaling {config.rope.kind!r} is not supported.")
    scaling = None
    if values.flag("attn_temperature_tuning"):
        scaling = QueryScaling(values.number("attn_scale"), values.number("floor_scale"), offset=1)
    return Llama4Fields(
        experts=ExpertFields(
            replace(parse_routing(values, renormalises=False), score="sigmoid"),
            config.intermediate_size,
            _sparse(values, config),
            dense_size=values.count("intermediate_size_mlp"),
            shared_size=config.intermediate_size,
            storage=StackedExperts(is_transposed=True),
            spec=ExpertSpec("silu", weighs_inputs=True),
        ),
        attention_bias=values.flag("attention_bias"),
        unrotated=_unrotated(values, config),
        has_query_norms=has_norms,
        query_scaling=scaling,
        chunk=values.optional_count("attention_chunk_size"),
    )


def _sparse(values: ConfigValues, config: ModelConfig) -> tuple[bool, ...]:
    listed, step = values.get("moe_layers"), values.count("interleave_moe_layer_step")
    if listed is None:
        return tuple((index + 1) % step == 0 for index in range(config.num_layers))
    if not isinstance(listed, list):
        raise invalid("moe_layers", listed, "a list of layers")
    return tuple(index in listed for index in range(config.num_layers))


def _unrotated(values: ConfigValues, config: ModelConfig) -> frozenset[int]:
    """Layers for which ``no_rope_layers`` has a 0, or every so many of them."""
    listed, interval = values.get("no_rope_layers"), values.count("no_rope_layer_interval")
    if not listed:
        return frozenset(range(interval - 1, config.num_layers, interval))
    if not isinstance(listed, list) or len(listed) != config.num_layers:
        raise invalid("no_rope_layers", listed, f"0 or 1 for each of {config.num_layers} layers")
    return frozenset(index for index, has_rope in enumerate(listed) if not has_rope)


FAMILIES = {
    "Llama4ForCausalLM": DecoderFamily(
        model="octavo.models.llama4:Llama4ForCausalLM",
        model_type="llama4_text",
        names={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "num_experts_per_tok": 1,
            "num_experts": 16,
            "interleave_moe_layer_step": 1,
            "use_qk_norm": True,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_own,
    )
}
