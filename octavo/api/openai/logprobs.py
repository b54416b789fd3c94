"""Log-probabilities as the completions protocol shows them: four parallel lists."""

from collections.abc import Iterable, Iterator

from octavo.api.logprobs import finite, token_text
from octavo.api.openai.answers import CompletionLogprobs
from octavo.api.pieces import ListWriter
from octavo.records import Logprob
from octavo.tokenization.tokenizer import Tokenizer


def completion_logprobs(
    token_ids: Iterable[int],
    positions: Iterable[dict[int, Logprob] | None],
    tokenizer: Tokenizer | None,
    first_offset: int = 0,
    as_ids: bool = False,
    write: ListWriter = list,
) -> tuple[CompletionLogprobs, int]:
    """The completions protocol's four parallel lists, and the character offset after the last token.

    Args:
        token_ids: the tokens themselves, [T].
        positions: per token, candidate → log-probability; None where there is none (a prompt's first token).
        tokenizer: gives the text of tokens without log-probability.
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
