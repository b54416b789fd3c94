"""A step's input tensors, at fixed addresses so that captured graphs can use them."""

import torch

from octavo.execution.state import BatchState
from octavo.kernels import DeviceRows, InputTensors, StepKernels, StepShape
from octavo.records import Plan, Step


class StepInputs(InputTensors):
    """Inputs of one step, filled on the device from the batch's state.

    Args:
        max_tokens: maximum number of tokens of a step, padding included.
    """

    def __init__(self, plan: Plan, max_tokens: int, state: BatchState, kernels: StepKernels) -> None:
        max_rows, device = plan.max_num_seqs, state.header.device

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        super().__init__(
            token_ids=zeros(max_tokens, dtype=torch.int64),
            positions=zeros(max_tokens, dtype=torch.int64),
            slot_mapping=zeros(len(plan.groups), max_tokens, dtype=torch.int64),
            query_starts=zeros(max_rows + 1, dtype=torch.int32),
            seq_lens=zeros(max_rows, dtype=torch.int32),
            last_tokens=zeros(max_rows, dtype=torch.int64),
        )
        self._state = state
        self._kernels = kernels

    @property
    def rows(self) -> DeviceRows:
        """The rows as attention reads them."""
        return DeviceRows(self._state.header, self.query_starts, self.seq_lens)

    def fill(self, shape: StepShape) -> None:
        """Fill the inputs from device state; entries up to the shape's bounds are padding."""
        self._kernels.prepare_inputs(
            self._state, self, num_rows=shape.num_rows, num_tokens=shape.num_tokens, decode_len=shape.decode_len
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
        decode_len=step.decode_len,
        num_cached_tokens=step.num_cached_tokens,
    )
