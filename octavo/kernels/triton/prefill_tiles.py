"""Maps a program's index to its part of a step: a row, a tile of its queries, a head.

Row ``r`` (``s`` tokens precede it, decode rows not counted) owns the tiles from ``s // TILE + r`` up to the next row's
first. This may be one more than it needs (it does nothing), but the row of a tile is found with one comparison
per row instead of a search over prefix sums. Neighbouring programs share keys: the index runs first over the heads of a
group and of ``heads_at_once`` key/value heads, then over tiles from the last (the most keys, so the most work) to the
first, then over further key/value heads.
"""

import triton
import triton.language as tl

_FEW_TILES = 24
"""Tiles per multiprocessor below which taking them by size gains more than keeping one head's keys in the L2 cache."""


def choose_heads_at_once(num_tiles: int, num_kv_heads: int, group: int, num_sms: int, is_fresh: bool) -> int:
    """Key/value heads whose tiles are taken together: all if tiles are few, so that none of the largest starts last.

    Args:
        num_tiles: of one head, over all rows.
        is_fresh: every chunk starts at position 0. Behind a cached prefix, tiles differ less and have more keys.
    """
    is_few = num_tiles * num_kv_heads * group < _FEW_TILES * num_sms
    return num_kv_heads if is_fresh and is_few else 1


_QUEUED_TILES = 2
"""Tiles per multiprocessor, of those that one row has in the heads taken together, with which a queue balances work."""


def choose_queued_heads(
    num_tiles: int, num_rows: int, num_kv_heads: int, group: int, num_sms: int, is_fresh: bool
) -> int:
    """The same if programs take tiles from a queue: as few as balance work, so that their keys stay in the L2 cache."""
    if not is_fresh:
        return 1
    row_tiles = num_tiles * group
    for heads in range(1, num_kv_heads):
        if num_kv_heads % heads == 0 and row_tiles * heads >= _QUEUED_TILES * num_sms * num_rows:
            return heads
    return num_kv_heads


@triton.jit
def count_tiles(starts_ptr, counts_ptr, TILE: tl.constexpr):
    """Number of decode rows (they come first) and of their tokens, of all rows, and of tiles of the other rows."""
    num_rows = tl.load(counts_ptr)
    num_decode = tl.load(counts_ptr + 1)
    skipped = tl.load(starts_ptr + num_decode)
    num_tokens = tl.load(starts_ptr + num_rows) - skipped
    return num_decode, skipped, num_rows, num_tokens // TILE + num_rows - num_decode


@triton.jit
def split_index(index, num_tiles, heads_at_once, GROUP_PROGRAMS: tl.constexpr):
    """The tile, key/value head and place in its group of a program's index."""
    tile_programs = heads_at_once * GROUP_PROGRAMS
    first_head = index // (num_tiles * tile_programs) * heads_at_once
    tile = num_tiles - 1 - index % (num_tiles * tile_programs) // tile_programs
    program = index % tile_programs
    return tile, first_head + program // GROUP_PROGRAMS, program % GROUP_PROGRAMS


@triton.jit
def find_row(token, starts_ptr, num_decode, num_rows, CHUNK: tl.constexpr = 128):
    """The row of a token of the step; decode rows, which come first, have one token each."""
    row = token
    if token >= num_decode:
        row = num_decode - 1
        for first in range(num_decode, num_rows, CHUNK):
            rows = first + tl.arange(0, CHUNK)
            starts = tl.load(starts_ptr + rows, mask=rows < num_rows, other=2147483647)
            row += tl.sum((starts <= token).to(tl.int32))
    return row


@triton.jit
def find_tile(tile, starts_ptr, num_decode, skipped, num_rows, TILE: tl.constexpr, CHUNK: tl.constexpr = 128):
    """The row of a tile, its first token and its length in this step, and the tile's first token within it."""
    row = num_decode - 1
    for first in range(num_decode, num_rows, CHUNK):
        rows = first + tl.arange(0, CHUNK)
        starts = tl.load(starts_ptr + rows, mask=rows < num_rows, other=2147483647)
        first_tiles = (starts - skipped) // TILE + (rows - num_decode)
        row += tl.sum(((rows < num_rows) & (first_tiles <= tile)).to(tl.int32))
    start = tl.load(starts_ptr + row)
    length = tl.load(starts_ptr + row + 1) - start
    first_tile = (start - skipped) // TILE + (row - num_decode)
    return row, start, length, (tile - first_tile) * TILE
