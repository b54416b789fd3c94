"""Logit bias, allowed tokens, bad words and min_tokens, as sparse edits of a few logits.

A request's edits are compiled once, when it enters; a batch's are put together when the batch changes. What depends
on the tokens so far (multi-token bad words, min_tokens) is decided on the device each step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.platforms.transfer import to_device
from octavo.records import NewRow

TokensAt = Callable[[Tensor, Tensor], Tensor]
"""Takes slots and positions, int64 of shapes that broadcast, and returns the known tokens there."""

_INT = np.int64
_NEVER = -torch.inf


@dataclass(slots=True, frozen=True)
class RequestEdits:
    """What one request changes in its logits; token ids outside the vocabulary are left out.

    Attributes:
        allowed: ids that may be drawn, None for all.
        biased, bias: ids and what is added to their logits; −inf for single-token bad words.
        held_back: ids that must not be drawn before position ``held_until``.
        bad_words: sequences of at least two tokens whose last one must not complete them.
        prompt_len: bad words match generated tokens only.
    """

    allowed: NDArray[np.int64] | None
    biased: NDArray[np.int64]
    bias: NDArray[np.float32]
    held_back: NDArray[np.int64]
    held_until: int
    bad_words: list[list[int]]
    prompt_len: int


def compile_edits(row: NewRow, vocab_size: int) -> RequestEdits | None:
    """The edits a request asks for, None if it asks for none."""
    params = row.params
    bias = {token: value for token, value in (params.logit_bias or {}).items() if 0 <= token < vocab_size}
    words = [word for word in row.bad_words_token_ids if word and 0 <= word[-1] < vocab_size]
    bias.update((word[0], _NEVER) for word in words if len(word) == 1)
    long_words = [word for word in words if len(word) > 1]
    held_back = _ids(row.stop_token_ids, vocab_size) if params.min_tokens else np.empty(0, _INT)
    if params.allowed_token_ids is None and not bias and not long_words and not len(held_back):
        return None
    return RequestEdits(
        allowed=None if params.allowed_token_ids is None else _ids(params.allowed_token_ids, vocab_size),
        biased=np.fromiter(bias.keys(), _INT, len(bias)),
        bias=np.fromiter(bias.values(), np.float32, len(bias)),
        held_back=held_back,
        held_until=row.prompt_len + params.min_tokens,
        bad_words=long_words,
        prompt_len=row.prompt_len,
    )


class BatchEdits:
    """The edits of all rows of a batch, ready on the device."""

    def __init__(self, edits: Sequence[tuple[int, RequestEdits]], vocab_size: int, device: torch.device) -> None:
        """``edits``: row of the logits and its request's edits, for the rows that have some."""
        self._allowed = _Allowed(edits, vocab_size, device)
        self._biases = _Biases(edits, vocab_size, device)
        self._held_back = _HeldBack(edits, vocab_size, device)
        self._bad_words = _BadWords(edits, vocab_size, device)

    def apply(self, logits: Tensor, slots: Tensor, lengths: Tensor, tokens_at: TokensAt) -> None:
        """Edit the logits in place.

        Args:
            logits: ``[N, V]`` float32, contiguous.
            slots, lengths: ``[N]`` int64, slot and number of known tokens.
            tokens_at: reads known tokens.
        """
        flat = logits.view(-1)
        self._allowed.apply(logits, flat)
        self._biases.apply(flat)
        self._held_back.apply(flat, lengths)
        self._bad_words.apply(flat, slots, lengths, tokens_at)


class _Allowed:
    """Rows that may draw only listed tokens."""

    def __init__(self, edits: Sequence[tuple[int, RequestEdits]], vocab_size: int, device: torch.device) -> None:
        listed = [(row, e.allowed) for row, e in edits if e.allowed is not None]
        self.rows = to_device(np.array([row for row, _ in listed], _INT), device)
        self.places = _places(listed, vocab_size, device)

    def apply(self, logits: Tensor, flat: Tensor) -> None:
        if len(self.rows):
            kept = flat[self.places]
            logits.index_fill_(0, self.rows, _NEVER)
            flat[self.places] = kept


class _Biases:
    """Values added to single logits."""

    def __init__(self, edits: Sequence[tuple[int, RequestEdits]], vocab_size: int, device: torch.device) -> None:
        self.places = _places([(row, e.biased) for row, e in edits], vocab_size, device)
        self.values = to_device(_join([e.bias for _, e in edits], np.float32), device)

    def apply(self, flat: Tensor) -> None:
        if len(self.places):
            flat.index_add_(0, self.places, self.values)


class _HeldBack:
    """Stop tokens that must wait for ``min_tokens``."""

    def __init__(self, edits: Sequence[tuple[int, RequestEdits]], vocab_size: int, device: torch.device) -> None:
        self.places = _places([(row, e.held_back) for row, e in edits], vocab_size, device)
        self.rows = self.places // vocab_size
        until = [np.full(len(e.held_back), e.held_until, _INT) for _, e in edits]
        self.until = to_device(_join(until, _INT), device)

    def apply(self, flat: Tensor, lengths: Tensor) -> None:
        if len(self.places):
            is_held = lengths.index_select(0, self.rows) < self.until
            flat.index_add_(0, self.places, _never_where(is_held))


class _BadWords:
    """Sequences of several tokens; ``W`` words of at most ``K + 1`` tokens."""

    def __init__(self, edits: Sequence[tuple[int, RequestEdits]], vocab_size: int, device: torch.device) -> None:
        words = [(row, e.prompt_len, word) for row, e in edits for word in e.bad_words]
        width = max((len(word) for _, _, word in words), default=1) - 1
        prefixes = np.full((len(words), width), -1, _INT)  # [W, K], aligned to the right
        for i, (_, _, word) in enumerate(words):
            prefixes[i, width + 1 - len(word) :] = word[:-1]
        self.prefixes = to_device(prefixes, device)
        self.rows = to_device(np.array([row for row, _, _ in words], _INT), device)
        last = to_device(np.array([word[-1] for _, _, word in words], _INT), device)
        self.places = self.rows * vocab_size + last
        # Shortest length at which the whole prefix can have been generated.
        needed = [prompt_len + len(word) - 1 for _, prompt_len, word in words]
        self.needed = to_device(np.array(needed, _INT), device)
        self.offsets = torch.arange(-width, 0, device=device)

    def apply(self, flat: Tensor, slots: Tensor, lengths: Tensor, tokens_at: TokensAt) -> None:
        if not len(self.places):
            return
        length = lengths.index_select(0, self.rows)
        position = (length.unsqueeze(1) + self.offsets).clamp_(min=0)
        recent = tokens_at(slots.index_select(0, self.rows).unsqueeze(1), position)  # [W, K]
        matches = ((recent == self.prefixes) | (self.prefixes < 0)).all(-1) & (length >= self.needed)
        flat.index_add_(0, self.places, _never_where(matches))


def _never_where(condition: Tensor) -> Tensor:
    """−inf where the condition holds, else 0: adding it is safe where several edits meet in one place."""
    return torch.zeros(condition.shape, dtype=torch.float32, device=condition.device).masked_fill_(condition, _NEVER)


def _ids(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    """The distinct ids that are in the vocabulary."""
    return np.array(sorted({token for token in token_ids if 0 <= token < vocab_size}), _INT)


def _places(listed: Sequence[tuple[int, NDArray[np.int64]]], vocab_size: int, device: torch.device) -> Tensor:
    """Indices into the flattened logits of each row's token ids."""
    return to_device(_join([row * vocab_size + ids for row, ids in listed], _INT), device)


def _join(arrays: Sequence[NDArray], dtype: type[np.generic]) -> NDArray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
