"""Sampling without the host: every row's parameters are read on the device, and what the host plans runs as kernels."""

import functools

import torch
from torch import Tensor

from octavo.kernels.draw import SlotColumns
from octavo.kernels.triton import sampling_penalties
from octavo.kernels.triton.sampling import SamplingWorkspace, sample
from octavo.kernels.triton.sampling_logprobs import LogprobsWorkspace, logprobs
from octavo.sampling import penalties
from octavo.sampling.logprobs import LogprobTensors, token_logprobs

_MOST_LISTED = 128
"""Likeliest tokens that are looked for one after another; more are sorted instead."""
_ROWS_AT_ONCE = 256


class DeviceSampler:
    """A :class:`~octavo.kernels.draw.DrawOnDevice`."""

    def __init__(self, parameters: SlotColumns, max_rows: int, vocab_size: int) -> None:
        self._parameters = parameters
        self._workspace = SamplingWorkspace(max_rows, vocab_size, parameters.temperature.device)

    def sample(self, logits: Tensor, slots: Tensor, counts: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """See :meth:`octavo.kernels.draw.DrawOnDevice.sample`."""
        p = self._parameters
        sample(
            logits,
            slots,
            counts,
            lengths,
            p.temperature,
            p.top_p,
            p.min_p,
            p.top_k,
            p.stream_key,
            p.prompt_len,
            tokens,
            self._workspace,
            num_rows=len(logits),
        )


penalties.penalise.register("cuda")(sampling_penalties.penalise)
penalties.count_tokens.register("cuda")(sampling_penalties.count_tokens)


@token_logprobs.register("cuda")
def _token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> LogprobTensors:
    num_rows, vocab_size = logits.shape
    num_top = vocab_size if num_top < 0 else min(num_top, vocab_size)
    if num_top > _MOST_LISTED:
        return token_logprobs.reference(logits, token_ids, num_top)
    workspace = _workspace(vocab_size, logits.device)
    ids = token_ids.new_empty(num_rows, 1 + num_top)
    found = LogprobTensors(ids, torch.empty_like(ids, dtype=torch.float32), torch.empty_like(token_ids))
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        logprobs(logits[rows], token_ids[rows], ids[rows], found.logprobs[rows], found.ranks[rows], workspace)
    return found


@functools.cache
def _workspace(vocab_size: int, device: torch.device) -> LogprobsWorkspace:
    """Kept, as every step and every part of a prompt needs it; work on a device follows one order."""
    return LogprobsWorkspace(_ROWS_AT_ONCE, vocab_size, device)
