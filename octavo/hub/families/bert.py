"""BERT, RoBERTa and DistilBERT (learned positions): configuration parsing."""

from dataclasses import dataclass, replace
from typing import Any

from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.encoder_config import HEADS, MAX_POSITIONS, EncoderFields, encoder_config, tanh_head
from octavo.hub.model_config import ModelConfig
from octavo.hub.splade import SPLADE
from octavo.records import DenseSpec

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
_DISTILBERT_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}


@dataclass(frozen=True, slots=True)
class BertFamily:
    """Reading rules of one kind of encoder; see :class:`octavo.hub.families.registry.Family`.

    Attributes:
        model_type: as config.json names it.
        prefix, classifier: see :class:`EncoderFields`.
        head: name of the layer before the classifier.
        numbers_after_padding: positions count from the padding token's id + 1.
    """

    model_type: str
    prefix: str
    head: str
    classifier: str
    numbers_after_padding: bool = False

    @property
    def model(self) -> str:
        """The model's class, as ``module:class``."""
        return "octavo.models.bert:BertBackbone"

    def parse(self, architecture: str, raw: dict[str, Any]) -> ModelConfig:
        """See :meth:`octavo.hub.families.registry.Family.parse`."""
        values = ConfigValues(raw, _DEFAULTS, {})
        if values.text("position_embedding_type") != "absolute":
            raise invalid("position_embedding_type", values.get("position_embedding_type"), "'absolute'")
        num_positions = values.count("max_position_embeddings", MAX_POSITIONS)
        offset = 0
        if self.numbers_after_padding:
            padding = values.optional_count("pad_token_id", least=0)
            offset = (1 if padding is None else padding) + 1
            if num_positions <= offset:
                raise invalid("max_position_embeddings", num_positions, f"more than {offset}")
        own = EncoderFields(
            self.prefix,
            head=tanh_head(self.head, values),
            classifier=self.classifier,
            num_positions=num_positions,
            position_offset=offset,
            type_vocab_size=values.count("type_vocab_size", least=1),
        )
        return encoder_config(architecture, self.model_type, values, own, max_positions=num_positions - offset)


@dataclass(frozen=True, slots=True)
class DistilBertFamily:
    """Reading rules of DistilBERT, whose keys have names of their own."""

    model: str = "octavo.models.bert:DistilBertBackbone"

    def parse(self, architecture: str, raw: dict[str, Any]) -> ModelConfig:
        """See :meth:`octavo.hub.families.registry.Family.parse`."""
        raw = raw | {name: raw[own] for name, own in _DISTILBERT_NAMES.items() if own in raw}
        values = ConfigValues(raw, {**_DEFAULTS, "num_hidden_layers": 6}, {"layer_norm_eps": 1e-12})
        num_positions, size = values.count("max_position_embeddings", MAX_POSITIONS), values.count("hidden_size")
        head = DenseSpec("", "pre_classifier", size, size, True, "relu")
        own = EncoderFields("distilbert.", head=(head,), num_positions=num_positions)
        return encoder_config(architecture, "distilbert", values, own, max_positions=num_positions)


_BERT = BertFamily("bert", "bert.", "bert.pooler.dense", "classifier")
_ROBERTA = BertFamily("roberta", "roberta.", "classifier.dense", "classifier.out_proj", numbers_after_padding=True)
_XLM_ROBERTA = replace(_ROBERTA, model_type="xlm-roberta")
_DISTILBERT = DistilBertFamily()

FAMILIES: dict[str, BertFamily | DistilBertFamily] = {
    **{f"Bert{head}": _BERT for head in HEADS},
    "HF_ColBERT": _BERT,
    SPLADE: _BERT,
    **{f"Roberta{head}": _ROBERTA for head in HEADS},
    **{f"XLMRoberta{head}": _XLM_ROBERTA for head in HEADS},
    **{f"DistilBert{head}": _DISTILBERT for head in HEADS},
}
