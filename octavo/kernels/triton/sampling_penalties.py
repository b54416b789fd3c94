"""Repetition, frequency and presence penalties: one pass over the logits and the counts of tokens."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

_TILE = 4096
_ROWS = 128
_MAX_COUNT = tl.constexpr((1 << 15) - 1)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


def penalise(
    logits: torch.Tensor,
    out: torch.Tensor,
    slots: torch.Tensor,
    table: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
    drafts: torch.Tensor | None = None,
) -> None:
    """See :func:`octavo.sampling.penalties.penalise`; logits that are +∞ stay so."""
    num_rows, vocab_size = logits.shape
    assert out.dtype == torch.float32 and logits.stride(1) == out.stride(1) == 1 and table.is_contiguous()
    assert repetition.stride() == frequency.stride() == presence.stride()
    assert drafts is None or drafts.is_contiguous()
    _penalise_kernel[(triton.cdiv(vocab_size, _TILE), num_rows)](
        logits,
        out,
        slots,
        table,
        repetition,
        frequency,
        presence,
        slots if drafts is None else drafts,
        vocab_size,
        logits.stride(0),
        out.stride(0),
        repetition.stride(0),
        NUM_DRAFTS=0 if drafts is None else drafts.shape[1],
        TILE=_TILE,
        num_warps=8,
        **dependent_launch(logits.device),
    )


@triton.jit
def _penalise_kernel(
    logits,
    out,
    slots,
    table,
    repetition,
    frequency,
    presence,
    drafts,
    vocab_size,
    logits_stride,
    out_stride,
    penalty_stride,
    NUM_DRAFTS: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program handles ``TILE`` tokens of one row; grid (tiles, rows)."""
    row = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(slots + row).to(tl.int64)
    factor = tl.load(repetition + slot * penalty_stride).to(tl.float32)
    per_count = tl.load(frequency + slot * penalty_stride).to(tl.float32)
    once = tl.load(presence + slot * penalty_stride).to(tl.float32)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    is_token = columns < vocab_size
    old = tl.load(logits + row.to(tl.int64) * logits_stride + columns, is_token, other=0.0).to(tl.float32)
    out += row.to(tl.int64) * out_stride
    if (factor == 1) & (per_count == 0) & (once == 0):
        tl.store(out + columns, old, is_token)
    else:
        found = tl.load(table + slot * vocab_size + columns, is_token, other=0).to(tl.int32)
        count = found & _MAX_COUNT
        for index in tl.static_range(NUM_DRAFTS):
            count += (columns == tl.load(drafts + row * NUM_DRAFTS + index)).to(tl.int32)
        count = tl.minimum(count, _MAX_COUNT).to(tl.float32)
        new = tl.where(old > 0, tl.div_rn(old, factor + tl.zeros([TILE], tl.float32)), old * factor)
        # Clamp: an infinity from dividing by a tiny penalty would be reported as a failure of the model.
        new = tl.where((new > _LARGEST) & (old <= _LARGEST), _LARGEST, new)
        new = new - per_count * count - tl.where(count > 0, once, 0.0)
        tl.store(out + columns, tl.where((found < 0) | (count > 0), new, old), is_token)


def count_tokens(table: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor, num_tokens: torch.Tensor) -> None:
    """See :func:`octavo.sampling.penalties.count_tokens`."""
    num_rows, width = token_ids.shape
    assert table.is_contiguous() and (width == 1 or token_ids.stride(1) == 1)
    _count_kernel[(triton.cdiv(num_rows, _ROWS),)](
        table,
        slots,
        token_ids,
        token_ids.stride(0),
        num_tokens,
        num_tokens.stride(0),
        num_rows,
        table.shape[1],
        WIDTH=width,
        ROWS=_ROWS,
        num_warps=4,
        **dependent_launch(table.device),
    )


@triton.jit(do_not_specialize=["num_rows"])
def _count_kernel(
    table,
    slots,
    token_ids,
    token_stride,
    num_tokens,
    num_stride,
    num_rows,
    vocab_size,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program handles ``ROWS`` rows, one place after another; grid (tiles)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(slots + rows, rows < num_rows, other=0).to(tl.int64)
    num_new = tl.load(num_tokens + rows * num_stride, rows < num_rows, other=0)
    for place in tl.static_range(WIDTH):
        token = tl.load(token_ids + rows * token_stride + place, rows < num_rows, other=-1).to(tl.int32)
        is_new = (place < num_new) & (token >= 0) & (token < vocab_size)
        entry = table + slot * vocab_size + token
        found = tl.load(entry, is_new, other=0)
        is_full = (found.to(tl.int32) & _MAX_COUNT) == _MAX_COUNT
        tl.store(entry, tl.where(is_full, found, found + 1), is_new)
