"""Log-probabilities in the shapes of the two protocols."""

import math
from collections.abc import Iterable, Iterator, Sequence

from octavo.api.openai.responses import ChatLogprob, ChatTokenLogprob, CompletionLogprobs
from octavo.api.pieces import ListWriter
from octavo.records import Logprob, PromptLogprobs, SampleLogprobs
from octavo.tokenization.tokenizer import Tokenizer

# JSON has no infinity; this is what stands for a token that cannot be sampled.
LEAST_LOGPROB = -9999.0


def finite(logprob: float) -> float:
    """The value, or -9999 for minus infinity."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def token_text(token_id: int, entry: Logprob | None, as_id: bool) -> str:
    """How a token is shown: its text, or ``token_id:ID`` where that is asked for or there is no text."""
    if as_id or entry is None or entry.decoded_token is None:
        return f"token_id:{token_id}"
    return entry.decoded_token


def completion_logprobs(
    token_ids: Iterable[int],
    positions: Iterable[dict[int, Logprob] | None],
    tokenizer: Tokenizer | None,
    first_offset: int = 0,
    as_ids: bool = False,
    write: ListWriter = list,
) -> tuple[CompletionLogprobs, int]:
    """The completions protocol's four parallel lists, and the character offset behind the last token.

    Args:
        token_ids: the tokens themselves, [T].
        positions: per token, candidate → log-probability; None where there is none (a prompt's first token).
        tokenizer: spells tokens without log-probability.
        first_offset: character offset of the first token.
        as_ids: show tokens as ``token_id:ID``.
        write: takes the lists.
    """
    offsets: list[int] = []
    logprobs: list[float | None] = []
    tokens: list[str] = []
    offset = first_offset

    def top_logprobs() -> Iterator[dict[str, float] | None]:
        nonlocal offset
        for token_id, candidates in zip(token_ids, positions, strict=False):
            chosen = candidates.get(token_id) if candidates else None
            if chosen is None and tokenizer is not None:
                text = token_text(token_id, Logprob(0.0, None, tokenizer.token_text(token_id)), as_ids)
            else:
                text = token_text(token_id, chosen, as_ids)
            offsets.append(offset)
            tokens.append(text)
            logprobs.append(finite(chosen.logprob) if chosen else None)
            offset += len(text)
            yield (
                {token_text(other, entry, as_ids): finite(entry.logprob) for other, entry in candidates.items()}
                if candidates
                else None
            )

    top = write(top_logprobs())
    return CompletionLogprobs(write(offsets), write(logprobs), write(tokens), top), offset


def chat_logprobs(
    token_ids: Sequence[int],
    positions: SampleLogprobs,
    num_top: int,
    tokenizer: Tokenizer | None,
    as_ids: bool = False,
) -> Iterator[ChatTokenLogprob]:
    """The chat protocol's objects, one a token.

    Args:
        token_ids: the tokens themselves, [T].
        positions: per token, candidate → log-probability.
        num_top: how many of the likeliest tokens to list; -1 lists all there are.
        tokenizer: knows the bytes of a token, which may be a part of a character.
        as_ids: show tokens as ``token_id:ID``.
    """

    def shown(token_id: int, entry: Logprob) -> ChatLogprob:
        text = token_text(token_id, entry, as_ids)
        own_bytes = text.encode("utf-8", "replace") if tokenizer is None else tokenizer.token_bytes(token_id)
        return ChatLogprob(text, finite(entry.logprob), list(own_bytes))

    for token_id, candidates in zip(token_ids, positions, strict=False):
        chosen = shown(token_id, candidates.get(token_id) or Logprob(LEAST_LOGPROB))
        ranked = sorted(candidates.items(), key=lambda item: -item[1].logprob)
        top = [shown(other, entry) for other, entry in ranked[: None if num_top < 0 else num_top]]
        yield ChatTokenLogprob(chosen.token, chosen.logprob, chosen.bytes, top)


def finite_prompt_logprobs(positions: PromptLogprobs) -> Iterator[dict[int, Logprob] | None]:
    """Prompt log-probabilities that JSON can hold, position by position."""
    for candidates in positions:
        yield candidates and {
            token_id: Logprob(finite(entry.logprob), entry.rank, entry.decoded_token)
            for token_id, entry in candidates.items()
        }
