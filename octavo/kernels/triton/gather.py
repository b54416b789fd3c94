"""Rows of a table by index: embeddings, and the rotary tables of a step's positions."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

_MAX_BLOCK = 4096


def gather_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of a table; see :func:`octavo.kernels.basic.gather_rows`."""
    width = table[0].numel()
    out = torch.empty(len(index), *table.shape[1:], dtype=table.dtype, device=table.device)
    block = min(triton.next_power_of_2(width), _MAX_BLOCK)
    _gather_rows_kernel[(len(index), triton.cdiv(width, block))](
        table,
        index,
        out,
        width,
        BLOCK=block,
        num_warps=min(max(block // 256, 1), 8),
        **dependent_launch(table.device),
    )
    return out


@triton.jit
def _gather_rows_kernel(table, index, out, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """A program copies ``BLOCK`` columns of one row; grid (rows, blocks of columns)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    chosen = tl.load(index + row).to(tl.int64)
    tl.store(out + row * width + columns, tl.load(table + chosen * width + columns, inside), inside)
