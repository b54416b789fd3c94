"""Norms, gates and gathers, by the compiled kernels."""

import torch

from octavo.kernels import basic
from octavo.kernels.cpu.native_linear import GATE_NUMBERS
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels, profiled


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for these operations on CPUs; other types than theirs run as the reference."""

    profiled_norm, profiled_gate = profiled("rms_norm"), profiled("gate")

    def norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        size = x.shape[-1]
        x = x.contiguous()
        normed = torch.empty_like(x)
        with profiled_norm:
            native.rms_norm(
                x.data_ptr(),
                0 if residual is None else residual.data_ptr(),
                normed.data_ptr(),
                weight.data_ptr(),
                x.numel() // size,
                size,
                eps,
                TYPE_NUMBERS[x.dtype],
                TYPE_NUMBERS[weight.dtype],
            )
        return normed

    @basic.rms_norm.register("cpu")
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype not in TYPE_NUMBERS:
            return basic.rms_norm.reference(x, weight, eps)
        return norm(x, None, weight, eps)

    @basic.add_rms_norm.register("cpu")
    def add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum takes the residual's memory."""
        if x.dtype not in TYPE_NUMBERS:
            return basic.add_rms_norm.reference(x, residual, weight, eps)
        return norm(x, residual, weight, eps), residual

    @basic.silu_and_mul.register("cpu")
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        return gate(x, "silu") if x.dtype in TYPE_NUMBERS else basic.silu_and_mul.reference(x)

    @basic.gelu_tanh_and_mul.register("cpu")
    def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
        return gate(x, "gelu_tanh") if x.dtype in TYPE_NUMBERS else basic.gelu_tanh_and_mul.reference(x)

    def gate(x: torch.Tensor, activation: str) -> torch.Tensor:
        half = x.shape[-1] // 2
        x = x.contiguous()
        gated = x.new_empty(*x.shape[:-1], half)
        number = GATE_NUMBERS[activation]
        with profiled_gate:
            native.gate(x.data_ptr(), gated.data_ptr(), x.numel() // (2 * half), half, number, TYPE_NUMBERS[x.dtype])
        return gated

    @basic.gather_rows.register("cpu")
    def gather_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        rows = table.new_empty(len(index), *table.shape[1:])
        row_bytes = rows.element_size() * rows[0].numel() if len(rows) else 0
        native.gather(table.data_ptr(), index.data_ptr(), rows.data_ptr(), len(rows), row_bytes)
        return rows
