"""Penalties on tokens that occurred, without a look at the host: counted in a table, which is emptied on the way."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

_TILE = 1024
_MAX_PROGRAMS_PER_ROW = 16
_IN_PROMPT = tl.constexpr(1 << 30)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


def penalise(
    logits: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    lengths: torch.Tensor,
    token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
    occurrences: torch.Tensor,
    *,
    num_rows: int,
) -> None:
    """Penalise tokens that occurred already, in place, as :func:`octavo.sampling.penalties.apply_penalties` does.

    Rows whose penalties are neutral cost next to nothing. A logit that is +∞ or not a number stays so.

    Args:
        logits: ``[≥R, V]`` float32.
        slots: ``[≥R]`` integers.
        counts: int32; rows from ``counts[0]`` on are skipped.
        lengths: ``[≥R]`` integers, known tokens of the request.
        token_ids: ``[S, L]`` integers, by slot; entries from a request's length on are ignored.
        prompt_len: ``[S]`` int64, by slot; frequency and presence count only tokens after the prompt.
        repetition, frequency, presence: ``[S]`` float64, by slot, of one stride; neutral at 1, 0, 0.
        occurrences: ``[≥R, V]`` int32, all zero before and after.
        num_rows: upper bound R of the rows.
    """
    vocab_size, max_len = logits.shape[1], token_ids.shape[1]
    assert logits.dtype == torch.float32 and logits.stride(1) == 1 and occurrences.is_contiguous()
    assert occurrences.shape[1] == vocab_size and token_ids.stride(1) == 1
    assert repetition.stride() == frequency.stride() == presence.stride()
    grid = (min(triton.cdiv(max_len, _TILE), _MAX_PROGRAMS_PER_ROW), num_rows)
    rows = (logits, slots, counts, lengths, token_ids, prompt_len, repetition, frequency, presence, occurrences)
    strides = (logits.stride(0), token_ids.stride(0), prompt_len.stride(0), repetition.stride(0))
    for is_counting in (True, False):
        _penalties_kernel[grid](
            *rows,
            vocab_size,
            max_len,
            *strides,
            IS_COUNTING=is_counting,
            TILE=_TILE,
            num_warps=4,
            **dependent_launch(logits.device),
        )


@triton.jit
def _penalties_kernel(
    logits,
    slots,
    counts,
    lengths,
    token_ids,
    prompt_len,
    repetition,
    frequency,
    presence,
    occurrences,
    vocab_size,
    max_len,
    logits_stride,
    token_stride,
    prompt_stride,
    penalty_stride,
    IS_COUNTING: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Count each token of a row, or penalise it: once, by whoever comes first to its count and takes it away."""
    row = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if row >= tl.load(counts):
        return
    slot = tl.load(slots + row).to(tl.int64)
    factor = tl.load(repetition + slot * penalty_stride).to(tl.float32)
    per_count = tl.load(frequency + slot * penalty_stride).to(tl.float32)
    once = tl.load(presence + slot * penalty_stride).to(tl.float32)
    if (factor == 1) & (per_count == 0) & (once == 0):
        return
    num_prompt = tl.load(prompt_len + slot * prompt_stride)
    length = tl.minimum(tl.load(lengths + row), max_len)
    logits += row.to(tl.int64) * logits_stride
    occurrences += row.to(tl.int64) * vocab_size
    for start in range(tl.program_id(0) * TILE, length, tl.num_programs(0) * TILE):
        positions = start + tl.arange(0, TILE)
        tokens = tl.load(token_ids + slot * token_stride + positions, positions < length, other=-1)
        is_known = (tokens >= 0) & (tokens < vocab_size)
        if IS_COUNTING:
            is_generated = positions >= num_prompt
            ones = tl.full([TILE], 1, tl.int32)
            tl.atomic_add(occurrences + tokens, ones, is_known & is_generated, sem="relaxed")
            tl.atomic_or(occurrences + tokens, ones * _IN_PROMPT, is_known & (is_generated == 0), sem="relaxed")
        else:
            found = tl.atomic_xchg(occurrences + tokens, tl.zeros([TILE], tl.int32), is_known, sem="relaxed")
            is_first = is_known & (found != 0)
            count = (found & (_IN_PROMPT - 1)).to(tl.float32)
            old = tl.load(logits + tokens, is_first, other=0.0)
            new = tl.where(old > 0, tl.div_rn(old, factor + tl.zeros([TILE], tl.float32)), old * factor)
            # A division by a tiny penalty must not make an infinity, which would count as the model's fault.
            new = tl.where((new > _LARGEST) & (old <= _LARGEST), _LARGEST, new)
            new = new - per_count * count - tl.where(count > 0, once, 0.0)
            tl.store(logits + tokens, new, is_first)
