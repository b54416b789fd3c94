"""Encoder configurations: what their families share."""

from dataclasses import dataclass

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid
from octavo.hub.decoder_config import check_rotary, checkpoint_dtype
from octavo.hub.model_config import LayerType, ModelConfig, RopeConfig
from octavo.records import DenseSpec
from octavo.records.pooling import SequencePooling

MAX_POSITIONS = 1 << 20
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
"""Ends of the architectures that every family of encoders has."""


@dataclass(frozen=True, slots=True)
class EncoderFields:
    """What only encoders have.

    Attributes:
        prefix: what precedes the names of their weights in checkpoints with a head beside them.
        head, token_head: layers between a sequence's pooled state, or a token's state, and the classifier.
        classifier, token_classifier: names of the layers that make classes.
        class_pooling: which states a sequence's classes are made of.
        num_positions: rows of the table of learned positions; 0 without one.
        position_offset: row of the first position.
        type_vocab_size: kinds of segments; 0 for none.
        attention_bias, up_bias, down_bias, norm_bias: which layers have biases.
        local_rope: rotary embedding of sliding-window layers; None for that of the others.
    """

    prefix: str
    head: tuple[DenseSpec, ...] = ()
    token_head: tuple[DenseSpec, ...] = ()
    classifier: str = "classifier"
    token_classifier: str = "classifier"
    class_pooling: SequencePooling = "CLS"
    num_positions: int = 0
    position_offset: int = 0
    type_vocab_size: int = 0
    attention_bias: bool = True
    up_bias: bool = True
    down_bias: bool = True
    norm_bias: bool = True
    local_rope: RopeConfig | None = None


def encoder_config(
    architecture: str,
    model_type: str,
    values: ConfigValues,
    own: EncoderFields,
    *,
    max_positions: int,
    rope: RopeConfig | None = None,
    layer_types: tuple[LayerType, ...] | None = None,
    window: int | None = None,
) -> ModelConfig:
    """A model's configuration, from keys by BERT's names.

    Args:
        max_positions: maximum length of a text in tokens.
        rope: rotary embedding; None for none.
        layer_types: None if all layers attend to all tokens.
        window: of sliding-window layers: tokens on each side that a token attends to, itself included.
    """
    if values.flag("is_decoder"):
        raise UnsupportedModelError("The model's configuration has is_decoder = true; only encoders are supported.")
    hidden_size, num_heads = values.count("hidden_size"), values.count("num_attention_heads")
    if hidden_size % num_heads:
        raise invalid("hidden_size", hidden_size, f"a multiple of num_attention_heads = {num_heads}")
    head_dim = hidden_size // num_heads
    if rope is not None:
        check_rotary(head_dim, rope)
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    full: LayerType = "full_attention"
    return ModelConfig(
        architecture=architecture,
        model_type=model_type,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=values.count("intermediate_size"),
        vocab_size=values.count("vocab_size"),
        max_position_embeddings=max_positions,
        rms_norm_eps=values.number("layer_norm_eps"),
        rope=rope or RopeConfig(theta=10000.0),
        layer_types=layer_types or (full,) * num_layers,
        sliding_window=window,
        tie_word_embeddings=False,
        hidden_act=values.text("hidden_act"),
        dtype=checkpoint_dtype(values),
        eos_token_ids=(),
        own=own,
        quantization=values.mapping("quantization_config"),
        is_encoder=True,
    )


def tanh_head(name: str, values: ConfigValues) -> tuple[DenseSpec, ...]:
    """BERT's pooler: a square layer and tanh."""
    size = values.count("hidden_size")
    return (DenseSpec("", name, size, size, True, "tanh"),)
