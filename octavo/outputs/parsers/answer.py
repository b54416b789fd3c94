"""Parses one answer as it is generated into reasoning, content and tool calls."""

from collections.abc import Sequence

from octavo.outputs.parsers.base import AnswerPart, ContentText, ReasoningParser, ToolCallBegin, ToolParser
from octavo.outputs.parsers.harmony import HarmonyReasoningParser, HarmonyToolParser


class AnswerParser:
    """Lets the content that a reasoning parser leaves go through a tool parser; either may be missing.

    Where one format says both, as Harmony does, the two are one.

    Attributes:
        num_tool_calls: calls that have begun.
    """

    __slots__ = ("_harmony", "_reasoning", "_tools", "num_tool_calls")

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self.num_tool_calls = 0
        self._reasoning = reasoning
        self._tools = tools
        is_harmony = isinstance(reasoning, HarmonyReasoningParser) and isinstance(tools, HarmonyToolParser)
        self._harmony = reasoning if is_harmony and isinstance(reasoning, HarmonyReasoningParser) else None

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as is known."""
        return self._reasoning is not None and self._reasoning.is_reasoning

    def parse_delta(self, text: str, token_ids: Sequence[int] = ()) -> list[AnswerPart]:
        """Parse the next piece of text, including special tokens, and its tokens; either may be empty."""
        if self._harmony is not None:
            return self._counted(self._harmony.parse_delta_with_calls(text, token_ids))
        if self._reasoning is not None:
            return self._counted(self._find_calls(self._reasoning.parse_delta(text, token_ids)))
        return self._counted(self._find_calls([ContentText(text)] if text else []))

    def flush(self, is_whole: bool = False) -> list[AnswerPart]:
        """The answer has ended, and ``is_whole`` if the model ended it: return what was held back."""
        if self._harmony is not None:
            return self._counted(self._harmony.flush_with_calls(is_whole))
        parts: list[AnswerPart] = []
        if self._reasoning is not None:
            parts += self._find_calls(self._reasoning.flush_whole() if is_whole else self._reasoning.flush())
        if self._tools is not None:
            parts += self._tools.flush_whole() if is_whole else self._tools.flush()
        return self._counted(parts)

    def _find_calls(self, parts: Sequence[AnswerPart]) -> list[AnswerPart]:
        if self._tools is None:
            return list(parts)
        found: list[AnswerPart] = []
        for part in parts:
            if isinstance(part, ContentText):
                found += self._tools.parse_delta(part.text)
            else:
                found.append(part)
        return found

    def _counted(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        for part in parts:
            if isinstance(part, ToolCallBegin):
                self.num_tool_calls += 1
        return parts
