"""The grammar backends by name; their libraries are imported when they are first needed."""

from octavo.sampling.grammar.base import GrammarBackend
from octavo.tokenization.vocabulary import Vocabulary


def open_backend(name: str, vocabulary: Vocabulary) -> GrammarBackend:
    """A backend for a vocabulary.

    Args:
        name: ``xgrammar`` or ``guidance``.
    """
    if name == "xgrammar":
        from octavo.sampling.grammar.xgrammar_backend import XGrammarBackend

        return XGrammarBackend(vocabulary)
    from octavo.sampling.grammar.guidance_backend import GuidanceBackend

    return GuidanceBackend(vocabulary)
