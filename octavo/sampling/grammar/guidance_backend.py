"""Grammars by llguidance: compiled in a moment, masks are worked out as they are needed."""

import json
from typing import Any

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from octavo.errors import RequestFailedError
from octavo.sampling.grammar.base import MAX_WHITESPACE, GrammarError, shortened
from octavo.sampling.grammar.source import GrammarSource
from octavo.tokenization.vocabulary import Vocabulary

# Of a lexer that grows while it is used: 25,000 states of 1 to 2 kB are as much as one request may hold.
_MAX_LEXER_STATES = 25_000
_BYTES_PER_STATE = 1 << 16
_LAYOUTS = {
    "any": {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"},
    "compact": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}


class GuidanceBackend:
    """Compiles for one vocabulary; the lock of the interpreter is free meanwhile."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokenizer(vocabulary)),
            n_vocab=vocabulary.size,
            eos_token=list(vocabulary.eos_ids),
        )
        self._limits = llguidance.LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)

    def compile(self, source: GrammarSource) -> "Guidance":
        """See :meth:`GrammarBackend.compile`."""
        try:
            grammar = _grammar(source)
        except (ValueError, TypeError, AttributeError, IndexError, AssertionError) as error:
            raise GrammarError(shortened(error)) from None
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(shortened(matcher.get_error()))
        return Guidance(matcher, self._eos_ids, len(grammar))


class _Tokenizer:
    """What llguidance asks of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))


def _grammar(source: GrammarSource) -> str:
    match source.kind:
        case "json":
            options: Any = _LAYOUTS.get(source.layout) or {"whitespace_pattern": source.layout.partition(":")[2]}
            return llguidance.LLMatcher.grammar_from_json_schema(source.text, overrides=options)
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(source.text)
        case "ebnf":
            return llguidance.LLMatcher.grammar_from_lark(any_to_lark(source.text))
        case "lark":
            return llguidance.LLMatcher.grammar_from_lark(source.text)
        case _:
            return _structural_tag(json.loads(source.text))


def _structural_tag(value: dict[str, Any]) -> str:
    """Triggered tags as llguidance has them; the reader lets no other format come here."""
    triggers = value["format"]["triggers"]
    tags = [
        llguidance.StructTag(
            trigger=next(trigger for trigger in triggers if tag["begin"].startswith(trigger)),
            begin=tag["begin"],
            grammar=tag["content"]["json_schema"] if isinstance(tag["content"]["json_schema"], dict) else {},
            end=tag["end"],
        )
        for tag in value["format"]["tags"]
    ]
    return llguidance.LLMatcher.grammar_from_lark(llguidance.StructTag.to_grammar(tags, assume_special=False))


class Guidance:
    """A compiled grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: frozenset[int], length: int) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._length = length

    @property
    def num_bytes(self) -> int:
        """See :class:`CompiledGrammar`; llguidance does not say, so this is a guess from the grammar's length."""
        return _BYTES_PER_STATE + 32 * self._length

    def start(self) -> "GuidanceState":
        """See :class:`CompiledGrammar`."""
        return GuidanceState(self._matcher.deep_copy(), self._eos_ids)


class GuidanceState:
    """See :class:`GrammarState`.

    Tokens that end texts are kept from the matcher: when it stops by itself it takes none.
    """

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: frozenset[int], num_tokens: int = 0) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._num_tokens = num_tokens
        self.is_finished = False

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False, and no change, if the grammar does not allow it."""
        if self.is_finished:
            return False
        if token_id in self._eos_ids:
            self.is_finished = self._matcher.is_accepting()
            return self.is_finished
        is_accepted = self._matcher.try_consume_tokens([token_id]) == 1
        self._num_tokens += is_accepted
        return is_accepted

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next; nothing is ruled out once the text has ended.

        Raises:
            RequestFailedError: the grammar has grown past its limits.
        """
        if self.is_finished:
            mask.fill(-1)
            return
        assert mask.flags.c_contiguous
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise RequestFailedError(f"The grammar became too large: {shortened(self._matcher.get_error())}.")

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        assert 0 <= num_tokens <= self._num_tokens + self.is_finished
        if num_tokens and self.is_finished:
            self.is_finished = False
            num_tokens -= 1
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._num_tokens -= num_tokens

    def fork(self) -> "GuidanceState":
        """A state that goes on from here by itself."""
        copy = GuidanceState(self._matcher.deep_copy(), self._eos_ids, self._num_tokens)
        copy.is_finished = self.is_finished
        return copy
