"""What the grammar backends have in common."""

from typing import Protocol

from octavo.sampling.grammar.constraint import TokenGrammar
from octavo.sampling.grammar.source import GrammarSource

MAX_WHITESPACE = 20
"""Most white-space characters in a row between the parts of JSON: models that are unsure write them without end."""


class GrammarError(Exception):
    """A backend does not take a grammar; the text says why, in its own words."""


class GrammarState(TokenGrammar, Protocol):
    """A text on its way through a grammar: one request's, used by one thread at a time."""

    def fork(self) -> "GrammarState":
        """A state that goes on from here by itself."""


class CompiledGrammar(Protocol):
    """A grammar for one vocabulary; shared by the requests that ask for it."""

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""

    def start(self) -> GrammarState:
        """A state at the beginning of a text."""


class GrammarBackend(Protocol):
    """A library that compiles grammars for one vocabulary."""

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        """Compile a grammar that names this backend.

        Raises:
            GrammarError: it cannot be compiled.
        """


def shortened(error: BaseException | str) -> str:
    """A library's message as the end of a sentence: one line, without places in its own source."""
    text = " ".join(str(error).split())
    for mark in ("Check failed: ", "error: "):
        if mark in text[:120]:
            text = text.split(mark, 1)[1]
    if text.startswith("[") and "] " in text:
        text = text.split("] ", 1)[1]
        head, _, rest = text.partition(": ")
        text = rest if rest and "/" in head else text
    text = text.removesuffix("<non-verbose/>").strip().rstrip(".")
    return text if len(text) <= 300 else text[:300] + "…"
