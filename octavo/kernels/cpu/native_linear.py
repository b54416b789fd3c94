"""GEMMs with packed weights, by the compiled kernels."""

import torch

from octavo.kernels.linear import LinearOp, linear, padded_rows
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

GATE_NUMBERS = {"silu": 1, "gelu_tanh": 2}
"""The compiled kernels' numbers of gates; 0 is none."""


class NativeLinear(LinearOp):
    """A weight in panels of sixteen outputs; a row's result does not depend on the other rows.

    Args:
        weight: ``[out, in]``, contiguous. Its memory is taken over if the packed weight fits there.
        bias: ``[out]`` of the type of ``x``, or None.
    """

    has_rows = True

    def __init__(self, native: NativeKernels, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._native = native
        self._num_outputs, self._num_inputs = weight.shape
        self._dtype = weight.dtype
        self._type = TYPE_NUMBERS[weight.dtype]
        self._bias = bias
        num_bytes = native.packed_bytes(self._type, *weight.shape)
        self.memory = weight if num_bytes == weight.nbytes else None
        self._packed = torch.empty(num_bytes, dtype=torch.uint8) if self.memory is None else self.memory
        self.update(weight)

    def update(self, weight: torch.Tensor) -> bool:
        self._native.pack(weight.data_ptr(), self._packed.data_ptr(), self._num_outputs, self._num_inputs, self._type)
        return True

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        rows = self._packed.new_empty(len(index), self._num_inputs, dtype=self._dtype)
        self._native.gather_packed(
            self._packed.data_ptr(), index.data_ptr(), rows.data_ptr(), len(index), self._num_inputs, self._type
        )
        return rows

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        y = x.new_empty(*x.shape[:-1], self._num_outputs) if out is None else out
        self._run(x, y, 0)
        return y

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        half = self._num_outputs // 2
        if half % 16:  # the halves share a panel
            y = self(x)
            gated = x.new_empty(*x.shape[:-1], half)
            number = GATE_NUMBERS[activation]
            self._native.gate(
                y.data_ptr(), gated.data_ptr(), y.numel() // (2 * half), half, number, TYPE_NUMBERS[x.dtype]
            )
            return gated
        y = x.new_empty(*x.shape[:-1], half)
        self._run(x, y, GATE_NUMBERS[activation])
        return y

    def _run(self, x: torch.Tensor, y: torch.Tensor, gate: int) -> None:
        if x.dim() != 2 or x.stride(1) != 1:
            x = x.reshape(-1, self._num_inputs).contiguous()
        self._native.linear(
            self._packed.data_ptr(),
            x.data_ptr(),
            y.data_ptr(),
            0 if self._bias is None else self._bias.data_ptr(),
            len(x),
            self._num_outputs,
            self._num_inputs,
            x.stride(0) * x.element_size(),
            self._type,
            TYPE_NUMBERS[x.dtype],
            gate,
        )


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for GEMMs on CPUs."""

    @linear.register("cpu")
    def packed(weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool) -> tuple[LinearOp, bool]:
        return NativeLinear(native, weight, bias), True

    @padded_rows.register("cpu")
    def exact_rows(device: torch.device, num_rows: int) -> int:
        return num_rows
