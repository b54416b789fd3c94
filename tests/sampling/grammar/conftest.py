"""The demo model's vocabulary and both grammar backends, loaded once."""

import pytest

from octavo.hub.source import resolve
from octavo.sampling.grammar.backends import open_backend
from octavo.sampling.grammar.base import GrammarBackend
from octavo.sampling.grammar.trial import VocabularySource
from octavo.tokenization.vocabulary import Vocabulary, load_vocabulary

PADDED_SIZE = 49152 + 40
"""More logits than tokens, as models have that round their vocabulary up; not a multiple of 32."""
EOS_IDS = (2, 0)


@pytest.fixture(scope="session")
def vocabulary_source() -> VocabularySource:
    return VocabularySource(str(resolve("bundled:smollm2").path), PADDED_SIZE, EOS_IDS)


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return load_vocabulary(resolve("bundled:smollm2").path, PADDED_SIZE, EOS_IDS)


@pytest.fixture(scope="session")
def backends(vocabulary: Vocabulary) -> dict[str, GrammarBackend]:
    return {name: open_backend(name, vocabulary) for name in ("xgrammar", "guidance")}
