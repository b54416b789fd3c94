"""Tool-call formats by vLLM's names, plug-ins, and the meaning of ``auto``."""

from collections.abc import Callable, Sequence

from octavo.errors import ConfigError
from octavo.outputs.parsers.base import Tool, ToolParser
from octavo.outputs.parsers.tools.formats import BUILT_IN, ToolFormat

TOOL_FORMATS: dict[str, ToolFormat] = {}
"""All formats by name. For ``auto`` the order counts: of formats whose marks a template has, the first is taken."""


def register_tool_format(name: str, tool_format: ToolFormat) -> None:
    """Add a format, or put it in the place of the one of its name.

    Raises:
        ConfigError: it is no :class:`ToolFormat`, or has no name.
    """
    if not name or not isinstance(tool_format, ToolFormat):
        raise ConfigError("A format of calls needs a name and a ToolFormat.")
    TOOL_FORMATS[name] = tool_format


def tool_parser(name: str, tools: Sequence[Tool] = ()) -> ToolParser:
    """A parser of one answer.

    Raises:
        ConfigError: there is no format of this name.
    """
    tool_format = TOOL_FORMATS.get(name)
    if tool_format is None:
        raise ConfigError(f"There is no tool-call parser {name!r}; there are {', '.join(sorted(TOOL_FORMATS))}.")
    return tool_format.parser(tools)


def detect_tools(chat_template: str | None, model_type: str | None, vocab_has: Callable[[str], bool]) -> str | None:
    """The name of the format that a model writes, None if it shows no sign of one.

    The chat template decides, since it is what teaches a model its format; models whose template says nothing are
    known by their type, and Mistral's, which may come without a template, by a token of theirs.

    Args:
        model_type: as in the model's ``config.json``.
        vocab_has: whether the vocabulary holds this token.
    """
    template = chat_template or ""
    for name, tool_format in TOOL_FORMATS.items():
        if any(all(mark in template for mark in marks) for marks in tool_format.template_marks):
            return name
    kind = (model_type or "").lower()
    for name, tool_format in TOOL_FORMATS.items():
        if kind and kind.startswith(tool_format.model_types):
            return name
    return "mistral" if vocab_has("[TOOL_CALLS]") else None


for _name, _format in BUILT_IN.items():
    register_tool_format(_name, _format)
