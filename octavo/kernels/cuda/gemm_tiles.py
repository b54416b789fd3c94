"""How the GEMMs of ``gemm.cu`` are divided among thread blocks: the division that takes the fewest cycles.

The rule estimates cycles. For each 128 bytes of K, a step, there are four bounds. The tensor cores multiply 64 rows of
W by one row of ``x`` in two cycles, or nearly. Shared memory is written by TMA, and read by the tensor cores, each row
of W, and each row of ``x`` once per warpgroup. The L2 cache delivers tiles to all multiprocessors. Memory delivers W,
some of it again where blocks with other rows of ``x`` read it by themselves.

The constants fit 621 timings of 131 GEMMs of Qwen3 0.6B and 8B with 32 to 512 rows on an H100 and an H200: what the
rule chooses is 0.4 % slower than the best division that was timed, on average.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

GROUP_WEIGHTS = 64
"""Rows of W of a warpgroup; with a gate, every other eight are the gate's."""
MIN_ROWS, MAX_ROWS = 17, 512
"""With fewer rows of ``x``, kernels that read it from registers are faster; with more, the library is."""

_MANY_ROWS, _LARGE_WEIGHT = 256, 32 << 20
"""With more rows, the library multiplies weights of so many bytes as fast, without a gate."""

_SLICE_TILES = 8
"""Of 256 rows: they stay in the L2 cache while all of W passes."""
_GATE_FEATURES = 231
"""Multiplied while a launch of its own would move a gate's values, on an H200: 6 bytes of an output at 4.35 TB/s, 4
operations of a feature at 670 TFLOP/s."""
_LEAST_FILLED = 0.95
"""What many rows fill of the multiprocessors' time, times what a gate adds: with less, the library is faster."""

_ROWS = (32, 64, 128, 192, 256)
"""Of a tile; numbers of rows up to the same one of these are divided alike."""
STEP_BYTES = 128
"""Of K, in a stage of the ring."""
SHARED_BYTES = 227 << 10
_MAX_STAGES = 10
_MAX_ROW_GROUPS = 4
"""That each read W."""
_LARGE_CLUSTERS = 10 / 11
"""The part of the multiprocessors that clusters of four can have; those of two can have all."""

_MULTIPLY_CYCLES = 2.2
"""Of a warpgroup, for 64 rows of W by one row of ``x``."""
_LONE_GROUP = 1.1
"""Warpgroups that take as long as one, which has no other that multiplies while it waits."""
_SHARED_CYCLES = 0.69
"""For one row in shared memory."""
_L2_RATE = 9300
"""Bytes a cycle, of all multiprocessors."""
_MEMORY_RATE = 1780
"""The same of an H100's memory."""
_READ_AGAIN = 0.33
"""The part of W that memory delivers once more for each further group of rows."""
_IDLE = 0.09
"""How much longer memory takes to deliver W if nearly all multiprocessors were idle."""
_SHARE_CYCLES = 150
"""Of waiting for the other block that reads the same rows of W."""
_MERGE_RATE = 12
"""Bytes a cycle that one multiprocessor sends to others of its cluster."""
_MERGE_CYCLES = 70
"""Of waiting for the sums of another part."""
_STEP_CYCLES = 80
"""Of waiting for and releasing a stage."""
_OUTPUT_CYCLES = 0.18
"""Of writing one output."""


@dataclass(frozen=True, slots=True)
class GemmTile:
    """A division of a GEMM.

    Attributes:
        num_groups: warpgroups of a block that multiply, one to three.
        num_rows: rows of ``x`` in a tile: 32, 64, 128, 192 or 256.
        num_stages: depth of a block's ring.
        share_w: blocks of a cluster that multiply the same rows of W.
        num_parts: blocks of a cluster that each sum a part of K; more than one only if each has a single tile.
        num_clusters: clusters that share the tiles of the same rows of ``x``.
    """

    num_groups: int
    num_rows: int
    num_stages: int
    share_w: int
    num_parts: int
    num_clusters: int

    @property
    def num_weights(self) -> int:
        """Rows of W in a tile; a gate and its up projection have half of them each."""
        return self.num_groups * GROUP_WEIGHTS

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return self.share_w * self.num_parts

    @property
    def num_threads(self) -> int:
        """Of a block, with the warpgroup that loads."""
        return (self.num_groups + 1) * 128

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        ring = self.num_stages * STEP_BYTES * (self.num_weights + self.num_rows)
        return ring + _fixed_bytes(self.num_groups, self.num_rows) + _BARRIER_BYTES * self.num_stages

    def num_row_groups(self, num_rows: int) -> int:
        """Groups of tiles of ``x`` that share W."""
        return math.ceil(num_rows / (self.num_rows * self.share_w))

    def num_tile_rows(self, num_rows: int) -> int:
        """Rows of ``x`` that a block loads: as many for all tiles, so that none has to be filled up."""
        return math.ceil(num_rows / (self.num_row_groups(num_rows) * self.share_w))

    def num_weight_tiles(self, num_weights: int) -> int:
        """Tiles of W."""
        return math.ceil(num_weights / self.num_weights)

    def num_blocks(self, num_rows: int) -> int:
        """Blocks of a launch."""
        return self.cluster_size * self.num_clusters * self.num_row_groups(num_rows)

    def can_meet(self, num_rows: int, num_weights: int, num_sms: int) -> bool:
        """Whether all blocks of a launch surely run at once, with one tile each, so that they can wait for each other.

        Clusters of two can have all multiprocessors, those of four cannot everywhere.
        """
        has_one = self.num_clusters == self.num_weight_tiles(num_weights)
        return has_one and self.cluster_size <= 2 and self.num_blocks(num_rows) <= num_sms


_BARRIER_BYTES = 16
"""Of a stage's two."""
Tile = TypeVar("Tile", bound=GemmTile)


def _fixed_bytes(num_groups: int, num_rows: int) -> int:
    """Scales and largest outputs of rows, and barriers for sums in parts."""
    return 8 * num_rows + 8 * (1 + num_groups)


@dataclass(frozen=True, slots=True)
class SlicedTile(GemmTile):
    """A division of a GEMM of many rows, without clusters: blocks share all pairs of a tile of ``x`` and one of W.

    Attributes:
        num_clusters: blocks.
        slice_tiles: tiles of ``x`` that meet all of W before the next ones do, so that they stay in the L2 cache.
    """

    slice_tiles: int

    def num_blocks(self, num_rows: int) -> int:
        """Blocks of a launch."""
        return self.num_clusters


def choose_tile(
    num_rows: int, num_weights: int, num_features: int, *, is_gated: bool, is_float8: bool, num_sms: int
) -> GemmTile | None:
    """The division of a GEMM; None if another kernel is faster.

    Args:
        num_weights: rows of W, those of a gate and its up projection if there is one.
        num_features: K, which has at least 128 bytes.
    """
    if num_rows > MAX_ROWS and is_gated and not is_float8:
        return _sliced_tile(num_rows, num_weights, num_features, num_sms)
    if not MIN_ROWS <= num_rows <= MAX_ROWS:
        return None
    num_bytes = num_weights * num_features * (1 if is_float8 else 2)
    if num_rows > _MANY_ROWS and not is_gated and num_bytes >= _LARGE_WEIGHT:
        return None
    # Steps of an engine are padded to few numbers of rows: sums of all these are divided alike.
    num_rows = next((most for most in _ROWS if num_rows <= most), math.ceil(num_rows / 128) * 128)
    num_steps = math.ceil(num_features * (1 if is_float8 else 2) / STEP_BYTES)
    return _fastest_tile(num_rows, num_weights, num_steps, is_gated, num_sms)


def _sliced_tile(num_rows: int, num_weights: int, num_features: int, num_sms: int) -> SlicedTile | None:
    """The largest tile; a gate saves the launch that would read all of the sums again."""
    tile = SlicedTile(3, _ROWS[-1], 4, 1, 1, num_sms, _SLICE_TILES)
    num_tiles = tile.num_row_groups(num_rows) * tile.num_weight_tiles(num_weights)
    num_at_once = num_sms * tile.num_rows * tile.num_weights
    filled = num_rows * num_weights / (math.ceil(num_tiles / num_sms) * num_at_once)
    return tile if filled * (1 + _GATE_FEATURES / num_features) >= _LEAST_FILLED else None


@functools.cache
def _fastest_tile(num_rows: int, num_weights: int, num_steps: int, is_gated: bool, num_sms: int) -> GemmTile:
    found = divisions(_deepest_tile, num_rows, num_weights, num_steps, is_gated=is_gated, num_sms=num_sms)
    return min(found, key=lambda tile: _cycles(tile, num_rows, num_weights, num_steps, num_sms))


def _deepest_tile(num_groups: int, num_rows: int, share_w: int, num_parts: int) -> GemmTile | None:
    """A tile with as many stages as fit; None if sums have no registers."""
    if num_groups * num_rows >= 3 * 256 and share_w * num_parts > 1:
        return None
    stage_bytes = STEP_BYTES * (num_groups * GROUP_WEIGHTS + num_rows) + _BARRIER_BYTES
    num_stages = min((SHARED_BYTES - _fixed_bytes(num_groups, num_rows)) // stage_bytes, _MAX_STAGES)
    return GemmTile(num_groups, num_rows, num_stages, share_w, num_parts, 1)


def divisions(
    make_tile: Callable[[int, int, int, int], Tile | None],
    num_rows: int,
    num_weights: int,
    num_steps: int,
    *,
    is_gated: bool,
    num_sms: int,
) -> Iterator[Tile]:
    """All divisions that a kernel has.

    Args:
        make_tile: the tile, of one cluster, for a number of warpgroups, of rows, of blocks that share W and of parts;
            None if there is none.
        num_rows: of ``x``.
        num_steps: that can be parted.
    """
    for groups, rows in itertools.product((1, 2, 3), _ROWS):
        for share_w, parts in ((1, 1), (2, 1), (1, 2), (1, 4)):
            tile = make_tile(groups, rows, share_w, parts)
            if (
                tile is not None
                and rows <= num_rows
                and rows * share_w <= 1 << (num_rows - 1).bit_length()
                and tile.num_row_groups(num_rows) <= _MAX_ROW_GROUPS
                and parts <= num_steps
                and _merges(tile, is_gated)
            ):
                num_clusters = _num_clusters(tile, num_rows, num_weights, num_sms)
                if parts == 1 or num_clusters == tile.num_weight_tiles(num_weights):
                    yield replace(tile, num_clusters=num_clusters)


def _merges(tile: GemmTile, is_gated: bool) -> bool:
    """Whether a block can write a part of the rows, and its ring for ``x`` take in the other parts' sums of these."""
    own_rows = tile.num_rows // tile.num_parts
    received = 4 * tile.num_weights * own_rows * (tile.num_parts - 1)
    is_written = own_rows % 32 == 0 or (own_rows <= 16 and not is_gated)
    return is_written and received <= tile.num_stages * STEP_BYTES * tile.num_rows


def capacity(tile: GemmTile, num_sms: int) -> int:
    """Clusters that run at once, of one block a multiprocessor."""
    usable = num_sms if tile.cluster_size <= 2 else int(num_sms * _LARGE_CLUSTERS)
    return max(usable // tile.cluster_size, 1)


def _num_clusters(tile: GemmTile, num_rows: int, num_weights: int, num_sms: int) -> int:
    """For each group of rows, so that all have the same number of tiles, or nearly."""
    num_tiles = tile.num_weight_tiles(num_weights)
    at_once = max(capacity(tile, num_sms) // tile.num_row_groups(num_rows), 1)
    return math.ceil(num_tiles / math.ceil(num_tiles / at_once))


def _cycles(tile: GemmTile, num_rows: int, num_weights: int, num_steps: int, num_sms: int) -> float:
    """An estimate for the whole GEMM."""
    groups, weights, rows = tile.num_groups, tile.num_weights, tile.num_rows
    row_groups, num_blocks = tile.num_row_groups(num_rows), tile.num_blocks(num_rows)
    num_tiles = math.ceil(tile.num_weight_tiles(num_weights) / tile.num_clusters)  # of a block
    # More clusters than run at once wait for others.
    num_rounds = num_tiles * math.ceil(tile.num_clusters * row_groups / capacity(tile, num_sms))
    # The kernel has sums of three warpgroups by 256 rows in two halves, which read W twice.
    reads = 2 if groups == 3 and rows == 256 else 1
    own_weights = STEP_BYTES * weights * tile.num_parts * tile.num_clusters
    again = (1 + _READ_AGAIN * (row_groups - 1)) * (1 + _IDLE * (1 - min(num_blocks / num_sms, 1)))
    step = _STEP_CYCLES + max(
        _MULTIPLY_CYCLES * max(groups, _LONE_GROUP) * rows,
        _SHARED_CYCLES * (weights + rows + reads * weights + groups * rows),
        STEP_BYTES * (weights / tile.share_w + rows) * num_blocks / _L2_RATE,
        own_weights * again / _MEMORY_RATE,
    )
    outputs = weights * rows / tile.num_parts
    wait = _SHARE_CYCLES * (tile.share_w - 1) + (tile.num_parts - 1) * (_MERGE_CYCLES + 4 * outputs / _MERGE_RATE)
    return num_rounds * (math.ceil(num_steps / tile.num_parts) * step + outputs * _OUTPUT_CYCLES) + wait
