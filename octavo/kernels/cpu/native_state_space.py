"""Mamba-2's convolution, scan and gated norm, by the compiled kernels; other types than theirs run as the reference."""

import torch

from octavo.kernels import state_space
from octavo.kernels.state_space import StateInputs
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels, profiled

_MAX_WIDTH = 8
"""Maximum width of a convolution."""


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for these operations on CPUs."""

    profiled_conv, profiled_scan, profiled_norm = profiled("causal_conv"), profiled("scan"), profiled("gated_norm")

    @state_space.causal_conv.register("cpu")
    def causal_conv(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, inputs: StateInputs
    ) -> torch.Tensor:
        channels, width = weight.shape
        if width > _MAX_WIDTH or not _are_native(x, weight, bias, state):
            return state_space.causal_conv.reference(x, weight, bias, state, inputs)
        output = x.new_empty(x.shape)
        with profiled_conv:
            native.causal_conv(
                *_rows(inputs),
                *_states(state),
                x.data_ptr(),
                weight.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                output.data_ptr(),
                x.stride(0),
                len(x),
                channels,
                width,
                TYPE_NUMBERS[x.dtype],
            )
        return output

    @state_space.state_space_scan.register("cpu")
    def state_space_scan(
        x: torch.Tensor,
        dt: torch.Tensor,
        a_log: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        d: torch.Tensor,
        dt_bias: torch.Tensor,
        dt_limit: tuple[float, float],
        state: torch.Tensor,
        inputs: StateInputs,
    ) -> torch.Tensor:
        is_wide = all(tensor.dtype == torch.float32 for tensor in (a_log, d, dt_bias, state))
        if not is_wide or not _are_native(x, dt, b, c):
            return state_space.state_space_scan.reference(x, dt, a_log, b, c, d, dt_bias, dt_limit, state, inputs)
        output = x.new_empty(x.shape)
        with profiled_scan:
            native.state_space_scan(
                *_rows(inputs),
                *_states(state),
                *(tensor.data_ptr() for tensor in (x, dt, b, c, a_log, d, dt_bias, output)),
                *(tensor.stride(0) for tensor in (x, dt, b, c)),
                *x.shape,
                *b.shape[1:],
                *map(float, dt_limit),
                TYPE_NUMBERS[x.dtype],
            )
        return output

    @state_space.gated_rms_norm.register("cpu")
    def gated_rms_norm(
        x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, group_size: int
    ) -> torch.Tensor:
        if weight.dtype not in TYPE_NUMBERS or not _are_native(x, gate):
            return state_space.gated_rms_norm.reference(x, gate, weight, eps, group_size)
        normed = x.new_empty(x.shape)
        with profiled_norm:
            native.gated_norm(
                x.data_ptr(),
                gate.data_ptr(),
                weight.data_ptr(),
                normed.data_ptr(),
                len(x),
                x.shape[1],
                group_size,
                x.stride(0),
                gate.stride(0),
                eps,
                TYPE_NUMBERS[x.dtype],
                TYPE_NUMBERS[weight.dtype],
            )
        return normed


def _are_native(first: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether tensors have one type, which the kernels have."""
    return first.dtype in TYPE_NUMBERS and all(other is None or other.dtype == first.dtype for other in others)


def _rows(inputs: StateInputs) -> tuple[int, ...]:
    """Addresses and sizes that tell where the step's rows are."""
    assert inputs.slots.dtype == torch.int32
    return (
        inputs.rows.counts.data_ptr(),
        inputs.rows.query_starts.data_ptr(),
        inputs.rows.seq_lens.data_ptr(),
        inputs.block_tables.data_ptr(),
        inputs.slots.data_ptr(),
        inputs.block_tables.stride(0),
        inputs.block_tables.shape[1],
        inputs.page_size,
        inputs.num_places,
    )


def _states(state: torch.Tensor) -> tuple[int, int, int]:
    """Where states are, and how far apart."""
    return state.data_ptr(), state.stride(0), state.stride(1)
