"""Small-M GEMMs of 16-bit values for Hopper (M from 17 to 256), multiplied by :mod:`.linear_specialised`'s kernel.

A multiprocessor's cycles for 64 input features have three bounds. Memory has to deliver the weights. The L2 cache
serves the loads of all multiprocessors together. Shared memory takes 128 bytes a cycle, that is a row: TMA writes each
row of a tile, and the tensor cores read each row of weights, and each row of ``x`` once per warpgroup.
"""

import functools

import torch

from octavo.kernels.triton.linear_specialised import BLOCK, MAX_ROWS, SpecialisedTile, specialised_linear
from octavo.kernels.triton.linear_workspace import Workspace

MIN_ROWS = 17
"""With fewer rows, :mod:`.linear_stream` is faster."""

_FEW_ROWS = 32
"""Up to here, :mod:`.linear_stream` is faster without a gate, unless sums are short or long."""
_SHORT_SUM, _LONG_SUM = 1024, 8192

_MANY_ROWS = 128
"""With more rows, the library, whose clusters share reads, is faster, but for large weights with a gate."""
_LARGE_WEIGHT = 32 << 20
"""Values; without a gate, the library multiplies such weights from half as many rows on."""

_MEMORY_CYCLES = 6.7
"""For 128 bytes, if all multiprocessors load: 4.45 TB/s, an H200's."""
_L2_CYCLES = 3.0
"""The same of the L2 cache: 9.8 TB/s, an H100's."""

_BUSY = 0.36
"""The part of the multiprocessors that should have a program before sums are divided."""
_LEAST_FEATURES = 512
"""Of a part of a sum."""
_MOST_PARTS = 4
_MERGE_CYCLES = 5000
"""What more parts of sums have to save, once enough multiprocessors are busy."""
_RING_BYTES = 208 << 10


def choose_tile(
    num_rows: int, num_weights: int, num_features: int, *, is_gated: bool, num_sms: int
) -> SpecialisedTile | None:
    """The tile for a GEMM, or None if it would not be fast; chosen from timings on an H100.

    Args:
        num_weights: weight rows, those of a gate and its up projection if there is one.
    """
    if not MIN_ROWS <= num_rows <= MAX_ROWS or (is_gated and num_weights % 16):
        return None
    tile = _fastest_tile(1 << (num_rows - 1).bit_length(), num_weights, num_features, num_sms)
    is_large = num_weights * num_features >= _LARGE_WEIGHT
    if is_gated:
        # Beyond 128 rows, tiles are of 256: few may be missing.
        is_fast = num_rows <= _MANY_ROWS or (is_large and num_rows >= MAX_ROWS * 7 // 8)
    elif num_rows <= _FEW_ROWS:
        is_fast = num_features >= _LONG_SUM or (num_features <= _SHORT_SUM and tile.num_parts == 1)
    else:
        is_fast = num_rows <= (_MANY_ROWS // 2 if is_large else _MANY_ROWS)
    return tile if is_fast else None


@functools.cache
def _fastest_tile(num_rows: int, num_weights: int, num_features: int, num_sms: int) -> SpecialisedTile:
    """The tile of the fewest cycles for 64 features, the smallest of these.

    Args:
        num_rows: a power of two, so that sums are divided alike for all numbers of rows below.
    """
    sizes = [
        (groups, rows)
        for groups in (1, 2, 3)
        for rows in (32, 64, 128, 256)
        if min(num_rows, 64) <= rows <= num_rows and groups * rows <= 512  # else registers do not hold the sums
    ]

    def num_tiles(groups: int, rows: int) -> int:
        return -(-num_weights // (groups * BLOCK)) * -(-num_rows // rows)

    def load_cycles(groups: int, rows: int) -> float:
        loaded = num_tiles(groups, rows) * (groups * BLOCK + rows)
        return max(_MEMORY_CYCLES * num_weights, _L2_CYCLES * loaded) / num_sms

    def shared_cycles(groups: int, rows: int) -> int:
        num_rounds = -(-num_tiles(groups, rows) // num_sms)
        return num_rounds * (2 * groups * BLOCK + (groups + 1) * rows)

    groups, rows = size = min(sizes, key=lambda size: max(load_cycles(*size), shared_cycles(*size)))
    tiles = num_tiles(*size)
    num_parts = 1
    while num_parts < _MOST_PARTS and 2 * num_parts * tiles <= num_sms:
        saved = num_features / 64 * (shared_cycles(*size) / num_parts - load_cycles(*size))
        is_busy = tiles * num_parts >= _BUSY * num_sms
        if num_features < 2 * num_parts * _LEAST_FEATURES or (is_busy and saved < _MERGE_CYCLES):
            break
        num_parts *= 2
    num_programs = -(-tiles // -(-tiles // num_sms)) * num_parts
    row_bytes = 2 * (groups * BLOCK + rows)
    # Large copies are faster, if the ring has five of them.
    num_columns = 128 if 5 * 128 * row_bytes <= _RING_BYTES else 64
    num_steps = -(-num_features // (num_columns * num_parts))
    num_stages = min(_RING_BYTES // (num_columns * row_bytes), max(num_steps, 2))
    return SpecialisedTile(groups, rows, num_columns, num_stages, num_programs, num_parts)


def hopper_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: SpecialisedTile,
    space: Workspace,
) -> None:
    """``x Wᵀ + b``, or with an activation ``act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)`` for the halves of ``W``.

    Args:
        x: ``[M, K]``, bfloat16 or float16, K a multiple of 8; rows contiguous, row stride a multiple of 8, aligned to
            16 bytes.
        weight: ``[N, K]`` contiguous, aligned to 16 bytes; with an activation, N is a multiple of 16.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        space: at least of :meth:`.SpecialisedTile.workspace`; launches of one stream may share it.
    """
    specialised_linear(x, None, weight, None, bias, out, activation, tile, space)
