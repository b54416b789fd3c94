"""The parts of an answer, and base classes of its parsers.

``parse_delta`` takes generated text and returns parts, ``flush`` the rest. However the text is cut, the parts that come
out are the same once neighbours are joined. A parser holds back no more than it must: what may yet turn out to be the
beginning of a tag.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The next piece of reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """The next piece of what is meant for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentBreak(ContentText):
    """Another message for the same reader begins; the text parts the two where they are shown as one."""


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A tool call begins; calls are numbered from 0.

    Attributes:
        call_id: the id that the model gave, where its format has ids.
    """

    index: int
    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next piece of a call's arguments; all of a call's pieces together are a JSON object."""

    index: int
    text: str


AnswerPart = ReasoningText | ContentText | ToolCallBegin | ToolCallArguments


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """What a parser may know of the prompt before the answer.

    Attributes:
        text: the prompt's last few hundred characters, special tokens included.
        template_kwargs: the request's values for the chat template, such as ``enable_thinking``.
        tokenizer: the model's, to distinguish tags from ordinary text that looks like them.
        token_ids: the prompt's.
        is_reasoning_marked: whether the answer's constraint requires reasoning to begin with its tag.
    """

    text: str = ""
    template_kwargs: Mapping[str, Any] | None = None
    tokenizer: Tokenizer | None = None
    token_ids: Sequence[int] = ()
    is_reasoning_marked: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of its arguments, an object.
    """

    name: str
    parameters: Mapping[str, Any] | None = None
    description: str | None = None
    is_strict: bool = False


class ReasoningParser(ABC):
    """Separates reasoning from the rest of one answer."""

    @property
    @abstractmethod
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as is known."""

    @property
    def end_tag(self) -> str | None:
        """The tag that ends the reasoning: as the prompt determines, else the first of the format's ``end_tags``."""
        return None

    @property
    def end_tag_tail(self) -> str | None:
        """What must follow that tag, after a few words at most, before the answer begins."""
        return None

    @abstractmethod
    def parse_delta(self, text: str, token_ids: Sequence[int] = ()) -> list[ReasoningText | ContentText]:
        """Parse the next piece of text, including special tokens, and its tokens; either may be empty."""

    @abstractmethod
    def flush(self) -> list[ReasoningText | ContentText]:
        """The answer has ended: return what was held back."""

    def flush_whole(self) -> list[ReasoningText | ContentText]:
        """As :meth:`flush`, if the model ended the answer; the end token is usually not in the text."""
        return self.flush()


class ToolParser(ABC):
    """Finds tool calls in one answer, or in what is left of it without the reasoning."""

    @abstractmethod
    def parse_delta(self, text: str) -> list[AnswerPart]:
        """Parse the next piece of text, including special tokens."""

    @abstractmethod
    def flush(self) -> list[AnswerPart]:
        """The answer has ended: return what was held back."""

    def flush_whole(self) -> list[AnswerPart]:
        """As :meth:`flush`, if the model ended the answer; the end token is usually not in the text."""
        return self.flush()
