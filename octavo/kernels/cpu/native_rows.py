"""Norms, activations and gathers, by the compiled kernels."""

import torch

from octavo.kernels import basic, routing
from octavo.kernels.cpu.native_linear import GATE_NUMBERS
from octavo.platforms.combine import can_copy, combine
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels, profiled

_NUMBERS = GATE_NUMBERS | {"gelu": 3, "relu": 4, "relu2": 5}
"""The compiled kernels' numbers of activations."""


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for these operations on CPUs; other types than theirs run as the reference."""

    profiled_norm, profiled_activation = profiled("norm"), profiled("activation")

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

    def layer_norm_of(
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        size = x.shape[-1]
        x = x.contiguous()
        normed = torch.empty_like(x)
        with profiled_norm:
            native.layer_norm(
                x.data_ptr(),
                0 if residual is None else residual.data_ptr(),
                normed.data_ptr(),
                0 if weight is None else weight.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                x.numel() // size,
                size,
                eps,
                TYPE_NUMBERS[x.dtype],
            )
        return normed

    def norms_here(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
        return x.dtype in TYPE_NUMBERS and all(each is None or each.dtype == x.dtype for each in parameters)

    @basic.layer_norm.register("cpu")
    def layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        if not norms_here(x, weight, bias):
            return basic.layer_norm.reference(x, weight, bias, eps)
        return layer_norm_of(x, None, weight, bias, eps)

    @basic.add_layer_norm.register("cpu")
    def add_layer_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum takes the residual's memory."""
        if not (norms_here(x, weight, bias) and residual.dtype == x.dtype and residual.is_contiguous()):
            return basic.add_layer_norm.reference(x, residual, weight, bias, eps)
        return layer_norm_of(x, residual, weight, bias, eps), residual

    @basic.silu_and_mul.register("cpu")
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        return gate(x, "silu") if x.dtype in TYPE_NUMBERS else basic.silu_and_mul.reference(x)

    @basic.gelu_tanh_and_mul.register("cpu")
    def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
        return gate(x, "gelu_tanh") if x.dtype in TYPE_NUMBERS else basic.gelu_tanh_and_mul.reference(x)

    def gate(x: torch.Tensor, kind: str) -> torch.Tensor:
        half = x.shape[-1] // 2
        gated = x.new_empty(*x.shape[:-1], half)
        rows = _as_rows(x)
        apply(rows[:, :half], kind, rows[:, half:], gated.view(-1, half))
        return gated

    @basic.activate.register("cpu")
    def activate(x: torch.Tensor, kind: str, times: torch.Tensor | None = None) -> torch.Tensor:
        """``x``'s memory is overwritten."""
        if x.dtype not in TYPE_NUMBERS or (times is not None and times.dtype != x.dtype):
            return basic.activate.reference(x, kind, times)
        rows = _as_rows(x)
        apply(rows, kind, None if times is None else _as_rows(times), rows)
        return rows.view(x.shape)

    def apply(x: torch.Tensor, kind: str, times: torch.Tensor | None, to: torch.Tensor) -> None:
        """All ``[T, N]``; their rows may lie apart."""
        num_rows, size = x.shape
        with profiled_activation:
            native.activate(
                x.data_ptr(),
                0 if times is None else times.data_ptr(),
                to.data_ptr(),
                num_rows,
                size,
                x.stride(0),
                0 if times is None else times.stride(0),
                to.stride(0),
                _NUMBERS[kind],
                TYPE_NUMBERS[x.dtype],
            )

    @basic.soft_cap.register("cpu")
    def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
        if x.dtype not in TYPE_NUMBERS:
            return basic.soft_cap.reference(x, cap)
        combine(native, "soft_cap", x, x, cap)
        return x

    def alone(x: torch.Tensor, kind: str) -> torch.Tensor:
        y = x.new_empty(x.shape)
        with profiled_activation:
            combine(native, kind, x, y)
        return y

    @routing.sigmoid.register("cpu")
    def sigmoid(x: torch.Tensor) -> torch.Tensor:
        return alone(x, "sigmoid") if can_copy(x, x) else routing.sigmoid.reference(x)

    @routing.softplus.register("cpu")
    def softplus(x: torch.Tensor) -> torch.Tensor:
        return alone(x, "softplus") if can_copy(x, x) else routing.softplus.reference(x)

    @basic.square_root.register("cpu")
    def square_root(x: torch.Tensor) -> torch.Tensor:
        return alone(x, "square_root") if can_copy(x, x) else basic.square_root.reference(x)

    @routing.split_identities.register("cpu")
    def split_identities(
        chosen: torch.Tensor, shares: torch.Tensor, first: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        chosen, shares = chosen.contiguous(), shares.contiguous()
        real, real_shares, kept = torch.empty_like(chosen), torch.empty_like(shares), shares.new_empty(len(shares), 1)
        tensors = (chosen, shares, real, real_shares, kept)
        native.split_identities(*(tensor.data_ptr() for tensor in tensors), *chosen.shape, first)
        return real, real_shares, kept

    @basic.xielu.register("cpu")
    def xielu(x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        if x.dtype not in TYPE_NUMBERS:
            return basic.xielu.reference(x, slopes)
        x = x.contiguous()
        y = torch.empty_like(x)
        with profiled_activation:
            native.xielu(x.data_ptr(), y.data_ptr(), slopes.data_ptr(), x.numel(), TYPE_NUMBERS[x.dtype])
        return y

    @basic.gather_rows.register("cpu")
    def gather_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        rows = table.new_empty(len(index), *table.shape[1:])
        row_bytes = rows.element_size() * rows[0].numel() if len(rows) else 0
        native.gather(table.data_ptr(), index.data_ptr(), rows.data_ptr(), len(rows), row_bytes)
        return rows


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """``[T, N]`` whose rows may lie apart."""
    return x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous().view(-1, x.shape[-1])
