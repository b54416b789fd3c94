"""Tiles of the GEMMs of :mod:`.grouped_hopper`, and how programs share them."""

from dataclasses import dataclass

from octavo.kernels.grouped import GroupedTensors

STEP = 128
"""Input features per stage of the ring: a unit of packed codes."""
BLOCK = 64
"""Weight rows of a warpgroup; with a gate, half of them are the gate's."""
MAX_ROWS = 1024
"""Beyond this M, dequantising the weight for the vendor's library takes less time than unpacking it for each tile."""

_RING_BYTES = 226 << 10
"""Shared memory of a multiprocessor for the rings of its programs."""
_BUSY = 0.88
"""The part of the device that is busy from which whole tiles, or equal parts, take less time than uneven parts."""


@dataclass(frozen=True, slots=True)
class HopperTile:
    """A program's tile and pipeline.

    Attributes:
        num_groups: warpgroups that unpack and multiply, one to three; with one, two programs share a multiprocessor.
        num_rows: rows of ``x``.
        num_stages: depth of the ring.
        num_programs: among which the steps of all tiles are divided.
        is_scaled: whether weights are multiplied by their scales before the product, or else sums after it.
    """

    num_groups: int
    num_rows: int
    num_stages: int
    num_programs: int
    is_scaled: bool

    @property
    def num_weights(self) -> int:
        """Weight rows; a gate and its up projection have half of them each."""
        return self.num_groups * BLOCK


def choose_tile(weight: GroupedTensors, num_rows: int, num_sms: int) -> HopperTile | None:
    """The tile for a GEMM, or None if another way is faster; tuned on an H200.

    Args:
        weight: one that has terms; see :func:`octavo.kernels.triton.grouped_terms.kind_of`.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    num_channels, num_steps = len(weight.codes), weight.num_inputs // STEP
    rows = min(max(1 << (num_rows - 1).bit_length(), 32), 128)
    row_tiles = -(-num_rows // rows)
    num_slots = num_sms
    # Three warpgroups read ``x`` least often, but need whole tiles: to add up parts of such tiles takes long.
    if _fills(_whole_waves(-(-num_channels // (3 * BLOCK)) * row_tiles, num_sms), num_sms):
        num_groups, num_stages = 3, 5 if rows == 32 else 4
    elif rows == 32:
        num_groups, num_stages, num_slots = 1, 6, 2 * num_sms
    else:
        num_groups, num_stages = 2, 6 if rows == 64 else 4
    row_bytes = STEP * weight.bits // 8 + 4 * max(STEP // weight.group, 1)
    stage_bytes = num_groups * BLOCK * row_bytes + rows * STEP * 2
    most = 6 if weight.bits == 8 else num_stages
    num_stages = min(_RING_BYTES * num_sms // num_slots // stage_bytes, most)
    num_tiles = -(-num_channels // (num_groups * BLOCK)) * row_tiles
    num_programs = _choose_programs(num_tiles, num_steps, num_slots)
    return HopperTile(num_groups, rows, num_stages, num_programs, is_scaled=rows > 64)


def _choose_programs(num_tiles: int, num_steps: int, num_slots: int) -> int:
    """Programs with whole tiles or equal parts of one, if they keep the device busy; else as many as fit.

    A program has at least four steps, if its tile has.
    """
    most = num_tiles * max(num_steps // 4, 1)
    if num_tiles > num_slots:
        even = _whole_waves(num_tiles, num_slots)
    else:
        even = min(num_slots // num_tiles * num_tiles, most)
    return even if _fills(even, num_slots) else min(num_slots, most)


def _whole_waves(num_tiles: int, num_slots: int) -> int:
    """The programs that have equally many of the tiles, or one less."""
    return -(-num_tiles // -(-num_tiles // num_slots))


def _fills(num_programs: int, num_slots: int) -> bool:
    return num_programs >= _BUSY * num_slots


def workspace_size(num_rows: int, num_weights: int, tile: HopperTile) -> tuple[int, int]:
    """Number of float32 values and of counters that the programs share."""
    num_tiles = -(-num_weights // tile.num_weights) * -(-num_rows // tile.num_rows)
    if num_tiles % tile.num_programs == 0:
        return 0, 0
    return 2 * tile.num_programs * tile.num_weights * tile.num_rows, num_tiles * tile.num_groups
