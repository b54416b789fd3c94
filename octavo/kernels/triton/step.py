"""The two ends of a step as kernels: batch state to model inputs, and drawn tokens back to batch state."""

import torch
import triton
import triton.language as tl

from octavo.kernels.step import DeviceState, InputTensors, StepKernels
from octavo.kernels.triton.launch import dependent_launch

_TILE = 128
"""Rows, and tokens, per program."""


class TritonStepKernels(StepKernels):
    """See :class:`StepKernels`; the host does not wait."""

    def prepare_inputs(
        self, state: DeviceState, inputs: InputTensors, *, num_rows: int, num_tokens: int, block_size: int
    ) -> None:
        num_groups, num_slots, max_blocks = state.block_tables.shape
        assert state.block_tables.is_contiguous() and state.token_ids.is_contiguous()
        assert inputs.slot_mapping.stride(-1) == 1
        _prepare_inputs_kernel[(triton.cdiv(max(num_rows, num_tokens), _TILE),)](
            state.header,
            state.row_slots,
            state.row_num_new,
            state.num_computed,
            state.token_ids,
            state.block_tables,
            inputs.token_ids,
            inputs.positions,
            inputs.slot_mapping,
            inputs.query_starts,
            inputs.seq_lens,
            inputs.last_tokens,
            num_rows,
            num_tokens,
            num_slots,
            state.token_ids.shape[1],
            max_blocks,
            inputs.slot_mapping.stride(0),
            NUM_GROUPS=num_groups,
            BLOCK_SIZE=block_size,
            TILE=_TILE,
            CHUNK=32,
            num_warps=4,
            **dependent_launch(state.header.device),
        )

    def append_tokens(
        self, state: DeviceState, drawn: torch.Tensor, new_tokens: torch.Tensor, *, num_rows: int
    ) -> None:
        assert state.token_ids.is_contiguous()
        _append_tokens_kernel[(triton.cdiv(num_rows, _TILE),)](
            state.header,
            state.row_slots,
            state.row_num_new,
            state.row_num_drawn,
            drawn,
            state.num_computed,
            state.token_ids,
            new_tokens,
            num_rows,
            state.token_ids.shape[1],
            TILE=_TILE,
            num_warps=4,
            **dependent_launch(state.header.device),
        )


@triton.jit
def _locate_chunks(tokens, row_num_new, query_starts, last_tokens, num_decoding, num_real_rows, CHUNK: tl.constexpr):
    """Row of each token of a chunk, and its offset in that row. Program 0 also stores the boundaries of these rows."""
    is_first = tl.program_id(0) == 0
    row_of_token = tl.zeros_like(tokens) + num_decoding
    start_of_row = tl.zeros_like(tokens) + num_decoding
    total = num_decoding
    for start in range(num_decoding, num_real_rows, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        is_real = rows < num_real_rows
        num_new = tl.load(row_num_new + rows, is_real, other=0)
        ends = total + tl.cumsum(num_new, 0)
        tl.store(query_starts + 1 + rows, ends, is_real & is_first)
        tl.store(last_tokens + rows, tl.maximum(ends - 1, 0).to(tl.int64), is_real & is_first)
        is_before = (ends[None, :] <= tokens[:, None]) & is_real[None, :]
        row_of_token += tl.sum(is_before.to(tl.int32), axis=1)
        start_of_row += tl.sum(tl.where(is_before, num_new[None, :], 0), axis=1)
        total += tl.sum(num_new, 0)
    return row_of_token, tokens - start_of_row


@triton.jit(do_not_specialize=["num_rows", "num_tokens"])
def _prepare_inputs_kernel(
    header,
    row_slots,
    row_num_new,
    num_computed,
    state_token_ids,
    block_tables,
    token_ids,
    positions,
    slot_mapping,
    query_starts,
    seq_lens,
    last_tokens,
    num_rows,
    num_tokens,
    num_slots,
    max_len,
    max_blocks,
    slot_mapping_stride,
    NUM_GROUPS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program handles ``TILE`` rows and the ``TILE`` tokens with the same indices; grid (tiles)."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # Issue these loads together, so that a decode step has three dependent loads: these, the row's length, its token.
    num_real_rows = tl.load(header)
    num_decoding = tl.load(header + 1)
    num_real_tokens = tl.load(header + 2)
    row_slot = tl.load(row_slots + index, index < num_rows, other=0)
    row_new = tl.load(row_num_new + index, index < num_rows, other=0)

    is_row, is_token = index < num_real_rows, index < num_real_tokens
    row_computed = tl.load(num_computed + row_slot, is_row, other=0)
    tl.store(seq_lens + index, tl.where(is_row, row_computed + row_new, 0), index < num_rows)
    # Decoding rows and padding; _locate_chunks handles the rows of chunks.
    is_decoding = index < num_decoding
    is_simple = (index < num_rows) & (is_decoding | ~is_row)
    tl.store(query_starts + 1 + index, tl.where(is_decoding, index + 1, num_real_tokens), is_simple)
    tl.store(last_tokens + index, tl.where(is_decoding, index, 0).to(tl.int64), is_simple)
    if tl.program_id(0) == 0:
        tl.store(query_starts, 0)
    row, offset = _locate_chunks(index, row_num_new, query_starts, last_tokens, num_decoding, num_real_rows, CHUNK)
    in_chunk = is_token & ~is_decoding
    slot = tl.where(is_decoding, row_slot, tl.load(row_slots + row, in_chunk, other=0))
    position = tl.where(is_decoding, row_computed, tl.load(num_computed + slot, in_chunk, other=0) + offset)

    slot = slot.to(tl.int64)
    token_id = tl.load(state_token_ids + slot * max_len + position, is_token & (position < max_len), other=0)
    tl.store(token_ids + index, token_id.to(tl.int64), index < num_tokens)
    tl.store(positions + index, tl.where(is_token, position, 0).to(tl.int64), index < num_tokens)
    has_block = is_token & (position < max_blocks * BLOCK_SIZE)
    for group in tl.static_range(NUM_GROUPS):
        table = block_tables + (group * num_slots + slot) * max_blocks
        block = tl.load(table + position // BLOCK_SIZE, has_block, other=0).to(tl.int64)
        place = tl.where(has_block, block * BLOCK_SIZE + position % BLOCK_SIZE, -1)
        tl.store(slot_mapping + group * slot_mapping_stride + index, place, index < num_tokens)


@triton.jit(do_not_specialize=["num_rows"])
def _append_tokens_kernel(
    header,
    row_slots,
    row_num_new,
    samples,
    sampled,
    num_computed,
    state_token_ids,
    out_tokens,
    num_rows,
    max_len,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program handles ``TILE`` rows; grid (tiles)."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    in_bounds = rows < num_rows
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    is_row = in_bounds & (rows < tl.load(header))
    slot = tl.load(row_slots + rows, in_bounds, other=0).to(tl.int64)
    num_new = tl.load(row_num_new + rows, in_bounds, other=0)
    is_sampling = is_row & (tl.load(samples + rows, in_bounds, other=0) != 0)
    token = tl.load(sampled + rows, in_bounds, other=0).to(tl.int32)
    length = tl.load(num_computed + slot, is_row, other=0) + num_new
    tl.store(num_computed + slot, length, is_row)
    # The failure marker is never read back by its request, but the stored token must be a valid index.
    place = state_token_ids + slot * max_len + length
    tl.store(place, tl.maximum(token, 0), is_sampling & (length < max_len))
    tl.store(out_tokens + rows, tl.where(is_sampling, token, 0), is_row)
