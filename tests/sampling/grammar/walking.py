"""Walks along grammars, as a model would take them."""

import random

import numpy as np

from octavo.sampling.grammar.base import GrammarState
from octavo.tokenization.vocabulary import Vocabulary

_CLOSERS = ("}", "]", '"', "0", "1", ":", ".", "@", "com")


def allowed_tokens(state: GrammarState, vocabulary: Vocabulary) -> np.ndarray:
    """Ids that may come next."""
    mask = np.zeros(-(-vocabulary.size // 32), np.int32)
    state.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: vocabulary.size])


def walk(state: GrammarState, vocabulary: Vocabulary, seed: int, num_wild: int = 16, limit: int = 400) -> bytes:
    """Take random tokens among those allowed; after ``num_wild`` of them, those that lead to an end where there are."""
    chooser = random.Random(seed)
    closers = [vocabulary.encode(text)[0] for text in _CLOSERS]
    text = b""
    for num_taken in range(limit):
        allowed = allowed_tokens(state, vocabulary)
        assert len(allowed), f"stuck after {text!r}"
        known = set(allowed.tolist())
        ends = [token_id for token_id in vocabulary.eos_ids if token_id in known]
        token_id = int(allowed[chooser.randrange(len(allowed))])
        if num_taken >= num_wild and not ends:
            token_id = chooser.choice([closer for closer in closers if closer in known] or [token_id])
        elif ends and (num_taken >= num_wild or chooser.random() < 0.3):
            token_id = ends[0]
        assert state.accept(token_id)
        if state.is_finished:
            return text
        assert token_id not in vocabulary.special_ids
        text += vocabulary.token_bytes[token_id]
    raise AssertionError(f"no end after {limit} tokens: {text!r}")


def read_to(state: GrammarState, vocabulary: Vocabulary, end: bytes) -> bytes:
    """Take the shortest way to a text with this end; other ways are random, by the same seed."""
    chooser, text = random.Random(1), b""
    closers = [vocabulary.encode(closer)[0] for closer in ("}", "<", "/", "f", ">", *_CLOSERS)]
    for _ in range(100):
        known = set(allowed_tokens(state, vocabulary).tolist())
        token_id = next((closer for closer in closers if closer in known), chooser.choice(sorted(known)))
        assert state.accept(token_id)
        text += vocabulary.token_bytes[token_id]
        if text.endswith(end):
            return text
    raise AssertionError(text)
