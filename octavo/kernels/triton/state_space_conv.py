"""Mamba-2's causal convolution on a GPU; see :func:`octavo.kernels.state_space.causal_conv`.

If all rows are short, one launch takes a row and some channels per program: it computes the outputs and writes the
states. Otherwise a first launch computes the outputs by tiles of tokens, and the second only writes the states, after
every tile has read them.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.state_space import StateInputs
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.prefill_tiles import find_tile

_TOKENS = 16
_CHANNELS = 256


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, inputs: StateInputs
) -> torch.Tensor:
    """Causal convolution and SiLU; see :func:`octavo.kernels.state_space.causal_conv`. Padding is arbitrary."""
    channels, width = weight.shape
    rows, shape, tables = inputs.rows, inputs.shape, inputs.block_tables
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    assert x.stride(1) == 1 and state.stride(3) == 1 and state.stride(2) == width - 1 and weight.is_contiguous()
    is_short = shape.max_query_len <= inputs.num_places
    block = min(_CHANNELS, triton.next_power_of_2(channels))
    tiles = triton.cdiv(channels, block)
    tensors = x, weight, bias, state, tables, inputs.slots, rows.query_starts, rows.seq_lens, rows.counts, out
    strides = x.stride(0), state.stride(0), state.stride(1), tables.stride(0), tables.shape[1]
    options = {
        "CHANNELS": channels, "WIDTH": width, "PAGE": inputs.page_size, "PLACES": inputs.num_places, "BLOCK": block,
        **dependent_launch(x.device),
    }  # fmt: skip
    if not is_short:
        num_tiles = shape.num_tokens // _TOKENS + shape.num_rows
        _tokens_kernel[(num_tiles, tiles)](*tensors, *strides, TOKENS=_TOKENS, num_warps=4, **options)
    _rows_kernel[(shape.num_rows, tiles)](
        *tensors, *strides, BLOCK_W=triton.next_power_of_2(max(width - 1, 1)), IS_SHORT=is_short, num_warps=4, **options
    )
    return out


@triton.jit
def state_offset(table, position, block_stride, place_stride, PAGE: tl.constexpr, PLACES: tl.constexpr):
    """Where the state after a position lies."""
    block = tl.load(table + position // PAGE).to(tl.int64)
    return block * block_stride + position % PLACES * place_stride


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit(do_not_specialize=["table_width"])
def _tokens_kernel(
    x,  # [T, CHANNELS]
    weight,  # [CHANNELS, WIDTH]
    bias,
    state,  # [blocks, PLACES, CHANNELS, WIDTH − 1]
    tables,  # [S, M]
    slots,
    starts,
    seq_lens,
    counts,
    out,  # [T, CHANNELS]
    x_stride,
    block_stride,
    place_stride,
    table_stride,
    table_width,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes the outputs of up to ``TOKENS`` tokens of one row; grid (tiles of tokens, of channels)."""
    tile = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_channel = channels < CHANNELS
    num_rows, num_tokens = tl.load(counts), tl.load(counts + 2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if tile >= num_tokens // TOKENS + num_rows:
        return
    row, start, length, first = find_tile(tile, starts, 0, 0, num_rows, TOKENS)
    if first >= length:
        return
    position = tl.load(seq_lens + row) - length
    table = tables + tl.load(slots + row).to(tl.int64) * table_stride
    own = first + tl.arange(0, TOKENS)
    if bias is None:
        sums = tl.zeros((TOKENS, BLOCK), tl.float32)
    else:
        sums = tl.zeros((TOKENS, BLOCK), tl.float32) + tl.load(bias + channels, is_channel, other=0.0).to(tl.float32)
    before = state
    if (first < WIDTH - 1) & (position > 0):
        before += state_offset(table, position - 1, block_stride, place_stride, PAGE, PLACES)
    for tap in tl.static_range(WIDTH):
        index = own + tap - (WIDTH - 1)
        in_row = ((index >= 0) & (index < length))[:, None] & is_channel
        values = tl.load(x + ((start + index).to(tl.int64) * x_stride)[:, None] + channels, in_row, other=0.0)
        values = values.to(tl.float32)
        if tap < WIDTH - 1:
            in_state = ((index < 0) & (position > 0))[:, None] & is_channel
            at = before + (index + WIDTH - 1)[:, None] + (channels * (WIDTH - 1))[None, :]
            values += tl.load(at, in_state, other=0.0).to(tl.float32)
        sums += values * tl.load(weight + channels * WIDTH + tap, is_channel, other=0.0).to(tl.float32)
    out_at = out + ((start + own).to(tl.int64) * CHANNELS)[:, None] + channels
    tl.store(out_at, silu(sums).to(out.dtype.element_ty), (own < length)[:, None] & is_channel)


@triton.jit
def _window(before, x, x_stride, token, channels, is_channel, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """The last ``WIDTH − 1`` inputs up to a token of a row that starts at ``x``, after ``before``."""
    taps = tl.arange(0, BLOCK_W)
    index = token - (WIDTH - 2) + taps
    is_tap = (taps < WIDTH - 1)[None, :] & is_channel[:, None]
    at = x + channels[:, None] + (index.to(tl.int64) * x_stride)[None, :]
    window = tl.load(at, is_tap & (index >= 0)[None, :], other=0.0)
    # Inputs before the row: those in the state, moved by the row's tokens up to this one.
    is_source = taps[None, :] == (taps + token + 1)[:, None]
    moved = tl.sum(tl.where(is_source[None, :, :], before[:, None, :], 0.0), 2)
    return tl.where((index < 0)[None, :], moved, window.to(tl.float32))


@triton.jit(do_not_specialize=["table_width"])
def _rows_kernel(
    x,
    weight,
    bias,
    state,
    tables,
    slots,
    starts,
    seq_lens,
    counts,
    out,
    x_stride,
    block_stride,
    place_stride,
    table_stride,
    table_width,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_W: tl.constexpr,
    IS_SHORT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program writes one row's states, and its outputs if ``IS_SHORT``; grid (rows, tiles of channels)."""
    row = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_channel = channels < CHANNELS
    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    seq_len = tl.load(seq_lens + row)
    slot = tl.load(slots + row).to(tl.int64)
    num_rows = tl.load(counts)
    taps = tl.arange(0, BLOCK_W)
    is_tap = (taps < WIDTH - 1)[None, :] & is_channel[:, None]
    if IS_SHORT:
        weights_at = weight + (channels * WIDTH)[:, None] + taps[None, :]
        before_weights = tl.load(weights_at, is_tap, other=0.0).to(tl.float32)
        own_weight = tl.load(weight + channels * WIDTH + WIDTH - 1, is_channel, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if (row >= num_rows) | (length == 0):
        return
    table = tables + slot * table_stride
    position = seq_len - length
    x += start.to(tl.int64) * x_stride
    out += start.to(tl.int64) * CHANNELS
    offsets = (channels * (WIDTH - 1))[:, None] + taps[None, :]
    before = state
    if position > 0:
        last_read = tl.minimum(position, table_width * PAGE) - 1
        before += state_offset(table, last_read, block_stride, place_stride, PAGE, PLACES)
    before = tl.load(before + offsets, is_tap & (position > 0), other=0.0).to(tl.float32)
    # All threads have read the state before one overwrites it.
    tl.debug_barrier()
    last = tl.maximum(length - PLACES, 0)
    # No state is written past the table: a step that runs ahead may reach there, and its results are never read.
    for token in range(PAGE - 1 - position % PAGE, last, PAGE):
        if position + token < table_width * PAGE:
            window = _window(before, x, x_stride, token, channels, is_channel, WIDTH, BLOCK_W)
            at = state + state_offset(table, position + token, block_stride, place_stride, PAGE, PLACES)
            tl.store(at + offsets, window.to(state.dtype.element_ty), is_tap)
    for token in range(last, length):
        if IS_SHORT:
            window = _window(before, x, x_stride, token - 1, channels, is_channel, WIDTH, BLOCK_W)
            own = tl.load(x + token * x_stride + channels, is_channel, other=0.0).to(tl.float32)
            sums = tl.sum(window * before_weights, 1) + own * own_weight
            if bias is not None:
                sums += tl.load(bias + channels, is_channel, other=0.0).to(tl.float32)
            tl.store(out + token * CHANNELS + channels, silu(sums).to(out.dtype.element_ty), is_channel)
        if position + token < table_width * PAGE:
            window = _window(before, x, x_stride, token, channels, is_channel, WIDTH, BLOCK_W)
            at = state + state_offset(table, position + token, block_stride, place_stride, PAGE, PLACES)
            tl.store(at + offsets, window.to(state.dtype.element_ty), is_tap)
