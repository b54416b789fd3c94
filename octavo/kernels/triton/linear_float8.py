"""Tiles of the float8 (e4m3) GEMMs that :mod:`.linear_specialised` multiplies."""

import functools
import math

from octavo.kernels.triton.linear_specialised import BLOCK, MAX_ROWS, SpecialisedTile

MAX_BLOCK_ROWS = 128
"""With more rows and scales by block, the library is faster."""
_MAX_BLOCK_TILE_ROWS = 64
"""With more rows of a tile, a warpgroup has no registers for sums of two steps, so that its MMAs wait for additions."""
_RING_BYTES = 208 << 10
_BUSY = 0.45
"""The part of the multiprocessors whose reads take up the memory's bandwidth."""
_MAX_PARTS = 8
_LEAST_FEATURES = 512
"""Of a part of a sum."""


@functools.cache
def choose_tile(
    num_rows: int, num_weights: int, num_features: int, *, num_sms: int, by_block: bool = False
) -> SpecialisedTile | None:
    """The tile for a GEMM, or None if it would not be fast; the rule is that of an H100's and an H200's best tiles.

    Args:
        num_weights: weight rows, those of a gate and its up projection if there is one.
        by_block: whether scales are those of blocks of 128 × 128, so that a step has 128 features.
    """
    if not 0 < num_rows <= (MAX_BLOCK_ROWS if by_block else MAX_ROWS):
        return None
    if num_rows <= 64:
        num_rows = max(1 << (num_rows - 1).bit_length(), 16)  # so that sums of all these are divided alike
    least, most = min(num_rows, 32), 1 << (num_rows - 1).bit_length()
    most = min(most, _MAX_BLOCK_TILE_ROWS) if by_block else most
    sizes = [(groups, rows) for groups in (1, 2, 3) for rows in (16, 32, 64, 128, 256) if least <= rows <= most]

    def num_tiles(size: tuple[int, int]) -> int:
        groups, rows = size
        return -(-num_weights // (groups * BLOCK)) * -(-num_rows // rows)

    def cost(size: tuple[int, int]) -> tuple[int, int]:
        """What a multiprocessor loads, in tile rows of one step; then how often weights are."""
        groups, rows = size
        return -(-num_tiles(size) // num_sms) * (groups * BLOCK + rows), -rows

    groups, rows = size = min(sizes, key=cost)
    tiles = num_tiles(size)
    num_parts = max(min(math.ceil(_BUSY * num_sms / tiles), num_features // _LEAST_FEATURES, _MAX_PARTS), 1)
    num_programs = -(-tiles // -(-tiles // num_sms)) * num_parts
    row_bytes = groups * BLOCK + rows
    # Large stages have few barriers; small ones are needed where three large ones do not fit.
    num_columns = 256 if 3 * 256 * row_bytes <= _RING_BYTES and not by_block else 128
    num_stages = min(_RING_BYTES // (num_columns * row_bytes), max(-(-num_features // (num_columns * num_parts)), 2))
    return SpecialisedTile(groups, rows, num_columns, num_stages, num_programs, num_parts)
