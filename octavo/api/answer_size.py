"""Limits on responses that repeat request data, which a few fields could blow up to gigabytes."""

from octavo.errors import InvalidRequestError
from octavo.records import SamplingParams

MAX_PROMPT_ENTRIES = 1 << 22
"""Tokens of prompts, and candidates for them, in one answer."""
MAX_REPEATED_CHARACTERS = 1 << 24
MAX_PROMPT_TOKENS = 1 << 22


def check_repeated_text(num_characters: int, num_copies: int, param: str) -> None:
    """Reject an answer that would repeat a text of the request too often."""
    if num_characters * num_copies > MAX_REPEATED_CHARACTERS:
        raise InvalidRequestError(
            f"{param}: the answer would repeat {num_characters} characters {num_copies} times; at most "
            f"{MAX_REPEATED_CHARACTERS} in all go into one.",
            param,
        )


def check_prompt_entries(
    params: SamplingParams, num_tokens: int, vocab_size: int, *, num_copies: int = 1, has_token_ids: bool = False
) -> None:
    """Refuse answers that would hold too much about the prompt's tokens.

    Args:
        num_tokens: of all prompts of the request.
        has_token_ids: whether the answer includes the token ids.
    """
    entries_per_token = int(has_token_ids)
    if params.prompt_logprobs is not None:
        entries_per_token += 1 + (vocab_size if params.prompt_logprobs == -1 else params.prompt_logprobs)
    num_entries = num_tokens * num_copies * entries_per_token
    if num_entries > MAX_PROMPT_ENTRIES:
        raise InvalidRequestError(
            f"The answer would hold {num_entries} tokens and log-probabilities of prompts; at most "
            f"{MAX_PROMPT_ENTRIES} go into one. Ask for fewer of them, or send fewer or shorter prompts."
        )


class PromptBudget:
    """Adds up the tokens of a request's prompts, which what they share makes longer than its body."""

    def __init__(self) -> None:
        self._num_tokens = 0

    def add_prompt(self, num_tokens: int) -> None:
        """Count one more prompt."""
        self._num_tokens += num_tokens
        if self._num_tokens > MAX_PROMPT_TOKENS:
            raise InvalidRequestError(
                f"The prompts of one request have at most {MAX_PROMPT_TOKENS} tokens in all; send fewer at a time.",
                "messages",
            )
