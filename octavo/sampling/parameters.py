"""The sampling parameters of all requests on the device, indexed by slot."""

import torch
from torch import Tensor

from octavo.records import NewRow
from octavo.sampling.random import stream_key


class SlotParameters:
    """Two tables with one row per slot, written by one copy each when a request enters.

    Attributes (``[S]``, columns of the tables):
        temperature, top_p, min_p, repetition, frequency, presence: float64; neutral for greedy requests' temperature.
        stream_key (of the seed), prompt_len, top_k: int64.
    """

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._floats = torch.zeros(max_num_seqs, 6, dtype=torch.float64, device=device)
        self._ints = torch.zeros(max_num_seqs, 3, dtype=torch.int64, device=device)
        self.temperature, self.top_p, self.min_p, self.repetition, self.frequency, self.presence = self._floats.unbind(
            1
        )
        self.stream_key, self.prompt_len, self.top_k = self._ints.unbind(1)

    def write(self, row: NewRow) -> None:
        """Take over one request's parameters, whatever was in its slot."""
        p = row.params
        temperature = 1.0 if p.is_greedy else p.temperature
        floats = (temperature, p.top_p, p.min_p, p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
        ints = (stream_key(row.seed), row.prompt_len, p.top_k)
        self._floats[row.slot] = torch.tensor(floats, dtype=torch.float64)
        self._ints[row.slot] = torch.tensor(ints, dtype=torch.int64)

    def take(self, column: Tensor, slots: Tensor) -> Tensor:
        """One parameter of some slots: ``[S]`` and ``[N]`` int64 → ``[N]``."""
        return column.index_select(0, slots)
