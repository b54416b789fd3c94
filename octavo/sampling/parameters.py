"""The sampling parameters of all requests on the device, indexed by slot."""

from struct import Struct

import numpy as np
import torch
from torch import Tensor

from octavo.platforms.transfer import to_device
from octavo.records import NewRow
from octavo.sampling.random import stream_key

_NUM_FLOATS = 6
_NUM_INTS = 3
_ROW = Struct(f"=q{_NUM_FLOATS}d{_NUM_INTS}q")
"""A slot and its row of the table."""


class SlotParameters:
    """A table with one row per slot; what enters is sent in one copy a step.

    Attributes (``[S]``, columns of the table):
        temperature (0 for greedy requests), top_p, min_p, repetition, frequency, presence: float64.
        stream_key (of the seed), prompt_len, top_k: int64.
    """

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._device = device
        self._table = torch.zeros(max_num_seqs, _NUM_FLOATS + _NUM_INTS, dtype=torch.int64, device=device)
        floats = self._table[:, :_NUM_FLOATS].view(torch.float64)
        self.temperature, self.top_p, self.min_p, self.repetition, self.frequency, self.presence = floats.unbind(1)
        self.stream_key, self.prompt_len, self.top_k = self._table[:, _NUM_FLOATS:].unbind(1)
        self._unsent: dict[int, NewRow] = {}

    def write(self, row: NewRow) -> None:
        """Take over one request's parameters, whatever was in its slot; :meth:`flush` sends them."""
        self._unsent[row.slot] = row

    def flush(self) -> None:
        """Send what was written."""
        if not self._unsent:
            return
        packed = bytearray()
        for slot, row in self._unsent.items():
            p = row.params
            temperature = 0.0 if p.is_greedy else p.temperature
            floats = (temperature, p.top_p, p.min_p, p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
            packed += _ROW.pack(slot, *floats, stream_key(row.seed), row.prompt_len, p.top_k)
        self._unsent.clear()
        sent = to_device(np.frombuffer(packed, np.int64).reshape(-1, 1 + _NUM_FLOATS + _NUM_INTS), self._device)
        self._table.index_copy_(0, sent[:, 0], sent[:, 1:])

    def take(self, column: Tensor, slots: Tensor) -> Tensor:
        """One parameter of some slots: ``[S]`` and ``[N]`` int64 → ``[N]``."""
        return column.index_select(0, slots)
