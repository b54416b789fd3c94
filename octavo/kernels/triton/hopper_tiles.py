"""What Hopper's GEMMs share: how TMA loads blocks of matrices, and where parts of sums lie."""

import functools

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_ELEMENTS = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.uint8: gl.uint8,
}


def tile_descriptor(x: torch.Tensor, box: tuple[int, int]) -> TensorDescriptor:
    """How TMA loads blocks of some rows and columns of a matrix."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(box), _layout(x.dtype, box))


@functools.cache
def _layout(dtype: torch.dtype, box: tuple[int, int]) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(box), _ELEMENTS[dtype])


@gluon.jit
def partial_places(rows: gl.constexpr, count: gl.constexpr, layout: gl.constexpr):
    """Where a warpgroup's sums of the first ``count`` rows lie in a slot of ``[64, rows]``: a warp's are contiguous."""
    n = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    m = gl.arange(0, count, layout=gl.SliceLayout(0, layout))
    place_n = n // 16 * (16 * rows) + n // 8 % 2 * 64 + n % 8 * 8
    return place_n[:, None] + (m // 8 * 128 + m % 8)[None, :]
