"""What parsers of answers have in common: text goes in as it is generated, parts come out.

However the text is cut, the parts that come out are the same once neighbours are joined. A parser
holds back no more than it must: what may yet turn out to be the beginning of a tag.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.outputs.parsers.parts import AnswerPart, ContentText, ReasoningText
from octavo.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """What a parser may know of the prompt before the answer.

    Attributes:
        text: the prompt's last few hundred characters, special tokens included.
        template_kwargs: the request's values for the chat template, such as ``enable_thinking``.
        tokenizer: the model's, by which tags are told from text that reads like them.
        token_ids: the prompt's.
        is_thought_marked: whether a thought is sure to begin with its tag, since nothing else may begin the answer.
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
    """Tells a thought from the rest of one answer."""

    @property
    @abstractmethod
    def is_reasoning(self) -> bool:
        """Whether what comes next belongs to the thought, as far as can be told."""

    @property
    def end_tag(self) -> str | None:
        """The tag that will end the thought, if the prompt told which; else the first of its format's ``end_tags``."""
        return None

    @property
    def end_tag_tail(self) -> str | None:
        """What must come behind that tag, after a few words at most, before the answer proper begins."""
        return None

    @abstractmethod
    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[ReasoningText | ContentText]:
        """Take the next piece of text and its tokens, special ones spelled out; either may be empty."""

    @abstractmethod
    def finish(self) -> list[ReasoningText | ContentText]:
        """The answer has ended: give out what was held back."""

    def finish_whole(self) -> list[ReasoningText | ContentText]:
        """As :meth:`finish`, where the model ended the answer; the token that did so is not in the text as a rule."""
        return self.finish()


class ToolParser(ABC):
    """Finds calls of tools in one answer, or in what is left of it without the thought."""

    @abstractmethod
    def feed(self, text: str) -> list[AnswerPart]:
        """Take the next piece of text, special tokens spelled out."""

    @abstractmethod
    def finish(self) -> list[AnswerPart]:
        """The answer has ended: give out what was held back."""

    def finish_whole(self) -> list[AnswerPart]:
        """As :meth:`finish`, where the model ended the answer; the token that did so is not in the text as a rule."""
        return self.finish()
