"""Repetition, frequency and presence penalties; the cost grows with a request's tokens, not with the vocabulary."""

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
    rows: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
    occurrences: torch.Tensor,
) -> None:
    """Penalise tokens that occurred already, in place, as :func:`octavo.sampling.penalties.apply_penalties` does.

    Logits that are +∞ or NaN stay so.

    Args:
        logits: ``[N, V]`` float32.
        rows: ``[P]`` integers, the distinct rows of ``logits`` to penalise.
        slots, lengths: ``[P]`` integers, the slot and the number of known tokens of each.
        token_ids: ``[S, L]`` integers, by slot; entries from a request's length on are ignored.
        prompt_len: ``[S]`` int64, by slot; frequency and presence count only tokens after the prompt.
        repetition, frequency, presence: ``[S]`` float64, by slot, of equal stride; neutral at 1, 0, 0.
        occurrences: ``[≥P, V]`` int32 scratch memory, contiguous; need not be initialised.
    """
    vocab_size, max_len = logits.shape[1], token_ids.shape[1]
    assert logits.dtype == torch.float32 and logits.stride(1) == 1 and occurrences.is_contiguous()
    assert occurrences.shape[1] == vocab_size and token_ids.stride(1) == 1
    assert repetition.stride() == frequency.stride() == presence.stride()
    grid = (min(triton.cdiv(max_len, _TILE), _MAX_PROGRAMS_PER_ROW), len(rows))
    for task in ("clear", "count", "penalise"):
        _penalties_kernel[grid](
            logits,
            rows,
            slots,
            lengths,
            token_ids,
            prompt_len,
            repetition,
            frequency,
            presence,
            occurrences,
            vocab_size,
            max_len,
            logits.stride(0),
            token_ids.stride(0),
            prompt_len.stride(0),
            repetition.stride(0),
            TASK=task,
            TILE=_TILE,
            num_warps=4,
            **dependent_launch(logits.device),
        )


@triton.jit(
    do_not_specialize=["vocab_size", "max_len", "logits_stride", "token_stride", "prompt_stride", "penalty_stride"]
)
def _penalties_kernel(
    logits,
    rows,
    slots,
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
    TASK: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Clear the counts of a row's tokens, count them, or penalise each token once; grid (programs of a row, rows).

    When penalising, a thread takes a token's count by atomic exchange; only the first one to do so penalises it.
    """
    place = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(slots + place).to(tl.int64)
    length = tl.minimum(tl.load(lengths + place), max_len)
    row = tl.load(rows + place).to(tl.int64)
    num_prompt = tl.load(prompt_len + slot * prompt_stride)
    factor = tl.load(repetition + slot * penalty_stride).to(tl.float32)
    per_count = tl.load(frequency + slot * penalty_stride).to(tl.float32)
    once = tl.load(presence + slot * penalty_stride).to(tl.float32)
    logits += row * logits_stride
    token_ids += slot * token_stride
    occurrences += place.to(tl.int64) * vocab_size
    for start in range(tl.program_id(0) * TILE, length, tl.num_programs(0) * TILE):
        positions = start + tl.arange(0, TILE)
        tokens = tl.load(token_ids + positions, positions < length, other=-1)
        is_known = (tokens >= 0) & (tokens < vocab_size)
        zeros, ones = tl.zeros([TILE], tl.int32), tl.full([TILE], 1, tl.int32)
        if TASK == "clear":
            tl.store(occurrences + tokens, zeros, is_known)
        elif TASK == "count":
            is_generated = positions >= num_prompt
            tl.atomic_add(occurrences + tokens, ones, is_known & is_generated, sem="relaxed")
            tl.atomic_or(occurrences + tokens, ones * _IN_PROMPT, is_known & (is_generated == 0), sem="relaxed")
        else:
            found = tl.atomic_xchg(occurrences + tokens, zeros, is_known, sem="relaxed")
            is_first = is_known & (found != 0)
            count = (found & (_IN_PROMPT - 1)).to(tl.float32)
            old = tl.load(logits + tokens, is_first, other=0.0)
            new = tl.where(old > 0, tl.div_rn(old, factor + tl.zeros([TILE], tl.float32)), old * factor)
            # Clamp: an infinity from dividing by a tiny penalty would be reported as a failure of the model.
            new = tl.where((new > _LARGEST) & (old <= _LARGEST), _LARGEST, new)
            new = new - per_count * count - tl.where(count > 0, once, 0.0)
            tl.store(logits + tokens, new, is_first)
