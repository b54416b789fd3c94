"""Base of the tool-call parsers: the loop over content and calls, and recovery from malformed calls.

- A start tag after which no call follows is content, with all that was read after it.
- Once a call has begun (its name is known and given out), it stays. Arguments that break off are never closed: half a
  call must not look like a whole one. Arguments that break the format continue as the model wrote them up to the call's
  end tag, or to the answer's end where the format has none; it is for the client to refuse them.
- White space next to a call, before or after, belongs to neither content nor call.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from octavo.outputs.parsers.base import AnswerPart, ContentText, Tool, ToolCallArguments, ToolCallBegin, ToolParser
from octavo.outputs.parsers.tags import TagSet
from octavo.outputs.parsers.tools.reader import AnswerReader, MalformedCallError, Reading

_NAME = re.compile(r"""[^\s<>{}()\[\]"'`=,;|]+""")
MAX_NAME_LENGTH = 256
"""Characters of a function's or a parameter's name; what is longer is no call."""


class ToolMachine(ToolParser):
    """A parser of calls that is written as a generator over the answer.

    A format names its tags as class arguments: ``class Format(ToolMachine, start=("<call>",), end=("</call>",))``.

    Attributes:
        start_tags: what a call, or a list of calls, begins with.
        end_tags: what ends a call whose arguments break the format.
        closing_tags: what may follow calls and means nothing more then; the end tags unless ``closing`` is given.
        silent_tags: what frames content and means nothing to its reader.
    """

    start_tags: ClassVar[TagSet]
    end_tags: ClassVar[TagSet] = TagSet(())
    closing_tags: ClassVar[TagSet] = TagSet(())
    silent_tags: ClassVar[TagSet] = TagSet(())
    _stop_tags: ClassVar[TagSet]

    def __init_subclass__(
        cls,
        *,
        start: tuple[str, ...] = (),
        end: tuple[str, ...] = (),
        closing: tuple[str, ...] | None = None,
        silent: tuple[str, ...] = (),
    ) -> None:
        super().__init_subclass__()
        if start:
            cls.start_tags = TagSet(start)
            cls.end_tags = TagSet(end)
            cls.closing_tags = TagSet(end if closing is None else closing)
            cls.silent_tags = TagSet(silent)
            cls._stop_tags = TagSet((*start, *cls.closing_tags.tags, *silent))

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._reader = AnswerReader()
        self._schemas: Mapping[str, Mapping[str, Any] | None] = {tool.name: tool.parameters for tool in tools}
        self._parts: list[AnswerPart] = []
        self._argument_pieces: list[str] = []
        self._space: list[str] = []
        self._num_calls = 0
        self._is_in_call = False
        self._has_arguments = False
        self._is_after_call = False
        self._has_content = False
        self._steps = self._read_answer()

    def parse_delta(self, text: str) -> list[AnswerPart]:
        if text:
            self._reader.append_text(text)
            next(self._steps, None)
        return self._take_parts()

    def flush(self) -> list[AnswerPart]:
        self._reader.end_text()
        next(self._steps, None)
        return self._take_parts()

    @abstractmethod
    def read_calls(self, tag: str) -> Reading[None]:
        """Read what follows a start tag."""

    def read_name(self) -> Reading[str]:
        """A function's name that stands bare, after white space."""
        yield from self._reader.skip_space()
        name = yield from self._reader.read_word(_NAME, MAX_NAME_LENGTH)
        if not name:
            raise MalformedCallError
        return name

    def _read_answer(self) -> Reading[None]:
        while tag := (yield from self._reader.give_until(self._stop_tags, self.give_content)):
            if tag not in self.start_tags.tags:
                if self._is_after_call:
                    self._space.clear()
                elif tag in self.closing_tags.tags:
                    self.give_content(tag)
                continue
            self._reader.record(tag)
            try:
                yield from self.read_calls(tag)
            except MalformedCallError:
                yield from self._after_malformed()
            self._reader.drop_record()
        if self._space and not self._is_after_call:
            self._parts.append(ContentText("".join(self._space)))

    def _after_malformed(self) -> Reading[None]:
        if self._is_in_call and not self._has_arguments:
            self.give_arguments(self._reader.drop_record())
            tag = yield from self._reader.give_until(self.end_tags, self.give_arguments)
            if tag:
                self.end_call()
        else:
            self._is_in_call = False
            self.give_content(self._reader.drop_record())

    def give_content(self, text: str) -> None:
        """Give out text for the reader; white space at its end waits for what comes next."""
        body = text.rstrip()
        if body:
            self._flush_arguments()
            self._parts.append(ContentText("".join(self._space) + body))
            self._space.clear()
            self._is_after_call = False
            self._has_content = True
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Give out a call's name: from now on there is a call."""
        self._flush_arguments()
        self._parts.append(ToolCallBegin(self._num_calls, name, call_id))
        self._num_calls += 1
        self._is_in_call = True
        self._has_arguments = False
        self._is_after_call = True
        self._space.clear()
        self._reader.record()

    def give_arguments(self, text: str) -> None:
        """Give out the next piece of the arguments of the call that has begun; what was recorded is done with."""
        self._reader.drop_record()
        self._argument_pieces.append(text)

    def end_arguments(self) -> None:
        """The arguments are whole: whatever follows is not theirs."""
        self._has_arguments = True
        self._reader.record()

    def end_call(self) -> None:
        """The call is over; what follows it can become content again."""
        self._is_in_call = False
        self._is_after_call = True
        self._space.clear()
        self._reader.record()

    def _flush_arguments(self) -> None:
        text = "".join(self._argument_pieces)
        if text:
            self._parts.append(ToolCallArguments(self._num_calls - 1, text))
        self._argument_pieces.clear()

    def _take_parts(self) -> list[AnswerPart]:
        self._flush_arguments()
        parts, self._parts = self._parts, []
        return parts
