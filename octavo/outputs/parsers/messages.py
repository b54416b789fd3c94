"""Answers that consist of messages, each with a header that names the recipient of the body.

The machine of all such formats. A format brings its tags and reads headers; see ``harmony.py``.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from octavo.outputs.parsers.base import (
    AnswerPart,
    ContentBreak,
    ContentText,
    PromptEnd,
    ReasoningParser,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
)
from octavo.outputs.parsers.marked import MarkedScanner, TagMark, TagTokens
from octavo.outputs.parsers.tags import TagSet

MAX_HEADER_LENGTH = 512
"""Characters; what is longer is no header but content."""


class BodyKind(Enum):
    """What becomes of a message's body."""

    REASONING = 0
    CONTENT = 1
    CALL = 2
    RAW = 3
    """Content that a parser of calls reads."""
    IGNORED = 4


@dataclass(frozen=True, slots=True)
class MessageBody:
    """What a header says.

    Attributes:
        name: the tool, if this is a call.
        opening: what is given out before a raw body; the end tag follows it then.
        is_code: the call's body is no JSON; it is made the JSON object ``{"code": "…"}``.
    """

    kind: BodyKind
    name: str = ""
    opening: str = ""
    is_code: bool = False


@dataclass(frozen=True)
class MessageTags:
    """The tags of a format.

    Attributes:
        start: what begins a message; the header follows.
        inner: tags that may appear within a header.
        body: what ends the header and begins the body.
        sudden: what begins a header in the middle of a body, where the model forgot to end it.
        roles: words that may begin an answer's header.
    """

    start: tuple[str, ...]
    inner: tuple[str, ...]
    body: tuple[str, ...]
    end: tuple[str, ...]
    sudden: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("assistant",)

    @property
    def all(self) -> tuple[str, ...]:
        """Every tag."""
        return (*self.start, *self.inner, *self.body, *self.end)


class MessageMachine(ABC):
    """One answer made of messages, or the prompt's last message and the answer that continues it.

    Messages of one kind are joined by a newline. Text that no header precedes is content; a header that breaks off is
    left out.

    Args:
        prompt: the prompt's end. The answer continues its last message, of which nothing is given out but the name
            of the tool that it calls.
    """

    tags: ClassVar[MessageTags]
    _header_tags: ClassVar[TagSet]
    _body_tags: ClassVar[TagSet]

    def __init_subclass__(cls) -> None:
        tags = cls.tags
        cls._header_tags = TagSet(tags.all)
        cls._body_tags = TagSet((*tags.start, *tags.end, *tags.sudden))

    def __init__(self, prompt: str = "") -> None:
        self._scanner = MarkedScanner()
        self._parts: list[AnswerPart] = []
        self._header = ""
        self._header_has_tags = False
        self._body: MessageBody | None = None
        self._has_arguments = False
        self._num_calls = 0
        # The kinds that have had text, and whether the present body has.
        self._begun: set[BodyKind] = set()
        self._body_has_text = False
        self._has_left_reasoning = False
        self._num_header_from_prompt = 0
        self._num_held_from_prompt = 0
        start = max(prompt.rfind(tag) for tag in self.tags.start)
        if start >= 0:
            self._scanner.append_text(prompt[start:])
            self._parts = [part for part in self._run() if self._is_call and isinstance(part, ToolCallBegin)]
            self._num_calls = len(self._parts)
            self._begun = set()
            # After the role alone the answer may have no header.
            self._header_has_tags = self._header.strip() not in ("", *self.tags.roles)
            # The prompt's end may look like the beginning of a tag.
            num_held = len(self._scanner.rest)
            self._num_header_from_prompt = len(self._header) + num_held
            self._num_held_from_prompt = 0 if self._body is None else num_held
            self._has_left_reasoning = self._body is not None and self._body.kind is not BodyKind.REASONING

    @abstractmethod
    def read_header(self, header: str, body_tag: str) -> MessageBody:
        """Parse a header; inner tags appear in it as they were written."""

    def read_unmarked(self, header: str) -> tuple[MessageBody, int] | None:
        """What a header says that ends without a body's tag, and where in it the body begins that the model did not
        mark; None if there is nothing after the header.
        """
        return None

    @property
    def _is_call(self) -> bool:
        return self._body is not None and self._body.kind is BodyKind.CALL

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning; an answer usually begins with it."""
        if self._body is not None:
            return self._body.kind is BodyKind.REASONING
        return not self._has_left_reasoning

    def parse_delta(self, text: str, marks: Sequence[TagMark] | None = None) -> list[AnswerPart]:
        """Take the next piece of text.

        Args:
            marks: the tags in it; whatever reads like one is a tag if None.
        """
        if not text:
            return []
        if marks is None:
            self._scanner.append_text(text)
        else:
            self._scanner.append_marked_text(text, marks)
        return self._run()

    def flush(self, is_whole: bool = False) -> list[AnswerPart]:
        """The answer has ended: return what was held back, unless it is a header.

        Args:
            is_whole: the model ended it. The end tag is usually not in the text, so it is assumed.
        """
        if self._body is not None:
            self._scanner.end_text()
            self._run_on()
            if is_whole:
                self._close_call()
            return self._take_parts()
        header = self._header
        self._header += self._scanner.take_all()
        if is_whole and self._end_header():
            return self._take_parts()
        if self._header_has_tags or self._may_be_header(header[self._num_header_from_prompt :].strip()):
            return []
        self._begin_body(MessageBody(BodyKind.CONTENT))
        self._give(self._header[self._num_header_from_prompt :])
        return self._take_parts()

    def _may_be_header(self, text: str) -> bool:
        return text.startswith("to=") or any(role.startswith(text) for role in ("to=", *self.tags.roles))

    def _run(self) -> list[AnswerPart]:
        self._run_on()
        return self._take_parts()

    def _run_on(self) -> None:
        while self._read_head() if self._body is None else self._read_body():
            pass

    def _take_parts(self) -> list[AnswerPart]:
        parts, self._parts = self._parts, []
        return parts

    def _read_head(self) -> bool:
        text, tag = self._scanner.take_until(self._header_tags)
        # However the text is cut, as much is looked at as is needed to be too long.
        num_looked_at = max(len(self._header), MAX_HEADER_LENGTH + 1)
        self._header += text
        if len(self._header) > MAX_HEADER_LENGTH:
            if tag is not None:
                self._scanner.give_back(tag)
            if not self._begin_unmarked(num_looked_at):
                self._begin_body(MessageBody(BodyKind.CONTENT))
                self._give(self._header[self._num_header_from_prompt :])
            self._header = ""
            return tag is not None
        if tag is None:
            return False
        if tag in self.tags.start or tag in self.tags.end:
            self._end_header()
            self._begin_header(tag)
        elif tag in self.tags.inner:
            self._header += tag
            self._header_has_tags = True
        else:
            self._begin_body(self.read_header(self._header, tag))
        return True

    def _read_body(self) -> bool:
        assert self._body is not None
        text, tag = self._scanner.take_until(self._body_tags)
        num_known = self._num_held_from_prompt
        self._num_held_from_prompt = max(0, num_known - len(text)) if tag is None else 0
        if num_known and text:
            self._has_arguments = True
        self._give(text[num_known:])
        if tag is None:
            return False
        self._end_body(tag)
        self._begin_header(tag)
        if tag in self.tags.sudden:
            self._scanner.give_back(tag)
        return True

    def _end_header(self) -> bool:
        """The message ends within its header; returns whether there was more than the header."""
        if not self._begin_unmarked(len(self._header)):
            return False
        self._close_call()
        self._body = None
        return True

    def _begin_unmarked(self, num_looked_at: int) -> bool:
        """Begin a body that the model wrote in the header, if its first ``num_looked_at`` characters contain one."""
        found = self.read_unmarked(self._header[:num_looked_at])
        if found is None:
            return False
        body, start = found
        self._begin_body(body)
        self._give(self._header[max(start, self._num_header_from_prompt) :])
        return True

    def _begin_header(self, tag: str) -> None:
        self._header = ""
        self._num_header_from_prompt = 0
        # A start tag is always followed by a header, whatever it looks like.
        self._header_has_tags = tag in self.tags.start

    def _begin_body(self, body: MessageBody) -> None:
        self._body = body
        self._body_has_text = False
        self._has_arguments = False
        if body.kind is BodyKind.CALL:
            self._parts.append(ToolCallBegin(self._num_calls, body.name))
            self._num_calls += 1
        if body.kind is not BodyKind.REASONING:
            self._has_left_reasoning = True
        self._give(body.opening)

    def _end_body(self, tag: str) -> None:
        assert self._body is not None
        self._close_call()
        if self._body.opening and tag in self.tags.end:
            self._give(tag)
        self._body = None

    def _close_call(self) -> None:
        """Make the arguments of a call whole, if the body is one."""
        if self._body is None or self._body.kind is not BodyKind.CALL:
            return
        if self._body.is_code:
            self._give_arguments('"}' if self._has_arguments else '{"code": ""}')
        elif not self._has_arguments:
            self._give_arguments("{}")

    def _give(self, text: str) -> None:
        if not text or self._body is None:
            return
        kind = self._body.kind
        if kind is BodyKind.CALL:
            if self._body.is_code:
                text = json.dumps(text, ensure_ascii=False)[1:-1]
                text = text if self._has_arguments else '{"code": "' + text
            elif not self._has_arguments:
                text = text.lstrip()
            self._give_arguments(text)
            return
        if kind is BodyKind.IGNORED:
            return
        if not self._body_has_text and kind in self._begun:
            if kind is BodyKind.REASONING:
                text = "\n" + text
            elif kind is BodyKind.CONTENT:
                self._parts.append(ContentBreak("\n"))
        self._body_has_text = True
        self._begun.add(kind)
        self._parts.append(ReasoningText(text) if kind is BodyKind.REASONING else ContentText(text))

    def _give_arguments(self, text: str) -> None:
        if text:
            self._has_arguments = True
            self._parts.append(ToolCallArguments(self._num_calls - 1, text))


class MessageReasoningParser(ReasoningParser):
    """Reasoning and content of an answer made of messages; calls are given by ``parse_delta_with_calls`` only."""

    def __init__(self, machine: type[MessageMachine], prompt_end: PromptEnd) -> None:
        self._machine = machine(prompt_end.text)
        self._tokens = TagTokens.find(prompt_end.tokenizer, prompt_end.token_ids, machine.tags.all)

    @property
    def is_reasoning(self) -> bool:
        return self._machine.is_reasoning

    def parse_delta(self, text: str, token_ids: Sequence[int] = ()) -> list[ReasoningText | ContentText]:
        return _texts(self.parse_delta_with_calls(text, token_ids))

    def flush(self) -> list[ReasoningText | ContentText]:
        return _texts(self._machine.flush())

    def flush_whole(self) -> list[ReasoningText | ContentText]:
        return _texts(self._machine.flush(is_whole=True))

    def parse_delta_with_calls(self, text: str, token_ids: Sequence[int] = ()) -> list[AnswerPart]:
        """Take the next piece of text and its tokens; calls are found as well."""
        if self._tokens is None:
            return self._machine.parse_delta(text)
        readable, marks = self._tokens.mark_delta(text, token_ids)
        if marks is None:
            self._tokens = None
        return self._machine.parse_delta(readable, marks)

    def flush_with_calls(self, is_whole: bool = False) -> list[AnswerPart]:
        """The answer has ended, and ``is_whole`` if the model ended it: return what was held back."""
        return self._machine.flush(is_whole)


def _texts(parts: Sequence[AnswerPart]) -> list[ReasoningText | ContentText]:
    return [part for part in parts if isinstance(part, ReasoningText | ContentText)]
