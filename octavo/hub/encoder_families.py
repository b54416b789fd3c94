"""Encoders that are known: BERT and RoBERTa in their forms."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """Reading rules of one kind of encoder.

    Attributes:
        model_type: as config.json names it.
        prefix: what stands before the names of its weights where a head stands beside it.
        classifier: names of the two layers that make classes of the first token's state.
        numbers_after_padding: positions count from the padding token's id + 1.
    """

    model_type: str
    prefix: str
    classifier: tuple[str, str]
    numbers_after_padding: bool = False


_BERT = EncoderFamily("bert", "bert.", ("bert.pooler.dense", "classifier"))
_ROBERTA_HEAD = ("classifier.dense", "classifier.out_proj")
_ROBERTA = EncoderFamily("roberta", "roberta.", _ROBERTA_HEAD, numbers_after_padding=True)
_XLM_ROBERTA = EncoderFamily("xlm-roberta", "roberta.", _ROBERTA_HEAD, numbers_after_padding=True)

ENCODERS: dict[str, EncoderFamily] = {
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
