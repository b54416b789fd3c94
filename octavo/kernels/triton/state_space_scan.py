"""Mamba-2's scan on a GPU; see :func:`octavo.kernels.state_space.state_space_scan`.

A program takes a row, a head and some of its values, and keeps their state in registers from the row's first token to
its last. The tokens of a long row run in chunks as GEMMs (the state-space duality of arXiv:2405.21060, section 6); its
last ``num_places`` tokens, and those of a short row, run one by one, since the state after each is written. Chunks end
where pages end.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.state_space import StateInputs
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch, num_multiprocessors
from octavo.kernels.triton.state_space_conv import state_offset

_MAX_CHUNK = 64


class ScanTile(NamedTuple):
    """A program's work: values of a head, tokens per chunk, warps, pipeline depth of the chunks."""

    num_values: int
    chunk: int
    num_warps: int
    num_stages: int


def choose_tile(
    num_rows: int, num_heads: int, head_dim: int, page_size: int, has_chunks: bool, num_sms: int
) -> ScanTile:
    """The tile for a step: less of a head per program if there are few programs."""
    values = min(triton.next_power_of_2(head_dim), 64)
    if has_chunks:
        chunk = math.gcd(page_size, _MAX_CHUNK)
        assert chunk >= MIN_DOT_SIZE, "page_size must be a multiple of 16"
        return ScanTile(max(min(values, 32), MIN_DOT_SIZE), chunk, 4, 2)
    while values > 8 and num_rows * num_heads * head_dim // values < 4 * num_sms:
        values //= 2
    return ScanTile(values, 0, 4 if values >= 32 else 2, 1)


def state_space_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a_log: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor,
    dt_limit: tuple[float, float],
    state: torch.Tensor,
    inputs: StateInputs,
    tile: ScanTile | None = None,
) -> torch.Tensor:
    """Mamba-2's scan; see :func:`octavo.kernels.state_space.state_space_scan`. Padding is arbitrary.

    GEMMs take operands of ``x``'s type and accumulate in float32.

    Args:
        tile: defaults to :func:`choose_tile`'s.
    """
    _, num_heads, head_dim = x.shape
    _, num_groups, size = b.shape
    rows, shape, tables = inputs.rows, inputs.shape, inputs.block_tables
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    assert x.stride()[1:] == (head_dim, 1) and dt.stride(1) == 1 and state[0, 0].is_contiguous()
    assert b.stride()[1:] == (size, 1) and c.stride()[1:] == (size, 1)
    has_chunks = shape.max_query_len > inputs.num_places
    tile = tile or choose_tile(
        shape.num_rows, num_heads, head_dim, inputs.page_size, has_chunks, num_multiprocessors(x.device)
    )
    _scan_kernel[(triton.cdiv(head_dim, tile.num_values), num_heads, shape.num_rows)](
        x, dt, a_log, b, c, d, dt_bias, state, tables, inputs.slots, rows.query_starts, rows.seq_lens, rows.counts, out,
        x.stride(0), dt.stride(0), b.stride(0), c.stride(0), state.stride(0), state.stride(1),
        tables.stride(0), tables.shape[1], *dt_limit,
        NUM_HEADS=num_heads, HEAD_DIM=head_dim, SIZE=size, GROUP=num_heads // num_groups,
        PAGE=inputs.page_size, PLACES=inputs.num_places, BLOCK_P=tile.num_values,
        BLOCK_N=max(triton.next_power_of_2(size), MIN_DOT_SIZE), CHUNK=tile.chunk,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps, num_stages=tile.num_stages, **dependent_launch(x.device),
    )  # fmt: skip
    return out


@triton.jit
def _softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))


@triton.jit(do_not_specialize=["table_width", "dt_min", "dt_max"])
def _scan_kernel(
    x,  # [T, NUM_HEADS, HEAD_DIM]
    dt,  # [T, NUM_HEADS]
    a_log,
    b,  # [T, groups, SIZE]
    c,
    d,
    dt_bias,
    state,  # [blocks, PLACES, NUM_HEADS, HEAD_DIM, SIZE]
    tables,  # [S, M]
    slots,
    starts,
    seq_lens,
    counts,
    out,  # [T, NUM_HEADS, HEAD_DIM]
    x_stride,
    dt_stride,
    b_stride,
    c_stride,
    block_stride,
    place_stride,
    table_stride,
    table_width,
    dt_min,
    dt_max,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program walks through a row for ``BLOCK_P`` values of a head; grid (tiles of values, heads, rows).

    ``CHUNK`` is 0 if no row has more than ``PLACES`` tokens. The initial state is read before the wait: the preceding
    launch does not write it.
    """
    # Long rows come last in a step, but start first.
    row = tl.num_programs(2) - 1 - tl.program_id(2)
    head = tl.program_id(1)
    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    position = tl.load(seq_lens + row) - length
    slot = tl.load(slots + row).to(tl.int64)
    if (row >= tl.load(counts)) | (length == 0):
        if PDL:
            tl.extra.cuda.gdc_wait()
        return
    values = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    columns = tl.arange(0, BLOCK_N)
    is_value, is_column = values < HEAD_DIM, columns < SIZE
    is_state = is_value[:, None] & is_column[None, :]
    table = tables + slot * table_stride
    state += (head * HEAD_DIM + values)[:, None] * SIZE + columns[None, :]
    before = state
    if position > 0:
        last_read = tl.minimum(position, table_width * PAGE) - 1
        before += state_offset(table, last_read, block_stride, place_stride, PAGE, PLACES)
    h = tl.load(before, is_state & (position > 0), other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(a_log + head).to(tl.float32))
    skip = tl.load(d + head).to(tl.float32)
    bias = tl.load(dt_bias + head).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # All threads have read the state before one overwrites it.
    tl.debug_barrier()
    first = start.to(tl.int64)
    x += head * HEAD_DIM + values
    dt += head
    b += head // GROUP * SIZE + columns
    c += head // GROUP * SIZE + columns
    out += head * HEAD_DIM + values
    # No state is written past the table: a step that runs ahead may reach there, and its results are never read.
    table_end = table_width * PAGE

    one_by_one = 0
    if CHUNK > 0:  # noqa: SIM102
        if length > PLACES:
            one_by_one = length - PLACES + 1
            for chunk_start in range(position // CHUNK * CHUNK, position + one_by_one, CHUNK):
                tokens = chunk_start - position + tl.arange(0, CHUNK)
                is_token = (tokens >= 0) & (tokens < one_by_one)
                at = first + tokens
                # A token that is not part of the chunk has a step size of 0: it neither decays nor adds.
                step = tl.load(dt + at * dt_stride, is_token, other=0.0).to(tl.float32) + bias
                step = tl.where(is_token, tl.minimum(tl.maximum(_softplus(step), dt_min), dt_max), 0.0)
                inner = tl.load(x + (at * x_stride)[:, None], is_token[:, None] & is_value, other=0.0)
                row_mask = is_token[:, None] & is_column
                keys = tl.load(b + (at * b_stride)[:, None], row_mask, other=0.0)
                queries = tl.load(c + (at * c_stride)[:, None], row_mask, other=0.0)
                logs = tl.cumsum(step * rate, 0)
                whole = tl.sum(step * rate, 0)
                is_before = tl.arange(0, CHUNK)[:, None] >= tl.arange(0, CHUNK)[None, :]
                decay = tl.exp(tl.where(is_before, logs[:, None] - logs[None, :], float("-inf"))) * step[None, :]
                weights = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * decay
                y = tl.dot(queries, tl.trans(h.to(queries.dtype)), input_precision=PRECISION) * tl.exp(logs)[:, None]
                y = tl.dot(weights.to(inner.dtype), inner, y, input_precision=PRECISION)
                wide = inner.to(tl.float32)
                added = (wide * (step * tl.exp(whole - logs))[:, None]).to(keys.dtype)
                h = tl.dot(tl.trans(added), keys, h * tl.exp(whole), input_precision=PRECISION)
                y += wide * skip
                out_at = out + (at * (NUM_HEADS * HEAD_DIM))[:, None]
                tl.store(out_at, y.to(out.dtype.element_ty), is_token[:, None] & is_value)
                # The state after the chunk, if it ends a page or is the last one before the tokens one by one.
                end = tl.minimum(chunk_start + CHUNK, position + one_by_one) - 1
                is_kept = ((end + 1) % PAGE == 0) | (end + 1 == position + one_by_one)
                if is_kept & (end < table_end):
                    place = state_offset(table, end, block_stride, place_stride, PAGE, PLACES)
                    tl.store(state + place, h.to(state.dtype.element_ty), is_state)
    for token in range(one_by_one, length):
        at = first + token
        step = _softplus(tl.load(dt + at * dt_stride).to(tl.float32) + bias)
        step = tl.minimum(tl.maximum(step, dt_min), dt_max)
        inner = tl.load(x + at * x_stride, is_value, other=0.0).to(tl.float32)
        key = tl.load(b + at * b_stride, is_column, other=0.0).to(tl.float32)
        query = tl.load(c + at * c_stride, is_column, other=0.0).to(tl.float32)
        h = h * tl.exp(step * rate) + (step * inner)[:, None] * key[None, :]
        y = tl.sum(h * query[None, :], 1) + skip * inner
        tl.store(out + at * (NUM_HEADS * HEAD_DIM), y.to(out.dtype.element_ty), is_value)
        if position + token < table_end:
            place = state_offset(table, position + token, block_stride, place_stride, PAGE, PLACES)
            tl.store(state + place, h.to(state.dtype.element_ty), is_state)
