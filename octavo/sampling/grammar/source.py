"""What a request asks for, checked and written for the grammar backends.

Everything here is plain Python on bounded inputs: nothing that a client sends reaches native code before it has been
here. Frontends may call :func:`read_source` to refuse a request early; the compiler calls it again.
"""

import json
from typing import Any, Literal

import msgspec

from octavo.errors import InvalidRequestError
from octavo.records import GrammarBackend, StructuredOutputsParams
from octavo.records.structured import check_nesting
from octavo.sampling.grammar.grammar_text import check_grammar, depth_of, is_ebnf
from octavo.sampling.grammar.regex import escape, read_regex
from octavo.sampling.grammar.schema import BACKENDS, SchemaReader
from octavo.sampling.grammar.structural import read_structural_tag

Backend = Literal["xgrammar", "guidance"]
Kind = Literal["json", "regex", "ebnf", "lark", "structural_tag"]

_MAX_TEXT_DEPTH = 500
"""Of JSON as text, brackets within strings included."""


class GrammarSource(msgspec.Struct, frozen=True):
    """A grammar that a backend can compile; equal ones compile to the same.

    Attributes:
        text: schema and structural tag as JSON, the rest as it is.
        backends: those that follow all of it, the first one is tried first.
        layout: of JSON: ``any`` white space, ``compact``, or the regex of what may stand between its parts.
    """

    kind: Kind
    text: str
    backends: tuple[Backend, ...]
    layout: str = "any"


def read_source(
    params: StructuredOutputsParams, default_backend: GrammarBackend = "auto", *, is_compact: bool = False
) -> GrammarSource:
    """Check what a request asks for and choose backends for it.

    Args:
        default_backend: for requests that name none.
        is_compact: JSON has no white space of the model's choice, whatever the request asks for.

    Raises:
        InvalidRequestError: it is malformed, too large, or uses what the backend, or none of them, can follow.
    """
    params.verify()
    backend = params.backend or default_backend
    allowed: tuple[Backend, ...] = ("xgrammar", "guidance") if backend == "auto" else (backend,)
    if params.regex is not None:
        regex = read_regex(params.regex, "regex")
        missing = {} if regex.guidance_only is None else {"xgrammar": regex.guidance_only}
        return GrammarSource("regex", regex.text, _in_order(_choose(allowed, missing, "regex"), regex.is_large))
    if params.choice is not None:
        # The longest first: some backends stop at the first that fits.
        choices = sorted(dict.fromkeys(params.choice), key=len, reverse=True)
        if any("\0" in text for text in choices):
            raise _error("choice: a choice holds the character NUL, which no grammar backend can follow")
        return GrammarSource("regex", "|".join(map(escape, choices)), allowed)
    if params.grammar is not None:
        return _read_grammar(params.grammar, allowed)
    if params.structural_tag is not None:
        tag = read_structural_tag(_parse("structural_tag", params.structural_tag))
        return GrammarSource("structural_tag", _dump(tag.value), _choose(allowed, tag.unsupported, "structural_tag"))
    return _read_json(params, allowed, is_compact or params.disable_any_whitespace)


def _read_json(params: StructuredOutputsParams, allowed: tuple[Backend, ...], is_compact: bool) -> GrammarSource:
    name = "json" if params.json is not None else "json_object"
    schema: Any = {"type": "object"}
    if params.json is not None:
        schema = _parse("json", params.json) if isinstance(params.json, str) else params.json
    reader = SchemaReader(schema, name, closes_all=params.disable_additional_properties)
    missing = dict(reader.unsupported)
    layout = "compact" if is_compact else "any"
    if params.whitespace_pattern is not None:
        layout = "regex:" + read_regex(params.whitespace_pattern, "whitespace_pattern").text
        missing.setdefault("xgrammar", "'whitespace_pattern'")
    chosen = _in_order(_choose(allowed, missing, name), reader.is_large)
    return GrammarSource("json", _dump(reader.schema), chosen, layout)


def _in_order(chosen: tuple[Backend, ...], is_large: bool) -> tuple[Backend, ...]:
    """xgrammar first, whose masks are the quickest, but for what it would take seconds to compile."""
    return chosen[::-1] if is_large else chosen


def _read_grammar(text: str, allowed: tuple[Backend, ...]) -> GrammarSource:
    check_grammar(text, "grammar")
    if is_ebnf(text):
        return GrammarSource("ebnf", text, allowed)
    return GrammarSource("lark", text, _choose(allowed, {"xgrammar": "Lark"}, "grammar"))


def _choose(allowed: tuple[Backend, ...], missing: dict[str, str], name: str) -> tuple[Backend, ...]:
    chosen = tuple(backend for backend in allowed if backend not in missing)
    if chosen:
        return chosen
    what = "schema" if name in ("json", "json_object") else name.replace("_", " ")
    if len(allowed) > 1 and missing[allowed[0]] != missing[allowed[1]]:
        found = ", and ".join(f"{missing[backend]}, which {backend} does not follow" for backend in allowed)
        raise _error(f"{name}: the {what} uses {found}; leave one of the two out")
    follower = f"the {allowed[0]} backend does not follow" if len(allowed) == 1 else "no grammar backend follows"
    advice = ", or ask for another backend" if _others(allowed, missing) else ""
    raise _error(f"{name}: the {what} uses {missing[allowed[0]]}, which {follower}; leave it out{advice}")


def _others(allowed: tuple[Backend, ...], missing: dict[str, str]) -> list[str]:
    return [backend for backend in BACKENDS if backend not in allowed and backend not in missing]


def _parse(name: str, text: str) -> Any:
    # Counted in the text: what parses a deep value needs a deep stack.
    if depth_of(text) > _MAX_TEXT_DEPTH:
        raise _error(f"{name}: the JSON is nested too deep")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _error(f"{name}: this is not JSON: {str(error)[:200]}") from None
    check_nesting(name, value)
    if not isinstance(value, (dict, bool)):
        raise _error(f"{name}: this must be a JSON object, not {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise _error(f"json: the schema holds what JSON does not have: {error}") from None


def _error(message: str) -> InvalidRequestError:
    return InvalidRequestError(message + ".", "structured_outputs")
