"""Models with Llama's layer, apart from switches and names: configuration parsing."""

from dataclasses import replace
from functools import partial
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid, reject_values
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families import llama
from octavo.hub.families.llama import LlamaFields, parse_biases
from octavo.hub.model_config import ModelConfig

_AS_LLAMA = llama.FAMILIES["LlamaForCausalLM"]
_LLAMA = "octavo.models.llama:LlamaForCausalLM"
_LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_MINISTRAL3_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_GLM: dict[str, Any] = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-7,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "eos_token_id": [151329, 151336, 151338],
}


_parse_glm = partial(parse_biases, output_bias=False, is_interleaved=True, has_fused_gate_up=True)


def _parse_hunyuan(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    if values.get("use_qk_norm") is False:
        raise UnsupportedModelError("The model's configuration has use_qk_norm = False, which is not supported.")
    return parse_biases(values, config, has_head_norms=True)


def _parse_internlm(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    rotary = values.mapping("rotary")
    if rotary.get("base", config.rope.theta) != config.rope.theta:
        raise invalid("rotary", rotary, f"of the base {config.rope.theta}")
    return parse_biases(values, config)


def _parse_iquestcoder(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    reject_values(values, "clip_qkv", "use_sliding_window")
    return parse_biases(values, config)


def _derive_exaone(values: ConfigValues) -> dict[str, Any]:
    return {"intermediate_size": values.optional_count("intermediate_size") or 4 * values.count("hidden_size")}


def _parse_internlm3(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    fields = parse_biases(values, config)
    if fields.attention_bias != fields.mlp_bias:
        raise UnsupportedModelError(
            "The model's configuration has qkv_bias different from bias, which is not supported in InternLM3."
        )
    return fields


def _parse_seed_oss(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    return parse_biases(values, config, output_bias=values.flag("attention_out_bias"))


def _parse_smollm3(values: ConfigValues, config: ModelConfig) -> LlamaFields:
    return parse_biases(values, config, unrotated=_without_rope(values, config.num_layers))


def _without_rope(values: ConfigValues, num_layers: int) -> frozenset[int]:
    """Layers without rotary embedding: those with a 0 in a list, or every n-th."""
    given = values.get("no_rope_layers")
    if given is None:
        interval = values.count("no_rope_layer_interval")
        return frozenset(range(interval - 1, num_layers, interval))
    if not isinstance(given, list) or len(given) < num_layers or any(item not in (0, 1) for item in given):
        raise invalid("no_rope_layers", given, f"a list of 0 or 1 for each of num_hidden_layers = {num_layers}")
    return frozenset(index for index in range(num_layers) if not given[index])


def _derive_smollm3(values: ConfigValues) -> dict[str, Any]:
    """With windows, layers without rotary embedding have them."""
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    has_windows = values.flag("use_sliding_window") and values.get("sliding_window") is not None
    return _layer_types(values, num_layers, _without_rope(values, num_layers) if has_windows else frozenset())


def _derive_cwm(values: ConfigValues) -> dict[str, Any]:
    """All layers but every fourth have windows, beginning with one that has none."""
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    return _layer_types(values, num_layers, frozenset(range(num_layers)) - frozenset(range(0, num_layers, 4)))


def _layer_types(values: ConfigValues, num_layers: int, sliding: frozenset[int]) -> dict[str, Any]:
    """The kinds of layers that a configuration lists, or else those of the family's code."""
    types = ["sliding_attention" if index in sliding else "full_attention" for index in range(num_layers)]
    return {"layer_types": values.get("layer_types") or types}


FAMILIES = {
    "LLaMAForCausalLM": _AS_LLAMA,
    "AquilaForCausalLM": replace(_AS_LLAMA, model_type="aquila"),
    "XverseForCausalLM": replace(_AS_LLAMA, model_type="xverse"),
    "InternLMForCausalLM": replace(
        _AS_LLAMA,
        model_type="internlm",
        names={"attention_bias": "bias"},
        defaults={**_AS_LLAMA.defaults, "vocab_size": 103168, "attention_bias": True},
        fixed=NO_WINDOW | {"mlp_bias": False},
        parse_own=_parse_internlm,
    ),
    "InternLM2ForCausalLM": replace(
        _AS_LLAMA,
        model="octavo.models.internlm2:InternLM2ForCausalLM",
        model_type="internlm2",
        names={"attention_bias": "bias"},
        defaults={**_AS_LLAMA.defaults, "vocab_size": 103168, "attention_bias": True},
        fixed=NO_WINDOW | {"head_dim": None, "mlp_bias": False},
        parse_own=partial(parse_biases, has_fused_qkv=True),
    ),
    "IQuestCoderForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="iquestcoder",
        defaults={
            "vocab_size": 76800,
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "num_hidden_layers": 80,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_iquestcoder,
    ),
    "ExaoneForCausalLM": DecoderFamily(
        model="octavo.models.exaone:ExaoneForCausalLM",
        model_type="exaone",
        names={
            "num_hidden_layers": "num_layers",
            "hidden_act": "activation_function",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        defaults={
            "vocab_size": 102400,
            "hidden_size": 2048,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW | {"head_dim": None, "attention_bias": False, "mlp_bias": False},
        derive=_derive_exaone,
        parse_own=parse_biases,
    ),
    "Phi3ForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="phi3",
        defaults={
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 32000,
        },
        fixed={"layer_types": None, "attention_bias": False, "mlp_bias": False},
        parse_own=partial(parse_biases, has_fused_qkv=True, has_fused_gate_up=True),
    ),
    "GlmForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="glm",
        defaults=_GLM,
        fixed=NO_WINDOW | {"mlp_bias": False},
        parse_own=_parse_glm,
    ),
    "Glm4ForCausalLM": DecoderFamily(
        model="octavo.models.glm4:Glm4ForCausalLM",
        model_type="glm4",
        defaults=_GLM,
        fixed=NO_WINDOW | {"mlp_bias": False},
        parse_own=partial(_parse_glm, has_post_norms=True),
    ),
    "SmolLM3ForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="smollm3",
        defaults={
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rope_theta": 2_000_000.0,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
            "eos_token_id": 128001,
        },
        has_window_switch=True,
        derive=_derive_smollm3,
        parse_own=_parse_smollm3,
    ),
    "ArceeForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="arcee",
        defaults={
            "vocab_size": 32000,
            "hidden_size": 2560,
            "intermediate_size": 18432,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "relu2",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 128001,
        },
        fixed=NO_WINDOW,
        parse_own=partial(parse_biases, is_gated=False),
    ),
    "ApertusForCausalLM": DecoderFamily(
        model="octavo.models.apertus:ApertusForCausalLM",
        model_type="apertus",
        defaults={
            "vocab_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "xielu",
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-5,
            "rope_theta": 12_000_000.0,
            "rope_parameters": _LLAMA3_ROPE,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW | {"mlp_bias": False},
        parse_own=partial(parse_biases, has_head_norms=True, is_gated=False),
    ),
    "SeedOssForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="seed_oss",
        defaults={
            "vocab_size": 155136,
            "hidden_size": 4096,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_seed_oss,
    ),
    "Ernie4_5ForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="ernie4_5",
        names={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
        defaults={
            "vocab_size": 103424,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 18,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": True,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=partial(parse_biases, is_interleaved=True),
    ),
    "HeliumForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="helium",
        defaults={
            "vocab_size": 48000,
            "hidden_size": 2560,
            "intermediate_size": 7040,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-8,
            "rope_theta": 100_000.0,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=partial(parse_biases, output_bias=False, is_interleaved=True),
    ),
    "CwmForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="cwm",
        defaults={
            "vocab_size": 128256,
            "hidden_size": 6144,
            "intermediate_size": 21504,
            "num_hidden_layers": 64,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "rope_parameters": {**_LLAMA3_ROPE, "factor": 16.0},
            "sliding_window": 8192,
            "eos_token_id": [128001, 128008, 128009],
        },
        fixed={"attention_bias": False},
        derive=_derive_cwm,
        parse_own=parse_biases,
    ),
    "MinistralForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="ministral",
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "eos_token_id": 2,
        },
        fixed={"attention_bias": False, "mlp_bias": False},
        parse_own=parse_biases,
    ),
    "Ministral3ForCausalLM": DecoderFamily(
        model="octavo.models.ministral3:Ministral3ForCausalLM",
        model_type="ministral3",
        defaults={
            "vocab_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "rope_parameters": _MINISTRAL3_ROPE,
            "eos_token_id": 2,
        },
        fixed={"layer_types": None, "attention_bias": False, "mlp_bias": False},
        parse_own=parse_biases,
    ),
    "HunYuanDenseV1ForCausalLM": DecoderFamily(
        model="octavo.models.hunyuan:HunYuanDenseV1ForCausalLM",
        model_type="hunyuan_v1_dense",
        defaults={
            "vocab_size": 290943,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW | {"mlp_bias": False},
        parse_own=_parse_hunyuan,
    ),
    "InternLM3ForCausalLM": DecoderFamily(
        model=_LLAMA,
        model_type="internlm3",
        names={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
        defaults={
            "vocab_size": 128512,
            "hidden_size": 4096,
            "intermediate_size": 10240,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=_parse_internlm3,
    ),
}
