"""Determines from the prompt's end whether reasoning is open when the answer starts."""

import re
from collections.abc import Iterable
from enum import Enum

# What separates messages in the prompts of the model families; most of it is a special token by its looks.
_BOUNDARIES = (
    r"<\|[^<>|\s]{1,64}\|?>",
    r"<[^<>|\s]{1,64}\|>",
    r"<｜[^<>｜]{1,64}｜>",
    r"</?s>",
    r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\]",
    r"\[\|[^\[\]|\s]{1,64}\|\]",
    r"<\w{1,16}\|\w{1,64}>",
    r"<(?:start|end)_of_turn>",
    r"</?(?:assistant|user|system|role)>",
    r"<seed:[be]os>",
    r"\]~!?b[\[\]]|\[e~\[",
)


class PromptState(Enum):
    """Where the prompt leaves the answer."""

    UNKNOWN = "the prompt does not begin the answer"
    IN_REASONING = "the prompt opens the reasoning"
    AFTER_REASONING = "the prompt opens and closes the reasoning"
    IN_CONTENT = "the prompt opens what is meant for the reader"


class PromptReader:
    """Reads the state off a prompt's end: tags count only after the last boundary between messages.

    Earlier turns, and users, may write tags as well; a boundary follows them.
    """

    def __init__(self, start_tags: Iterable[str], end_tags: Iterable[str], content_tags: Iterable[str] = ()) -> None:
        self._states = {
            **dict.fromkeys(end_tags, PromptState.AFTER_REASONING),
            **dict.fromkeys(content_tags, PromptState.IN_CONTENT),
            **dict.fromkeys(start_tags, PromptState.IN_REASONING),
        }
        tags = sorted(self._states, key=len, reverse=True)
        # The format's own tags come first: some of them look like boundaries.
        self._pattern = re.compile("|".join([*map(re.escape, tags), *_BOUNDARIES]))

    def read(self, text: str) -> tuple[PromptState, str]:
        """The state that the last tag or boundary leaves, and that tag or boundary itself."""
        last = ""
        for match in self._pattern.finditer(text):
            last = match.group()
        return self._states.get(last, PromptState.UNKNOWN), last
