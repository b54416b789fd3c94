"""GEMMs with weights of packed integers on GPUs: few rows unpack them in the GEMM, many rows by way of their values."""

import torch
import torch.nn.functional as F

from octavo.kernels import grouped
from octavo.kernels.grouped import GroupedTensors, pack_unit
from octavo.kernels.linear import ComposedLinear, LinearOp
from octavo.kernels.triton.grouped_kernel import BLOCK_N, dequantize_kernel, grouped_kernel
from octavo.kernels.triton.launch import dependent_launch, num_multiprocessors
from octavo.kernels.triton.linear_workspace import Workspace, reserve_workspace

MAX_ROWS = 64
"""Beyond this M, the weight is dequantised once for all rows, and the vendor's library multiplies."""

_MAX_PARTS = 16
_BLOCK_N = 32
"""Outputs that a program dequantises."""
_SCRATCH_ELEMENTS = 1 << 24
"""Values that are dequantised at a time; those of a larger weight follow in the same memory."""


class GroupedLinear:
    """The GEMM of one weight, ``[..., in] → [..., out]``.

    Up to :data:`MAX_ROWS` rows, a row's bits do not depend on the other rows. Beyond, the library decides, unless
    ``deterministic``: then the kernel computes any number of rows, with the same bits.
    """

    def __init__(self, weight: GroupedTensors, bias: torch.Tensor | None, *, deterministic: bool) -> None:
        self._weight = weight
        self._bias = bias
        self._deterministic = deterministic
        self._num_parts = choose_parts(
            len(weight.codes), weight.num_inputs // pack_unit(weight.group), num_multiprocessors(weight.codes.device)
        )
        self._space: Workspace | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in (torch.bfloat16, torch.float16):
            return F.linear(x, grouped.dequantize(self._weight, x.dtype), self._bias)
        rows = x.reshape(-1, x.shape[-1])
        is_few = len(rows) <= MAX_ROWS
        y = self._by_kernel(rows, is_few) if is_few or self._deterministic else self._by_values(rows)
        return y.view(*x.shape[:-1], y.shape[1])

    def _by_kernel(self, x: torch.Tensor, is_few: bool) -> torch.Tensor:
        num_rows, num_channels = len(x), len(self._weight.codes)
        y = x.new_empty(num_rows, num_channels)
        if num_rows == 0:
            return y
        if x.stride(1) != 1 or x.data_ptr() % 16 or x.stride(0) % 8:
            x = x.clone(memory_format=torch.contiguous_format)
        block_m = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        tiles_n, tiles_m = -(-num_channels // BLOCK_N), -(-num_rows // block_m)
        splits = is_few and self._num_parts > 1
        needed = (self._num_parts * num_rows * tiles_n * BLOCK_N, tiles_n * tiles_m) if splits else (0, 0)
        space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
        grouped_kernel[(tiles_n, self._num_parts if splits else 1, tiles_m)](
            x,
            *_pointers(self._weight),
            self._bias,
            y,
            space.partials,
            space.arrivals,
            num_rows,
            num_channels,
            x.shape[1],
            x.stride(0),
            self._num_parts,
            **_constants(self._weight),
            BLOCK_M=block_m,
            BLOCK_N=BLOCK_N,
            STAGES=4,
            SPLIT=splits,
            num_warps=4,
            **dependent_launch(x.device),
        )
        return y

    def _by_values(self, x: torch.Tensor) -> torch.Tensor:
        num_inputs, num_outputs = x.shape[1], len(self._weight.codes)
        step = max(_SCRATCH_ELEMENTS // num_inputs // BLOCK_N, 1) * BLOCK_N
        y = x.new_empty(len(x), num_outputs)
        for start in range(0, num_outputs, step):
            outputs = slice(start, min(start + step, num_outputs))
            values = dequantize(self._weight, outputs, x.dtype)
            bias = None if self._bias is None else self._bias[outputs]
            if step >= num_outputs:
                return F.linear(x, values, bias)
            y[:, outputs] = F.linear(x, values, bias)
        return y


def grouped_linear(
    codes: torch.Tensor, weight: GroupedTensors, bias: torch.Tensor | None, *, deterministic: bool
) -> tuple[LinearOp, bool]:
    """A GEMM with packed integers; see :func:`octavo.kernels.grouped.grouped_linear`."""
    return ComposedLinear(GroupedLinear(weight, bias, deterministic=deterministic)), False


def dequantize(weight: GroupedTensors, outputs: slice, dtype: torch.dtype) -> torch.Tensor:
    """The values of some outputs, ``[n, in]``."""
    own = [None if tensor is None else tensor[outputs] for tensor in _pointers(weight)]
    num_outputs = len(range(*outputs.indices(len(weight.codes))))
    values = torch.empty(num_outputs, weight.num_inputs, dtype=dtype, device=weight.codes.device)
    constants = _constants(weight)
    dequantize_kernel[(weight.num_inputs // constants["UNIT"], -(-num_outputs // _BLOCK_N))](
        *own,
        values,
        num_outputs,
        weight.num_inputs,
        **constants,
        BLOCK_N=_BLOCK_N,
        num_warps=4,
        **dependent_launch(values.device),
    )
    return values


def choose_parts(num_channels: int, num_units: int, num_sms: int) -> int:
    """The power of two of parts that gives each multiprocessor about four programs; a part has at least four units.

    It does not depend on the number of rows, so neither do the bits of a row.
    """
    num_tiles = -(-num_channels // BLOCK_N)
    num_parts = 1
    while num_parts * num_tiles < 3 * num_sms and 2 * num_parts <= min(num_units // 4, _MAX_PARTS):
        num_parts *= 2
    return num_parts


def _pointers(weight: GroupedTensors) -> tuple[torch.Tensor | None, ...]:
    return weight.codes, weight.scales, weight.zeros, weight.minimums


def _constants(weight: GroupedTensors) -> dict[str, int]:
    unit = pack_unit(weight.group)
    return {
        "BITS": weight.bits,
        "IS_FLOAT": weight.is_float4,
        "MIDDLE": weight.middle,
        "UNIT": unit,
        "GROUP_UNITS": weight.group // unit,
    }
