"""The input tensors of a step's kernels, at fixed addresses so that captured graphs can use them."""

import torch

from octavo.execution.state import BatchState
from octavo.kernels import DeviceRows, StepShape
from octavo.kernels.triton.inputs import append_tokens, prepare_inputs
from octavo.records import Plan, Step


class InputBuffers:
    """Inputs of one step, filled on the device from the batch's state.

    Attributes:
        token_ids, positions: ``[max tokens]`` int64; padding is token 0 at position 0.
        slot_mapping: ``[G, max tokens]`` int64, −1 for padding.
        query_starts: ``[max rows + 1]`` int32.
        seq_lens: ``[max rows]`` int32, 0 for padding.
        last_tokens: ``[max rows]`` int64, index of each row's last token.
        sampled: ``[max rows]`` int64, the tokens that were drawn.
        new_tokens: ``[max rows]`` int32, for the host.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        max_rows, max_tokens = plan.max_num_seqs, max(plan.max_num_batched_tokens, plan.max_num_seqs)

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.block_size = plan.block_size
        self.token_ids = zeros(max_tokens, dtype=torch.int64)
        self.positions = zeros(max_tokens, dtype=torch.int64)
        self.slot_mapping = zeros(len(plan.groups), max_tokens, dtype=torch.int64)
        self.query_starts = zeros(max_rows + 1, dtype=torch.int32)
        self.seq_lens = zeros(max_rows, dtype=torch.int32)
        self.last_tokens = zeros(max_rows, dtype=torch.int64)
        self.sampled = zeros(max_rows, dtype=torch.int64)
        self.new_tokens = zeros(max_rows, dtype=torch.int32)

    def fill(self, state: BatchState, shape: StepShape) -> None:
        """Fill the inputs from device state; entries up to the shape's bounds are padding."""
        prepare_inputs(
            state.header,
            state.row_slots,
            state.row_num_new,
            state.num_computed,
            state.token_ids,
            state.block_tables,
            self.token_ids,
            self.positions,
            self.slot_mapping,
            self.query_starts,
            self.seq_lens,
            self.last_tokens,
            num_rows=shape.num_rows,
            num_tokens=shape.num_tokens,
            block_size=self.block_size,
        )

    def rows(self, state: BatchState) -> DeviceRows:
        """The rows as attention reads them."""
        return DeviceRows(state.header, self.query_starts, self.seq_lens)

    def append(self, state: BatchState, num_rows: int) -> None:
        """Count the step's tokens as computed; append the drawn ones to device state and to ``new_tokens``."""
        append_tokens(
            state.header,
            state.row_slots,
            state.row_num_new,
            state.row_num_drawn,
            self.sampled,
            state.num_computed,
            state.token_ids,
            self.new_tokens,
            num_rows=num_rows,
        )


def shape_of(step: Step) -> StepShape:
    """A step's exact shape."""
    return StepShape(
        num_rows=len(step.slots),
        num_tokens=step.num_tokens,
        max_query_len=step.max_query_len,
        has_decodes=step.num_decodes > 0,
        has_chunks=step.num_decodes < len(step.slots),
        is_fresh=step.is_fresh,
    )
