"""Structured output: a JSON schema, a regex, a choice, a grammar or structural tags."""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from octavo.errors import InvalidRequestError

GrammarBackend = Literal["auto", "xgrammar", "guidance"]

MAX_SCHEMA_BYTES = 1 << 16
"""Maximum size in bytes of a JSON schema or structural tag, without spaces."""
MAX_SCHEMA_DEPTH = 64
"""Maximum nesting depth of a schema."""
MAX_GRAMMAR_BYTES = 1 << 16
"""Maximum size in bytes of an EBNF or Lark grammar."""
MAX_REGEX_LENGTH = 1 << 13
"""Maximum size in bytes of a regex."""
MAX_CHOICES = 4096
MAX_CHOICES_LENGTH = 1 << 18
"""Maximum size in bytes of all choices together."""
MAX_START_AFTER = 64
SERVER_FIELDS = frozenset({"start_after", "start_after_tail", "openers"})
"""Fields that are set by the server, not by requests."""
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_BACKENDS = ("auto", "xgrammar", "guidance")


class StructuredOutputsParams(msgspec.Struct, omit_defaults=True):
    """A constraint on an answer, with vLLM's names; exactly one kind is given.

    Types and sizes are checked at construction (:meth:`verify`); whether a schema or grammar is supported is checked by
    :mod:`octavo.sampling.grammar`.

    Attributes:
        json: a JSON schema, as an object or as text.
        regex: a regex that the whole answer matches.
        choice: the allowed answers.
        grammar: a grammar in EBNF (rules ``root ::= …``, as in llama.cpp) or in Lark (``start: …``).
        json_object: any JSON object.
        structural_tag: text of a JSON object that defines tags with constrained text between them, as in xgrammar:
            ``{"type": "structural_tag", "format": …}``, or the older one with ``structures`` and ``triggers``.
        disable_any_whitespace: JSON without spaces and line breaks except those of ``whitespace_pattern``.
        disable_additional_properties: objects have only properties that the schema names.
        whitespace_pattern: regex of the white space between the parts of JSON.
        backend: ``xgrammar``, ``guidance``, or ``auto`` for one that supports everything used; None is the engine's
            setting.
        start_after: token ids after which the constraint starts, such as the end tag of reasoning.
        start_after_tail: token ids that must follow ``start_after``, after a few others at most: the end of a header
            that ``start_after`` begins.
        openers: token ids of tags, one of which must begin the text for ``start_after`` to be awaited; otherwise the
            constraint applies at once, and always if the list is empty. None awaits ``start_after`` in any case.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    backend: GrammarBackend | None = None
    start_after: list[int] | None = None
    start_after_tail: list[int] | None = None
    openers: list[list[int]] | None = None

    def __post_init__(self) -> None:
        self.verify()

    @property
    def kind(self) -> str:
        """Name of the field that is given."""
        return next(name for name in _KINDS if self._is_given(name))

    def verify(self) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: names the first field that is wrong, or the kinds that contradict each other.
        """
        given = [name for name in _KINDS if self._is_given(name)]
        if len(given) != 1:
            found = f"got {' and '.join(given)}" if given else "got none"
            raise _error(f"structured_outputs takes exactly one of {', '.join(_KINDS)}; {found}.")
        if self.json is not None:
            _check_json("json", self.json)
        if self.structural_tag is not None:
            _check_json("structural_tag", self.structural_tag)
        _check_text("regex", self.regex, MAX_REGEX_LENGTH)
        _check_text("grammar", self.grammar, MAX_GRAMMAR_BYTES)
        _check_text("whitespace_pattern", self.whitespace_pattern, MAX_REGEX_LENGTH)
        if self.choice is not None:
            _check_choice(self.choice)
        if self.backend is not None and self.backend not in _BACKENDS:
            raise _error(f"backend must be one of {', '.join(_BACKENDS)}, got {self.backend!r}.")
        _check_tokens("start_after", self.start_after)
        _check_tokens("start_after_tail", self.start_after_tail)
        if len(self.openers or ()) > MAX_START_AFTER:
            raise _error(f"openers takes at most {MAX_START_AFTER} tags.")
        for opener in self.openers or ():
            _check_tokens("openers", opener)

    def _is_given(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and not (name == "json_object" and value is False)


def _check_tokens(name: str, token_ids: list[int] | None) -> None:
    if token_ids is None:
        return
    if len(token_ids) > MAX_START_AFTER:
        raise _error(f"{name} takes at most {MAX_START_AFTER} token ids.")
    if not all(type(token_id) is int and token_id >= 0 for token_id in token_ids):
        raise _error(f"{name} must be a list of token ids.")


def check_nesting(name: str, value: Any) -> None:
    """Check, without recursion, that a JSON value is not nested deeper than :data:`MAX_SCHEMA_DEPTH`.

    Raises:
        InvalidRequestError: it is nested deeper.
    """
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise _error(f"{name} may be nested at most {MAX_SCHEMA_DEPTH} deep.")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value


def _check_json(name: str, value: Any) -> None:
    if not isinstance(value, (str, dict)):
        raise _error(f"{name} must be a JSON object or its text, got {type(value).__name__}.")
    if isinstance(value, dict):
        # Depth first: what encodes a deep object needs a deep stack.
        check_nesting(name, value)
        try:
            size = len(msgspec.json.encode(value))
            # Records cross processes in this encoding, whose numbers have 64 bits.
            msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _error(f"{name} must be plain JSON: {error}.") from None
    else:
        size = _num_bytes(name, value)
    if size > MAX_SCHEMA_BYTES:
        raise _error(f"{name} takes at most {MAX_SCHEMA_BYTES:,} bytes, got {size:,}.")


def _check_text(name: str, value: Any, limit: int) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise _error(f"{name} must be a string, got {type(value).__name__}.")
    if not value:
        raise _error(f"{name} must not be empty.")
    if (size := _num_bytes(name, value)) > limit:
        raise _error(f"{name} takes at most {limit:,} bytes, got {size:,}.")


def _check_choice(choice: Any) -> None:
    if not isinstance(choice, list) or not choice or not all(isinstance(text, str) for text in choice):
        raise _error("choice must be a list of strings, at least one.")
    if len(choice) > MAX_CHOICES:
        raise _error(f"choice takes at most {MAX_CHOICES:,} strings, got {len(choice):,}.")
    if (length := sum(_num_bytes("choice", text) for text in choice)) > MAX_CHOICES_LENGTH:
        raise _error(f"choice takes at most {MAX_CHOICES_LENGTH:,} bytes in all, got {length:,}.")


def _num_bytes(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise _error(f"{name} holds lone surrogates (half characters), which are not valid Unicode.") from None


def _error(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, "structured_outputs")
