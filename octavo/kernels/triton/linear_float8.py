"""Small-M GEMMs of float8 (e4m3) for Hopper: ``y = (x Wᵀ) · row scales · channel scales``, for M from 9 to 128.

A program multiplies 64 weight rows (128 with a gate) by all rows of ``x`` of its tile, over all of K or a part of it;
the program that arrives last adds the parts in their order. Weights are the tensor cores' operand of 64 rows, read from
shared memory as they are. Each program requests the first weights of its ring before it waits for the kernel that
rounds ``x``.

The tensor cores add float8 products with fewer bits than float32 has, so the sum of each step of K is added to a
float32 sum.
"""

from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.linear_hopper import (
    TILE,
    async_load,
    barrier,
    finish_tile,
    load_weights,
    own_steps,
    tile_descriptor,
)
from octavo.kernels.triton.linear_workspace import Workspace

MAX_ROWS, MAX_GATED_ROWS = 128, 64
"""With more rows, the library is faster."""

_RING_BYTES = 212 << 10
_LONG_SUM, _LONG_SUM_OF_MANY_ROWS = 8192, 4096
"""From this K on, tiles have as many parts as there are multiprocessors for them."""


@dataclass(frozen=True, slots=True)
class Float8Tile:
    """A program's tile of 64 channels, and its pipeline.

    Attributes:
        num_rows: rows of ``x``: 8, 16, 32, 64 or 128.
        num_columns: input features per stage of the ring: 128 or 256.
        num_parts: programs that share a tile's sum (split-K).
        num_stages: depth of the ring.
    """

    num_rows: int
    num_columns: int
    num_parts: int
    num_stages: int

    @property
    def num_warps(self) -> int:
        """Warps per program; eight divide the rows of ``x`` among them."""
        return 8 if self.num_rows > 64 else 4

    def grid(self, num_rows: int, num_channels: int) -> tuple[int, int, int]:
        """Tiles of channels, parts of a tile, tiles of rows."""
        return -(-num_channels // TILE), self.num_parts, -(-num_rows // self.num_rows)

    def workspace(self, num_rows: int, num_channels: int, *, is_gated: bool) -> tuple[int, int]:
        """Number of float32 values and of counters that the programs share."""
        if self.num_parts == 1:
            return 0, 0
        tiles_n, _, tiles_m = self.grid(num_rows, num_channels)
        size = TILE * self.num_rows * (2 if is_gated else 1)
        return tiles_n * tiles_m * self.num_parts * size, tiles_n * tiles_m


def choose_tile(
    num_rows: int, num_channels: int, num_features: int, *, is_gated: bool, num_sms: int
) -> Float8Tile | None:
    """The tile for a GEMM, or None if it would not be fast; tuned on an H200.

    Args:
        num_channels: outputs per row, after the gate if there is one.
    """
    num_tiles = -(-num_channels // TILE)
    is_many = num_rows > MAX_GATED_ROWS
    if not 0 < num_rows <= MAX_ROWS or (is_many and (is_gated or num_tiles > num_sms)):
        return None
    block_m = max(16, 1 << (num_rows - 1).bit_length())
    num_columns = 128 if is_many else 256
    num_steps = -(-num_features // num_columns)
    if num_features >= (_LONG_SUM_OF_MANY_ROWS if is_many else _LONG_SUM):
        num_parts = num_sms // num_tiles
    else:
        num_parts = -(-num_sms * 9 // (20 * num_tiles))  # programs for 45 % of the multiprocessors
    num_parts = max(min(num_parts, num_features // 512, 8), 1)
    # The rings of all resident programs share a multiprocessor's memory, which has room for two programs that gain.
    stage_bytes = num_columns * (TILE * (2 if is_gated else 1) + block_m)
    most_stages = _RING_BYTES // (2 if num_tiles > num_sms else 1) // stage_bytes
    return Float8Tile(block_m, num_columns, num_parts, min(most_stages, -(-num_steps // num_parts)))


def float8_linear(
    x: torch.Tensor,
    row_scales: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    tile: Float8Tile,
    space: Workspace,
) -> None:
    """``y = x Wᵀ · row scales · scales + b``, or with an activation ``act(y₁) · y₂`` for the halves of ``y``.

    Args:
        x: ``[M, K]`` float8, contiguous, K a multiple of 16.
        row_scales: ``[M, 1]`` float32.
        weight: ``[N, K]`` float8, contiguous.
        scales: ``[N]`` float32.
        out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous.
        activation: "none", "silu" or "gelu_tanh".
        space: at least of :meth:`Float8Tile.workspace`; launches of one stream may share it.
    """
    num_rows, num_features = x.shape
    num_channels = out.shape[1]
    float8_linear_kernel[tile.grid(num_rows, num_channels)](
        tile_descriptor(x, (tile.num_rows, tile.num_columns)),
        tile_descriptor(weight, (TILE, tile.num_columns)),
        row_scales,
        scales,
        bias,
        out,
        space.partials,
        space.arrivals,
        num_rows,
        num_channels,
        -(-num_features // tile.num_columns),
        STAGES=tile.num_stages,
        ACTIVATION=activation,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )


@gluon.jit(do_not_specialize=["num_rows", "num_steps"])
def float8_linear_kernel(
    x_desc,  # [M, K], blocks of a tile's rows
    weight_desc,  # [N, K], blocks of a program's channels
    row_scales,  # [M]
    scales,  # [N]
    bias,  # [N]
    out,  # [M, N], or with an activation [M, N / 2]
    partials,
    arrivals,
    num_rows,
    num_channels,
    num_steps,
    STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid (tiles of channels, parts of a tile, tiles of rows)."""
    FACTORS: gl.constexpr = 1 if ACTIVATION == "none" else 2
    channels: gl.constexpr = weight_desc.block_shape[0]
    columns: gl.constexpr = weight_desc.block_shape[1]
    rows: gl.constexpr = x_desc.block_shape[0]
    num_bytes: gl.constexpr = weight_desc.block_type.nbytes * FACTORS + x_desc.block_type.nbytes
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [channels // 16, gl.num_warps() * 16 // channels], [16, rows * channels // (gl.num_warps() * 16), 32]
    )
    weight_ring = gl.allocate_shared_memory(
        weight_desc.dtype, [STAGES * FACTORS, channels, columns], weight_desc.layout
    )
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, rows, columns], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    first, last = own_steps(num_steps)
    num_own = last - first
    first_row = gl.program_id(2) * rows
    num_early = gl.minimum(num_own, STAGES)
    for step in range(num_early):
        mbarrier.expect(full.index(step), num_bytes)
        load_weights(weight_desc, weight_ring, full, (first + step) * columns, step, num_channels, FACTORS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for step in range(num_early):
        async_load(x_desc, [first_row, (first + step) * columns], full.index(step), x_ring.index(step))

    total = gl.zeros([channels, rows], gl.float32, layout)
    factor = gl.zeros([channels, rows], gl.float32, layout)
    nought = gl.zeros([channels, rows], gl.float32, layout)
    for step in range(num_own):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        x = x_ring.index(stage).permute((1, 0))
        slot = stage * FACTORS
        sums = warpgroup_mma(weight_ring.index(slot), x, nought, use_acc=False, is_async=True)
        if FACTORS == 2:
            factor_sums = warpgroup_mma(weight_ring.index(slot + 1), x, nought, use_acc=False, is_async=True)
            sums, factor_sums = warpgroup_mma_wait(0, deps=[sums, factor_sums])
            factor += factor_sums
        else:
            sums = warpgroup_mma_wait(0, deps=[sums])
        total += sums
        if step + STAGES < num_own:
            barrier()  # all warps have read the stage
            column = (first + step + STAGES) * columns
            mbarrier.expect(full.index(stage), num_bytes)
            load_weights(weight_desc, weight_ring, full, column, stage, num_channels, FACTORS)
            async_load(x_desc, [first_row, column], full.index(stage), x_ring.index(stage))

    finish_tile(
        total,
        factor,
        gl.arange(0, channels, layout=gl.SliceLayout(1, layout)),
        gl.arange(0, rows, layout=gl.SliceLayout(0, layout)),
        row_scales,
        scales,
        bias,
        out,
        partials,
        arrivals,
        num_rows,
        num_channels,
        FACTORS,
        ACTIVATION,
    )
