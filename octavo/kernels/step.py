"""The two ends of a step on the device, in plain PyTorch: batch state to model inputs, and drawn tokens back to it.

Everything is read from and written to tensors at fixed addresses, and sizes are bounds, so that a captured graph serves
all steps of a size. ``triton/step.py`` has the same as kernels.
"""

from dataclasses import dataclass

import torch

from octavo.kernels.dispatch import device_function


@dataclass(slots=True)
class DeviceState:
    """The batch state that a step reads and advances, all int32 on the device.

    Attributes:
        header: ``[≥ 3]``: number of rows, of rows of one token (which come first), of tokens.
        row_slots, row_num_new, row_num_drawn: ``[≥ R]``, the rows of the step: slot, number of tokens to process, after
            how many of these a token is drawn.
        num_computed: ``[S]``, by slot: tokens in the cache.
        token_ids: ``[S, L]``, known tokens by slot; entries from a request's length on are arbitrary.
        block_tables: ``[G, S, M]``, per cache group.
    """

    header: torch.Tensor
    row_slots: torch.Tensor
    row_num_new: torch.Tensor
    row_num_drawn: torch.Tensor
    num_computed: torch.Tensor
    token_ids: torch.Tensor
    block_tables: torch.Tensor


@dataclass(slots=True)
class InputTensors:
    """A step's inputs.

    Attributes:
        token_ids, positions: ``[≥ T]`` int64; padding 0.
        slot_mapping: ``[G, ≥ T]`` int64, ``block · block_size + offset``; padding −1.
        query_starts: ``[≥ R + 1]`` int32, first token of each row and the end of the last; padding rows are empty.
        seq_lens: ``[≥ R]`` int32, tokens of each row including the step's; padding 0.
        last_tokens: ``[≥ R]`` int64, index among the T of each row's last token; padding 0.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    last_tokens: torch.Tensor


class StepKernels:
    """The reference, which waits for the device to learn how many rows there are."""

    def prepare_inputs(
        self, state: DeviceState, inputs: InputTensors, *, num_rows: int, num_tokens: int, block_size: int
    ) -> None:
        """Write a step's inputs from device state only; what is past the real rows and tokens is padding.

        Args:
            num_rows, num_tokens: upper bounds R and T of the step's rows and tokens.
            block_size: tokens per block.
        """
        real_rows, _, real_tokens = state.header[:3].tolist()
        slots = state.row_slots[:real_rows].long()
        num_new = state.row_num_new[:real_rows].long()
        first = state.num_computed[slots].long()
        ends = num_new.cumsum(0)
        row_of_token = torch.repeat_interleave(num_new, output_size=real_tokens)
        offsets = torch.arange(real_tokens, device=slots.device) - (ends - num_new)[row_of_token]
        token_slots, positions = slots[row_of_token], first[row_of_token] + offsets
        max_len, max_blocks = state.token_ids.shape[1], state.block_tables.shape[2]
        # A step that runs ahead may reach past the longest sequence; its results are never read.
        known = state.token_ids[token_slots, positions.clamp(max=max_len - 1)].long()
        inputs.token_ids[:num_tokens].zero_()[:real_tokens] = known.masked_fill_(positions >= max_len, 0)
        inputs.positions[:num_tokens].zero_()[:real_tokens] = positions
        block_index = (positions // block_size).clamp(max=max_blocks - 1)
        places = state.block_tables[:, token_slots, block_index].long() * block_size + positions % block_size
        mapping = inputs.slot_mapping[:, :num_tokens].fill_(-1)
        mapping[:, :real_tokens] = places.masked_fill_(positions >= max_blocks * block_size, -1)
        inputs.query_starts[: num_rows + 1].fill_(real_tokens)[:real_rows] = (ends - num_new).int()
        inputs.seq_lens[:num_rows].zero_()[:real_rows] = (first + num_new).int()
        inputs.last_tokens[:num_rows].zero_()[:real_rows] = ends - 1

    def append_tokens(
        self, state: DeviceState, drawn: torch.Tensor, new_tokens: torch.Tensor, *, num_rows: int
    ) -> None:
        """Count a step's tokens as computed and append the drawn ones to the batch state, which the next step reads.

        Args:
            drawn: ``[≥ R]`` int64, the tokens; −1 marks a failure, which is stored as 0, a valid index.
            new_tokens: out, ``[≥ R]`` int32, for the host: the token of each real row that draws, else 0.
            num_rows: upper bound R of the step's rows.
        """
        real_rows = int(state.header[0])
        slots = state.row_slots[:real_rows].long()
        lengths = state.num_computed[slots] + state.row_num_new[:real_rows]
        state.num_computed[slots] = lengths
        draws = state.row_num_drawn[:real_rows] > 0
        tokens = drawn[:real_rows].int()
        # Nothing is written past the state's width: a step that runs ahead may draw a token that is never read.
        is_kept = draws & (lengths < state.token_ids.shape[1])
        state.token_ids[slots[is_kept], lengths[is_kept].long()] = tokens[is_kept].clamp(min=0)
        new_tokens[:real_rows] = torch.where(draws, tokens, 0)


@device_function
def step_kernels(device: torch.device) -> StepKernels:
    """The kernels at the two ends of a step, for a device."""
    return StepKernels()
