"""Tiles of :mod:`prefill_hopper`: the producer warp finds them and posts them to consumers through shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def count_tiles(starts_ptr, counts_ptr, TILE: gl.constexpr):
    """As ``prefill_tiles.count_tiles``."""
    num_rows = gl.load(counts_ptr)
    num_decode = gl.load(counts_ptr + 1)
    skipped = gl.load(starts_ptr + num_decode)
    num_tokens = gl.load(starts_ptr + num_rows) - skipped
    return num_decode, skipped, num_rows, num_tokens // TILE + num_rows - num_decode


@gluon.jit
def find_tile(tile, starts_ptr, num_decode, skipped, num_rows, TILE: gl.constexpr):
    """``prefill_tiles.find_tile`` for one warp: row, its first token and length, the tile's first token."""
    chunk: gl.constexpr = 128
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    row = num_decode - 1
    for first in range(num_decode, num_rows, chunk):
        rows = first + gl.arange(0, chunk, layout=layout)
        starts = gl.load(starts_ptr + rows, mask=rows < num_rows, other=2147483647)
        first_tiles = (starts - skipped) // TILE + (rows - num_decode)
        row += gl.sum(((rows < num_rows) & (first_tiles <= tile)).to(gl.int32), axis=0)
    start = gl.load(starts_ptr + row)
    length = gl.load(starts_ptr + row + 1) - start
    first_tile = (start - skipped) // TILE + (row - num_decode)
    return row, start, length, (tile - first_tile) * TILE


@gluon.jit
def key_range(first_position, seq_len, window, WINDOW: gl.constexpr, TILE: gl.constexpr, BLOCK_N: gl.constexpr):
    """A tile's first visible key, the end of its keys, and the first and last of its blocks of keys."""
    first_key = gl.maximum(first_position - window + 1, 0) if WINDOW else first_position * 0
    end_key = gl.minimum(first_position + TILE, seq_len)
    return first_key, end_key, first_key // BLOCK_N, (end_key - 1) // BLOCK_N


@gluon.jit
def post_tile(board, number, start, length, seq_len, first_query, head):
    """Post the next tile to the consumers; a length of zero ends their work."""
    notes, full, empty = board
    slot = number % 2
    mbarrier.wait(empty.index(slot), (number // 2 & 1) ^ 1)
    blank = gl.zeros([1], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
    notes.index(slot * 5).store(blank + start)
    notes.index(slot * 5 + 1).store(blank + length)
    notes.index(slot * 5 + 2).store(blank + seq_len)
    notes.index(slot * 5 + 3).store(blank + first_query)
    notes.index(slot * 5 + 4).store(blank + head)
    mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def read_tile(board, number):
    """Read a posted tile: the row's first token, length and sequence length, the tile's first token, the head."""
    notes, full, empty = board
    slot = number % 2
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(full.index(slot), number // 2 & 1)
    start = gl.max(notes.index(slot * 5).load(layout), axis=0)
    length = gl.max(notes.index(slot * 5 + 1).load(layout), axis=0)
    seq_len = gl.max(notes.index(slot * 5 + 2).load(layout), axis=0)
    first_query = gl.max(notes.index(slot * 5 + 3).load(layout), axis=0)
    head = gl.max(notes.index(slot * 5 + 4).load(layout), axis=0)
    mbarrier.arrive(empty.index(slot), count=1)
    return start, length, seq_len, first_query, head
