"""What binds one request's tokens: a limit on its reasoning; a grammar, from the start or behind the reasoning."""

import logging
from collections.abc import Collection, Sequence
from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.errors import OctavoError
from octavo.sampling.grammar.reasoning_limit import ReasoningLimit

logger = logging.getLogger(__name__)

MAX_TAIL_GAP = 16
"""Most tokens between what begins a header and its end; it holds a recipient or a content type at most."""
_BITS = 32
_BROKEN_GRAMMAR = "The text left its grammar; the request was ended, others go on."


class TokenGrammar(Protocol):
    """A text on its way through a grammar, token by token."""

    @property
    def is_finished(self) -> bool:
        """Whether the text has ended, with a token that says so."""

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False if the grammar does not allow it."""

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next: ``[ceil(V / 32)]``, a bit a token, the lowest first."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted."""


class Constraint:
    """A grammar or a limit on reasoning, or both, as a :class:`~octavo.sampling.rules.TokenRule` of one request.

    Attributes:
        error: why the grammar can be followed no further, a sentence; None if all is well.

    Args:
        grammar: at its start; None binds nothing.
        start_after: tokens that end what comes before the grammar, such as reasoning; empty if nothing does.
        min_tokens: tokens before which the text should not end, as far as the grammar lets it go on.
        stop_ids: tokens that end a text.
        earlier: tokens that were generated already (a replay).
        limit: closes reasoning that is too long.
        start_after_tail: tokens that must come behind ``start_after`` as well, at most ``MAX_TAIL_GAP`` tokens later.
        openers: tags of which one must begin the text if ``start_after`` is to be awaited; without one the grammar
            binds the text from its first token, and always if there are none. None awaits ``start_after`` in any case.
    """

    is_binding = True

    def __init__(
        self,
        grammar: TokenGrammar | None,
        start_after: Sequence[int] = (),
        min_tokens: int = 0,
        stop_ids: Collection[int] = (),
        earlier: Sequence[int] = (),
        limit: ReasoningLimit | None = None,
        start_after_tail: Sequence[int] = (),
        openers: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._grammar = grammar
        self._limit = limit
        self._awaited, self._tail = list(start_after), list(start_after_tail)
        self._last: list[int] = []
        # Tokens within which the tail must end; 0 while it is not awaited.
        self._num_for_tail = 0
        self._is_begun = not self._awaited or openers == []
        # What may follow of the tags that may begin the text; empty once that is decided.
        self._openers = [list(opener) for opener in openers or () if opener] if self._awaited else []
        self._is_opening = False
        self._num_tokens = 0
        # Tokens that the grammar has accepted.
        self._num_followed = 0
        self._min_tokens = min_tokens
        self._stop_ids = sorted(stop_ids)
        self.error: str | None = None
        for token_id in earlier:
            self._accept(token_id)

    @property
    def is_finished(self) -> bool:
        """Whether the text has ended."""
        return self._grammar is not None and self._is_begun and self._grammar.is_finished

    @property
    def finish_reason(self) -> str | None:
        """``stop`` once the grammar's text has ended."""
        return "stop" if self.is_finished else None

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take in the request's next tokens, up to the text's end; sets ``error`` at one that is not allowed."""
        for count, token_id in enumerate(token_ids):
            if self.error is not None or not self._accept(token_id):
                self.error = self.error or _BROKEN_GRAMMAR
                return count
            if self.is_finished:
                return count + 1
        return len(token_ids)

    def _accept(self, token_id: int) -> bool:
        """Take in one token; False if the grammar does not allow it."""
        self._num_tokens += 1
        if self._limit is not None:
            self._limit.accept(token_id)
        if self._grammar is None:
            return True
        if self._openers:
            return self._open(token_id)
        if self._is_begun:
            return self._follow(self._grammar, token_id)
        self._await(token_id)
        return True

    def _follow(self, grammar: TokenGrammar, token_id: int) -> bool:
        try:
            if grammar.is_finished:
                return True
            is_accepted = grammar.accept(token_id)
            self._num_followed += is_accepted
            return is_accepted
        except Exception as error:
            self._break_off(error)
            return False

    def _open(self, token_id: int) -> bool:
        """Decide by the text's first tokens whether a tag opens it, or the grammar binds it."""
        assert self._grammar is not None
        # A tag of one token is never meant as text; of a longer one, a grammar may know the beginning.
        is_tag = [token_id] in self._openers
        if not self._is_opening and not is_tag and self._follow(self._grammar, token_id):
            self._is_begun, self._openers = True, []
            return True
        rests = [opener[1:] for opener in self._openers if opener[0] == token_id]
        self._is_opening = True
        # A tag that is complete opens the text, whatever longer ones there are.
        self._openers = rests if all(rests) else []
        return bool(rests)

    def _await(self, token_id: int) -> None:
        """Look for what begins the grammar."""
        self._last = [*self._last, token_id][-max(len(self._awaited), len(self._tail)) :]
        if self._last[-len(self._awaited) :] == self._awaited:
            self._last = []
            self._is_begun = not self._tail
            self._num_for_tail = MAX_TAIL_GAP + len(self._tail)
        elif self._num_for_tail:
            self._num_for_tail -= 1
            self._is_begun = self._last[-len(self._tail) :] == self._tail

    def fill(self, masks: NDArray[np.int32], drafts: Sequence[int] = ()) -> None:
        """Write which tokens may come next, and which behind each draft.

        All tokens may come before the grammar begins and after its end, unless the reasoning must be closed.
        """
        self._fill(masks[0])
        if not drafts or self.error is not None:
            return
        ahead = copy(self)
        ahead._limit = copy(self._limit)
        for draft, mask_before, mask in zip(drafts, masks, masks[1:], strict=False):
            if not _allows(mask_before, draft) or not ahead.accept([draft]):
                break
            ahead._fill(mask)
        if self._grammar is not None and ahead._num_followed > self._num_followed:
            self._grammar.rollback(ahead._num_followed - self._num_followed)

    def _fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next."""
        if self._grammar is not None and self._is_opening and self._openers:
            mask[:] = 0
        elif self._grammar is not None and (self._is_begun or self._openers):
            if self._grammar.is_finished:
                return
            try:
                self._grammar.fill(mask)
            except Exception as error:
                # A mask has no way to say so; the request ends with its next token.
                self._break_off(error)
                mask.fill(-1)
                return
        elif self._close_reasoning(mask):
            return
        self._allow_openers(mask)
        if self._num_tokens < self._min_tokens:
            self._hold_back_stops(mask)

    def _allow_openers(self, mask: NDArray[np.int32]) -> None:
        words = mask.view(np.uint32)
        for token_id in {opener[0] for opener in self._openers}:
            if token_id < _BITS * len(words):  # A tokenizer may know tokens that the model does not.
                words[token_id // _BITS] |= np.uint32(1 << token_id % _BITS)
        if self._openers and not words.any():
            words.fill(0xFFFFFFFF)

    def _break_off(self, error: Exception) -> None:
        if isinstance(error, OctavoError):
            self.error = str(error)
        else:
            logger.error("a grammar's library failed in mid-text", exc_info=error)
            self.error = "The grammar's library failed."

    def _close_reasoning(self, mask: NDArray[np.int32]) -> bool:
        """Allow only the token that closes the reasoning, if it must be closed; returns whether that is so."""
        token_id = None if self._limit is None else self._limit.forced_token
        if token_id is None:
            return False
        mask[:] = 0
        mask.view(np.uint32)[token_id // _BITS] = np.uint32(1 << token_id % _BITS)
        return True

    def _hold_back_stops(self, mask: NDArray[np.int32]) -> None:
        longer = mask.copy().view(np.uint32)
        for stop_id in self._stop_ids:
            if not 0 <= stop_id < _BITS * len(longer):
                continue  # A tokenizer may know tokens that the model does not.
            longer[stop_id // _BITS] &= ~np.uint32(1 << stop_id % _BITS)
        if longer.any():
            mask[:] = longer.view(np.int32)


def _allows(mask: NDArray[np.int32], token_id: int) -> bool:
    word = token_id // _BITS
    return 0 <= word < len(mask) and bool(mask.view(np.uint32)[word] >> np.uint32(token_id % _BITS) & np.uint32(1))
