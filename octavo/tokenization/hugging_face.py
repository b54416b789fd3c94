"""A model's tokenizer as an object of Hugging Face transformers, for code that calls it as one."""

from typing import TYPE_CHECKING

import tokenizers

from octavo.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:  # takes a second to import, which servers avoid
    from transformers import PreTrainedTokenizerBase


def to_hugging_face(tokenizer: Tokenizer, name: str, max_length: int | None = None) -> "PreTrainedTokenizerBase":
    """A tokenizer of transformers with the same vocabulary, special tokens and chat templates.

    It is a copy: truncation and padding, which its callers may switch on, do not reach the engine's own.

    Args:
        name: its ``name_or_path``.
        max_length: longest sequence of the model, in tokens.
    """
    from transformers import PreTrainedTokenizerFast

    named = dict(tokenizer.special_tokens.named)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.all_special_ids)
    others = [token for token in tokens if token is not None and token not in named.values()]
    templates = tokenizer.chat_templates
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.backend.to_str()),
        chat_template=templates if set(templates) - {"default"} else tokenizer.chat_template,
        name_or_path=name,
        clean_up_tokenization_spaces=False,
        additional_special_tokens=others,
        **named,
    )
    if max_length is not None:
        made.model_max_length = max_length
    return made
