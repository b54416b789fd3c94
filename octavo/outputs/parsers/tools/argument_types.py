"""Arguments that a format writes as bare text: which JSON type they have, as the tool's schema says."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.outputs.parsers.tools.json_text import pass_value
from octavo.outputs.parsers.tools.python_text import pass_literal
from octavo.outputs.parsers.tools.reader import AnswerReader, Give, MalformedCallError, Reading

STRING = frozenset({"string"})
_MAX_SCHEMA_DEPTH = 16
_NUMBERS = frozenset({"integer", "number"})
_PYTHON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (type(None), "null"),
    (dict, "object"),
    (list, "array"),
)
_TYPES_BY_FIRST_CHARACTER = {
    "{": "object",
    "[": "array",
    '"': "string",
    "t": "boolean",
    "f": "boolean",
    "n": "null",
    **dict.fromkeys("-0123456789", "number"),
}
# Names of types that schemas made by hand or from Python have.
_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "map": "object",
    "none": "null",
}
_PYTHON_WORDS = {"true": "boolean", "false": "boolean", "none": "null", "null": "null"}


def argument_types(schema: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The JSON types that the argument ``name`` of a function may have; none at all if the schema does not say.

    Args:
        schema: of all arguments of the function.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if schema is None or not isinstance(properties, Mapping):
        return frozenset()
    return schema_types(properties.get(name), schema)


def schema_types(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a part of the schema ``root`` allows; none at all if it does not say."""
    return frozenset(_types(schema, root, 0))


def resolved(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of the schema ``root``, or what it refers to; empty if that is no schema."""
    for _ in range(_MAX_SCHEMA_DEPTH):
        if not isinstance(schema, Mapping):
            break
        if not isinstance(schema.get("$ref"), str):
            return schema
        schema = _resolve(schema["$ref"], root)
    return {}


def _types(schema: object, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
        return set()
    types = schema.get("type")
    if isinstance(types, str):
        found = {_ALIASES.get(types, types)}
    elif isinstance(types, Sequence):
        found = {_ALIASES.get(name, name) for name in types if isinstance(name, str)}
    elif isinstance(schema.get("enum"), Sequence):
        found = {_type_of(value) for value in schema["enum"]}
    elif "const" in schema:
        found = {_type_of(schema["const"])}
    elif isinstance(schema.get("$ref"), str):
        found = _types(_resolve(schema["$ref"], root), root, depth + 1)
    else:
        found = _types_of_alternatives(schema, root, depth)
    return found | {"null"} if found and schema.get("nullable") is True else found


def _types_of_alternatives(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> set[str]:
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        if isinstance(alternatives, Sequence) and not isinstance(alternatives, str):
            each = [_types(alternative, root, depth + 1) for alternative in alternatives[:64]]
            # An alternative that may be anything leaves the whole open; of a conjunction the others still count.
            if key != "allOf" and not all(each):
                return set()
            return set().union(*each)
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set()


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference within the schema points to, None if nothing."""
    found: object = root
    if not reference.startswith("#"):
        return None
    for key in reference[1:].split("/")[1:]:
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _type_of(value: object) -> str:
    return next((name for python_type, name in _PYTHON_TYPES if isinstance(value, python_type)), "string")


def quoted(text: str) -> str:
    """Text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def argument_json(text: str, types: frozenset[str]) -> str:
    """An argument that a format wrote as bare text, as JSON of one of ``types``; a string if it is none of these.

    JSON stays as it was written. Python's spelling of constants, lists and dictionaries is understood, because some
    templates show it to their models. Without types whatever is JSON, and no string, is taken for it.
    """
    if types == STRING:
        return quoted(text)
    stripped = text.strip()
    json_type = _TYPES_BY_FIRST_CHARACTER.get(stripped[:1])
    if json_type is not None and _is_wanted(json_type, types):
        converted = _whole(pass_value, stripped)
        if converted is not None:
            return converted
        if json_type in ("object", "array"):
            converted = _whole(pass_literal, stripped)
            if converted is not None:
                return converted
    word = stripped.lower()
    if word in _PYTHON_WORDS and _is_wanted(_PYTHON_WORDS[word], types):
        return "null" if word == "none" else word
    return quoted(text)


def _is_wanted(json_type: str, types: frozenset[str]) -> bool:
    if not types:
        return json_type != "string"
    if json_type == "number":
        return bool(types & _NUMBERS)
    # Nothing but a string can be meant by quotes where a schema has no string, and nothing but null by a null.
    return json_type in types or (json_type in ("null", "string") and "string" not in types)


def _whole(read: Callable[[AnswerReader, Give], Reading[None]], text: str) -> str | None:
    """All of ``text`` as ``read`` passes it on, None if it is malformed."""
    reader = AnswerReader()
    reader.append_text(text)
    reader.end_text()
    pieces: list[str] = []
    try:
        for _ in read(reader, pieces.append):
            raise AssertionError("a reader that has all text does not wait")
    except MalformedCallError:
        return None
    return "".join(pieces) if reader.is_at_end else None
