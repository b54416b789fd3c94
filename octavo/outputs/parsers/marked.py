"""Distinguishes tags from text that only looks like them: a real tag is a single token.

A model that is asked about its format writes tags with ordinary tokens; a prompt injection may make it do so to
trigger a tool call.
"""

from collections.abc import Iterable, Sequence

from octavo.outputs.detokenizer import make_detokenizer
from octavo.outputs.parsers.tags import TagScanner, TagSet
from octavo.tokenization.tokenizer import Tokenizer

TagMark = tuple[int, str]
"""Where in a piece of text a tag begins, and which."""


class TagTokens:
    """Finds the places of tags in an answer's text by its tokens.

    With stop strings, text may come later than its tokens and end earlier; so the tokens are decoded here
    as well, and the text must match.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], tags: dict[int, str]) -> None:
        self._detokenizer = make_detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=False)
        self._tags = tags
        # Decoded from tokens but not yet read; the first `_num_come` characters have also arrived as text.
        self._spelled = ""
        self._num_come = 0
        self._marks: list[TagMark] = []

    @classmethod
    def find(
        cls, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], tags: Iterable[str]
    ) -> "TagTokens | None":
        """None if there is no tokenizer, or a tag is no token of it."""
        if tokenizer is None:
            return None
        names = list(tags)
        by_id = {token_id: tag for tag, token_id in zip(names, tokenizer.convert_tokens_to_ids(names), strict=True)}
        ids = {token_id: tag for token_id, tag in by_id.items() if token_id is not None}
        return cls(tokenizer, prompt_token_ids, ids) if len(ids) == len(names) else None

    def mark_delta(self, text: str, token_ids: Sequence[int]) -> tuple[str, list[TagMark] | None]:
        """What may be read now that the next piece of text has come, with these tokens or with earlier ones, and the
        tags in it; the beginning of a tag waits for its rest. None if the text does not match the tokens.
        """
        self._spell(token_ids)
        if not self._spelled.startswith(text, self._num_come):
            return self._spelled[: self._num_come] + text, None
        come = self._num_come + len(text)
        end = next((start for start, tag in self._marks if start < come < start + len(tag)), come)
        readable, self._spelled, self._num_come = self._spelled[:end], self._spelled[end:], come - end
        marks = [mark for mark in self._marks if mark[0] < end]
        self._marks = [(start - end, tag) for start, tag in self._marks if start >= end]
        return readable, marks

    def _spell(self, token_ids: Sequence[int]) -> None:
        pieces, length = [self._spelled], len(self._spelled)
        for token_id in token_ids:
            piece = self._detokenizer.decode_delta((token_id,))
            pieces.append(piece)
            length += len(piece)
            tag = self._tags.get(token_id)
            if tag is not None and piece.endswith(tag):
                self._marks.append((length - len(tag), tag))
        self._spelled = "".join(pieces)


class MarkedScanner(TagScanner):
    """A scanner that can be given the positions of tags; text without such marks is searched for them."""

    __slots__ = ("_is_marked", "_marks", "_next_mark")

    def __init__(self) -> None:
        super().__init__()
        self._is_marked = False
        self._marks: list[TagMark] = []
        self._next_mark = 0

    def append_marked_text(self, text: str, marks: Sequence[TagMark]) -> None:
        """Add the next piece, in which the only tags are those of ``marks``."""
        self.append_text(text)
        start = len(self._text) - len(text)
        self._is_marked = True
        self._marks = [(start + place, tag) for place, tag in marks]
        self._next_mark = 0

    def append_text(self, text: str) -> None:
        """Add the next piece, to be searched for tags."""
        super().append_text(text)
        self._is_marked = False

    def take_until(self, tags: TagSet) -> tuple[str, str | None]:
        if not self._is_marked:
            return super().take_until(tags)
        text, start = self._text, self._position
        while self._next_mark < len(self._marks):
            place, tag = self._marks[self._next_mark]
            self._next_mark += 1
            if tag in tags.tags:
                self._position = place + len(tag)
                return text[start:place], tag
        self._position = len(text)
        return text[start:], None

    def give_back(self, text: str) -> None:
        super().give_back(text)
        while self._next_mark and self._marks[self._next_mark - 1][0] >= self._position:
            self._next_mark -= 1
