"""The gates of gated feed-forward layers."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch, num_multiprocessors


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """SwiGLU's gate; see :func:`octavo.kernels.basic.silu_and_mul`."""
    return _gate(x, is_gelu=False)


def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """GeGLU's gate; see :func:`octavo.kernels.basic.gelu_tanh_and_mul`."""
    return _gate(x, is_gelu=True)


class ActivationTile(NamedTuple):
    """A program's work: ``num_columns`` outputs of one row, shared by ``num_warps`` warps."""

    num_columns: int
    num_warps: int


def choose_tile(num_rows: int, size: int, num_multiprocessors: int) -> ActivationTile:
    """A tile for a number of rows of ``size`` outputs."""
    block = triton.next_power_of_2(size)
    if num_rows * size <= 2048 * num_multiprocessors:
        return ActivationTile(min(block, 512), 2)
    return ActivationTile(min(block, 2048), 4)


@triton.jit
def gated(gate, up, IS_GELU: tl.constexpr):
    """``act(gate) · up`` with SiLU or tanh-GELU; the activation is rounded to the input type before multiplying."""
    wide = gate.to(tl.float32)
    argument = wide
    if IS_GELU:
        # (1 + tanh(u)) / 2 is the sigmoid of 2u; here 2u = sqrt(8 / π) · (x + 0.044715 x³).
        argument = 1.5957691216057308 * wide * (1.0 + 0.044715 * wide * wide)
    activated = (wide / (1.0 + tl.exp(-argument))).to(gate.dtype)
    return (activated.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _gate_kernel(
    x,
    y,
    x_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_GELU: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes ``BLOCK`` outputs of one row; grid (rows · blocks of columns)."""
    num_blocks: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // num_blocks).to(tl.int64)
    columns = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    gate = tl.load(x + row * x_stride + columns, mask)
    up = tl.load(x + row * x_stride + SIZE + columns, mask)
    tl.store(y + row * SIZE + columns, gated(gate, up, IS_GELU), mask)


def _gate(x: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    y = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    launch(rows, y, is_gelu)
    return y


def launch(x: torch.Tensor, y: torch.Tensor, is_gelu: bool, tile: ActivationTile | None = None) -> None:
    """Gate ``x`` of ``[T, 2N]`` into contiguous ``y``; ``tile`` defaults to :func:`choose_tile`'s."""
    num_rows, size = x.shape[0], x.shape[1] // 2
    if num_rows == 0:
        return
    tile = tile or choose_tile(num_rows, size, num_multiprocessors(x.device))
    _gate_kernel[(num_rows * triton.cdiv(size, tile.num_columns),)](
        x,
        y,
        x.stride(0),
        SIZE=size,
        BLOCK=tile.num_columns,
        IS_GELU=is_gelu,
        num_warps=tile.num_warps,
        **dependent_launch(x.device),
    )
