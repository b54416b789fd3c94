"""An architecture's purpose by its name, and the decoder on which a pooling model is built."""

from typing import Any, Literal

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import quote
from octavo.hub.encoder_config import EncoderFields
from octavo.hub.families.registry import FAMILIES
from octavo.hub.model_config import ModelConfig
from octavo.records.pooling import SequencePooling

Purpose = Literal["generate", "embed", "classify", "token_classify", "token_embed"]

_GENERATIVE_SUFFIXES = ("ForCausalLM", "LMHeadModel")
_BIDIRECTIONAL = "Bidirectional"
# Prefixes of architectures that are built on a decoder of another name → its prefix.
_DECODER_NAMES = {"Gemma3Text": "Gemma3", "VoyageQwen3": "Qwen3"}
# Prefixes of encoders that have another name with rotary embedding → the prefix of that.
_ROTARY_NAMES = {"HF_ColBERT": "ColBERTJinaRobertaModel", "XLMRoberta": "JinaEmbeddingsV3"}
_OWN_NAME = "own_architecture"
"""Key under which a configuration keeps the architecture that config.json declares."""
# Suffix of an architecture → its purpose; longer ones first.
_SUFFIXES: tuple[tuple[str, Purpose], ...] = (
    ("ForSequenceClassification", "classify"),
    ("ForTokenClassification", "token_classify"),
    ("ForProcessRewardModel", "token_classify"),
    ("ForRewardModel", "token_classify"),
    ("ForMaskedLM", "embed"),
    ("ForPreTraining", "embed"),
    *((suffix, "generate") for suffix in _GENERATIVE_SUFFIXES),
    ("_ColBERT", "token_embed"),
    ("ColBERTModernBertModel", "token_embed"),
    ("ColBERTJinaRobertaModel", "token_embed"),
    ("EmbedModel", "embed"),
    ("Model", "embed"),
)
_POOLING_NAMES: dict[str, SequencePooling] = {"avg": "MEAN", "cls": "CLS", "last": "LAST"}


def as_generative_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the generative decoder on which a pooling model is built; unchanged if there is none.

    An XLM-RoBERTa with rotary embedding gets the name it has in transformers.
    """
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return raw
    if raw.get("position_embedding_type") == "rotary":
        start = next((start for start in _ROTARY_NAMES if names[0].startswith(start)), "")
        return {**raw, "architectures": [_ROTARY_NAMES.get(start, "") + names[0].removeprefix(start)]}
    for suffix, _ in _SUFFIXES:
        base = names[0].removesuffix(suffix)
        causal = base.removesuffix(_BIDIRECTIONAL)
        decoder = _DECODER_NAMES.get(causal, causal)
        writing = next((decoder + end for end in _GENERATIVE_SUFFIXES if decoder + end in FAMILIES), None)
        if base != names[0] and writing is not None:
            changes = {} if causal == base else {"is_causal": False}
            return {**raw, **changes, "architectures": [writing], _OWN_NAME: names[0]}
    return raw


def declared_architecture(config: ModelConfig) -> str:
    """The architecture that config.json declares."""
    return str(config.raw.get(_OWN_NAME) or config.raw["architectures"][0])


def declared_purpose(config: ModelConfig) -> Purpose:
    """The purpose of the declared architecture."""
    return purpose_of(declared_architecture(config))


def purpose_of(architecture: str) -> Purpose:
    """The purpose of an architecture."""
    return next((purpose for suffix, purpose in _SUFFIXES if architecture.endswith(suffix)), "generate")


def default_pooling(config: ModelConfig) -> SequencePooling:
    """The pooling of a model without module files: the one NVIDIA's configurations name, else the usual one."""
    named = config.raw.get("pooling")
    if _BIDIRECTIONAL in declared_architecture(config) and named is not None:
        if named not in _POOLING_NAMES:
            raise UnsupportedModelError(
                f"The model's configuration has pooling = {quote(named)}; known are {', '.join(_POOLING_NAMES)}."
            )
        return _POOLING_NAMES[named]
    return "CLS" if isinstance(config.own, EncoderFields) else "LAST"
