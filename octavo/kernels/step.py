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
        header: ``[≥ 3]``: number of rows, of decoding rows (which come first), of tokens.
        row_slots, row_num_scheduled, row_num_drawn: ``[≥ R]``, the rows of the step: slot, number of tokens to
            process, after how many of these a token is drawn.
        num_computed: ``[S]``, by slot: tokens in the cache.
        recent_tokens: ``[S, P]``, by slot: the last ``P`` known tokens, that of position ``p`` at ``p mod P``; other
            entries are arbitrary. ``P`` is a power of two.
        step_tokens: ``[≥ T]``, the step's tokens as far as they came with it; −1 for those that the state has.
        block_tables: ``[G, S, M]``, per cache group.
        block_sizes: ``[G]``, tokens per block of each group.
        num_drafts: ``[S]``, by slot: drafts that stand behind the known tokens.
        max_len: positions from here on have no drafts.
    """

    header: torch.Tensor
    row_slots: torch.Tensor
    row_num_scheduled: torch.Tensor
    row_num_drawn: torch.Tensor
    num_computed: torch.Tensor
    recent_tokens: torch.Tensor
    step_tokens: torch.Tensor
    block_tables: torch.Tensor
    block_sizes: torch.Tensor
    num_drafts: torch.Tensor
    max_len: int

    @property
    def num_recent(self) -> int:
        """``P``."""
        return self.recent_tokens.shape[1]

    def tokens_at(self, slots: torch.Tensor | int, positions: torch.Tensor) -> torch.Tensor:
        """Recent tokens of some slots at some positions, int32 of shapes that broadcast."""
        return self.recent_tokens[slots, positions % self.num_recent]


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


@dataclass(slots=True)
class DrawTensors:
    """Where a step with drafts draws: ``W`` places per row, one after each draft and one before.

    Attributes:
        tokens: ``[≥ R · W]`` int64, index among the T of the token after which is drawn; 0 where nothing is drawn.
        slots: ``[≥ R · W]`` int32, the row's slot.
        lengths: ``[≥ R · W]`` int32, tokens before the drawn one, drafts included; 0 where nothing is drawn.
        counts: ``[1]`` int32, number of places of real rows.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    counts: torch.Tensor


@dataclass(slots=True)
class DraftTensors:
    """What a step with drafts gives the host.

    Attributes:
        new_tokens: ``[≥ R, W]`` int32, the drawn tokens; the first ``num_tokens`` of a row count.
        num_tokens: ``[≥ R]`` int32, 1 and the number of accepted drafts; 0 in rows that draw nothing.
        drafts: ``[≥ R, W − 1]`` int32, the drafts that stand behind the row's tokens now.
        num_drafts: ``[≥ R]`` int32, how many they are.
    """

    new_tokens: torch.Tensor
    num_tokens: torch.Tensor
    drafts: torch.Tensor
    num_drafts: torch.Tensor


class StepKernels:
    """The reference, which waits for the device to learn how many rows there are."""

    def prepare_inputs(
        self, state: DeviceState, inputs: InputTensors, *, num_rows: int, num_tokens: int, decode_len: int = 1
    ) -> None:
        """Write a step's inputs from device state only; what is past the real rows and tokens is padding.

        Args:
            num_rows, num_tokens: upper bounds R and T of the step's rows and tokens.
            decode_len: maximum number of tokens of a decoding row.
        """
        real_rows, _, real_tokens = state.header[:3].tolist()
        slots = state.row_slots[:real_rows].long()
        num_scheduled = state.row_num_scheduled[:real_rows].long()
        first = state.num_computed[slots].long()
        ends = num_scheduled.cumsum(0)
        row_of_token = torch.repeat_interleave(num_scheduled, output_size=real_tokens)
        offsets = torch.arange(real_tokens, device=slots.device) - (ends - num_scheduled)[row_of_token]
        token_slots, positions = slots[row_of_token], first[row_of_token] + offsets
        sent = state.step_tokens[:real_tokens]
        known = torch.where(sent >= 0, sent, state.tokens_at(token_slots, positions))
        inputs.token_ids[:num_tokens].zero_()[:real_tokens] = known.long()
        inputs.positions[:num_tokens].zero_()[:real_tokens] = positions
        # A step that runs ahead may reach past the longest sequence; its results are never read.
        max_blocks, sizes = state.block_tables.shape[2], state.block_sizes[:, None]
        block_index, offsets = positions // sizes, positions % sizes  # [G, T]
        groups = torch.arange(len(sizes), device=slots.device)[:, None]
        blocks = state.block_tables[groups, token_slots, block_index.clamp(max=max_blocks - 1)].long()
        mapping = inputs.slot_mapping[:, :num_tokens].fill_(-1)
        mapping[:, :real_tokens] = (blocks * sizes + offsets).masked_fill_(block_index >= max_blocks, -1)
        inputs.query_starts[: num_rows + 1].fill_(real_tokens)[:real_rows] = (ends - num_scheduled).int()
        inputs.seq_lens[:num_rows].zero_()[:real_rows] = (first + num_scheduled).int()
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
        lengths = state.num_computed[slots] + state.row_num_scheduled[:real_rows]
        state.num_computed[slots] = lengths
        draws = state.row_num_drawn[:real_rows] > 0
        tokens = drawn[:real_rows].int()
        state.recent_tokens[slots[draws], lengths[draws].long() % state.num_recent] = tokens[draws].clamp(min=0)
        new_tokens[:real_rows] = torch.where(draws, tokens, 0)

    def prepare_draws(self, state: DeviceState, inputs: InputTensors, draws: DrawTensors, *, num_rows: int) -> None:
        """Write where each row draws, after :meth:`prepare_inputs`.

        Args:
            num_rows: upper bound R of the step's rows.
        """
        width = len(draws.tokens) // len(inputs.seq_lens)
        real_rows = int(state.header[0])
        place = torch.arange(width, device=draws.tokens.device)
        num_drawn = state.row_num_drawn[:real_rows, None]
        is_drawn = place < num_drawn
        tokens = inputs.query_starts[1 : real_rows + 1, None] - num_drawn + place
        lengths = inputs.seq_lens[:real_rows, None] - num_drawn + 1 + place
        real, padded = real_rows * width, num_rows * width
        draws.tokens[:padded].zero_()[:real] = torch.where(is_drawn, tokens, 0).flatten().long()
        draws.lengths[:padded].zero_()[:real] = torch.where(is_drawn, lengths, 0).flatten().int()
        draws.slots[:padded].zero_()[:real] = state.row_slots[:real_rows].repeat_interleave(width)
        draws.counts.fill_(real)

    def append_accepted(self, state: DeviceState, drawn: torch.Tensor, drafts: DraftTensors, *, num_rows: int) -> None:
        """Keep each row's draws up to the first that differs from its draft; count what was computed with them.

        A draft's place holds a draw from the model's own distribution, made with the position's own random number. So
        the text is the one that would be written without drafts.

        Args:
            drawn: ``[≥ R · W]`` int64, the tokens; −1 marks a failure.
            drafts: out, ``new_tokens`` and ``num_tokens`` of the real rows.
            num_rows: upper bound R of the step's rows.
        """
        width = drafts.new_tokens.shape[1]
        rows = zip(
            state.row_slots.tolist(), state.row_num_scheduled.tolist(), state.row_num_drawn.tolist(), strict=True
        )
        for row, (slot, num_scheduled, num_drawn) in zip(range(int(state.header[0])), rows, strict=False):
            own = drawn[row * width : (row + 1) * width].tolist()
            drafts.new_tokens[row] = torch.tensor(own)
            computed = int(state.num_computed[slot])
            if not num_drawn:
                state.num_computed[slot] = computed + num_scheduled
                drafts.num_tokens[row] = 0
                continue
            known = computed + num_scheduled - num_drawn + 1
            drafted = state.recent_tokens[slot].roll(-(known % state.num_recent))
            expected = drafted[: min(num_drawn - 1, int(state.num_drafts[slot]))].tolist()
            count = 1
            while count <= len(expected) and own[count - 1] == expected[count - 1]:
                count += 1
            drafts.num_tokens[row] = count
            state.num_computed[slot] = known + count - 1
            state.recent_tokens[slot, (known + count - 1) % state.num_recent] = max(own[count - 1], 0)

    def propose_ngrams(
        self, state: DeviceState, drafts: DraftTensors, *, num_rows: int, min_length: int, max_length: int
    ) -> None:
        """Draft what followed the last place among recent tokens where the request's last few tokens stand already.

        Of several places, the longest match counts, then the latest.

        Args:
            drafts: out, ``drafts`` and ``num_drafts`` of the real rows.
            num_rows: upper bound R of the step's rows.
            min_length, max_length: number of last tokens to look for.
        """
        most = drafts.drafts.shape[1]
        slots, drawn = state.row_slots.tolist(), state.row_num_drawn.tolist()
        for row in range(int(state.header[0])):
            slot, found = slots[row], torch.empty(0, dtype=torch.int32)
            if drawn[row]:
                length = int(state.num_computed[slot]) + 1
                # Drafts take the places of the oldest tokens.
                first, device = max(length + most - state.num_recent, 0), state.header.device
                places = torch.arange(first, length + most, device=device)
                tokens = state.tokens_at(slot, places[:-most])
                found = _followers(tokens, min_length, max_length)[: max(min(most, state.max_len - length), 0)]
                state.recent_tokens[slot, places[-most:][: len(found)] % state.num_recent] = found
            drafts.drafts[row, : len(found)] = found
            drafts.num_drafts[row] = state.num_drafts[slot] = len(found)


def _followers(tokens: torch.Tensor, min_length: int, max_length: int) -> torch.Tensor:
    """What follows the last place before the end where the longest of the last tokens stand; empty if there is none."""
    for length in range(min(max_length, len(tokens) - 1), min_length - 1, -1):
        windows = tokens[:-1].unfold(0, length, 1)
        places = (windows == tokens[-length:]).all(1).nonzero()
        if len(places):
            return tokens[int(places[-1]) + length :]
    return tokens[:0]


@device_function
def step_kernels(device: torch.device) -> StepKernels:
    """The kernels at the two ends of a step, for a device."""
    return StepKernels()
