"""Token ids to text, token by token."""

from collections.abc import Sequence
from typing import Protocol

from octavo.records import TokenIds
from octavo.tokenization.decoding import DecodingScheme
from octavo.tokenization.tokenizer import Tokenizer, strip_front, text_decoder

PROMPT_TAIL = 8
MAX_HELD_TOKENS = 8
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class IncrementalDetokenizer(Protocol):
    """Turns a stream of tokens into a stream of text.

    The pieces joined are the text by which the outputs make the prompt longer: ``decode(prompt + outputs)`` without
    ``decode(prompt)``, whatever way the outputs are cut into pushes. A piece never ends within a character.
    """

    def decode_delta(self, token_ids: Sequence[int]) -> str:
        """The text that ``token_ids`` add; without the last bytes if they may be the start of a character."""

    def flush(self) -> str:
        """What was held back, as replacement characters. Nothing can be pushed afterwards."""


def make_detokenizer(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int] | TokenIds, skip_special_tokens: bool = True
) -> IncrementalDetokenizer:
    """A detokenizer for the outputs that follow ``prompt_token_ids``."""
    if tokenizer.scheme is None:
        return _WindowDetokenizer(tokenizer, prompt_token_ids, skip_special_tokens)
    return _ByteDetokenizer(tokenizer, tokenizer.scheme, prompt_token_ids, skip_special_tokens)


class _ByteDetokenizer:
    """For tokenizers whose tokens are fixed strings of bytes: joins them and decodes UTF-8 as it comes."""

    __slots__ = ("_decoder", "_num_stripped", "_token_bytes")

    def __init__(
        self,
        tokenizer: Tokenizer,
        scheme: DecodingScheme,
        prompt_token_ids: Sequence[int] | TokenIds,
        skip_special_tokens: bool,
    ) -> None:
        self._token_bytes = tokenizer.byte_table(skip_special_tokens).__getitem__
        self._decoder = text_decoder(scheme)
        # Characters may begin in the prompt and end in the output.
        self._decoder.decode(b"".join(map(self._token_bytes, prompt_token_ids[-PROMPT_TAIL:])))
        # Only the very start of a text loses its space.
        self._num_stripped = scheme.num_stripped
        if self._num_stripped and any(map(self._token_bytes, reversed(prompt_token_ids))):
            self._num_stripped = 0

    def decode_delta(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == 1:
            spelled = self._token_bytes(token_ids[0])
            if spelled.isascii() and not self._decoder.buffer and not self._num_stripped:
                return spelled.decode("ascii")
        else:
            spelled = b"".join(map(self._token_bytes, token_ids))
        text = self._decoder.decode(spelled)
        return self._strip(text) if self._num_stripped else text

    def flush(self) -> str:
        text = self._decoder.decode(b"", True)
        return self._strip(text) if self._num_stripped else text

    def _strip(self, text: str) -> str:
        stripped = strip_front(text, self._num_stripped)
        self._num_stripped -= len(text) - len(stripped)
        if stripped:
            self._num_stripped = 0
        return stripped


class _WindowDetokenizer:
    """For all other tokenizers: decodes a window of the last tokens with and without the new ones.

    The window includes enough of the preceding tokens for correct decoding, and advances with the text.
    """

    __slots__ = ("_num_known", "_skip_special_tokens", "_tokenizer", "_window")

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] | TokenIds, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window = [int(token_id) for token_id in prompt_token_ids[-PROMPT_TAIL:]]
        self._num_known = len(self._window)

    def decode_delta(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._new_text()

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._new_text()
        num_held = len(self._window) - self._num_known
        if text.endswith(_REPLACEMENT) and num_held < MAX_HELD_TOKENS:
            return ""
        self._window = self._window[-max(PROMPT_TAIL, num_held) :]
        self._num_known = len(self._window)
        return text

    def _new_text(self) -> str:
        known = self._tokenizer.decode(self._window[: self._num_known], self._skip_special_tokens)
        return self._tokenizer.decode(self._window, self._skip_special_tokens)[len(known) :]
