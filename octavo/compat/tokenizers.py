"""Tokenizers as code written for vLLM gets them: those of Hugging Face transformers."""

from functools import lru_cache
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.hub import find_model, tokenizer_path
from octavo.tokenization import load_tokenizer, read_chat_template
from octavo.tokenization.hugging_face import to_hugging_face

AnyTokenizer = PreTrainedTokenizerBase


def get_tokenizer(
    tokenizer_name: str,
    *,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    download_dir: str | None = None,
    **options: Any,
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, as transformers has it; of a GGUF file or a bundled model as well.

    Args:
        tokenizer_mode: taken for compatibility; there is one tokenizer a model.
        trust_remote_code: refused.
        download_dir: cache folder for downloads.
        options: further options of ``AutoTokenizer.from_pretrained``.

    Raises:
        ConfigError: code from the model's folder was to be run.
    """
    if trust_remote_code:
        raise ConfigError("trust_remote_code: Octavo runs no code from a model's folder.")
    if tokenizer_name.startswith("bundled:") or tokenizer_name.endswith(".gguf"):
        return _from_octavo(tokenizer_name)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tokenizer_name, revision=revision, cache_dir=download_dir, **options
    )
    return tokenizer


cached_get_tokenizer = lru_cache(maxsize=16)(get_tokenizer)


def resolve_chat_template(
    tokenizer: PreTrainedTokenizerBase,
    chat_template: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    **model: Any,
) -> str | None:
    """The chat template to use: the given one, else the tokenizer's, None if it has none.

    Args:
        model: taken for compatibility (``model_config``, ``trust_remote_code``).
    """
    try:
        template: str | None = tokenizer.get_chat_template(chat_template, tools=tools)
    except ValueError:  # the tokenizer has none
        return chat_template
    return template


def load_chat_template(chat_template: str | None, *, is_literal: bool = False) -> str | None:
    """A chat template, from a file if it names one.

    Raises:
        ConfigError: it is neither a template nor a file.
    """
    if chat_template is None or is_literal:
        return chat_template
    return read_chat_template(chat_template)


def _from_octavo(name: str) -> PreTrainedTokenizerBase:
    settings = EngineConfig.from_kwargs(model=name)
    source, _ = find_model(settings)
    return to_hugging_face(load_tokenizer(tokenizer_path(settings, source)), name)
