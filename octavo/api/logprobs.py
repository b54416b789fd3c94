"""Log-probabilities in the format of chat completions, one object per token, with finite numbers."""

import math
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw

from octavo.records import Logprob, SampleLogprobs
from octavo.records import PromptLogprobs as EnginePromptLogprobs
from octavo.tokenization.tokenizer import Tokenizer

# JSON has no infinity; this value represents a token that cannot be sampled.
LEAST_LOGPROB = -9999.0

PromptLogprobs = list[dict[int, Logprob] | None] | Raw


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """The chosen token at one position, with the most likely ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob] | Raw


def finite(logprob: float) -> float:
    """The value, or -9999 for minus infinity."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def token_text(token_id: int, entry: Logprob | None, as_id: bool) -> str:
    """A token's text, or ``token_id:ID`` if that is requested or there is no text."""
    if as_id or entry is None or entry.decoded_token is None:
        return f"token_id:{token_id}"
    return entry.decoded_token


def chat_logprobs(
    token_ids: Sequence[int],
    positions: SampleLogprobs,
    num_top: int,
    tokenizer: Tokenizer | None,
    as_ids: bool = False,
) -> Iterator[ChatTokenLogprob]:
    """The chat protocol's objects, one per token.

    Args:
        token_ids: the tokens themselves, [T].
        positions: per token, candidate → log-probability.
        num_top: number of most likely tokens to list; -1 lists all there are.
        tokenizer: knows the bytes of a token, which may be a part of a character.
        as_ids: show tokens as ``token_id:ID``.
    """

    def entry_of(token_id: int, entry: Logprob) -> ChatLogprob:
        text = token_text(token_id, entry, as_ids)
        own_bytes = text.encode("utf-8", "replace") if tokenizer is None else tokenizer.token_bytes(token_id)
        return ChatLogprob(text, finite(entry.logprob), list(own_bytes))

    for token_id, candidates in zip(token_ids, positions, strict=False):
        chosen = entry_of(token_id, candidates.get(token_id) or Logprob(LEAST_LOGPROB))
        ranked = sorted(candidates.items(), key=lambda item: -item[1].logprob)
        top = [entry_of(other, entry) for other, entry in ranked[: None if num_top < 0 else num_top]]
        yield ChatTokenLogprob(chosen.token, chosen.logprob, chosen.bytes, top)


def finite_prompt_logprobs(positions: EnginePromptLogprobs) -> Iterator[dict[int, Logprob] | None]:
    """Prompt log-probabilities that JSON can hold, position by position."""
    for candidates in positions:
        yield candidates and {
            token_id: Logprob(finite(entry.logprob), entry.rank, entry.decoded_token)
            for token_id, entry in candidates.items()
        }
