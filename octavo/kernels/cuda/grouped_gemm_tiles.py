"""How the GEMMs of ``grouped_gemm.cu`` are divided among thread blocks: the division that takes the fewest cycles.

See :mod:`.gemm_tiles`, whose divisions these are. Two rings share a block's memory, and warpgroups unpack what they
multiply.

The constants fit 90 timings of Qwen3-8B's GEMMs with 32 to 256 rows on an H200, with a root mean square error of 7 %.
For each of the 16 GEMMs the rule chooses the fastest division; at 256 rows, where power is limited, gate and up and
down take what is fastest under sustained load.
"""

import functools
import math
from dataclasses import dataclass, replace

from octavo.kernels.cuda.gemm_tiles import SHARED_BYTES, GemmTile, capacity, divisions

UNIT = 128
"""Inputs of a stage of codes, of which a weight has whole ones."""
MIN_ROWS, MAX_ROWS = 17, 256
"""With fewer rows of ``x``, the kernel that keeps them in shared memory is faster; more were not timed."""

_FEW_ROWS, _MANY_FEATURES = 32, 8192
"""So few rows of more features are left to a kernel whose programs share sums (stream-K)."""

_STEP_BYTES = 128
"""Of a row of ``x``, in a stage of its ring: half a unit."""
_WEIGHT_BYTES = UNIT // 2 + 4
"""Of a row of W, in a stage of its ring: codes, scale and zero."""
_BARRIER_BYTES = 16
"""Of a stage's two."""
_MAX_STAGES = 20
_ROWS = (32, 64, 128, 192, 256)

_MULTIPLY_CYCLES = 3.2
"""Of a warpgroup, for 64 rows of W by one row of ``x``, a unit of each."""
_UNPACK_CYCLES = 285
"""Of a warpgroup, for 64 rows of W."""
_SERIAL = 0.19
"""The part of both that does not overlap with others."""
_L2_RATE = 8700
"""Bytes a cycle, of all multiprocessors."""
_MEMORY_RATE = 1570
_READ_AGAIN = 0.56
"""The part of W that memory delivers once more for each further group of rows."""
_SHARE_CYCLES = 150
"""Of waiting for the other block that reads the same rows of W."""
_MERGE_RATE = 16
"""Bytes a cycle that one multiprocessor sends to others of its cluster."""
_MERGE_CYCLES = 230
"""Of waiting for the sums of another part."""
_UNIT_CYCLES = 310
"""Of waiting for and releasing stages."""
_OUTPUT_CYCLES = 0.2
"""Of writing one output."""


@dataclass(frozen=True, slots=True)
class GroupedTile(GemmTile):
    """A division of a GEMM with packed weights.

    Attributes:
        num_stages: depth of the ring of ``x``.
        num_code_stages: depth of the ring of codes.
    """

    num_code_stages: int

    @classmethod
    def deepest(cls, num_groups: int, num_rows: int, share_w: int, num_parts: int) -> "GroupedTile | None":
        """A tile of one cluster, whose rings are as deep as they fit; None if sums have no registers."""
        if num_groups * num_rows >= 3 * 256 and share_w * num_parts > 1:
            return None
        num_stages = _MAX_STAGES
        while True:
            tile = cls(num_groups, num_rows, num_stages, share_w, num_parts, 1, (num_stages + 1) // 2)
            if tile.shared_bytes <= SHARED_BYTES:
                break
            num_stages -= 1
        # What is left, codes take.
        left = (SHARED_BYTES - tile.shared_bytes) // (tile.num_weights * _WEIGHT_BYTES + _BARRIER_BYTES)
        return replace(tile, num_code_stages=tile.num_code_stages + min(left, 1))

    @property
    def chunk(self) -> int:
        """Slices of 16 inputs that a warpgroup unpacks at a time; a lone one waits less often."""
        if self.num_groups * self.num_rows >= 3 * 256:
            return 1
        return 4 if self.num_groups == 1 else 2

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        x_stage = self.num_rows * _STEP_BYTES + _BARRIER_BYTES
        code_stage = self.num_weights * _WEIGHT_BYTES + _BARRIER_BYTES
        staging = self.num_groups * min(self.num_rows // self.num_parts, 64) * 128  # of rows that are written at once
        fixed = staging + 4 * self.num_rows + 8 * (1 + self.num_groups)
        return self.num_stages * x_stage + self.num_code_stages * code_stage + fixed


def choose_tile(
    num_rows: int, num_weights: int, num_features: int, *, is_gated: bool, num_sms: int
) -> GroupedTile | None:
    """The division of a GEMM; None if another kernel is faster.

    Args:
        num_weights: rows of W, those of a gate and its up projection if there is one.
        num_features: K, a multiple of :data:`UNIT`.
    """
    if not MIN_ROWS <= num_rows <= MAX_ROWS or (num_rows <= _FEW_ROWS and num_features > _MANY_FEATURES):
        return None
    # Steps of an engine are padded to few numbers of rows: sums of all these are divided alike.
    num_rows = next(most for most in _ROWS if num_rows <= most)
    return _fastest_tile(num_rows, num_weights, num_features // UNIT, is_gated, num_sms)


@functools.cache
def _fastest_tile(num_rows: int, num_weights: int, num_units: int, is_gated: bool, num_sms: int) -> GroupedTile:
    found = divisions(GroupedTile.deepest, num_rows, num_weights, num_units, is_gated=is_gated, num_sms=num_sms)
    return min(found, key=lambda tile: _cycles(tile, num_rows, num_weights, num_units, num_sms))


def _cycles(tile: GroupedTile, num_rows: int, num_weights: int, num_units: int, num_sms: int) -> float:
    """An estimate for the whole GEMM."""
    weights, rows = tile.num_weights, tile.num_rows
    row_groups, num_blocks = tile.num_row_groups(num_rows), tile.num_blocks(num_rows)
    num_tiles = math.ceil(tile.num_weight_tiles(num_weights) / tile.num_clusters)  # of a block
    # More clusters than run at once wait for others.
    num_rounds = num_tiles * math.ceil(tile.num_clusters * row_groups / capacity(tile, num_sms))
    multiply = _MULTIPLY_CYCLES * tile.num_groups * rows
    unpack = _UNPACK_CYCLES * tile.num_groups
    loaded = _WEIGHT_BYTES * weights / tile.share_w + 2 * _STEP_BYTES * rows  # by a block
    read = _WEIGHT_BYTES * weights * tile.num_parts * tile.num_clusters * (1 + _READ_AGAIN * (row_groups - 1))
    bound = max(multiply, unpack, loaded * num_blocks / _L2_RATE, read / _MEMORY_RATE)
    unit = _UNIT_CYCLES + bound + _SERIAL * (multiply + unpack)
    outputs = weights * rows / tile.num_parts
    wait = _SHARE_CYCLES * (tile.share_w - 1) + (tile.num_parts - 1) * (_MERGE_CYCLES + 4 * outputs / _MERGE_RATE)
    return num_rounds * (math.ceil(num_units / tile.num_parts) * unit + outputs * _OUTPUT_CYCLES) + wait
