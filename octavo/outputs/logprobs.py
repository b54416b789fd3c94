"""Log-probabilities as users see them."""

from octavo.records import Logprob, TokenLogprobs
from octavo.tokenization.tokenizer import Tokenizer


def format_logprobs(row: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Token id → :class:`Logprob`: the sampled (or prompt) token first, then the top ones with ranks from 1, or
    those that were asked for, without.

    Tokens read as they would by themselves; without a tokenizer they have no text.
    """
    token_ids, logprobs = row.token_ids, row.logprobs
    text = tokenizer.token_text if tokenizer is not None else _no_text
    formatted = {token_ids[0]: Logprob(logprobs[0], row.rank, text(token_ids[0]))}
    for rank in range(1, len(token_ids)):
        token_id = token_ids[rank]
        if token_id not in formatted:
            formatted[token_id] = Logprob(logprobs[rank], None if row.is_listed else rank, text(token_id))
    return formatted


def _no_text(token_id: int) -> None:
    return None
