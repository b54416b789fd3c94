"""Find tags in text that comes in pieces, and hold back only what may be the beginning of one.

A parser owns one :class:`TagScanner`, appends text to it, and takes the text up to the next of the tags that mean
something in its present state, until there is none::

    self._scanner.append_text(text)
    while True:
        before, tag = self._scanner.take_until(REASONING_TAGS if self._is_in_reasoning else CONTENT_TAGS)
        ...                       # give out `before`
        if tag is None:           # everything certain has been given out; more text is needed
            break
        ...                       # change state; the tag itself is gone

The leftmost tag is found, and of several that begin at one place the longest: what is found does not depend on how the
text was cut. Once the answer has ended, call ``end_text``, and nothing is held back any more.
"""

import re
from collections.abc import Iterable


class TagSet:
    """Tags to look for, prepared once, usually when a module is loaded.

    Args:
        tags: none of them empty; no tags at all are allowed and never found.
    """

    __slots__ = ("_beginnings", "_first_characters", "_pattern", "max_length", "tags")

    def __init__(self, tags: Iterable[str]) -> None:
        self.tags = tuple(sorted(set(tags), key=lambda tag: (-len(tag), tag)))
        assert all(self.tags), "a tag is not empty"
        self.max_length = max(map(len, self.tags), default=0)
        self._pattern = re.compile("|".join(map(re.escape, self.tags))) if self.tags else None
        self._first_characters = frozenset(tag[0] for tag in self.tags)
        self._beginnings = frozenset(tag[:length] for tag in self.tags for length in range(1, len(tag)))

    def find(self, text: str, start: int = 0) -> tuple[int, str] | None:
        """Where the first tag at or after ``start`` begins, and which it is."""
        match = self._pattern.search(text, start) if self._pattern is not None else None
        return None if match is None else (match.start(), match.group())

    def match(self, text: str, start: int = 0) -> str | None:
        """The longest tag that appears at ``start``."""
        match = self._pattern.match(text, start) if self._pattern is not None else None
        return None if match is None else match.group()

    def open_end(self, text: str, start: int = 0) -> int:
        """Where the longest end of ``text`` begins that may yet become a tag, the text's length if none does."""
        for position in range(max(start, len(text) - self.max_length + 1), len(text)):
            if text[position] in self._first_characters and text[position:] in self._beginnings:
                return position
        return len(text)


class PendingText:
    """Text that has come and has not been taken yet."""

    __slots__ = ("_is_finished", "_position", "_text")

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._position = 0
        self._is_finished = False

    def append_text(self, text: str) -> None:
        """Add the next piece."""
        self._text = self._text[self._position :] + text
        self._position = 0

    def end_text(self) -> None:
        """Mark the end of the text: from now on nothing is held back."""
        self._is_finished = True


class TagScanner(PendingText):
    """Takes pending text tag by tag."""

    __slots__ = ()

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    @property
    def rest(self) -> str:
        """What has not been taken; looking at it takes nothing."""
        return self._text[self._position :]

    def take_until(self, tags: TagSet) -> tuple[str, str | None]:
        """The text before the first of ``tags``, and the tag; or all that is surely no part of a tag, and None."""
        text, start = self._text, self._position
        found = tags.find(text, start)
        open_end = len(text) if self._is_finished else tags.open_end(text, start)
        # Text that is still open may become a tag that begins earlier, or a longer one that begins at the same place.
        if found is not None and found[0] < open_end:
            position, tag = found
            self._position = position + len(tag)
            return text[start:position], tag
        self._position = open_end
        return text[start:open_end], None

    def take_tag(self, tags: TagSet) -> str | None:
        """Take the next tag; "" if none of them can come next; None if that is not known before more text comes."""
        text, start = self._text, self._position
        if not self._is_finished and tags.open_end(text, start) == start:
            return None
        tag = tags.match(text, start)
        if tag is None:
            return None if start == len(text) and not self._is_finished else ""
        self._position = start + len(tag)
        return tag

    def give_back(self, text: str) -> None:
        """Untake the text that was taken last."""
        start = self._position - len(text)
        assert start >= 0 and self._text.startswith(text, start), "only what was taken can be given back"
        self._position = start

    def take_all(self) -> str:
        """Everything that has come."""
        rest = self.rest
        self._position = len(self._text)
        return rest

    def take_space(self, characters: str | None = None) -> str:
        """Take the white space (or ``characters``) that comes next; more may come later."""
        rest = self.rest
        num_taken = len(rest) - len(rest.lstrip(characters))
        self._position += num_taken
        return rest[:num_taken]
