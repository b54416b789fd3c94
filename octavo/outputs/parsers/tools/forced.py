"""Placeholder of the lead until the real file is written: overwrite me."""

from collections.abc import Sequence
from typing import Any

from octavo.outputs.parsers.base import Tool, ToolParser


def forced_parser(named_tool: str | None) -> ToolParser:
    raise NotImplementedError


def forced_schema(tools: Sequence[Tool], named_tool: str | None, *, is_parallel: bool) -> dict[str, Any]:
    raise NotImplementedError
