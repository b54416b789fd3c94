"""Repetition, frequency and presence penalties, from counts of tokens that are kept by slot.

A request's counts follow its tokens, so that a step costs the same however long the request is, and nothing has to read
its tokens again.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.kernels.dispatch import kernel
from octavo.platforms.transfer import to_device
from octavo.records import NewRow, TokenIds

IN_PROMPT = -(1 << 15)
"""The sign bit of a count: whether the token occurs in the prompt."""
MAX_COUNT = (1 << 15) - 1
"""The other bits: how often it was generated; more are counted as this many."""


class TokenCounts:
    """How often each token occurs in the requests with penalties.

    Attributes:
        table: ``[S, V]`` int16, by slot, see :data:`IN_PROMPT` and :data:`MAX_COUNT`; arbitrary without penalties.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self.table = torch.zeros(max_num_seqs, vocab_size, dtype=torch.int16, device=device)
        self._unsent: dict[int, NewRow] = {}

    def write(self, row: NewRow) -> None:
        """Count a request's tokens, whatever was in its slot; :meth:`flush` sends the counts."""
        self._unsent[row.slot] = row

    def flush(self) -> None:
        """Send what was written."""
        if not self._unsent:
            return
        device, vocab_size = self.table.device, self.table.shape[1]
        counted = [_counts(row.token_ids, row.prompt_len, vocab_size) for row in self._unsent.values()]
        places = [slot * vocab_size + tokens for slot, (tokens, _) in zip(self._unsent, counted, strict=True)]
        record = np.stack((np.concatenate(places), np.concatenate([values for _, values in counted])))
        self.table.index_fill_(0, to_device(np.array(list(self._unsent), np.int64), device), 0)
        sent = to_device(record, device)
        self.table.view(-1)[sent[0]] = sent[1].to(torch.int16)
        self._unsent.clear()


def _counts(token_ids: TokenIds, prompt_len: int, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct tokens of a request and their counts as in the table."""
    tokens, index = np.unique(token_ids, return_inverse=True)
    values = np.minimum(np.bincount(index[prompt_len:], minlength=len(tokens)), MAX_COUNT)
    values[index[:prompt_len]] |= IN_PROMPT
    is_known = (tokens >= 0) & (tokens < vocab_size)
    return tokens[is_known].astype(np.int64), values[is_known]


@kernel
def penalise(
    logits: Tensor,
    out: Tensor,
    slots: Tensor,
    table: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    drafts: Tensor | None = None,
) -> None:
    """Penalise tokens that occurred already: repetition first, then frequency and presence.

    Logits that are NaN stay so, and rows whose penalties are neutral are copied.

    Args:
        logits: ``[N, V]`` of any float type.
        out: ``[N, V]`` float32, contiguous; may be ``logits``.
        slots: ``[N]`` integers.
        table: ``[S, V]``, see :class:`TokenCounts`; frequency and presence count only tokens after the prompt.
        repetition, frequency, presence: ``[S]`` float64, by slot, neutral at 1, 0, 0.
        drafts: ``[N, K]`` integers, further tokens before each row's place, −1 for none.
    """
    if out is not logits:
        out.copy_(logits)
    counts = table.index_select(0, slots).to(torch.int32)
    for column in () if drafts is None else drafts.unbind(1):
        rows = ((column >= 0) & (column < table.shape[1])).nonzero().squeeze(1)
        places = rows, column[rows].long()
        counts[places] += (counts[places] & MAX_COUNT) < MAX_COUNT
    rows, tokens = counts.nonzero(as_tuple=True)
    slots = slots.index_select(0, rows)
    count = (counts[rows, tokens] & MAX_COUNT).to(out.dtype)
    old = out[rows, tokens]
    factor = repetition[slots].to(out.dtype)
    new = torch.where(old > 0, old / factor, old * factor)
    # A division by a tiny penalty must not make an infinity, which would count as the model's fault.
    new = torch.where((new == torch.inf) & (old < torch.inf), torch.finfo(out.dtype).max, new)
    new -= frequency[slots].to(out.dtype) * count
    new -= presence[slots].to(out.dtype) * (count > 0)
    out[rows, tokens] = new


@kernel
def count_tokens(table: Tensor, slots: Tensor, token_ids: Tensor, num_tokens: Tensor) -> None:
    """Count a step's new tokens.

    Args:
        table: ``[S, V]``, see :class:`TokenCounts`.
        slots: ``[R]`` integers, distinct.
        token_ids: ``[R, W]`` integers; those outside the vocabulary, such as the mark of a failure, are left out.
        num_tokens: ``[R]``, how many of each row count.
    """
    for place, column in enumerate(token_ids.unbind(1)):
        rows = ((num_tokens > place) & (column >= 0) & (column < table.shape[1])).nonzero().squeeze(1)
        places = slots[rows].long(), column[rows].long()
        table[places] += ((table[places] & MAX_COUNT) < MAX_COUNT).to(torch.int16)
