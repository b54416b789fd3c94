"""Configurations of encoders: BERT and RoBERTa, whose tokens see both ways."""

from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_file import dtype_name
from octavo.hub.config_values import ConfigValues, wrong
from octavo.hub.encoder_families import ENCODERS
from octavo.hub.model_config import EncoderConfig, LayerType, ModelConfig, RopeConfig

_FULL: LayerType = "full_attention"
_MAX_LAYERS = 4096
_MAX_POSITIONS = 1 << 20


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
}


def is_encoder(raw: dict[str, Any]) -> bool:
    """Whether a config.json is one of an encoder that is known."""
    names = raw.get("architectures")
    return isinstance(names, list) and bool(names) and isinstance(names[0], str) and names[0] in ENCODERS


def parse_encoder(raw: dict[str, Any]) -> ModelConfig:
    """Build an encoder's configuration.

    Args:
        raw: what config.json holds, for which :func:`is_encoder` holds.

    Raises:
        UnsupportedModelError: a value cannot be.
    """
    architecture: str = raw["architectures"][0]
    family = ENCODERS[architecture]
    values = ConfigValues(raw, _DEFAULTS, {})
    if values.text("position_embedding_type") != "absolute":
        raise wrong("position_embedding_type", values.get("position_embedding_type"), "'absolute'")
    if values.flag("is_decoder"):
        raise UnsupportedModelError("The model's configuration has is_decoder = true; only encoders are supported.")
    hidden_size, num_heads = values.count("hidden_size"), values.count("num_attention_heads")
    if hidden_size % num_heads:
        raise wrong("hidden_size", hidden_size, f"a multiple of num_attention_heads = {num_heads}")
    num_positions = values.count("max_position_embeddings", _MAX_POSITIONS)
    offset = 0
    if family.numbers_after_padding:
        padding = values.optional_count("pad_token_id", least=0)
        offset = (1 if padding is None else padding) + 1
        if num_positions <= offset:
            raise wrong("max_position_embeddings", num_positions, f"more than {offset}")
    num_layers = values.count("num_hidden_layers", _MAX_LAYERS)
    return ModelConfig(
        architecture=architecture,
        model_type=family.model_type,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=values.count("intermediate_size"),
        vocab_size=values.count("vocab_size"),
        max_position_embeddings=num_positions - offset,
        rms_norm_eps=values.number("layer_norm_eps"),
        rope=RopeConfig(theta=10000.0),
        local_rope=None,
        layer_types=(_FULL,) * num_layers,
        sliding_window=None,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        hidden_act=values.text("hidden_act"),
        attn_logit_softcap=None,
        final_logit_softcap=None,
        query_pre_attn_scalar=None,
        dtype=dtype_name(raw),
        bos_token_id=None,
        eos_token_ids=(),
        raw=raw,
        encoder=EncoderConfig(
            prefix=family.prefix,
            num_positions=num_positions,
            position_offset=offset,
            type_vocab_size=values.count("type_vocab_size", least=1),
        ),
    )
