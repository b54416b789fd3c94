"""Granite, HyperCLOVA X, MiniCPM and Tele-FLM: configuration parsing."""

import math
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid, positive_number
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.deepseek import LATENT_FIXED, DeepseekFields, latent_fields
from octavo.hub.families.experts import ExpertFields, parse_routing
from octavo.hub.model_config import ModelConfig
from octavo.records.experts import Routing, SeparateExperts, StackedExperts


@dataclass(frozen=True, slots=True)
class GraniteFields:
    """Granite's own quantities.

    Attributes:
        embedding_multiplier, given_multiplier: factors on embeddings and on vectors that are given in their place.
        residual_multiplier: factor on what attention and feed-forward parts add to the stream.
        attention_multiplier: factor on attention scores.
        logit_scale: factor on logits.
        has_post_norms: whether what is added to the stream is normed.
        has_fused_gate_up: whether checkpoints have the feed-forward part's gate and its values as one layer.
        has_rope: whether layers have rotary embedding.
        experts: None without experts.
        latent: sizes of latent attention; None without it.
        rope_bases: of each layer, None for one without rotary embedding; empty if all have the configuration's.
    """

    attention_bias: bool
    mlp_bias: bool
    embedding_multiplier: float
    given_multiplier: float
    residual_multiplier: float
    attention_multiplier: float
    logit_scale: float
    has_post_norms: bool = False
    has_fused_gate_up: bool = False
    has_rope: bool = True
    experts: ExpertFields | None = None
    latent: DeepseekFields | None = None
    rope_bases: tuple[float | None, ...] = ()


def _parse_granite(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    return GraniteFields(
        **_shared(values),
        attention_multiplier=values.number("attention_multiplier"),
        logit_scale=1 / values.number("logits_scaling"),
    )


def _derive_hybrid(values: ConfigValues) -> dict[str, Any]:
    """Of the hybrid models, those that are neither hybrid nor have experts."""
    if values.get("num_local_experts"):
        raise UnsupportedModelError("The model's configuration has num_local_experts, which is not supported.")
    given = values.get("layer_types") or values.get("layers_block_type") or ["mamba"]
    if not isinstance(given, list) or any(kind not in ("attention", "full_attention") for kind in given):
        raise UnsupportedModelError(
            "The model has layers with recurrent states beside attention (layer_types), which is not supported."
        )
    return {"layer_types": None, "intermediate_size": values.count("shared_intermediate_size")}


def _parse_hybrid(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    kind = values.get("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise invalid("position_embedding_type", kind, "null, 'nope' or 'rope'")
    return replace(_parse_granite(values, config), has_fused_gate_up=True, has_rope=kind == "rope")


def _parse_granite_moe(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    is_from_gguf = values.flag("is_from_gguf")
    stacked = StackedExperts("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight")
    experts = ExpertFields(
        parse_routing(values, renormalises=True),
        config.intermediate_size,
        (True,) * config.num_layers,
        shared_size=values.count("shared_intermediate_size", least=0),
        is_shared_fused=not is_from_gguf,
        storage=SeparateExperts(down="output_linear") if is_from_gguf else stacked,
    )
    return replace(_parse_granite(values, config), experts=experts)


def _parse_granite_swa(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    return replace(_parse_granite(values, config), rope_bases=_rope_bases(values, config))


def _parse_granite_moe_swa(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    fields = _parse_granite_moe(values, config)
    assert fields.experts is not None, "it has experts"
    # Names of the model's own, as parts called "gate_up_proj" and "down_proj" are renamed in the shared experts.
    experts = replace(fields.experts, storage=StackedExperts("expert_gate_up", "expert_down"))
    return replace(fields, experts=experts, rope_bases=_rope_bases(values, config))


def _rope_bases(values: ConfigValues, config: ModelConfig) -> tuple[float | None, ...]:
    key = "layer_rope_theta"
    listed = values.get(key)
    if listed is None:
        return (config.rope.theta,) * config.num_layers
    if not isinstance(listed, list) or len(listed) != config.num_layers:
        raise invalid(key, listed, f"a number for each of {config.num_layers} layers")
    return tuple(None if base == 0 else positive_number(key, base) for base in listed)


def _granite_windows(values: ConfigValues) -> dict[str, Any]:
    """Windows in all layers but every fourth, beginning with the first."""
    if values.get("layer_types") is not None:
        return {}
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    return {"layer_types": ["sliding_attention" if index % 4 else "full_attention" for index in range(num_layers)]}


def _parse_hyperclovax(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    if not values.flag("use_post_norm"):
        raise UnsupportedModelError("The model's configuration has use_post_norm = False, which is not supported.")
    return GraniteFields(
        **_shared(values),
        attention_multiplier=values.optional_number("attention_multiplier") or config.head_dim**-0.5,
        logit_scale=values.number("logits_scaling"),
        has_post_norms=True,
    )


def _parse_minicpm(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    for key in ("num_experts", "sparse_config"):
        if values.get(key):
            raise UnsupportedModelError(f"The model's configuration has {key}, which is not supported.")
    return GraniteFields(
        attention_bias=values.flag("attention_bias"),
        mlp_bias=False,
        embedding_multiplier=values.number("scale_emb"),
        given_multiplier=1.0,
        residual_multiplier=values.number("scale_depth") / math.sqrt(config.num_layers),
        attention_multiplier=config.head_dim**-0.5,
        logit_scale=values.number("dim_model_base") / config.hidden_size,
    )


def _parse_minicpm3(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    no_experts = ExpertFields(Routing(1, 1), config.intermediate_size, (False,) * config.num_layers)
    return replace(_parse_minicpm(values, config), latent=latent_fields(values, config, no_experts))


def _derive_minicpm3(values: ConfigValues) -> dict[str, Any]:
    """What stands for an absent size or factor."""
    usual = {
        "v_head_dim": values.count("hidden_size") // values.count("num_attention_heads"),
        "scale_depth": math.sqrt(values.count("num_hidden_layers", MAX_LAYERS)),
        "dim_model_base": values.count("hidden_size"),
    }
    return {key: value for key, value in usual.items() if values.get(key) is None}


def _parse_teleflm(values: ConfigValues, config: ModelConfig) -> GraniteFields:
    has_factors = values.flag("use_mup")
    return GraniteFields(
        attention_bias=values.flag("attention_bias"),
        mlp_bias=values.flag("mlp_bias"),
        embedding_multiplier=values.number("input_mult") if has_factors else 1.0,
        given_multiplier=1.0,
        residual_multiplier=1.0,
        attention_multiplier=config.head_dim**-0.5,
        logit_scale=values.number("output_mult") / values.number("mup_scale_factor") if has_factors else 1.0,
    )


def _shared(values: ConfigValues) -> dict[str, Any]:
    return {
        "attention_bias": values.flag("attention_bias"),
        "mlp_bias": values.flag("mlp_bias"),
        "embedding_multiplier": values.number("embedding_multiplier"),
        "given_multiplier": values.number("embedding_multiplier"),
        "residual_multiplier": values.number("residual_multiplier"),
    }


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "eos_token_id": 2,
}

_MOE = DecoderFamily(
    model="octavo.models.granite:GraniteMoeForCausalLM",
    model_type="granitemoe",
    names={"num_experts": "num_local_experts"},
    defaults={
        **_DEFAULTS,
        "attention_multiplier": 1.0,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 0,
    },
    fixed=NO_WINDOW | {"mlp_bias": False},
    parse_own=_parse_granite_moe,
)

FAMILIES = {
    "GraniteForCausalLM": DecoderFamily(
        model="octavo.models.granite:GraniteForCausalLM",
        model_type="granite",
        defaults={**_DEFAULTS, "attention_multiplier": 1.0},
        fixed=NO_WINDOW,
        parse_own=_parse_granite,
    ),
    "GraniteMoeHybridForCausalLM": DecoderFamily(
        model="octavo.models.granite:GraniteMoeHybridForCausalLM",
        model_type="granitemoehybrid",
        defaults={
            **_DEFAULTS,
            "attention_multiplier": 1.0,
            "num_local_experts": 8,
            "shared_intermediate_size": 1024,
        },
        fixed={"sliding_window": None, "mlp_bias": False},
        derive=_derive_hybrid,
        parse_own=_parse_hybrid,
    ),
    "GraniteMoeForCausalLM": _MOE,
    "GraniteMoeSharedForCausalLM": replace(_MOE, model_type="granitemoeshared"),
    "GraniteSWAForCausalLM": DecoderFamily(
        model="octavo.models.granite_swa:GraniteSWAForCausalLM",
        model_type="granite_swa",
        defaults={
            **_DEFAULTS,
            "vocab_size": 100352,
            "hidden_size": 2560,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "attention_multiplier": 1.0,
            "sliding_window": 128,
            "eos_token_id": 100257,
        },
        derive=_granite_windows,
        parse_own=_parse_granite_swa,
    ),
    "GraniteMoeSWAForCausalLM": replace(
        _MOE,
        model="octavo.models.granite_swa:GraniteMoeSWAForCausalLM",
        model_type="granitemoe_swa",
        defaults=_MOE.defaults | {"sliding_window": 128},
        fixed={"mlp_bias": False},
        derive=_granite_windows,
        parse_own=_parse_granite_moe_swa,
    ),
    "HyperCLOVAXForCausalLM": DecoderFamily(
        model="octavo.models.granite:HyperCLOVAXForCausalLM",
        model_type="hyperclovax",
        defaults={**_DEFAULTS, "use_post_norm": True},
        fixed=NO_WINDOW,
        parse_own=_parse_hyperclovax,
    ),
    "MiniCPMForCausalLM": DecoderFamily(
        model="octavo.models.granite:GraniteForCausalLM",
        model_type="minicpm",
        defaults={
            **_DEFAULTS,
            "scale_emb": 1,
            "scale_depth": 1,
            "dim_model_base": 1,
            "tie_word_embeddings": True,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_minicpm,
    ),
    "MiniCPM3ForCausalLM": DecoderFamily(
        model="octavo.models.granite:MiniCPM3ForCausalLM",
        model_type="minicpm3",
        names={"head_dim": "qk_rope_head_dim"},
        defaults={
            **_DEFAULTS,
            "vocab_size": 73448,
            "hidden_size": 2560,
            "intermediate_size": 6400,
            "num_hidden_layers": 62,
            "num_attention_heads": 40,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "q_lora_rank": 768,
            "kv_lora_rank": 256,
            "qk_nope_head_dim": 64,
            "head_dim": 32,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 256,
        },
        fixed=LATENT_FIXED | {"rope_interleave": False},
        derive=_derive_minicpm3,
        parse_own=_parse_minicpm3,
    ),
    "TeleFLMForCausalLM": DecoderFamily(
        model="octavo.models.granite:GraniteForCausalLM",
        model_type="teleflm",
        defaults=_DEFAULTS,
        fixed=NO_WINDOW,
        parse_own=_parse_teleflm,
    ),
}
