"""Tile sizes and split-K of the GEMMs in :mod:`linear_kernel`; tuned on an H200 (132 multiprocessors).

Terms: M rows of the batch, N output channels, K input features; a *part* is a slice of K.
"""

from dataclasses import dataclass
from typing import Literal

WIDE_CHANNELS = 1 << 16
"""From this N on (a vocabulary), there are enough programs without splitting K."""

WIDE_ROWS = 32
"""Up to this M, such a wide GEMM is faster here than in the vendor's library."""

SMALL_ROWS = 64
MAX_ROWS = 256
"""Rows up to which a program has small tiles, and up to which each part of a sum may have its own program."""

PART_UNIT = 128
"""Part boundaries are multiples of this number of input features."""

MAX_PARTS = 16

_PREFETCH = 65536


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """The tiles of one GEMM.

    Attributes:
        block_m, block_n, block_k: batch rows, output channels and input features of a program's tile.
        num_parts: parts of the sum over the input features (split-K).
        mode: "one" part; "split": one program per part; "whole": one program adds all parts, in the same order.
        num_stages, num_warps: depth of the load pipeline; warps per program.
        use_descriptors: load tiles through TMA descriptors instead of per-thread pointers.
        prefetch_bytes: bytes of its weights that a program prefetches before it waits for earlier kernels.
    """

    block_m: int
    block_n: int
    block_k: int
    num_parts: int
    mode: Literal["one", "split", "whole"]
    num_stages: int
    num_warps: int
    use_descriptors: bool
    prefetch_bytes: int

    def grid(self, num_rows: int, num_channels: int) -> tuple[int, int, int]:
        """Programs: tiles of channels, programs per tile, tiles of rows."""
        num_programs = self.num_parts if self.mode == "split" else 1
        return -(-num_channels // self.block_n), num_programs, -(-num_rows // self.block_m)

    def workspace(self, num_rows: int, num_channels: int, *, is_gated: bool) -> tuple[int, int]:
        """Number of float32 values and of counters that the programs share."""
        if self.mode != "split":
            return 0, 0
        tiles_n, _, tiles_m = self.grid(num_rows, num_channels)
        num_factors = 2 if is_gated else 1
        return self.num_parts * num_factors * num_rows * tiles_n * self.block_n, tiles_n * tiles_m


def choose_plan(
    num_rows: int, num_channels: int, num_features: int, *, is_gated: bool, is_deterministic: bool, num_sms: int
) -> LinearPlan | None:
    """The plan for a wide or a deterministic GEMM, or None if the vendor's library is faster.

    The parts of a sum are the same for every number of rows, and so are the bits of a row.

    Args:
        num_channels: outputs per row, after the gate if there is one.
        is_deterministic: never use the library, whose sums depend on the number of rows.
    """
    if not is_deterministic and num_rows > WIDE_ROWS:
        return None
    num_parts = _parts(num_channels, num_features, num_sms)
    if num_rows > MAX_ROWS:
        mode: Literal["one", "split", "whole"] = "whole" if num_parts > 1 else "one"
        block_n = 64 if is_gated else 128
        return LinearPlan(128, block_n, 64, num_parts, mode, 4, 8, use_descriptors=False, prefetch_bytes=0)
    if num_parts == 1:
        return _plan_of_one_part(num_rows, is_gated=is_gated)
    # Split K only if there are too few tiles to fill the device and K is long: combining the parts has a cost, too.
    num_tiles = -(-num_channels // 64)
    few = 2 * num_sms // 3
    if num_rows <= 32 or (num_rows <= SMALL_ROWS and num_tiles < few // 2 and num_features > 1024):
        return _plan_of_few_rows(num_rows, num_parts, is_gated=is_gated)
    if num_rows <= 128 and num_features > 8192:
        block_m, block_k, num_stages = (64, 128, 3) if num_rows <= SMALL_ROWS else (128, 64, 6)
        return LinearPlan(
            block_m, 128, block_k, num_parts, "split", num_stages, 4, use_descriptors=True, prefetch_bytes=_PREFETCH
        )
    block_m, block_n, block_k, num_stages, num_warps = 64, 64, 128, 4, 4
    if num_rows <= 128 and num_tiles < few // 2:
        block_m = 32
    elif num_rows > 64 and num_tiles * -(-num_rows // 128) >= few:
        block_m = 128
        if is_gated:
            num_stages, num_warps = 3, 8
        elif num_rows > 128 and num_tiles >= few:
            block_n, block_k, num_stages, num_warps = 128, 64, 6, 8
    return LinearPlan(
        block_m,
        block_n,
        block_k,
        num_parts,
        "whole",
        num_stages,
        num_warps,
        use_descriptors=True,
        prefetch_bytes=_PREFETCH,
    )


def _plan_of_few_rows(num_rows: int, num_parts: int, *, is_gated: bool) -> LinearPlan:
    """The plan for rows that fit one small tile; each part of the sum, if there are several, has its own program."""
    block_m = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    mode: Literal["one", "split"] = "split" if num_parts > 1 else "one"
    block_k = 64 if is_gated else 128
    return LinearPlan(block_m, 64, block_k, num_parts, mode, 4, 4, use_descriptors=False, prefetch_bytes=16384)


def _plan_of_one_part(num_rows: int, *, is_gated: bool) -> LinearPlan:
    """The plan for a GEMM with enough tiles for every multiprocessor."""
    if num_rows <= 32:
        return _plan_of_few_rows(num_rows, 1, is_gated=is_gated)
    if num_rows <= SMALL_ROWS:
        return LinearPlan(64, 64, 64, 1, "one", 3, 4, use_descriptors=True, prefetch_bytes=_PREFETCH)
    if num_rows <= 128:
        block_n, num_stages, num_warps = (64, 3, 4) if is_gated else (128, 4, 8)
        return LinearPlan(
            128, block_n, 64, 1, "one", num_stages, num_warps, use_descriptors=True, prefetch_bytes=_PREFETCH
        )
    block_n = 64 if is_gated else 128
    return LinearPlan(256, block_n, 64, 1, "one", 4, 8, use_descriptors=True, prefetch_bytes=_PREFETCH)


def _parts(num_channels: int, num_features: int, num_sms: int) -> int:
    """The power of two of parts that gives each multiprocessor one or two programs; a part has at least two units."""
    num_tiles = -(-num_channels // 64)
    most = min(max(1, num_features // (2 * PART_UNIT)), MAX_PARTS)
    num_parts = 1
    while num_parts * num_tiles < 1.4 * num_sms and 2 * num_parts <= most:
        num_parts *= 2
    return num_parts
