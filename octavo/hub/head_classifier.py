"""Classifiers that are made of rows of a language-model head: rerankers that answer with one of a few tokens.

Such a model's own checkpoint is a language model. vLLM's keys, given with ``hf_overrides``, make a classifier of it:
``classifier_from_token`` names the tokens, ``method`` how their logits become a score.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import quote
from octavo.hub.model_config import ModelConfig
from octavo.records import DenseSpec, HeadRows
from octavo.tokenization import load_tokenizer

QWEN3_RERANKER_TEMPLATE = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {{ messages[0].content }}\n"
    "<Document>: {{ messages[1].content }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n{{ '' }}"
)
"""The prompt that Qwen3's rerankers were trained on (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B)."""

_TWO_WAY, _PLAIN = "from_2_way_softmax", "no_post_processing"


def is_qwen3_reranker(raw: dict[str, Any]) -> bool:
    """Whether a configuration is to make a classifier of a reranker as Qwen published it."""
    return raw.get("is_original_qwen3_reranker") is True


def head_classifier(config: ModelConfig, find_tokenizer: Callable[[], Path]) -> DenseSpec | None:
    """The classifier that a configuration requests from rows of the head; None if it requests none.

    Args:
        find_tokenizer: finds the tokenizer's files.
    """
    raw = config.raw
    names, method = raw.get("classifier_from_token"), raw.get("method")
    if is_qwen3_reranker(raw):
        method = _TWO_WAY
    if names is None and not is_qwen3_reranker(raw):
        return None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UnsupportedModelError(f"classifier_from_token is a list of tokens, not {quote(names)}.")
    if method not in (_TWO_WAY, _PLAIN):
        raise UnsupportedModelError(
            f"classifier_from_token needs the method {_TWO_WAY} or {_PLAIN}, not {quote(method)}."
        )
    if method == _TWO_WAY and len(names) != 2:
        raise UnsupportedModelError(f"The method {_TWO_WAY} takes two tokens, for no and for yes, not {quote(names)}.")
    rows = HeadRows(_token_ids(names, find_tokenizer()), config.vocab_size, is_difference=method == _TWO_WAY)
    layer = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    return DenseSpec("", layer, config.hidden_size, rows.num_outputs, False, "identity", head_rows=rows)


def _token_ids(names: list[str], tokenizer: Path) -> list[int]:
    ids: list[int] = []
    for name, token_id in zip(names, load_tokenizer(tokenizer).convert_tokens_to_ids(names), strict=True):
        if token_id is None:
            raise UnsupportedModelError(f"classifier_from_token names {quote(name)}, which the tokenizer lacks.")
        ids.append(token_id)
    return ids
