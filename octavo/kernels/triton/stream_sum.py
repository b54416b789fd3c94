"""The residual add and the norm of a few rows, divided between the GEMM before them and the GEMM behind them.

The GEMM whose outputs are added to the residual stream adds them itself. It writes the sums, the sums times the norm's
weight, and of each program's channels the sum of squares per row. The GEMM that reads the norm multiplies the weighted
rows, and its own sums by the inverse root mean square: that needs no more of its loop than rows that are normed
already, and no launch is left between the two.
"""

from typing import NamedTuple

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.kernels.deferred_norm import DeferredNorm, WeightedRows
from octavo.kernels.triton.norm import add_rounded

FEWEST_ROWS = 2
"""A single row is normed by the GEMM that reads it (:mod:`.stream_norm`)."""


def adds_rows(x: torch.Tensor, residual: torch.Tensor, max_rows: int) -> bool:
    """Whether a kernel for so many rows adds products of ``x`` of ``[M, K]`` to ``residual`` of ``[M, N]``.

    Not float16, which rows times the norm's weight may overflow before they are divided by their root mean square.
    """
    is_few = x.dim() == 2 and FEWEST_ROWS <= len(x) <= max_rows
    return is_few and x.dtype is residual.dtype is torch.bfloat16 and residual.is_contiguous()


class AddedStream(NamedTuple):
    """What a kernel adds its outputs to, which the sums overwrite, and what it leaves for the norm of the sums.

    Attributes:
        residual: ``[M, N]``, contiguous.
        weight: ``[N]``, the norm's.
        weighted: ``[M, N]``.
        squares: ``[M, P]`` float32, of ``P`` tiles of channels.
    """

    residual: torch.Tensor
    weight: torch.Tensor
    weighted: torch.Tensor
    squares: torch.Tensor

    @classmethod
    def of(cls, residual: torch.Tensor, weight: torch.Tensor, num_tiles: int) -> "AddedStream":
        """With memory for what is left."""
        squares = residual.new_empty(len(residual), num_tiles, dtype=torch.float32)
        return cls(residual, weight, torch.empty_like(residual), squares)

    def rows(self) -> WeightedRows:
        """What the GEMM behind the norm reads."""
        return WeightedRows(self.weighted, self.squares)


def added_arguments(added: AddedStream | None) -> tuple[torch.Tensor, ...] | None:
    """As kernels take it: a plain tuple, whose type the description of a kernel can name."""
    return None if added is None else tuple(added)


def squares_of(norm: DeferredNorm | None) -> torch.Tensor | None:
    """The sums of squares of the weighted rows that a norm has."""
    return None if norm is None or norm.weighted is None else norm.weighted.squares


@triton.constexpr_function
def squares_layout(num_warps, num_lanes):
    """How threads hold sums of squares ``[rows, tiles]``: so many lanes have a row's, others other rows'."""
    return gl.BlockedLayout([1, 4], [32 // num_lanes, num_lanes], [num_warps, 1], [1, 0])


@gluon.jit
def load_squares(squares, num_rows, TILES: gl.constexpr, ROWS: gl.constexpr, LANES: gl.constexpr):
    """The sums of squares of :class:`AddedStream`; requested behind ``x``, as they are needed later."""
    layout: gl.constexpr = squares_layout(gl.num_warps(), LANES)
    COLUMNS: gl.constexpr = max(triton.next_power_of_2(TILES), 4 * LANES)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    tile = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
    return gl.load(squares + (row * TILES + tile), (row < num_rows) & (tile < TILES), other=0.0)


@gluon.jit
def row_rates(squares, eps, K: gl.constexpr, layout: gl.constexpr):
    """The inverse root mean squares of rows, of what :func:`load_squares` read.

    It belongs behind a loop: among the copies of ``x``, the assembler moves it before them, with the wait for the
    squares.
    """
    return gl.convert_layout(gl.rsqrt(gl.sum(squares, 1) / K + eps), layout)


@gluon.jit
def load_stream(
    added, first_channel, num_rows, num_channels, CHANNELS: gl.constexpr, ROWS: gl.constexpr, layout: gl.constexpr
):
    """What ``[CHANNELS, ROWS]`` outputs are added to and the norm's weight; the rows and channels."""
    residual, norm, _, _ = added
    channel = first_channel + gl.arange(0, CHANNELS, gl.SliceLayout(1, layout))[:, None]
    row = gl.arange(0, ROWS, gl.SliceLayout(0, layout))[None, :]
    is_there = (row < num_rows) & (channel < num_channels)
    values = gl.load(residual + (row * num_channels + channel), is_there, other=0.0)
    return values, gl.load(norm + channel, channel < num_channels, other=0.0), row, channel


@gluon.jit
def store_sums(result, streamed, added, out, num_rows, num_channels, tile, num_tiles):
    """Add a tile of outputs ``[CHANNELS, ROWS]`` to what :func:`load_stream` read; store what the norm's reader needs.

    They are rounded before they are added, as if they had been stored.
    """
    _, _, weighted, squares = added
    residual, factor, row, channel = streamed
    is_there = (row < num_rows) & (channel < num_channels)
    place = row * num_channels + channel
    sums = add_rounded(gl.convert_layout(result, residual.type.layout).to(residual.dtype), residual)
    wide = sums.to(gl.float32)
    gl.store(out + place, sums, is_there)
    gl.store(weighted + place, (wide * factor.to(gl.float32)).to(sums.dtype), is_there)
    square = gl.sum(gl.where(is_there, wide * wide, 0.0), 0)
    rows = gl.arange(0, square.shape[0], square.type.layout)
    gl.store(squares + (rows * num_tiles + tile), square, rows < num_rows)
