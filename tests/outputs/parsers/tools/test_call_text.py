"""What a model is told to write is what its parser reads."""

import json

import pytest

from octavo.outputs.parsers.base import ToolCallArguments, ToolCallBegin
from octavo.outputs.parsers.tools.registry import TOOL_FORMATS, tool_parser

CALLS = [("weather", {"city": "Bern", "days": [1, 2]}), ("time", {})]
TOLD = [name for name, tool_format in TOOL_FORMATS.items() if tool_format.call_text is not None]


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("calls", [CALLS, CALLS[:1]])
def test_written_calls_are_read(name, calls):
    call_text = TOOL_FORMATS[name].call_text
    parser = tool_parser(name)
    parts = parser.parse_delta(call_text.write(calls)) + parser.flush()
    read = [(part.name, "") for part in parts if isinstance(part, ToolCallBegin)]
    for part in parts:
        if isinstance(part, ToolCallArguments):
            read[part.index] = (read[part.index][0], read[part.index][1] + part.text)
    assert [(name, json.loads(arguments)) for name, arguments in read] == calls
    assert "FUNCTION_NAME" in call_text.instruction
