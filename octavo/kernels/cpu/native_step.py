"""The two ends of a step, by the compiled kernels."""

import torch

from octavo.kernels.row_blocks import argmax
from octavo.kernels.step import DeviceState, InputTensors, StepKernels, step_kernels
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels


class NativeStepKernels(StepKernels):
    """Those that every step runs; steps with drafts run the others as the reference."""

    def __init__(self, native: NativeKernels) -> None:
        self._native = native

    def prepare_inputs(
        self, state: DeviceState, inputs: InputTensors, *, num_rows: int, num_tokens: int, decode_len: int = 1
    ) -> None:
        self._native.prepare_inputs(
            *_addresses(state),
            inputs.token_ids.data_ptr(),
            inputs.positions.data_ptr(),
            inputs.slot_mapping.data_ptr(),
            inputs.last_tokens.data_ptr(),
            inputs.query_starts.data_ptr(),
            inputs.seq_lens.data_ptr(),
            inputs.slot_mapping.stride(0),
            num_rows,
            num_tokens,
        )

    def append_tokens(
        self, state: DeviceState, drawn: torch.Tensor, new_tokens: torch.Tensor, *, num_rows: int
    ) -> None:
        self._native.append_tokens(*_addresses(state), drawn.data_ptr(), new_tokens.data_ptr())


def _addresses(state: DeviceState) -> tuple[int, ...]:
    """Addresses and sizes of the batch's state."""
    return (
        state.header.data_ptr(),
        state.row_slots.data_ptr(),
        state.row_num_scheduled.data_ptr(),
        state.row_num_drawn.data_ptr(),
        state.num_computed.data_ptr(),
        state.recent_tokens.data_ptr(),
        state.step_tokens.data_ptr(),
        state.block_tables.data_ptr(),
        state.block_sizes.data_ptr(),
        *state.recent_tokens.shape,
        state.block_tables.shape[0],
        state.block_tables.shape[2],
    )


def register(native: NativeKernels) -> None:
    """Use the compiled kernels at the ends of a step on CPUs."""
    kernels = NativeStepKernels(native)

    @step_kernels.register("cpu")
    def on_cpu(device: torch.device) -> StepKernels:
        return kernels

    @argmax.register("cpu")
    def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dtype not in TYPE_NUMBERS or x.stride(1) != 1:
            return argmax.reference(x)
        values, places = torch.empty(len(x)), torch.empty(len(x), dtype=torch.int64)
        row_bytes = x.stride(0) * x.element_size()
        native.argmax(
            x.data_ptr(), values.data_ptr(), places.data_ptr(), len(x), x.shape[1], row_bytes, TYPE_NUMBERS[x.dtype]
        )
        return values, places
