"""BERT and RoBERTa (bidirectional attention): configuration parsing."""

from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, wrong
from octavo.hub.decoder_config import checkpoint_dtype
from octavo.hub.model_config import LayerType, ModelConfig, RopeConfig

_FULL: LayerType = "full_attention"
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


@dataclass(frozen=True, slots=True)
class BertFields:
    """What only these encoders have.

    Attributes:
        prefix: what precedes the names of their weights in checkpoints with a head beside them.
        classifier: names of the two layers that make classes of the first token's state.
        num_positions: rows of the table of positions.
        position_offset: row of the first position.
        type_vocab_size: kinds of segments.
    """

    prefix: str
    classifier: tuple[str, str]
    num_positions: int
    position_offset: int
    type_vocab_size: int


@dataclass(frozen=True, slots=True)
class BertFamily:
    """Reading rules of one kind of encoder; see :class:`octavo.hub.families.registry.Family`.

    Attributes:
        model_type: as config.json names it.
        prefix, classifier: see :class:`BertFields`.
        numbers_after_padding: positions count from the padding token's id + 1.
    """

    model_type: str
    prefix: str
    classifier: tuple[str, str]
    numbers_after_padding: bool = False

    @property
    def model(self) -> str:
        """The model's class, as ``module:class``."""
        return "octavo.models.bert:BertBackbone"

    def parse(self, architecture: str, raw: dict[str, Any]) -> ModelConfig:
        """See :meth:`octavo.hub.families.registry.Family.parse`."""
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
        if self.numbers_after_padding:
            padding = values.optional_count("pad_token_id", least=0)
            offset = (1 if padding is None else padding) + 1
            if num_positions <= offset:
                raise wrong("max_position_embeddings", num_positions, f"more than {offset}")
        num_layers = values.count("num_hidden_layers", MAX_LAYERS)
        return ModelConfig(
            architecture=architecture,
            model_type=self.model_type,
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
            layer_types=(_FULL,) * num_layers,
            sliding_window=None,
            tie_word_embeddings=False,
            hidden_act=values.text("hidden_act"),
            dtype=checkpoint_dtype(values),
            bos_token_id=None,
            eos_token_ids=(),
            own=BertFields(
                prefix=self.prefix,
                classifier=self.classifier,
                num_positions=num_positions,
                position_offset=offset,
                type_vocab_size=values.count("type_vocab_size", least=1),
            ),
            quantization=values.mapping("quantization_config"),
            is_encoder=True,
        )


_BERT = BertFamily("bert", "bert.", ("bert.pooler.dense", "classifier"))
_ROBERTA_HEAD = ("classifier.dense", "classifier.out_proj")
_ROBERTA = BertFamily("roberta", "roberta.", _ROBERTA_HEAD, numbers_after_padding=True)
_XLM_ROBERTA = BertFamily("xlm-roberta", "roberta.", _ROBERTA_HEAD, numbers_after_padding=True)

FAMILIES = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForSequenceClassification": _BERT,
    "BertForTokenClassification": _BERT,
    "HF_ColBERT": _BERT,
    "RobertaModel": _ROBERTA,
    "RobertaForMaskedLM": _ROBERTA,
    "RobertaForSequenceClassification": _ROBERTA,
    "RobertaForTokenClassification": _ROBERTA,
    "XLMRobertaModel": _XLM_ROBERTA,
    "XLMRobertaForMaskedLM": _XLM_ROBERTA,
    "XLMRobertaForSequenceClassification": _XLM_ROBERTA,
    "XLMRobertaForTokenClassification": _XLM_ROBERTA,
}
