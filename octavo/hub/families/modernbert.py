"""ModernBERT: configuration parsing."""

from dataclasses import dataclass
from typing import Any

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid
from octavo.hub.decoder_config import check_layer_types
from octavo.hub.encoder_config import HEADS, MAX_POSITIONS, EncoderFields, encoder_config
from octavo.hub.model_config import LayerType, ModelConfig
from octavo.records import DenseSpec, NormSpec
from octavo.records.pooling import SequencePooling

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "hidden_act": "gelu",
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "rope_theta": 160000.0,
    "rope_local_base_freq": 10000.0,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "classifier_pooling": "cls",
    "classifier_activation": "gelu",
}
_NAMES = {
    "hidden_act": "hidden_activation",
    "layer_norm_eps": "norm_eps",
    "rope_theta": "global_rope_theta",
    "rope_local_base_freq": "local_rope_theta",
}
_POOLING: dict[Any, SequencePooling] = {"cls": "CLS", "mean": "MEAN"}


@dataclass(frozen=True, slots=True)
class ModernBertFamily:
    """Reading rules; see :class:`octavo.hub.families.registry.Family`."""

    model: str = "octavo.models.modernbert:ModernBertBackbone"

    def parse(self, architecture: str, raw: dict[str, Any]) -> ModelConfig:
        """See :meth:`octavo.hub.families.registry.Family.parse`."""
        raw = raw | {name: raw[own] for name, own in _NAMES.items() if raw.get(own) is not None}
        values = ConfigValues(raw, _DEFAULTS, {})
        pooling = values.get("classifier_pooling")
        if pooling not in _POOLING:
            raise invalid("classifier_pooling", pooling, "'cls' or 'mean'")
        rope, local_rope = parse_ropes(values)
        head = _prediction_head(values)
        own = EncoderFields(
            "model.",
            head=(head,),
            token_head=(head,),
            class_pooling=_POOLING[pooling],
            attention_bias=values.flag("attention_bias"),
            up_bias=values.flag("mlp_bias"),
            down_bias=values.flag("mlp_bias"),
            norm_bias=values.flag("norm_bias"),
            local_rope=local_rope,
        )
        return encoder_config(
            architecture,
            "modernbert",
            values,
            own,
            max_positions=values.count("max_position_embeddings", MAX_POSITIONS),
            rope=rope,
            layer_types=_layer_types(values),
            window=values.count("local_attention", MAX_POSITIONS) // 2 + 1,
        )


def _prediction_head(values: ConfigValues) -> DenseSpec:
    size = values.count("hidden_size")
    if values.text("classifier_activation") != "gelu":
        raise invalid("classifier_activation", values.get("classifier_activation"), "'gelu'")
    norm = NormSpec("head.norm", values.number("layer_norm_eps"), values.flag("norm_bias"))
    return DenseSpec("", "head.dense", size, size, values.flag("classifier_bias"), "gelu", norm)


def _layer_types(values: ConfigValues) -> tuple[LayerType, ...]:
    """Local attention in all but every n-th layer, beginning with a global one, unless they are listed."""
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    given = values.get("layer_types")
    if given is not None:
        return check_layer_types(given, num_layers)
    every = values.count("global_attn_every_n_layers")
    return tuple("sliding_attention" if index % every else "full_attention" for index in range(num_layers))


_MODERNBERT = ModernBertFamily()

FAMILIES = {**{f"ModernBert{head}": _MODERNBERT for head in HEADS}, "ColBERTModernBertModel": _MODERNBERT}
