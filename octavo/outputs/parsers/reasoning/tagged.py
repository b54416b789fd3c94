"""Reasoning between tags, as most models write it: ``<think>…</think>`` and variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from octavo.outputs.parsers.base import ContentText, PromptEnd, ReasoningParser, ReasoningText
from octavo.outputs.parsers.reasoning.prompt import PromptReader, PromptState
from octavo.outputs.parsers.tags import TagScanner, TagSet

MAX_LEADING_SPACE = 64
"""Characters of white space before a start tag; an answer that begins with more is not reasoning."""


class UnmarkedAnswer(Enum):
    """What an answer is that begins without a start tag, where the prompt did not say."""

    REASONING = "reasoning: the model leaves the tag out"
    REASONING_IF_PROMPT_UNKNOWN = (
        "content, because the model writes the tag if it reasons; reasoning if no prompt was seen"
    )
    CONTENT = "content"


@dataclass(frozen=True)
class TaggedFormat:
    """How one family of models writes its reasoning.

    Attributes:
        end_tags: tags that end reasoning; if there are as many as start tags, they are pairs.
        implicit_end_tags: content that also ends reasoning: a tool call that begins without an end tag.
        unmarked: what an answer without a start tag is.
        thinks_by_default: whether the model thinks unless ``thinking_keys`` of the template's values say otherwise.
        thinking_keys: names of the template's values that switch thinking; an empty tuple if there is no switch.
        has_several_reasoning_blocks: whether a start tag within the content opens another reasoning block.
        content_open_tags: tags that may precede the content and are dropped, ...
        content_close_tags: ... and those that follow it.
        ignored_tags: tags that are dropped from the content.
        stripped: characters that are left out at both ends of reasoning, and of content between tags.
    """

    name: str
    start_tags: tuple[str, ...] = ("<think>",)
    end_tags: tuple[str, ...] = ("</think>",)
    implicit_end_tags: tuple[str, ...] = ()
    unmarked: UnmarkedAnswer = UnmarkedAnswer.REASONING_IF_PROMPT_UNKNOWN
    thinks_by_default: bool = True
    thinking_keys: tuple[str, ...] = ("enable_thinking", "thinking")
    has_several_reasoning_blocks: bool = False
    content_open_tags: tuple[str, ...] = ()
    content_close_tags: tuple[str, ...] = ()
    ignored_tags: tuple[str, ...] = ()
    stripped: str = "\n"
    tags: "FormatTags" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", FormatTags(self))

    def start(self, prompt_end: PromptEnd) -> "TaggedReasoningParser":
        """A parser for one answer after this prompt."""
        return TaggedReasoningParser(self, prompt_end)

    def is_thinking_enabled(self, template_kwargs: Mapping[str, Any] | None) -> bool:
        """Whether the request's values for the template make the model think."""
        for key in self.thinking_keys:
            value = (template_kwargs or {}).get(key)
            if value is not None:
                return value.lower() not in _NO if isinstance(value, str) else bool(value)
        return self.thinks_by_default


_NO = frozenset({"", "0", "false", "off", "no", "none", "no_think", "disabled"})


class FormatTags:
    """The sets of tags that a format needs, prepared once."""

    def __init__(self, format_: TaggedFormat) -> None:
        start, end, open_ = format_.start_tags, format_.end_tags, format_.content_open_tags
        repeated = start if format_.has_several_reasoning_blocks else ()
        self.prompt = PromptReader(start, end, open_)
        self.answer_start = TagSet((*start, *end, *open_))
        self.reasoning_start = TagSet(start)
        self.reasoning_text = TagSet((*end, *format_.implicit_end_tags))
        self.content_start = TagSet(open_)
        self.content = TagSet((*repeated, *format_.ignored_tags))
        self.open_content = TagSet((*repeated, *format_.ignored_tags, *format_.content_close_tags))


class _State(Enum):
    ANSWER_START = 0
    """Nothing but white space has come."""
    REASONING_START = 1
    """Only white space of the reasoning has come, or the start tag again."""
    REASONING = 2
    CONTENT_START = 3
    """After reasoning; white space and the tag that opens the content may come."""
    CONTENT = 4


class TaggedReasoningParser(ReasoningParser):
    """One answer of a :class:`TaggedFormat`.

    Newlines right after a start tag, around an end tag, and at the end of reasoning that breaks off are left out: they
    belong to the template. Later reasoning blocks begin with a newline, so that joined blocks stay readable.

    Attributes:
        is_left_to_model: whether the model itself decides to begin reasoning.
    """

    def __init__(self, format_: TaggedFormat, prompt_end: PromptEnd) -> None:
        self._format = format_
        self._tags = format_.tags
        self._scanner = TagScanner()
        self._parts: list[ReasoningText | ContentText] = []
        self._num_reasoning_blocks = 0
        self._is_content_open = False
        # White space that is left out if the reasoning, or the content between tags, ends here.
        self._held_space: list[str] = []
        self._state = _State.ANSWER_START
        state, tag = self._tags.prompt.read(prompt_end.text)
        is_enabled = format_.is_thinking_enabled(prompt_end.template_kwargs)
        self._is_unmarked_reasoning = state is PromptState.IN_REASONING
        self._is_reasoning_expected = self._is_unmarked_reasoning
        self.is_left_to_model = state is PromptState.UNKNOWN
        self._end_tag = format_.end_tags[0]
        if self._is_unmarked_reasoning and len(format_.end_tags) == len(format_.start_tags):
            self._end_tag = format_.end_tags[format_.start_tags.index(tag)]
        if state is PromptState.IN_CONTENT:
            self._state = _State.CONTENT
            self._is_content_open = True
        elif state is PromptState.UNKNOWN and is_enabled and not prompt_end.is_reasoning_marked:
            self._is_reasoning_expected = format_.unmarked is not UnmarkedAnswer.CONTENT
            self._is_unmarked_reasoning = format_.unmarked is UnmarkedAnswer.REASONING or (
                format_.unmarked is UnmarkedAnswer.REASONING_IF_PROMPT_UNKNOWN and not prompt_end.text
            )

    @property
    def is_reasoning(self) -> bool:
        if self._state is _State.ANSWER_START:
            return self._is_reasoning_expected
        return self._state in (_State.REASONING_START, _State.REASONING)

    @property
    def end_tag(self) -> str:
        return self._end_tag

    def parse_delta(self, text: str, token_ids: Sequence[int] = ()) -> list[ReasoningText | ContentText]:
        if not text:
            return []
        self._scanner.append_text(text)
        return self._run()

    def flush(self) -> list[ReasoningText | ContentText]:
        self._scanner.end_text()
        parts = self._run()
        if self._state is _State.CONTENT and self._held_space:
            parts.append(ContentText("".join(self._held_space)))
        self._held_space = []
        return parts

    def _run(self) -> list[ReasoningText | ContentText]:
        while self._step():
            pass
        parts, self._parts = self._parts, []
        return parts

    def _step(self) -> bool:
        """Consume what is certain in this state; returns whether there is more to do."""
        match self._state:
            case _State.ANSWER_START:
                return self._begin_answer()
            case _State.REASONING_START:
                return self._begin_reasoning_text()
            case _State.REASONING:
                return self._continue_reasoning()
            case _State.CONTENT_START:
                return self._begin_content()
            case _State.CONTENT:
                return self._continue_content()

    def _begin_answer(self) -> bool:
        space = self._scanner.take_space()
        tag: str | None = ""
        if len(space) <= MAX_LEADING_SPACE:
            tag = self._scanner.take_tag(self._tags.answer_start)
        if tag is None:
            self._scanner.give_back(space)
            return False
        if tag in self._format.start_tags:
            self._begin_reasoning()
        elif tag in self._format.end_tags:
            self._state = _State.CONTENT_START  # empty reasoning, whose start tag was left out
        elif tag:
            self._open_content()
        else:
            self._scanner.give_back(space)
            if self._is_unmarked_reasoning:
                self._begin_reasoning()
            else:
                self._state = _State.CONTENT
        return True

    def _begin_reasoning(self) -> None:
        self._state = _State.REASONING_START
        self._num_reasoning_blocks += 1
        if self._num_reasoning_blocks > 1:
            self._held_space = ["\n"]

    def _begin_reasoning_text(self) -> bool:
        self._scanner.take_space(self._format.stripped)
        tag = self._scanner.take_tag(self._tags.reasoning_start)
        if tag is None:
            return False
        if not tag:
            self._state = _State.REASONING
        return True

    def _continue_reasoning(self) -> bool:
        text, tag = self._scanner.take_until(self._tags.reasoning_text)
        self._give_but_hold_space(text, ReasoningText)
        if tag is None:
            return False
        self._held_space = []
        if tag in self._format.implicit_end_tags:
            self._scanner.give_back(tag)
        self._state = _State.CONTENT_START
        return True

    def _begin_content(self) -> bool:
        self._scanner.take_space(self._format.stripped)
        tag = self._scanner.take_tag(self._tags.content_start)
        if tag is None:
            return False
        if tag:
            self._open_content()
        else:
            self._state = _State.CONTENT
        return True

    def _open_content(self) -> None:
        self._is_content_open = True
        self._scanner.take_space(self._format.stripped)
        self._state = _State.CONTENT_START

    def _continue_content(self) -> bool:
        if not self._is_content_open:
            text, tag = self._scanner.take_until(self._tags.content)
            if text:
                self._parts.append(ContentText(text))
        else:
            text, tag = self._scanner.take_until(self._tags.open_content)
            self._give_but_hold_space(text, ContentText)
        if tag is None:
            return False
        if tag in self._format.start_tags:
            self._give_held_space()
            self._begin_reasoning()
        elif tag in self._format.content_close_tags:
            self._is_content_open = False
            self._held_space = []
            self._state = _State.CONTENT_START
        return True

    def _give_but_hold_space(self, text: str, kind: type[ReasoningText] | type[ContentText]) -> None:
        ending = text.rstrip(self._format.stripped)
        if ending:
            self._parts.append(kind("".join([*self._held_space, ending])))
            self._held_space = []
        if len(ending) < len(text):
            self._held_space.append(text[len(ending) :])

    def _give_held_space(self) -> None:
        if self._held_space:
            self._parts.append(ContentText("".join(self._held_space)))
            self._held_space = []
