"""Parses prompts of all kinds to token ids within the model's limits."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from operator import index
from typing import Any

from octavo.errors import InvalidRequestError, PromptTooLongError
from octavo.inputs.embeds import embeds_of
from octavo.records import PromptEmbeds, PromptType
from octavo.tokenization.tokenizer import Tokenizer

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "prompt_embeds", "cache_salt")
_NO_MEDIA = "models with images, audio or video are not supported"
_REASONS = {
    "multi_modal_data": _NO_MEDIA,
    "multi_modal_uuids": _NO_MEDIA,
    "mm_processor_kwargs": _NO_MEDIA,
    "media_io_kwargs": _NO_MEDIA,
    "encoder_prompt": "encoder-decoder models are not supported",
    "decoder_prompt": "encoder-decoder models are not supported",
}


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """A prompt as the model sees it, at least one token; ``text`` if it was given as text."""

    token_ids: list[int]
    text: str | None
    cache_salt: str | None
    embeds: PromptEmbeds | None = None


def parse_prompt(
    prompt: PromptType,
    tokenizer: Tokenizer | None,
    *,
    max_model_len: int,
    vocab_size: int,
    truncate_prompt_tokens: int | None = None,
    embeds_size: int = 0,
) -> ParsedPrompt:
    """Token ids of a prompt.

    Args:
        truncate_prompt_tokens: keep only the last that many tokens; −1 is as many as leave room for one more.
        embeds_size: size of the vectors that a prompt may be given as; 0 if they may not.

    Raises:
        PromptTooLongError: a text that cannot fit, however it is tokenised.
    """
    if isinstance(prompt, Mapping):
        check_prompt_keys(prompt)
    if isinstance(prompt, Mapping) and prompt.get("prompt_embeds") is not None:
        return embeds_prompt(prompt, embeds_size, truncate_prompt_tokens)
    text, token_ids, cache_salt = _parts(prompt)
    if token_ids is None:
        assert text is not None, "a prompt has text or token ids"
        if tokenizer is None:
            raise InvalidRequestError("The engine runs without a tokenizer; give token ids as prompt.", "prompt")
        if truncate_prompt_tokens is None:
            _check_text_length(text, tokenizer, max_model_len)
        token_ids = tokenizer.encode(text)
    else:
        token_ids = plain_ints(_kept(token_ids, truncate_prompt_tokens, max_model_len), "prompt")
    if truncate_prompt_tokens is not None:
        token_ids = token_ids[-_num_kept(truncate_prompt_tokens, max_model_len) :]
    if not token_ids:
        raise InvalidRequestError("The prompt is empty: it has no tokens.", "prompt")
    check_token_ids(token_ids, vocab_size, "prompt")
    return ParsedPrompt(token_ids, text, cache_salt)


def check_prompt_keys(prompt: Mapping[str, Any]) -> None:
    """Reject what a prompt holds besides its text, token ids, vectors and salt, unless it is None or empty."""
    for key, value in prompt.items():
        if key not in _PROMPT_KEYS and value is not None and not (isinstance(value, Sized) and not len(value)):
            reason = _REASONS.get(str(key), f"a prompt takes {', '.join(_PROMPT_KEYS)}")
            raise InvalidRequestError(f"The prompt's key {str(key)!r} is not supported: {reason}.", str(key))


def embeds_prompt(prompt: Mapping[str, Any], size: int, truncate_prompt_tokens: int | None) -> ParsedPrompt:
    """Embedding vectors as a prompt; token 0 represents each of them where token ids are needed.

    Args:
        size: numbers in each of the model's vectors; 0 if it may be given none.
    """
    if not size:
        raise InvalidRequestError(
            "prompt_embeds: this server takes no vectors as prompts; its operator allows them with "
            "--enable-prompt-embeds.",
            "prompt_embeds",
        )
    if truncate_prompt_tokens is not None:
        raise InvalidRequestError(
            "Vectors cannot be truncated; leave truncate_prompt_tokens out.", "truncate_prompt_tokens"
        )
    embeds = embeds_of(prompt["prompt_embeds"])
    if embeds.size != size:
        raise InvalidRequestError(
            f"prompt_embeds: the model's vectors have {size} numbers, got {embeds.size}.", "prompt_embeds"
        )
    return ParsedPrompt([0] * embeds.num_tokens, None, prompt.get("cache_salt"), embeds)


def plain_ints(values: Iterable[object], param: str) -> list[int]:
    """``values`` as whole numbers of Python's own type; a boolean is none."""
    values = list(values)
    kinds = set(map(type, values))
    if kinds <= {int}:
        return values  # type: ignore[return-value]
    try:
        if bool in kinds:
            raise TypeError
        return [index(value) for value in values]  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequestError("A prompt of token ids must be a list of integers.", param) from None


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Refuse ids that the model does not have."""
    low, high = min(token_ids), max(token_ids)
    if low < 0 or high >= vocab_size:
        invalid = low if low < 0 else high
        raise InvalidRequestError(
            f"{param} holds the token id {invalid}, which is out of vocabulary: its size is {vocab_size}.", param
        )


def _parts(prompt: object) -> tuple[str | None, Sequence[object] | None, str | None]:
    """Text, token ids and cache salt; the text or the ids are there."""
    if isinstance(prompt, str):
        return prompt, None, None
    if isinstance(prompt, Mapping):
        text, token_ids, cache_salt = (prompt.get(name) for name in ("prompt", "prompt_token_ids", "cache_salt"))
        is_typed = (text is None or isinstance(text, str)) and (token_ids is None or _is_list(token_ids))
        if is_typed and (text is not None or token_ids is not None):
            return text, token_ids, cache_salt
    elif _is_list(prompt):
        return None, prompt, None  # type: ignore[return-value]
    raise InvalidRequestError(
        "A prompt must be a string, a list of token ids, or a dictionary with prompt or prompt_token_ids; "
        f"got {type(prompt).__name__}.",
        "prompt",
    )


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _check_text_length(text: str, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Refuse, without tokenising it, a text that is too long even if it is all longest tokens."""
    if len(text) <= max_model_len:
        return
    num_tokens = -(-len(text) // tokenizer.max_token_length)
    if num_tokens > max_model_len:
        raise PromptTooLongError(num_tokens, max_model_len, is_estimate=True)


def _kept(token_ids: Sequence[object], truncate_prompt_tokens: int | None, max_model_len: int) -> Sequence[object]:
    """A bounded sample of token ids to check: there may be millions."""
    if truncate_prompt_tokens is not None:
        return token_ids[-_num_kept(truncate_prompt_tokens, max_model_len) :]
    check_num_tokens(len(token_ids), max_model_len)
    return token_ids


def check_num_tokens(num_tokens: int, max_model_len: int) -> None:
    """Refuse a prompt that is too long.

    Raises:
        PromptTooLongError: it is.
    """
    if num_tokens > max_model_len:
        raise PromptTooLongError(num_tokens, max_model_len)


def _num_kept(truncate_prompt_tokens: int, max_model_len: int) -> int:
    if truncate_prompt_tokens == -1:
        return max_model_len - 1
    if isinstance(truncate_prompt_tokens, bool) or not 1 <= truncate_prompt_tokens <= max_model_len:
        raise InvalidRequestError(
            f"truncate_prompt_tokens must be -1 or between 1 and {max_model_len}, got {truncate_prompt_tokens}.",
            "truncate_prompt_tokens",
        )
    return truncate_prompt_tokens
