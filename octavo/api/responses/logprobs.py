"""Which tokens a piece of content consists of."""

from octavo.api.logprobs import ChatTokenLogprob, chat_logprobs
from octavo.records import CompletionOutput, Logprob
from octavo.tokenization.tokenizer import Tokenizer

_Token = tuple[int, dict[int, Logprob], bytes]


class ContentLogprobs:
    """Holds an answer's tokens back until it is known what they meant.

    Tokens of tags, reasoning and calls are dropped; a parser may hold back text, so that content comes later than
    its tokens.

    Args:
        num_top: number of top log-probabilities per token.
    """

    def __init__(self, tokenizer: Tokenizer | None, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._tokens: list[_Token] = []

    def add_tokens(self, completion: CompletionOutput) -> None:
        """Take the next tokens."""
        for token_id, candidates in zip(completion.token_ids, completion.logprobs or (), strict=False):
            self._tokens.append((token_id, candidates, self._bytes(token_id, candidates)))

    def take_content(self, text: str) -> list[ChatTokenLogprob]:
        """The tokens of this piece of content; those before them are dropped."""
        taken = self._cut(text)
        if taken is None:  # the parser has changed the text
            taken, self._tokens = self._tokens, []
        ids = [token_id for token_id, _, _ in taken]
        positions = [candidates for _, candidates, _ in taken]
        return list(chat_logprobs(ids, positions, self._num_top, self._tokenizer))

    def skip_text(self, text: str) -> None:
        """Drop the tokens of this piece of reasoning or arguments."""
        self._cut(text)

    def _cut(self, text: str) -> list[_Token] | None:
        wanted = text.encode("utf-8", "replace")
        start = b"".join(data for _, _, data in self._tokens).find(wanted)
        if start < 0:
            return None
        end = start + len(wanted)
        first = last = place = 0
        for index, (_, _, data) in enumerate(self._tokens):
            if place + len(data) <= start:
                first = index + 1
            if place < end:
                last = index + 1
            place += len(data)
        taken, self._tokens = self._tokens[first:last], self._tokens[last:]
        return taken

    def _bytes(self, token_id: int, candidates: dict[int, Logprob]) -> bytes:
        if self._tokenizer is not None:
            return bytes(self._tokenizer.token_bytes(token_id))
        entry = candidates.get(token_id)
        return ((entry.decoded_token if entry else None) or "").encode("utf-8", "replace")
