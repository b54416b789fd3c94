"""Weights of integers in groups, by the compiled kernels."""

import torch

from octavo.kernels.blocks import FORMATS, LANES, BlockKernels, block_kernels
from octavo.kernels.cpu.native_linear import PackedLinear
from octavo.kernels.linear import LinearOp
from octavo.platforms.native import BLOCK_NUMBERS, TYPE_NUMBERS, NativeKernels


class NativeBlocks(BlockKernels):
    """See :class:`octavo.kernels.blocks.BlockKernels`."""

    def __init__(self, native: NativeKernels) -> None:
        self._native = native

    def pack(self, raw: torch.Tensor, name: str, num_inputs: int, out: torch.Tensor | None = None) -> torch.Tensor:
        packed = _memory(out, name, len(raw), num_inputs)
        raw = raw.contiguous()
        self._native.pack(raw.data_ptr(), packed.data_ptr(), len(raw), num_inputs, BLOCK_NUMBERS[name])
        return packed

    def quantize(self, weight: torch.Tensor, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        num_outputs, num_inputs = weight.shape
        packed = _memory(out, name, num_outputs, num_inputs)
        weight = weight.contiguous()
        types = BLOCK_NUMBERS[name], TYPE_NUMBERS[weight.dtype]
        self._native.quantize(weight.data_ptr(), packed.data_ptr(), num_outputs, num_inputs, *types)
        return packed

    def linear(
        self, packed: torch.Tensor, name: str, shape: tuple[int, int], bias: torch.Tensor | None, dtype: torch.dtype
    ) -> LinearOp:
        return PackedLinear(self._native, packed, BLOCK_NUMBERS[name], shape, bias, dtype)


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for weights of integers in groups on CPUs."""
    kernels = NativeBlocks(native)

    @block_kernels.register("cpu")
    def on_cpu(device: torch.device) -> BlockKernels | None:
        return kernels


def _memory(out: torch.Tensor | None, name: str, num_outputs: int, num_inputs: int) -> torch.Tensor:
    shape = -(-num_outputs // LANES), FORMATS[name].panel_bytes(num_inputs)
    if out is None:
        return torch.empty(shape, dtype=torch.uint8)
    assert out.shape == shape and out.is_contiguous(), "panels of the weight"
    return out
