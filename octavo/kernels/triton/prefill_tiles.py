"""From a program's number to its share of the prefill: a row, a tile of its queries, a head.

Row ``r`` (decode rows left out, ``s`` tokens before it) owns the tiles ``[s // TILE + r, …)`` up to the next row's
first: a few more than it needs, which do nothing, but a number is found by one comparison a row instead of a search
over sums. Neighbouring programs share keys: the heads of a group first, then the tiles of the rows, last and so
heaviest first, then the key/value heads.
"""

import triton
import triton.language as tl


@triton.jit
def count_tiles(starts_ptr, counts_ptr, TILE: tl.constexpr):
    """Rows that decode (they come first), rows of the step, and tiles of the others."""
    num_rows = tl.load(counts_ptr)
    num_decode = tl.load(counts_ptr + 1)
    num_tokens = tl.load(starts_ptr + num_rows) - num_decode
    return num_decode, num_rows, num_tokens // TILE + num_rows - num_decode


@triton.jit
def find_tile(tile, starts_ptr, num_decode, num_rows, TILE: tl.constexpr, CHUNK: tl.constexpr = 128):
    """The row of a tile, its first token and its length in this step, and the tile's first token within it."""
    row = num_decode - 1
    for first in range(num_decode, num_rows, CHUNK):
        rows = first + tl.arange(0, CHUNK)
        starts = tl.load(starts_ptr + rows, mask=rows < num_rows, other=2147483647)
        first_tiles = (starts - num_decode) // TILE + (rows - num_decode)
        row += tl.sum(((rows < num_rows) & (first_tiles <= tile)).to(tl.int32))
    start = tl.load(starts_ptr + row)
    length = tl.load(starts_ptr + row + 1) - start
    first_tile = (start - num_decode) // TILE + (row - num_decode)
    return row, start, length, (tile - first_tile) * TILE
