"""The two ends of a step as kernels: batch state to model inputs, and drawn tokens back to batch state."""

import torch
import triton
import triton.language as tl

from octavo.kernels.step import DeviceState, DraftTensors, DrawTensors, InputTensors, StepKernels
from octavo.kernels.triton.launch import dependent_launch

_TILE = 128
"""Rows, and tokens, per program."""


class TritonStepKernels(StepKernels):
    """See :class:`StepKernels`; the host does not wait."""

    def prepare_inputs(
        self, state: DeviceState, inputs: InputTensors, *, num_rows: int, num_tokens: int, decode_len: int = 1
    ) -> None:
        num_groups, num_slots, max_blocks = state.block_tables.shape
        assert state.block_tables.is_contiguous() and state.recent_tokens.is_contiguous()
        assert inputs.slot_mapping.stride(-1) == 1
        _prepare_inputs_kernel[(triton.cdiv(max(num_rows, num_tokens), _TILE),)](
            state.header,
            state.row_slots,
            state.row_num_scheduled,
            state.num_computed,
            state.recent_tokens,
            state.step_tokens,
            state.block_tables,
            state.block_sizes,
            inputs.token_ids,
            inputs.positions,
            inputs.slot_mapping,
            inputs.query_starts,
            inputs.seq_lens,
            inputs.last_tokens,
            num_rows,
            num_tokens,
            num_slots,
            max_blocks,
            inputs.slot_mapping.stride(0),
            NUM_GROUPS=num_groups,
            NUM_RECENT=state.num_recent,
            TILE=_TILE,
            HAS_DRAFTS=decode_len > 1,
            CHUNK=128 if decode_len > 1 and num_rows > 32 else 32,
            num_warps=4,
            **dependent_launch(state.header.device),
        )

    def append_tokens(
        self, state: DeviceState, drawn: torch.Tensor, new_tokens: torch.Tensor, *, num_rows: int
    ) -> None:
        assert state.recent_tokens.is_contiguous()
        _append_tokens_kernel[(triton.cdiv(num_rows, _TILE),)](
            state.header,
            state.row_slots,
            state.row_num_scheduled,
            state.row_num_drawn,
            drawn,
            state.num_computed,
            state.recent_tokens,
            new_tokens,
            num_rows,
            NUM_RECENT=state.num_recent,
            TILE=_TILE,
            num_warps=4,
            **dependent_launch(state.header.device),
        )

    def prepare_draws(self, state: DeviceState, inputs: InputTensors, draws: DrawTensors, *, num_rows: int) -> None:
        width = len(draws.tokens) // len(inputs.seq_lens)
        _prepare_draws_kernel[(triton.cdiv(num_rows * width, _TILE),)](
            state.header,
            state.row_slots,
            state.row_num_drawn,
            inputs.query_starts,
            inputs.seq_lens,
            draws.tokens,
            draws.slots,
            draws.lengths,
            draws.counts,
            num_rows * width,
            WIDTH=width,
            TILE=_TILE,
            num_warps=4,
        )

    def append_accepted(self, state: DeviceState, drawn: torch.Tensor, drafts: DraftTensors, *, num_rows: int) -> None:
        assert state.recent_tokens.is_contiguous() and drafts.new_tokens.stride(1) == 1
        _append_accepted_kernel[(triton.cdiv(num_rows, _TILE),)](
            state.header,
            state.row_slots,
            state.row_num_scheduled,
            state.row_num_drawn,
            drawn,
            state.num_computed,
            state.recent_tokens,
            state.num_drafts,
            drafts.new_tokens,
            drafts.new_tokens.stride(0),
            drafts.num_tokens,
            drafts.num_tokens.stride(0),
            num_rows,
            NUM_RECENT=state.num_recent,
            WIDTH=drafts.new_tokens.shape[1],
            TILE=_TILE,
            num_warps=4,
        )

    def propose_ngrams(
        self, state: DeviceState, drafts: DraftTensors, *, num_rows: int, min_length: int, max_length: int
    ) -> None:
        most = drafts.drafts.shape[1]
        _propose_ngrams_kernel[(num_rows,)](
            state.header,
            state.row_slots,
            state.row_num_drawn,
            state.num_computed,
            state.recent_tokens,
            state.num_drafts,
            drafts.drafts,
            drafts.drafts.stride(0),
            drafts.num_drafts,
            drafts.num_drafts.stride(0),
            state.max_len,
            NUM_RECENT=state.num_recent,
            MOST=most,
            PADDED=triton.next_power_of_2(most),
            MIN_LENGTH=min_length,
            MAX_LENGTH=max_length,
            BLOCK=1024,
            num_warps=4,
        )


@triton.jit
def _locate_chunks(
    tokens, row_num_scheduled, query_starts, last_tokens, num_decoding, num_real_rows, CHUNK: tl.constexpr
):
    """Row of each token of a chunk, and its offset in that row. Program 0 also stores the boundaries of these rows."""
    is_first = tl.program_id(0) == 0
    row_of_token = tl.zeros_like(tokens) + num_decoding
    start_of_row = tl.zeros_like(tokens) + num_decoding
    total = num_decoding
    for start in range(num_decoding, num_real_rows, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        is_real = rows < num_real_rows
        num_scheduled = tl.load(row_num_scheduled + rows, is_real, other=0)
        ends = total + tl.cumsum(num_scheduled, 0)
        tl.store(query_starts + 1 + rows, ends, is_real & is_first)
        tl.store(last_tokens + rows, tl.maximum(ends - 1, 0).to(tl.int64), is_real & is_first)
        is_before = (ends[None, :] <= tokens[:, None]) & is_real[None, :]
        row_of_token += tl.sum(is_before.to(tl.int32), axis=1)
        start_of_row += tl.sum(tl.where(is_before, num_scheduled[None, :], 0), axis=1)
        total += tl.sum(num_scheduled, 0)
    return row_of_token, tokens - start_of_row


@triton.jit(do_not_specialize=["num_rows", "num_tokens"])
def _prepare_inputs_kernel(
    header,
    row_slots,
    row_num_scheduled,
    num_computed,
    recent_tokens,
    step_tokens,
    block_tables,
    block_sizes,
    token_ids,
    positions,
    slot_mapping,
    query_starts,
    seq_lens,
    last_tokens,
    num_rows,
    num_tokens,
    num_slots,
    max_blocks,
    slot_mapping_stride,
    NUM_GROUPS: tl.constexpr,
    NUM_RECENT: tl.constexpr,
    HAS_DRAFTS: tl.constexpr,
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
    # With drafts, decoding rows have several tokens and are located as chunks are.
    num_decoding = 0 if HAS_DRAFTS else tl.load(header + 1)
    num_real_tokens = tl.load(header + 2)
    row_slot = tl.load(row_slots + index, index < num_rows, other=0)
    row_new = tl.load(row_num_scheduled + index, index < num_rows, other=0)
    sent = tl.load(step_tokens + index, index < num_tokens, other=-1)

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
    row, offset = _locate_chunks(
        index, row_num_scheduled, query_starts, last_tokens, num_decoding, num_real_rows, CHUNK
    )
    in_chunk = is_token & ~is_decoding
    slot = tl.where(is_decoding, row_slot, tl.load(row_slots + row, in_chunk, other=0))
    position = tl.where(is_decoding, row_computed, tl.load(num_computed + slot, in_chunk, other=0) + offset)

    slot = slot.to(tl.int64)
    place = recent_tokens + slot * NUM_RECENT + position % NUM_RECENT
    token_id = tl.where(is_token & (sent >= 0), sent, tl.load(place, is_token & (sent < 0), other=0))
    tl.store(token_ids + index, token_id.to(tl.int64), index < num_tokens)
    tl.store(positions + index, tl.where(is_token, position, 0).to(tl.int64), index < num_tokens)
    for group in tl.static_range(NUM_GROUPS):
        block_size = tl.load(block_sizes + group)
        has_block = is_token & (position // block_size < max_blocks)
        table = block_tables + (group * num_slots + slot) * max_blocks
        block = tl.load(table + position // block_size, has_block, other=0).to(tl.int64)
        place = tl.where(has_block, block * block_size + position % block_size, -1)
        tl.store(slot_mapping + group * slot_mapping_stride + index, place, index < num_tokens)


@triton.jit(do_not_specialize=["num_rows"])
def _append_tokens_kernel(
    header,
    row_slots,
    row_num_scheduled,
    samples,
    sampled,
    num_computed,
    recent_tokens,
    out_tokens,
    num_rows,
    NUM_RECENT: tl.constexpr,
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
    num_scheduled = tl.load(row_num_scheduled + rows, in_bounds, other=0)
    is_sampling = is_row & (tl.load(samples + rows, in_bounds, other=0) != 0)
    token = tl.load(sampled + rows, in_bounds, other=0).to(tl.int32)
    length = tl.load(num_computed + slot, is_row, other=0) + num_scheduled
    tl.store(num_computed + slot, length, is_row)
    # The failure marker is never read back by its request, but the stored token must be a valid index.
    place = recent_tokens + slot * NUM_RECENT + length % NUM_RECENT
    tl.store(place, tl.maximum(token, 0), is_sampling)
    tl.store(out_tokens + rows, tl.where(is_sampling, token, 0), is_row)


@triton.jit(do_not_specialize=["num_places"])
def _prepare_draws_kernel(
    header,
    row_slots,
    row_num_drawn,
    query_starts,
    seq_lens,
    tokens,
    slots,
    lengths,
    counts,
    num_places,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program handles ``TILE`` places; grid (tiles)."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row, place = index // WIDTH, index % WIDTH
    num_real_rows = tl.load(header)
    is_row = (index < num_places) & (row < num_real_rows)
    num_drawn = tl.load(row_num_drawn + row, is_row, other=0)
    is_drawn = is_row & (place < num_drawn)
    end = tl.load(query_starts + row + 1, is_row, other=0)
    seq_len = tl.load(seq_lens + row, is_row, other=0)
    tl.store(tokens + index, tl.where(is_drawn, end - num_drawn + place, 0).to(tl.int64), index < num_places)
    tl.store(lengths + index, tl.where(is_drawn, seq_len - num_drawn + 1 + place, 0), index < num_places)
    tl.store(slots + index, tl.load(row_slots + row, is_row, other=0), index < num_places)
    if tl.program_id(0) == 0:
        tl.store(counts, num_real_rows * WIDTH)


@triton.jit(do_not_specialize=["num_rows"])
def _append_accepted_kernel(
    header,
    row_slots,
    row_num_scheduled,
    row_num_drawn,
    drawn,
    num_computed,
    recent_tokens,
    num_drafts,
    new_tokens,
    new_stride,
    num_tokens,
    num_stride,
    num_rows,
    NUM_RECENT: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program handles ``TILE`` rows; grid (tiles)."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    is_row = (rows < num_rows) & (rows < tl.load(header))
    slot = tl.load(row_slots + rows, is_row, other=0).to(tl.int64)
    num_scheduled = tl.load(row_num_scheduled + rows, is_row, other=0)
    num_drawn = tl.load(row_num_drawn + rows, is_row, other=0)
    draws = is_row & (num_drawn > 0)
    computed = tl.load(num_computed + slot, is_row, other=0)
    known = computed + num_scheduled - num_drawn + 1
    most = tl.minimum(num_drawn - 1, tl.load(num_drafts + slot, draws, other=0))
    texts = recent_tokens + slot * NUM_RECENT
    count = tl.where(draws, 1, 0)
    goes_on = draws
    for place in tl.static_range(WIDTH):
        token = tl.load(drawn + rows * WIDTH + place, is_row, other=0).to(tl.int32)
        tl.store(new_tokens + rows * new_stride + place, token, is_row)
        if place + 1 < WIDTH:
            has_draft = goes_on & (place < most)
            draft = tl.load(texts + (known + place) % NUM_RECENT, has_draft, other=-2)
            goes_on = has_draft & (draft == token)
            count += goes_on.to(tl.int32)
    last = tl.load(drawn + rows * WIDTH + count - 1, draws, other=0).to(tl.int32)
    length = tl.where(draws, known + count - 1, computed + num_scheduled)
    tl.store(num_tokens + rows * num_stride, count, is_row)
    tl.store(num_computed + slot, length, is_row)
    # The failure marker is never read back by its request, but the stored token must be a valid index.
    tl.store(texts + length % NUM_RECENT, tl.maximum(last, 0), draws)


@triton.jit
def _propose_ngrams_kernel(
    header,
    row_slots,
    row_num_drawn,
    num_computed,
    recent_tokens,
    num_drafts,
    out_drafts,
    out_stride,
    out_num_drafts,
    num_stride,
    max_len,
    NUM_RECENT: tl.constexpr,
    MOST: tl.constexpr,
    PADDED: tl.constexpr,
    MIN_LENGTH: tl.constexpr,
    MAX_LENGTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program searches one row's tokens; grid (rows)."""
    row = tl.program_id(0)
    if row < tl.load(header):
        slot = tl.load(row_slots + row).to(tl.int64)
        text = recent_tokens + slot * NUM_RECENT
        length = tl.load(num_computed + slot) + 1
        # Drafts take the places of the oldest tokens.
        oldest = tl.maximum(length + MOST - NUM_RECENT, 0)
        draws = tl.load(row_num_drawn + row) > 0
        best = tl.full((), -1, tl.int64)
        for start in range(oldest, tl.where(draws, length - 1, 0), BLOCK):
            end = start + tl.arange(0, BLOCK)
            matches = end < length - 1
            num_equal = tl.zeros_like(end)
            for back in tl.static_range(MAX_LENGTH):
                is_known = length - back > oldest
                wanted = tl.load(text + (length - 1 - back) % NUM_RECENT, is_known, other=-1)
                matches = matches & (end - back >= oldest) & is_known
                matches = matches & (tl.load(text + (end - back) % NUM_RECENT, matches, other=-2) == wanted)
                num_equal += matches.to(tl.int32)
            # The longest match counts, then the latest.
            rank = (num_equal.to(tl.int64) << 32) + end
            best = tl.maximum(best, tl.max(tl.where(num_equal >= MIN_LENGTH, rank, -1), 0))
        first = best.to(tl.int32) + 1
        count = tl.minimum(tl.minimum(length - first, MOST), max_len - length)
        count = tl.where(best >= 0, count, 0)
        place = tl.arange(0, PADDED)
        drafts = tl.load(text + (first + place) % NUM_RECENT, place < count, other=0)
        tl.store(text + (length + place) % NUM_RECENT, drafts, place < count)
        tl.store(out_drafts + row * out_stride + place, drafts, place < count)
        tl.store(out_num_drafts + row * num_stride, count)
        tl.store(num_drafts + slot, count)
