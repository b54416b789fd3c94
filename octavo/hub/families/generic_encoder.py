"""Encoders that have no family here, but that the transformers library implements: their configurations.

As for decoders (:mod:`octavo.hub.families.generic`), the library's configuration class knows defaults and old names of
keys. Any such encoder makes vectors; classifiers are known by the form of their head.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues
from octavo.hub.encoder_config import MAX_POSITIONS, EncoderFields
from octavo.hub.families import generic
from octavo.hub.model_config import ModelConfig
from octavo.records import DenseSpec
from octavo.records.pooling import Activation

MODEL = "octavo.models.generic.encoder:GenericEncoder"

_MASKED = "ForMaskedLM"
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
_FORMS = ("Model", _MASKED, "ForPreTraining", *_CLASSIFIERS)
# Model types whose tokens are numbered behind the padding token's id; the model's own code is asked, too.
_AFTER_PADDING = (
    "camembert",
    "data2vec-text",
    "esm",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
)


@dataclass(frozen=True, slots=True)
class LibraryEncoderFields(EncoderFields):
    """Marks an encoder that is built from the transformers library."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The layers of a classifier of texts: a square one, if it has a name, and the one that makes classes."""

    dense: str
    activation: Activation = "tanh"
    classifier: str = "classifier"

    def layers(self, prefix: str, size: int) -> tuple[DenseSpec, ...]:
        """Those before the classes; ``*`` in a name stands for the encoder's prefix."""
        return (DenseSpec("", self.dense.replace("*", prefix), size, size, True, self.activation),)


_POOLER = _Head("*pooler.dense")
_IN_CLASSIFIER = _Head("classifier.dense", classifier="classifier.out_proj")
_HEADS: dict[str, _Head] = {
    "albert": _Head("*pooler"),
    **dict.fromkeys(("bert", "ernie", "roc_bert", "layoutlm"), _POOLER),
    **dict.fromkeys(_AFTER_PADDING, _IN_CLASSIFIER),
    "electra": replace(_IN_CLASSIFIER, activation="gelu"),
}
"""Model type → the form of its classifiers of texts; its classifiers of tokens are one layer."""


def encoder_name(architecture: str) -> str:
    """The library's encoder without a head that an architecture is made of; empty if it is no encoder."""
    for form in _FORMS:
        base = architecture.removesuffix(form)
        if base != architecture and base in _encoders():
            return f"{base}Model"
    return ""


@functools.cache
def _encoders() -> frozenset[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    names = MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    return frozenset(name.removesuffix(_MASKED) for name in names if name.endswith(_MASKED))


def parse(architecture: str, raw: dict[str, Any]) -> ModelConfig:
    """The configuration of an encoder.

    Raises:
        UnsupportedModelError: a value is invalid, or the kind of model or its classifier is not supported.
    """
    library = generic.library_config(raw)
    generic.check_parts(architecture, library)
    if getattr(library, "is_decoder", False):
        raise generic.not_served(architecture, "it is a decoder (is_decoder = true)")
    shared = generic.parse_shared(encoder_name(architecture), raw, library)
    values = ConfigValues(library.to_dict(), {}, {})
    offset = _first_position(library.model_type, values)
    num_positions = shared.max_position_embeddings
    if num_positions > MAX_POSITIONS or num_positions <= offset:
        raise generic.not_served(architecture, f"its max_position_embeddings is {num_positions}")
    prefix = f"{_base_prefix(architecture)}."
    head = _HEADS.get(library.model_type)
    if architecture.endswith(_CLASSIFIERS) and head is None:
        raise generic.not_served(architecture, "its classifier has a form that is not known; its encoder makes vectors")
    own = LibraryEncoderFields(
        prefix,
        head=() if head is None else head.layers(prefix, shared.hidden_size),
        classifier="" if head is None else head.classifier,
        position_offset=offset,
        type_vocab_size=values.optional_count("type_vocab_size", least=0) or 0,
    )
    return replace(shared, max_position_embeddings=num_positions - offset, own=own, is_encoder=True)


def _first_position(model_type: str, values: ConfigValues) -> int:
    padding = values.optional_count("pad_token_id", least=0)
    return 0 if model_type not in _AFTER_PADDING else (1 if padding is None else padding) + 1


def _base_prefix(architecture: str) -> str:
    """What precedes the names of an encoder's weights in checkpoints with a head beside them."""
    import transformers

    kind = getattr(transformers, encoder_name(architecture), None)
    if kind is None:
        raise UnsupportedModelError(f"The transformers library has no {encoder_name(architecture)}.")
    return str(kind.base_model_prefix)
