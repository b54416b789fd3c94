"""GEMMs with packed weights, by the compiled kernels."""

import torch

from octavo.kernels.blocks import LANES
from octavo.kernels.linear import GATES, LinearOp, linear, padded_rows
from octavo.kernels.scaled import int8_linear
from octavo.platforms.native import INT8_NUMBER, TYPE_NUMBERS, NativeKernels, profiled

GATE_NUMBERS = {"silu": 1, "gelu_tanh": 2}
"""The compiled kernels' numbers of gates; 0 is none."""

_PROFILED = profiled("linear")


class PackedLinear(LinearOp):
    """A weight in panels of sixteen outputs; a row's result does not depend on the other rows.

    Attributes:
        packed: the panels.

    Args:
        type_number: the compiled kernels' number of the weight's type.
        shape: ``[out, in]``.
        bias: ``[out]`` of the type of ``x``, or None.
        dtype: of :meth:`rows`.
    """

    has_rows = True
    widens = True
    writes_strided = True

    def __init__(
        self,
        native: NativeKernels,
        packed: torch.Tensor,
        type_number: int,
        shape: tuple[int, int],
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self.packed = packed
        self.num_outputs, self._num_inputs = shape
        self._native = native
        self._type = type_number
        self._bias = bias
        self._dtype = dtype

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(len(index), self._num_inputs, dtype=self._dtype)
        self._native.gather_packed(
            self.packed.data_ptr(),
            index.data_ptr(),
            rows.data_ptr(),
            len(index),
            self._num_inputs,
            self._type,
            TYPE_NUMBERS[self._dtype],
        )
        return rows

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        y = x.new_empty(*x.shape[:-1], self.num_outputs) if out is None else out
        self.run(x, y if y.dim() == 2 else y.view(-1, self.num_outputs), 0)
        return y

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        half = self.num_outputs // 2
        if half % LANES:  # the halves share a panel
            return GATES[activation](self(x))
        y = x.new_empty(*x.shape[:-1], half)
        self.run(x, y if y.dim() == 2 else y.view(-1, half), GATE_NUMBERS[activation])
        return y

    def run(self, x: torch.Tensor, y: torch.Tensor, gate: int) -> None:
        """Write the result into ``y``, ``[T, out]``, or ``[T, out / 2]`` behind a gate; its rows may lie apart."""
        if x.dim() != 2 or x.stride(1) != 1:
            x = x.reshape(-1, self._num_inputs).contiguous()
        bias = self._bias if self._bias is None or self._bias.dtype == y.dtype else self._bias.to(y.dtype)
        with _PROFILED:
            self._native.linear(
                self.packed.data_ptr(),
                x.data_ptr(),
                y.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                len(x),
                self.num_outputs,
                self._num_inputs,
                x.stride(0) * x.element_size(),
                y.stride(0),
                self._type,
                TYPE_NUMBERS[x.dtype],
                TYPE_NUMBERS[y.dtype],
                gate,
            )


class NativeLinear(PackedLinear):
    """A weight of floating-point values.

    Args:
        weight: ``[out, in]``, contiguous. Its memory is taken over if the packed weight fits there.
        bias: ``[out]`` of the type of ``x``, or None.
    """

    def __init__(self, native: NativeKernels, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        number = TYPE_NUMBERS[weight.dtype]
        num_outputs, num_inputs = weight.shape
        num_bytes = native.packed_bytes(number, num_outputs, num_inputs)
        self.memory = weight if num_bytes == weight.nbytes else None
        packed = torch.empty(num_bytes, dtype=torch.uint8) if self.memory is None else self.memory
        super().__init__(native, packed, number, (num_outputs, num_inputs), bias, weight.dtype)
        self.update(weight)

    def update(self, weight: torch.Tensor) -> bool:
        self._native.pack(weight.data_ptr(), self.packed.data_ptr(), self.num_outputs, self._num_inputs, self._type)
        return True


class Int8Linear(PackedLinear):
    """A weight of 8 bits with a scale per output, by which rows that are rounded to 8 bits are multiplied.

    Args:
        weight: ``[out, in]`` int8.
        scales: ``[out]`` float32.
        bias: ``[out]`` or None.
    """

    has_rows = False

    def __init__(
        self, native: NativeKernels, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        packed = torch.empty(native.packed_bytes(INT8_NUMBER, *weight.shape), dtype=torch.uint8)
        num_outputs, num_inputs = weight.shape
        super().__init__(native, packed, INT8_NUMBER, (num_outputs, num_inputs), bias, torch.float32)
        weight, scales = weight.contiguous(), scales.float().contiguous()
        native.pack_int8(weight.data_ptr(), scales.data_ptr(), packed.data_ptr(), num_outputs, num_inputs)


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for GEMMs on CPUs."""

    @linear.register("cpu")
    def packed(weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool) -> tuple[LinearOp, bool]:
        if weight.dtype not in TYPE_NUMBERS:
            return linear.reference(weight, bias, deterministic=deterministic)
        return NativeLinear(native, weight, bias), True

    @int8_linear.register("cpu")
    def packed_int8(weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> tuple[LinearOp, bool]:
        return Int8Linear(native, weight, scales, bias), True

    @padded_rows.register("cpu")
    def exact_rows(device: torch.device, num_rows: int) -> int:
        return num_rows
