"""Sampling without the host: every row's parameters are read on the device, and what the host plans runs as kernels."""

import functools

import torch
from torch import Tensor

from octavo.kernels.triton.sampling import SamplingWorkspace, sample
from octavo.kernels.triton.sampling_logprobs import LogprobsWorkspace, logprobs
from octavo.kernels.triton.sampling_penalties import penalise
from octavo.sampling.logprobs import LogprobTensors, token_logprobs
from octavo.sampling.parameters import SlotParameters
from octavo.sampling.penalties import apply_penalties

_MOST_LISTED = 128
"""Likeliest tokens that are looked for one after another; more are sorted instead."""
_ROWS_AT_ONCE = 256


class DeviceSampler:
    """Draws for requests whose parameters say all there is to know; see :meth:`Sampler.is_plain`.

    Args:
        parameters: by slot.
        tokens: ``[max rows]`` int64, where drawn tokens go; ``NAN_TOKEN`` as in :class:`Samples`.
    """

    def __init__(self, parameters: SlotParameters, tokens: Tensor) -> None:
        self._parameters = parameters
        self._tokens = tokens
        self._workspace: SamplingWorkspace | None = None

    def sample(self, logits: Tensor, slots: Tensor, counts: Tensor, lengths: Tensor) -> None:
        """See :meth:`octavo.sampling.sampler.DrawOnDevice.sample`."""
        p = self._parameters
        if self._workspace is None:
            self._workspace = SamplingWorkspace(len(self._tokens), logits.shape[1], logits.device)
            self._try_planned(logits[:1])
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
            self._tokens,
            self._workspace,
            num_rows=len(logits),
        )

    def _try_planned(self, logits: Tensor) -> None:
        """Run what only planned requests need, on one row and to no effect, so that none waits for a compiler."""
        p = self._parameters
        zero = torch.zeros(1, dtype=torch.int64, device=logits.device)
        known = torch.zeros(1, 1, dtype=torch.int32, device=logits.device)
        wide = logits.float()
        spare = torch.empty_like(wide)
        token_logprobs(logits, zero, 1)
        apply_penalties(wide, zero, zero, zero, known, p.prompt_len, p.repetition, p.frequency, p.presence, spare)


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


@apply_penalties.register("cuda")
def _apply_penalties(
    logits: Tensor,
    rows: Tensor,
    slots: Tensor,
    lengths: Tensor,
    token_ids: Tensor,
    prompt_len: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    spare: Tensor,
) -> None:
    rest = (rows, slots, lengths, token_ids, prompt_len, repetition, frequency, presence)
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        apply_penalties.reference(logits, *rest, spare)
    else:
        penalise(logits, *rest, occurrences=spare.view(torch.int32))
