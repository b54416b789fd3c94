"""Incremental reading for the tool-call parsers, as if the whole answer were available.

A parser is a generator that reads the answer from left to right, following its format's grammar. Where more text is
needed than has come, it yields and continues from there with the next piece; the result does not depend on where the
text was cut. Every generator is used with ``yield from``, and raises :class:`MalformedCallError` where the text does
not follow its format, is longer than it may be, or ends early.
"""

import re
import sys
from collections.abc import Callable, Generator
from typing import TypeVar

from octavo.outputs.parsers.tags import PendingText, TagSet

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
Give = Callable[[str], object]

SPACE = re.compile(r"\s+")


class MalformedCallError(Exception):
    """What was read does not follow the format; never leaves the parsers."""


class AnswerReader(PendingText):
    """Reads pending text by a format's grammar.

    What is read between ``record`` and ``drop_record`` can be had back as text, for attempts that turn out to be no
    calls.
    """

    __slots__ = ("_record",)

    def __init__(self) -> None:
        super().__init__()
        self._record: list[str] | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether all text that has come is read."""
        return self._position == len(self._text)

    def record(self, text: str = "") -> None:
        """Write down what is read from now on, after ``text``."""
        self._record = [text]

    def drop_record(self) -> str:
        """What was read since ``record``, "" if nothing was written down; the record ends."""
        record, self._record = self._record, None
        return "".join(record) if record else ""

    def take_chars(self, count: int) -> str:
        """The next characters, which must have come."""
        start, end = self._position, self._position + count
        self._position = end
        taken = self._text[start:end]
        if self._record is not None:
            self._record.append(taken)
        return taken

    def unread(self, tag: str) -> None:
        """Put back a tag that has just been read; the record, if there is one, begins anew before it."""
        self._position -= len(tag)
        if self._record is not None:
            self._record = [""]

    def take_run(self, pattern: re.Pattern[str], max_length: int = sys.maxsize) -> str:
        """What ``pattern`` matches next of the text that has come; more of it may follow later."""
        match = pattern.match(self._text, self._position, min(self._position + max_length, len(self._text)))
        return self.take_chars(match.end() - match.start()) if match is not None else ""

    def peek(self, count: int = 1) -> Reading[str]:
        """The next characters without reading them, fewer only at the answer's end."""
        while len(self._text) - self._position < count and not self._is_finished:
            yield
        return self._text[self._position : self._position + count]

    def skip_space(self) -> Reading[str]:
        """Read white space; the character after it, not yet read, or "" at the answer's end."""
        while True:
            self.take_run(SPACE)
            character = yield from self.peek()
            if not character.isspace():
                return character

    def expect(self, text: str) -> Reading[None]:
        """Read ``text``."""
        if (yield from self.peek(len(text))) != text:
            raise MalformedCallError
        self.take_chars(len(text))

    def take_tag(self, tags: TagSet) -> Reading[str]:
        """Read the tag that comes next, "" if none does."""
        while tags.open_end(self._text, self._position) == self._position and not self._is_finished:
            yield
        tag = tags.match(self._text, self._position) or ""
        self.take_chars(len(tag))
        return tag

    def give_until(self, tags: TagSet, give: Give, max_length: int = sys.maxsize) -> Reading[str]:
        """Give out text as it comes up to one of the tags, read and return that; "" if the answer ends before.

        Raises:
            MalformedCallError: more than ``max_length`` characters precede the tag; that many have been given out.
        """
        while True:
            found = tags.find(self._text, self._position)
            open_end = len(self._text) if self._is_finished else tags.open_end(self._text, self._position)
            # Text that is still open may become a tag that begins earlier, or a longer one.
            is_certain = found is not None and found[0] < open_end
            end = found[0] if found is not None and is_certain else open_end
            length = min(end - self._position, max_length)
            max_length -= length
            if length > 0:
                give(self.take_chars(length))
            if end > self._position:
                # Exactly the limit is read, wherever the text was cut, so that what follows is read alike.
                raise MalformedCallError
            if found is not None and is_certain:
                return self.take_chars(len(found[1]))
            if self._is_finished:
                return ""
            yield

    def text_until(self, tags: TagSet, max_length: int) -> Reading[tuple[str, str]]:
        """The text up to one of the tags, and that tag, both read.

        Raises:
            MalformedCallError: none comes within ``max_length`` characters, or at all.
        """
        pieces: list[str] = []
        tag = yield from self.give_until(tags, pieces.append, max_length)
        if not tag:
            raise MalformedCallError
        return "".join(pieces), tag

    def read_word(
        self, pattern: re.Pattern[str], max_length: int, give_too_long: Give = lambda _: None
    ) -> Reading[str]:
        """The longest run of characters that ``pattern`` matches one or more of, may be empty.

        Args:
            give_too_long: takes what was read of a run that is too long.
        """
        pieces: list[str] = []
        while True:
            piece = self.take_run(pattern, max_length)
            max_length -= len(piece)
            pieces.append(piece)
            character = yield from self.peek()
            if not character or pattern.match(character) is None:
                return "".join(pieces)
            if max_length == 0:
                give_too_long("".join(pieces))
                raise MalformedCallError
