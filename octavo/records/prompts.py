"""The forms in which a prompt may be given."""

from typing import Any, NotRequired, TypedDict

import msgspec


class PromptEmbeds(msgspec.Struct, array_like=True):
    """A prompt's vectors, as bytes.

    Attributes:
        data: ``[num_tokens, size]``, row-major.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
    """

    data: bytes
    dtype: str
    num_tokens: int
    size: int


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; ``prompt`` may carry the text for the record."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class EmbedsPrompt(TypedDict):
    """A prompt as vectors, ``[T, hidden]``: a torch tensor or :class:`PromptEmbeds`."""

    prompt_embeds: Any
    cache_salt: NotRequired[str]


PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt
