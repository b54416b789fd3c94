"""Gemma 3n (text): configuration parsing."""

from dataclasses import dataclass, replace
from typing import Any

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid
from octavo.hub.decoder_config import DecoderFamily, check_rotary
from octavo.hub.model_config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class Gemma3nFields:
    """Gemma 3n's own quantities.

    Attributes:
        attention_bias: of all projections of the attention.
        final_logit_softcap: tanh cap of logits; None for none.
        local_rope: of sliding-window layers.
        mlp_sizes: per layer, the size of the feed-forward part.
        sparsity: per layer, the share of gates that are to be 0; 0 for a dense layer.
        shared_layers: layer → the earlier layer whose keys and values it attends to.
        num_streams, active_stream: AltUp's streams, and the one that layers compute.
        scales_output: whether what the streams get of a token's own input is computed from a scaled stream.
        laurel_rank: rank of the map beside the attention.
        input_vocab_size, input_size: tokens with an input for each layer, and its size.
    """

    attention_bias: bool
    final_logit_softcap: float | None
    local_rope: RopeConfig
    mlp_sizes: tuple[int, ...]
    sparsity: tuple[float, ...]
    shared_layers: dict[int, int]
    num_streams: int
    active_stream: int
    scales_output: bool
    laurel_rank: int
    input_vocab_size: int
    input_size: int


def _gemma3n(values: ConfigValues, config: ModelConfig) -> Gemma3nFields:
    local_rope = parse_ropes(values)[1] or config.rope
    check_rotary(config.head_dim, local_rope)
    num_streams = values.count("altup_num_inputs", 16, least=2)
    return Gemma3nFields(
        attention_bias=values.flag("attention_bias"),
        final_logit_softcap=values.optional_number("final_logit_softcapping"),
        local_rope=local_rope,
        mlp_sizes=_mlp_sizes(values, config),
        sparsity=_sparsity(values, config),
        shared_layers=_shared_layers(values, config),
        num_streams=num_streams,
        active_stream=values.count("altup_active_idx", num_streams - 1, least=0),
        scales_output=values.flag("altup_correct_scale"),
        laurel_rank=values.count("laurel_rank"),
        input_vocab_size=values.count("vocab_size_per_layer_input"),
        input_size=values.count("hidden_size_per_layer_input"),
    )


def _mlp_sizes(values: ConfigValues, config: ModelConfig) -> tuple[int, ...]:
    sizes = values.get("intermediate_sizes")
    return (config.intermediate_size,) * config.num_layers if sizes is None else tuple(sizes)


def _sparsity(values: ConfigValues, config: ModelConfig) -> tuple[float, ...]:
    """The share of each layer; of models without a list, the first ten layers are sparse."""
    listed = values.get("activation_sparsity_pattern")
    if listed is None:
        num_sparse = 10 if config.num_layers > 10 else 0
        return (0.95,) * num_sparse + (0.0,) * (config.num_layers - num_sparse)
    is_list = isinstance(listed, list) and len(listed) == config.num_layers
    if not is_list or not all(isinstance(share, int | float) and 0 <= share < 1 for share in listed):
        raise invalid("activation_sparsity_pattern", listed, f"{config.num_layers} numbers from 0 to below 1")
    return tuple(float(share) for share in listed)


def _shared_layers(values: ConfigValues, config: ModelConfig) -> dict[int, int]:
    """Each of the last layers attends to what the last one of its kind before them has stored."""
    num_shared = values.count("num_kv_shared_layers", config.num_layers - 1, least=0)
    own = config.layer_types[: config.num_layers - num_shared]
    sources = {kind: index for index, kind in enumerate(own)}
    shared = range(len(own), config.num_layers)
    if any(config.layer_types[index] not in sources for index in shared):
        raise invalid("num_kv_shared_layers", num_shared, "a number that leaves a layer of each kind before them")
    return {index: sources[config.layer_types[index]] for index in shared}


def _sizes(values: ConfigValues) -> dict[str, Any]:
    """The largest feed-forward part, of models that list the size of each layer's, and the usual pattern of windows."""
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    sizes = values.get("intermediate_size")
    if not isinstance(sizes, list):
        return {}
    if len(sizes) != num_layers or not all(type(size) is int and size > 0 for size in sizes):
        raise invalid("intermediate_size", sizes, f"a whole number, or one for each of {num_layers} layers")
    return {"intermediate_size": max(sizes), "intermediate_sizes": sizes}


_TEXT = DecoderFamily(
    model="octavo.models.gemma3n:Gemma3nForCausalLM",
    model_type="gemma3n_text",
    defaults={
        "vocab_size": 262400,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32768,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "sliding_window_pattern": 5,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "altup_num_inputs": 4,
        "num_kv_shared_layers": 15,
        "laurel_rank": 64,
        "eos_token_id": 1,
    },
    derive=_sizes,
    parse_own=_gemma3n,
)

FAMILIES = {
    "Gemma3nForCausalLM": _TEXT,
    "Gemma3nForConditionalGeneration": replace(_TEXT, model="octavo.models.gemma3n:Gemma3nForConditionalGeneration"),
}
