"""Read a JSON schema before native code does: what it asks for is checked, named and written in one form.

Grammar backends pass over keywords that they do not know, so that an answer may break the schema without a word. Here
every keyword is looked at: annotations are left out, spellings of older drafts are written as today's, references are
resolved (nothing outside of the schema is ever read), and what a backend does not follow is noted by name.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.sampling.grammar.regex import Regex, escape, read_regex

MAX_SCHEMA_NODES = 20_000
"""Most subschemas, those that references point to counted once for each way they are reached."""
MAX_COUNT = (1 << 31) - 1
"""Largest minLength, minItems and the like; larger maxima bound no answer and are left out."""

BACKENDS = ("xgrammar", "guidance")
_TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
_GUIDANCE_FORMATS = frozenset(
    ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_XGRAMMAR_FORMATS = _GUIDANCE_FORMATS | {"uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}
_NEVER = {
    "not": "'not'",
    "if": "'if'",
    "dependentRequired": "'dependentRequired'",
    "dependentSchemas": "'dependentSchemas'",
    "dependencies": "'dependencies'",
    "contains": "'contains'",
    "$dynamicRef": "'$dynamicRef'",
    "$recursiveRef": "'$recursiveRef'",
}
_TYPED = {
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "format": "string",
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
_ASSERTIONS = frozenset(
    (
        *(*_NEVER, *_TYPED, *_COMBINING, "type", "enum", "const"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"),
        *("properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties"),
    )
)
_Schema = dict[str, Any]


class SchemaReader:
    """Reads one schema.

    Args:
        name: the field it comes from, for errors.
        closes_all: whether objects have only the properties that the schema names, also where it names none.

    Attributes:
        unsupported: backend → the first thing in the schema that it does not follow.
        schema: the schema in the form that the backends read.
        is_large: whether a backend that works out everything beforehand would take seconds.
    """

    def __init__(self, source: Any, name: str, *, closes_all: bool = False) -> None:
        self.unsupported: dict[str, str] = {}
        self.is_large = False
        self._source = source
        self._name = name
        self._closes_all = closes_all
        self._num_nodes = 0
        self._defs: dict[str, Any] = {}
        self._def_names: dict[tuple[str, bool], str] = {}
        self._pending: list[tuple[str, Any, bool]] = []
        self._ends: dict[str, Any] = {}
        if source is False:
            raise self._error("allows no answer at all")
        self.schema: Any = self._read(source, closes=True)
        while self._pending:
            def_name, target, closes = self._pending.pop()
            self._defs[def_name] = self._read(target, closes=closes)
        if self._defs:
            self.schema = {**self._as_object(self.schema), "$defs": self._defs}

    def _as_object(self, schema: Any) -> _Schema:
        return schema if isinstance(schema, dict) else {}

    def _error(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._name}: the schema {message}.", "structured_outputs")

    def _miss(self, feature: str, *backends: str) -> None:
        for backend in backends or BACKENDS:
            self.unsupported.setdefault(backend, feature)

    def _count(self, num_nodes: int) -> None:
        self._num_nodes += num_nodes
        if self._num_nodes > MAX_SCHEMA_NODES:
            raise self._error(f"has more than {MAX_SCHEMA_NODES:,} parts, its references followed")

    def _read(self, given: Any, *, closes: bool) -> Any:
        self._count(1)
        if given is True or given == {}:
            return {}
        if given is False:
            self._miss("false as a schema", "xgrammar")
            return False
        if not isinstance(given, dict):
            raise self._error(f"must be made of objects, but {str(given)[:40]!r} stands for a schema")
        source = {key: value for key, value in given.items() if key in _ASSERTIONS}
        combining = [key for key in _COMBINING if key in source]
        if combining:
            return self._read_combined(source, combining, closes=closes)
        return self._read_plain(source, closes=closes)

    def _read_combined(self, source: _Schema, combining: list[str], *, closes: bool) -> Any:
        if len(source) == 1 and combining != ["allOf"]:
            return self._combination(combining[0], source[combining[0]], closes=closes)
        if len(source) == 1 and isinstance(source["allOf"], list) and len(source["allOf"]) == 1:
            return self._read(source["allOf"][0], closes=closes)
        others = ", ".join(f"'{key}'" for key in source if key not in combining) or "other combinations"
        self._miss(f"'{combining[0]}' beside {others}"[:120] if len(source) > 1 else "'allOf'", "xgrammar")
        # Parts that hold together must not be closed each by itself: the properties of one are unknown to the others.
        schema = self._read_plain({key: source[key] for key in source if key not in combining}, closes=False)
        for key in combining:
            schema.update(self._combination(key, source[key], closes=False))
        return schema

    def _combination(self, key: str, value: Any, *, closes: bool) -> _Schema:
        if key == "$ref":
            return {"$ref": self._reference(value, closes=closes)}
        if not isinstance(value, list) or not value:
            raise self._error(f"has {key!r} without a list of schemas")
        if key == "oneOf" and self._are_disjoint(value):
            key = "anyOf"
        elif key == "oneOf":
            self._miss("'oneOf' whose alternatives may overlap (use anyOf)", "xgrammar")
        return {key: [self._read(part, closes=closes) for part in value]}

    def _are_disjoint(self, alternatives: list[Any]) -> bool:
        """Whether no value fits two alternatives, as types show or a property that tells them apart."""
        resolved = [self._resolved(part) for part in alternatives]
        if not all(isinstance(part, dict) for part in resolved):
            return False
        types = [_type_set(part) for part in resolved]
        if None not in types and _no_overlap(types):
            return True
        if any(part.get("type") != "object" for part in resolved):
            return False
        # Many alternatives may refer to the same large one.
        self._count(sum(len(_as_list(part.get("required"))) for part in resolved))
        common = set.intersection(*(set(_as_list(part.get("required"))) for part in resolved))
        return any(_no_overlap([self._constants(part, key) for part in resolved]) for key in sorted(common))

    def _constants(self, schema: _Schema, key: str) -> set[str] | None:
        properties = schema.get("properties")
        value = self._resolved(properties.get(key)) if isinstance(properties, dict) else None
        if not isinstance(value, dict):
            return None
        if "const" in value:
            self._count(1)
            return {repr(value["const"])}
        values = value.get("enum")
        if not isinstance(values, list):
            return None
        self._count(len(values))
        return {repr(one) for one in values}

    def _resolved(self, schema: Any) -> Any:
        """What a schema that is only a reference refers to in the end; else the schema itself."""
        passed: dict[str, None] = {}
        while isinstance(schema, dict) and set(schema) & _ASSERTIONS == {"$ref"}:
            reference = schema["$ref"]
            schema = self._target(reference)
            if reference in passed:
                raise self._error("has references that lead round in a circle")
            passed[reference] = None
            if reference in self._ends:
                schema = self._ends[reference]
                break
        self._ends.update(dict.fromkeys(passed, schema))
        return schema

    def _reference(self, reference: Any, *, closes: bool) -> str:
        target = self._target(reference)
        self._resolved(target)
        key = (reference, closes)
        if key not in self._def_names:
            name = self._def_names[key] = f"r{len(self._def_names)}"
            # Read later: a long chain of references would need a deep stack.
            self._pending.append((name, target, closes))
        return f"#/$defs/{self._def_names[key]}"

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            raise self._error(f"refers to {str(reference)[:80]!r}; only references within the schema ('#/…') are known")
        place = self._source
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and key in place:
                place = place[key]
            elif isinstance(place, list) and key.isascii() and key.isdigit() and int(key[:6]) < len(place):
                place = place[int(key[:6])]
            else:
                raise self._error(f"refers to {reference[:80]!r}, which is not there")
        return place

    def _read_plain(self, source: _Schema, *, closes: bool) -> _Schema:
        for key in source:
            if key in _NEVER:
                self._miss(_NEVER[key])
        if "enum" in source or "const" in source:
            return self._read_values(source)
        schema: _Schema = {}
        self._read_types(source, schema)
        self._read_string(source, schema)
        self._read_number(source, schema)
        self._read_array(source, schema, closes=closes)
        self._read_object(source, schema, closes=closes)
        return schema

    def _read_values(self, source: _Schema) -> _Schema:
        values = [source["const"]] if "const" in source else source["enum"]
        if not isinstance(values, list):
            raise self._error("has 'enum' without a list of values")
        types = self._types(source)
        if types is not None:
            values = [value for value in values if _has_type(value, types)]
        others = [key for key in source if key not in ("enum", "const", "type")]
        if "enum" in source and "const" in source:
            others.append("const")
        if others:
            self._miss(f"'enum' beside '{others[0]}'")
        if not values:
            raise self._error("has an 'enum' without a value of its type")
        return {"enum": values}

    def _types(self, source: _Schema) -> list[str] | None:
        if "type" not in source:
            return None
        types = source["type"] if isinstance(source["type"], list) else [source["type"]]
        for kind in types:
            if kind not in _TYPES:
                raise self._error(f"has the unknown type {str(kind)[:40]!r}; known are {', '.join(_TYPES)}")
        if not types:
            raise self._error("has an empty list of types")
        return list(dict.fromkeys(types))

    def _read_types(self, source: _Schema, schema: _Schema) -> None:
        types = self._types(source)
        if types is not None:
            schema["type"] = types[0] if len(types) == 1 else types
            return
        for key, kind in _TYPED.items():
            if key in source:
                self._miss(f"'{key}' without 'type': '{kind}'", "xgrammar")

    def _read_string(self, source: _Schema, schema: _Schema) -> None:
        self._read_counts(source, schema, "minLength", "maxLength")
        if "pattern" in source:
            if not isinstance(source["pattern"], str):
                raise self._error("has a 'pattern' that is no string")
            regex = read_regex(source["pattern"], f"{self._name}: 'pattern'", matches_part=True)
            schema["pattern"] = f"^(?:{regex.text})$"
            self._note_regex(regex)
        known = source.get("format")
        if isinstance(known, str) and known in _XGRAMMAR_FORMATS:
            schema["format"] = known
            if known not in _GUIDANCE_FORMATS:
                self._miss(f"the format '{known}'", "guidance")
        if len({"pattern", "format"} & set(schema)) == 2:
            self._miss("'format' beside 'pattern'", "xgrammar")
        for key in ("minLength", "maxLength"):
            if key in schema and ("pattern" in schema or "format" in schema):
                self._miss(f"'{key}' beside '{'pattern' if 'pattern' in schema else 'format'}'", "xgrammar")

    def _read_counts(self, source: _Schema, schema: _Schema, least: str, most: str) -> None:
        for key in (least, most):
            if key not in source:
                continue
            count = source[key]
            if isinstance(count, float) and count.is_integer():
                count = int(count)
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise self._error(f"has a {key!r} that is no whole number from 0 on")
            if count > MAX_COUNT and key == least:
                raise self._error(f"has a {key!r} above {MAX_COUNT:,}")
            if count <= MAX_COUNT and (count or key == most):
                schema[key] = count
        if least in schema and most in schema and schema[least] > schema[most]:
            raise self._error(f"has a {least!r} above its {most!r}")

    def _read_number(self, source: _Schema, schema: _Schema) -> None:
        for key in (*_BOUNDS, "multipleOf"):
            value = source.get(key)
            if value is None or value is False:
                continue
            bound = key.removeprefix("exclusive").lower()
            if value is True and bound != key:
                # Draft 4: a switch that makes the bound beside it exclusive.
                value = schema.pop(bound, None)
                if value is None:
                    continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise self._error(f"has a {key!r} that is no number")
            schema[key] = value
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                self._miss(f"a {key!r} of more than 64 bits")
        multiple = schema.get("multipleOf")
        if multiple is None:
            return
        if multiple <= 0:
            raise self._error("has a 'multipleOf' that is not above 0")
        if schema.get("type") != "integer" or not isinstance(multiple, int):
            self._miss("'multipleOf' of numbers that are not whole", "xgrammar")
        if any(key in schema for key in _BOUNDS):
            self._miss("'multipleOf' beside a bound", "xgrammar")

    def _read_array(self, source: _Schema, schema: _Schema, *, closes: bool) -> None:
        self._read_counts(source, schema, "minItems", "maxItems")
        if source.get("uniqueItems"):
            self._miss("'uniqueItems'")
        first, others = source.get("prefixItems"), source.get("items")
        if isinstance(others, list):
            first, others = others, source.get("additionalItems")
        if others is None and "unevaluatedItems" in source:
            others = source["unevaluatedItems"]
        if first is not None:
            if not isinstance(first, list):
                raise self._error("has 'prefixItems' without a list of schemas")
            schema["prefixItems"] = [self._read(part, closes=closes) for part in first]
        if others is False:
            schema["items"] = False
        elif others is not None:
            schema["items"] = self._read(others, closes=closes)

    def _read_object(self, source: _Schema, schema: _Schema, *, closes: bool) -> None:
        self._read_counts(source, schema, "minProperties", "maxProperties")
        properties = self._mapping(source, "properties")
        patterns = self._mapping(source, "patternProperties")
        required = source.get("required", [])
        if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
            raise self._error("has 'required' without a list of names")
        if "properties" in source:
            schema["properties"] = {key: self._read(part, closes=closes) for key, part in properties.items()}
        if required:
            schema["required"] = list(dict.fromkeys(required))
        rest = source.get("additionalProperties", source.get("unevaluatedProperties"))
        if "propertyNames" in source:
            patterns, rest = self._named(source["propertyNames"], properties, patterns, rest)
        if patterns:
            schema["patternProperties"] = self._patterns(patterns, closes=closes)
        is_object = schema.get("type") in ("object", None)
        if rest is None and closes and is_object and (properties or patterns or self._closes_all):
            rest = None if set(required) - set(properties) else False
        if rest is None and self._closes_all and schema.get("type") == "object":
            rest = False
        if rest is not None:
            schema["additionalProperties"] = False if rest is False else self._read(rest, closes=closes)
        self._note_objects(schema, properties)

    def _note_objects(self, schema: _Schema, properties: Mapping[str, Any]) -> None:
        required = set(schema.get("required", []))
        if required - set(properties):
            self._miss("'required' with a name that 'properties' has not", "xgrammar")
        is_counted = "minProperties" in schema or "maxProperties" in schema
        if is_counted and set(properties) - required:
            self._miss("'minProperties' or 'maxProperties' beside optional properties", "guidance")
        if "patternProperties" in schema and schema.get("additionalProperties") is not False:
            self._miss("'patternProperties' beside other properties", "xgrammar")
        if "patternProperties" in schema and (is_counted or properties):
            self._miss("'patternProperties' beside 'properties' or their number", "xgrammar")

    def _named(
        self, names: Any, properties: Mapping[str, Any], patterns: Mapping[str, Any], rest: Any
    ) -> tuple[Mapping[str, Any], Any]:
        """``propertyNames`` as ``patternProperties`` that nothing else stands beside."""
        names = self._resolved(names)
        keys = {key for key in names if key in _ASSERTIONS} - {"type"} if isinstance(names, dict) else set()
        if names is True or (isinstance(names, dict) and not keys and names.get("type", "string") == "string"):
            return patterns, rest
        if properties or patterns or keys not in ({"pattern"}, {"enum"}):
            self._miss("'propertyNames' beside properties, or with more than a 'pattern' or an 'enum'")
            return patterns, rest
        if keys == {"enum"}:
            values = [value for value in _as_list(names["enum"]) if isinstance(value, str)]
            pattern = f"^(?:{'|'.join(map(escape, values))})$"
        else:
            pattern = names["pattern"]
            if not isinstance(pattern, str):
                raise self._error("has a 'pattern' that is no string")
        return {pattern: True if rest is None else rest}, False

    def _patterns(self, patterns: Mapping[str, Any], *, closes: bool) -> _Schema:
        schema = {}
        for pattern, part in patterns.items():
            regex = read_regex(pattern, f"{self._name}: 'patternProperties'", matches_part=True)
            self._note_regex(regex)
            schema[f"^(?:{regex.text})$"] = self._read(part, closes=closes)
        return schema

    def _note_regex(self, regex: Regex) -> None:
        self.is_large |= regex.is_large
        if regex.guidance_only is not None:
            self._miss(f"{regex.guidance_only} in a pattern", "xgrammar")
        if regex.names_escaped:
            self._miss("a pattern with quotes, backslashes or control characters", "xgrammar")

    def _mapping(self, source: _Schema, key: str) -> Mapping[str, Any]:
        value = source.get(key, {})
        if not isinstance(value, dict):
            raise self._error(f"has {key!r} without an object of schemas")
        return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _no_overlap(sets: list[set[str] | None]) -> bool:
    if any(one is None for one in sets):
        return False
    known = [one for one in sets if one is not None]
    return sum(map(len, known)) == len(set().union(*known))


def _type_set(schema: _Schema) -> set[str] | None:
    names: set[str] = set(_as_list(schema.get("type")) or [schema.get("type")])
    if not names <= set(_TYPES):
        return None
    return names | {"integer", "number"} if names & {"integer", "number"} else names


def _has_type(value: Any, types: list[str]) -> bool:
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return "integer" in types or "number" in types
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case str():
            return "string" in types
        case list():
            return "array" in types
        case _:
            return "object" in types
