"""Grammars by xgrammar (arXiv:2411.15100): masks are mostly worked out when a grammar is compiled."""

import json
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray

from octavo.sampling.grammar.base import MAX_WHITESPACE, GrammarError, shortened
from octavo.sampling.grammar.source import GrammarSource
from octavo.tokenization.vocabulary import Vocabulary


class XGrammarBackend:
    """Compiles for one vocabulary; the lock of the interpreter is free meanwhile."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Special tokens are no text. The byte 0xFF, which no character has in it, keeps them out of every text, and
        # lets structural tags name them by their ids; a token without bytes could not be named either.
        is_special = vocabulary.special_ids
        spelled = [b"\xff" + text if i in is_special else text for i, text in enumerate(vocabulary.token_bytes)]
        info = xgrammar.TokenizerInfo(
            spelled,
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_ids),
        )
        # One thread: what a trial process has seen to end well is then what happens here. The cache is ours.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, source: GrammarSource) -> "XGrammar":
        """See :meth:`GrammarBackend.compile`."""
        try:
            return XGrammar(self._compile(source))
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(shortened(error)) from None

    def _compile(self, source: GrammarSource) -> xgrammar.CompiledGrammar:
        match source.kind:
            case "json":
                is_any = source.layout == "any"
                return self._compiler.compile_json_schema(
                    source.text,
                    any_whitespace=is_any,
                    strict_mode=False,
                    max_whitespace_cnt=MAX_WHITESPACE if is_any else None,
                )
            case "regex":
                return self._compiler.compile_regex(source.text)
            case "ebnf":
                return self._compiler.compile_grammar(source.text)
            case "structural_tag":
                return self._compiler.compile_structural_tag(json.dumps(self._with_ids(json.loads(source.text))))
            case _:
                raise GrammarError(f"xgrammar takes no {source.kind}")

    def _with_ids(self, value: Any) -> Any:
        """A structural tag with ids for the names of special tokens, which xgrammar was told have no text."""
        match value:
            case {"type": "token", "token": str(name)}:
                return {**value, "token": self._id_of(name)}
            case {"type": "json_schema"}:
                return value
            case dict():
                listed = ("exclude_tokens", "trigger_tokens")
                return {
                    key: [self._id_of(token) for token in part] if key in listed else self._with_ids(part)
                    for key, part in value.items()
                }
            case list():
                return [self._with_ids(part) for part in value]
            case _:
                return value

    def _id_of(self, token: int | str) -> int | str:
        if isinstance(token, int):
            return token
        token_id = self._vocabulary.special_id(token)
        return token if token_id is None else token_id


class XGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    @property
    def num_bytes(self) -> int:
        """See :class:`CompiledGrammar`."""
        return self._compiled.memory_size_bytes

    def start(self) -> "XGrammarState":
        """See :class:`CompiledGrammar`."""
        return XGrammarState(xgrammar.GrammarMatcher(self._compiled))


class XGrammarState:
    """See :class:`GrammarState`."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, num_tokens: int = 0) -> None:
        self._matcher = matcher
        self._num_tokens = num_tokens

    @property
    def is_finished(self) -> bool:
        """Whether a token that ends texts was accepted."""
        return self._matcher.is_terminated()

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False, and no change, if the grammar does not allow it."""
        is_accepted = self._matcher.accept_token(token_id)
        self._num_tokens += is_accepted
        return is_accepted

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next; nothing is ruled out once the text has ended."""
        if self.is_finished:
            mask.fill(-1)
            return
        self._matcher.fill_next_token_bitmask(mask)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        assert 0 <= num_tokens <= self._num_tokens
        self._matcher.rollback(num_tokens)
        self._num_tokens -= num_tokens

    def fork(self) -> "XGrammarState":
        """A state that goes on from here by itself."""
        return XGrammarState(self._matcher.fork(), self._num_tokens)
