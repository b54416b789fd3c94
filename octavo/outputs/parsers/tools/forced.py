"""Forced tool calls: ``tool_choice`` is ``required`` or names a function.

A JSON schema binds such an answer, whatever format the model would have used by itself: for ``required`` it is a list
of objects with ``name`` and ``parameters``, for one named function it is nothing but the arguments.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from octavo.errors import InvalidRequestError
from octavo.outputs.parsers.base import Tool, ToolParser
from octavo.outputs.parsers.tools.json_machine import JsonMachine
from octavo.outputs.parsers.tools.reader import MalformedCallError, Reading

MAX_SCHEMA_DEPTH = 100
"""Levels of a schema of arguments; the grammar's own limits are lower."""

# Keywords whose value is a value, not a schema, and those whose value maps names to schemas.
_VALUE_KEYWORDS = frozenset({"const", "enum", "default", "examples"})
_MAP_KEYWORDS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DEFINITION_KEYWORDS = ("$defs", "definitions")


def forced_parser(named_tool: str | None) -> ToolParser:
    """Reads an answer that is bound to be calls, by the schema of :func:`forced_schema`."""
    return RequiredParser() if named_tool is None else NamedParser(named_tool)


class RequiredParser(JsonMachine, start=("[", "{")):
    """A list of calls, each an object with ``name`` and ``parameters`` or ``arguments``."""

    is_bare: ClassVar = True

    def read_calls(self, tag: str) -> Reading[None]:
        self._reader.unread(tag)
        yield from self.read_body()


class NamedParser(JsonMachine, start=("{",)):
    """The arguments of one function, and nothing else."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def read_calls(self, tag: str) -> Reading[None]:
        if self._has_content or self._is_after_call:
            raise MalformedCallError
        self._reader.unread(tag)
        self.begin_call(self._name)
        yield from self.read_arguments()
        self.end_call()


def forced_schema(tools: Sequence[Tool], named_tool: str | None, *, is_parallel: bool) -> dict[str, Any]:
    """The JSON schema of an answer that calls the named tool, or one or more of all.

    Args:
        is_parallel: whether there may be several calls; one named tool is called once.

    Raises:
        InvalidRequestError: there is no such tool, there are none, or a schema is nested too deeply.
    """
    if named_tool is not None:
        named = next((tool for tool in tools if tool.name == named_tool), None)
        if named is None:
            raise InvalidRequestError(f"tool_choice: there is no tool {named_tool!r} among tools.", "tool_choice")
        return dict(_parameters(named))
    if not tools:
        raise InvalidRequestError("tool_choice: a call is required, but there are no tools.", "tool_choice")
    definitions = _Definitions()
    alternatives = [
        {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": definitions.hoist(tool)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": alternatives}}
    if not is_parallel:
        schema["maxItems"] = 1
    if definitions.schemas:
        schema["$defs"] = definitions.schemas
    return schema


def _parameters(tool: Tool) -> Mapping[str, Any]:
    return tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}


class _Definitions:
    """Definitions of several schemas in one place, under names that do not clash."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self._pointers_by_table: dict[str, dict[str, str]] = {}

    def hoist(self, tool: Tool) -> Any:
        """The tool's schema without definitions of its own; references lead to the common ones."""
        parameters = _parameters(tool)
        _check_depth(tool.name, parameters)
        tables = {
            keyword: table
            for keyword in _DEFINITION_KEYWORDS
            if isinstance(table := parameters.get(keyword), Mapping) and table
        }
        body = {keyword: value for keyword, value in parameters.items() if keyword not in tables}
        # Tools that were made from the same models have the same definitions; they are kept once.
        key = json.dumps(tables, sort_keys=True)
        pointers = self._pointers_by_table.get(key)
        if pointers is None or _refers_to_root(parameters):
            pointers = self._add(tool.name, tables, body)
            self._pointers_by_table[key] = pointers
        return _redirected(body, pointers)

    def _add(self, tool_name: str, tables: Mapping[str, Mapping[str, Any]], body: Mapping[str, Any]) -> dict[str, str]:
        pointers: dict[str, str] = {}
        added: list[tuple[str, Any]] = []
        for keyword, table in tables.items():
            for name, schema in table.items():
                added.append((self._reserve(name), schema))
                pointers[f"#/{keyword}/{_pointer_part(name)}"] = f"#/$defs/{_pointer_part(added[-1][0])}"
        if _refers_to_root({**tables, "body": body}):
            added.append((self._reserve(tool_name), body))
            pointers["#"] = f"#/$defs/{_pointer_part(added[-1][0])}"
        for name, schema in added:
            self.schemas[name] = _redirected(schema, pointers)
        return pointers

    def _reserve(self, name: str) -> str:
        free, count = name, 1
        while free in self.schemas:
            count += 1
            free = f"{name}_{count}"
        self.schemas[free] = None
        return free


def _pointer_part(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _check_depth(tool_name: str, schema: object) -> None:
    """Refuse a schema that is nested too deeply, without recursion."""
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequestError(
                f"tools: the parameters of {tool_name!r} are nested deeper than {MAX_SCHEMA_DEPTH} levels.", "tools"
            )
        level = [
            child
            for node in level
            if isinstance(node, Mapping | list)
            for child in (node.values() if isinstance(node, Mapping) else node)
        ]


def _refers_to_root(schema: object) -> bool:
    """Whether a reference leads anywhere but to a definition."""
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            is_definition = any(reference.startswith(f"#/{keyword}/") for keyword in _DEFINITION_KEYWORDS)
            if not is_definition:
                return True
        return any(_refers_to_root(value) for value in schema.values())
    return isinstance(schema, list) and any(map(_refers_to_root, schema))


def _redirected(schema: Any, pointers: Mapping[str, str], is_map: bool = False) -> Any:
    """The schema with its references led to where the definitions are now."""
    if isinstance(schema, list):
        return [_redirected(item, pointers) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    redirected: dict[str, Any] = {}
    for keyword, value in schema.items():
        if is_map:
            redirected[keyword] = _redirected(value, pointers)
        elif keyword == "$ref" and isinstance(value, str):
            redirected[keyword] = _redirected_reference(value, pointers)
        elif keyword in _VALUE_KEYWORDS:
            redirected[keyword] = value
        else:
            redirected[keyword] = _redirected(value, pointers, is_map=keyword in _MAP_KEYWORDS)
    return redirected


def _redirected_reference(reference: str, pointers: Mapping[str, str]) -> str:
    for old in sorted(pointers, key=len, reverse=True):
        if reference == old or reference.startswith(f"{old}/"):
            return pointers[old] + reference[len(old) :]
    return reference
