"""Mamba-2's gated norm on a GPU; see :func:`octavo.kernels.state_space.gated_rms_norm`."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.norm import scale_normed
from octavo.kernels.triton.state_space_conv import silu


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, group_size: int
) -> torch.Tensor:
    """Norm of ``x · silu(gate)`` by groups; see :func:`octavo.kernels.state_space.gated_rms_norm`."""
    num_rows, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    assert x.stride(1) == gate.stride(1) == 1
    if num_rows:
        block = triton.next_power_of_2(group_size)
        _gated_norm_kernel[(size // group_size, num_rows)](
            x, gate, weight, out, x.stride(0), gate.stride(0), eps,
            SIZE=size, GROUP=group_size, BLOCK=block,
            num_warps=min(max(block // 512, 1), 16), **dependent_launch(x.device),
        )  # fmt: skip
    return out


@triton.jit
def _gated_norm_kernel(
    x,
    gate,
    weight,
    out,
    x_stride,
    gate_stride,
    eps,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program norms one group of one row; grid (groups, rows)."""
    row = tl.program_id(1).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < GROUP
    columns = tl.program_id(0) * GROUP + offsets
    scale = tl.load(weight + columns, mask, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    values = tl.load(x + row * x_stride + columns, mask, other=0.0)
    wide = values.to(tl.float32) * silu(tl.load(gate + row * gate_stride + columns, mask, other=0.0).to(tl.float32))
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / GROUP + eps)
    tl.store(out + row * SIZE + columns, scale_normed(wide, scale, values.dtype), mask)
