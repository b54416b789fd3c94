"""Bounds on grammars as text, before a parser in native code reads them."""

import re

from octavo.errors import InvalidRequestError

MAX_GRAMMAR_DEPTH = 100
"""Most brackets of a grammar that may lie within each other; those within its strings count."""
MAX_GRAMMAR_REPETITIONS = 10_000
"""Largest number in a ``{m,n}``."""
_EBNF_RULE = re.compile(r"^\s*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
_REPETITION = re.compile(r"[{~]\s*(\d+)\s*(?:(?:,|\.\.)\s*(\d*))?")
_IMPORT = re.compile(r"^\s*%import\s+(?!common\.)(\S*)", re.MULTILINE)


def is_ebnf(text: str) -> bool:
    """Whether a grammar has rules ``name ::= …``, as EBNF has and Lark has not."""
    return _EBNF_RULE.search(text) is not None


def check_grammar(text: str, name: str) -> None:
    """Check how deep a grammar nests and how often it repeats.

    Args:
        name: the field it comes from, for errors.

    Raises:
        InvalidRequestError: it does so too much, imports something, or holds what no backend reads.
    """
    if "\0" in text:
        raise _error(name, "holds the character NUL, which no grammar backend can follow")
    if depth_of(text) > MAX_GRAMMAR_DEPTH:
        raise _error(name, f"has more than {MAX_GRAMMAR_DEPTH} brackets within each other")
    for found in _REPETITION.finditer(text):
        if any(len(number or "") > 9 or int(number or 0) > MAX_GRAMMAR_REPETITIONS for number in found.groups()):
            raise _error(name, f"repeats {found[0][:40]!r}; at most {MAX_GRAMMAR_REPETITIONS:,} times is allowed")
    if imported := _IMPORT.search(text):
        raise _error(name, f"imports {imported[1][:40]!r}; only the names of 'common' are there")


def depth_of(text: str) -> int:
    """The most brackets of any kind that are open at one place."""
    depth = deepest = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}" and depth:
            depth -= 1
    return deepest


def _error(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name}: the grammar {message}.", "structured_outputs")
