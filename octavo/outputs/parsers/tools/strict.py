"""Strict tools: a model that calls one freely, in its own format, writes arguments that follow the tool's schema.

A structural tag leaves the answer free up to what begins a call, and binds the call. It exists for formats in which a
call is a fixed text around the arguments.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.outputs.parsers.base import Tool


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The text around a call's arguments.

    Attributes:
        trigger: the beginning of ``begin`` that distinguishes a call from text.
        begin: up to the arguments; ``{name}`` is replaced by the function's name.
        style: how arguments are written, in xgrammar's terms.
    """

    trigger: str
    begin: str
    end: str
    style: str = "json"


def _object(start: str, end: str, arguments: str = "arguments") -> CallFrame:
    return CallFrame(start.rstrip("\n"), f'{start}{{"name": "{{name}}", "{arguments}": ', f"}}{end}")


_QWEN = CallFrame("<tool_call>", "<tool_call>\n<function={name}>\n", "</function>\n</tool_call>", "qwen_xml")
_MINIMAX = CallFrame("<invoke name=", '<invoke name="{name}">\n', "</invoke>", "minimax_xml")
_GLM = CallFrame("<tool_call>", "<tool_call>{name}", "</tool_call>", "glm_xml")
_DSML = CallFrame("<｜DSML｜invoke ", '<｜DSML｜invoke name="{name}">\n', "</｜DSML｜invoke>", "deepseek_xml")
_HERMES = _object("<tool_call>\n", "\n</tool_call>")
_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"

CALL_FRAMES: dict[str, CallFrame] = {
    "hermes": _HERMES,
    "qwen3_json": _HERMES,
    "granite4": _HERMES,
    "ernie45": _HERMES,
    "longcat": _object("<longcat_tool_call>", "</longcat_tool_call>"),
    "internlm": _object("<|action_start|><|plugin|>\n", "\n<|action_end|>", "parameters"),
    "granite-20b-fc": _object("<function_call> ", ""),
    "inkling": _object("<|content_invoke_tool_json|>", "<|end_message|>", "args"),
    "llama3_json": CallFrame('{"name": "', '{"name": "{name}", "parameters": ', "}"),
    "llama4_json": CallFrame('{"name": "', '{"name": "{name}", "parameters": ', "}"),
    "mistral": CallFrame("[TOOL_CALLS]", "[TOOL_CALLS]{name}[ARGS]", ""),
    "deepseek_v3": CallFrame(
        _DEEPSEEK_CALL, f"{_DEEPSEEK_CALL}function<｜tool▁sep｜>{{name}}\n```json\n", "\n```<｜tool▁call▁end｜>"
    ),
    "deepseek_v31": CallFrame(_DEEPSEEK_CALL, f"{_DEEPSEEK_CALL}{{name}}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "deepseek_v32": _DSML,
    "deepseek_v4": _DSML,
    "qwen3_coder": _QWEN,
    "qwen3_xml": _QWEN,
    "mimo": _QWEN,
    "step3p5": _QWEN,
    "step5": _QWEN,
    "seed_oss": CallFrame("<function=", "<function={name}>\n", "</function>", "qwen_xml"),
    "minimax_m2": _MINIMAX,
    "glm45": _GLM,
    "glm47": _GLM,
    "ling3": _GLM,
    "poolside_v1": _GLM,
}
"""Frames by names of formats."""


def strict_structural_tag(format_name: str, tools: Sequence[Tool]) -> dict[str, Any] | None:
    """The structural tag that binds free calls to the tools' schemas.

    Tools that are not strict may be called with any object. None if no tool is strict, or the format has no frame.
    """
    frame = CALL_FRAMES.get(format_name)
    if frame is None or not any(tool.is_strict for tool in tools):
        return None
    tags = [
        {
            "type": "tag",
            "begin": frame.begin.replace("{name}", json.dumps(tool.name, ensure_ascii=False)[1:-1]),
            "content": {
                "type": "json_schema",
                "json_schema": tool.parameters if tool.is_strict and tool.parameters else {"type": "object"},
                "style": frame.style,
            },
            "end": frame.end,
        }
        for tool in tools
    ]
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": [frame.trigger], "tags": tags},
    }
