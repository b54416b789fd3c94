"""Instructions on tool calls for models whose chat template has none."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CallText:
    """Calls as JSON objects with a name and arguments.

    Attributes:
        opening, closing: what precedes and follows a call, or the list of all calls.
        separator: between calls.
        is_list: all calls appear in one list.
    """

    opening: str = ""
    closing: str = ""
    arguments_key: str = "arguments"
    separator: str = "\n"
    is_list: bool = False

    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Calls, each a function's name and arguments, as the model would write them."""
        objects = [
            json.dumps({"name": name, self.arguments_key: arguments}, ensure_ascii=False) for name, arguments in calls
        ]
        if self.is_list:
            return f"{self.opening}[{', '.join(objects)}]{self.closing}"
        return self.separator.join(f"{self.opening}{text}{self.closing}" for text in objects)

    @property
    def instruction(self) -> str:
        """The instruction for the model on how to call functions."""
        example = self.write([("FUNCTION_NAME", {"ARGUMENT_NAME": "VALUE"})])
        return f"To call a function, answer with its name and arguments as JSON, in exactly this form:\n{example}"


HERMES = CallText("<tool_call>\n", "\n</tool_call>")
LLAMA_JSON = CallText(arguments_key="parameters", separator="; ")
BARE_LIST = CallText(is_list=True)
MISTRAL = CallText("[TOOL_CALLS]", is_list=True)
JAMBA = CallText("<tool_calls>", "</tool_calls>", is_list=True)
GRANITE = CallText("<|tool_call|>", is_list=True)


def describe_tools(tools: Sequence[Mapping[str, Any]], call_text: CallText | None) -> str:
    """Tools as a text for a system message.

    Args:
        tools: descriptions of functions, as chat templates take them.
        call_text: how calls are written; None omits the instruction.
    """
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = f"You can use these functions:\n<tools>\n{listed}\n</tools>"
    return text if call_text is None else f"{text}\n\n{call_text.instruction}"
