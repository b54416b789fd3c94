"""The batch as custom logit processors see it: dense rows in an order that changes as little as possible."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.records import NewRow, SamplingParams
from octavo.sampling.masks import TokensAt
from octavo.sampling.processors import AddedRequest, BatchUpdate, LogitsProcessor, MoveDirectionality, MovedRequest


@dataclass(slots=True, eq=False)
class _Member:
    """One request; ``output_token_ids`` is the list that processors hold on to."""

    params: SamplingParams
    prompt_token_ids: list[int]
    output_token_ids: list[int] = field(default_factory=list)


class ProcessorBatch:
    """Runs processors over a batch whose rows come in any order and skip steps.

    A request that is not part of a step leaves the processors' batch and comes back as added.
    """

    def __init__(self, processors: Sequence[LogitsProcessor], device: torch.device) -> None:
        self._before = [p for p in processors if not p.is_argmax_invariant()]
        self._after = [p for p in processors if p.is_argmax_invariant()]
        self._device = device
        self._by_slot: dict[int, _Member] = {}
        self._members: list[_Member] = []
        self._order: Tensor | None = None
        self._inverse: Tensor | None = None

    @property
    def has_processors(self) -> bool:
        """Whether there is anything to run."""
        return bool(self._before or self._after)

    @property
    def has_invariant(self) -> bool:
        """Whether some processors run after the temperature."""
        return bool(self._after)

    def add_row(self, row: NewRow) -> None:
        """Learn of a request; it enters the processors' batch with its first step."""
        token_ids = row.token_ids.tolist()
        self._by_slot[row.slot] = _Member(row.params, token_ids[: row.prompt_len], token_ids[row.prompt_len :])

    def remove(self, slot: int) -> None:
        """Forget a request; it leaves the processors' batch with the next step."""
        self._by_slot.pop(slot, None)

    def update(self, slots: Tensor, lengths: Tensor, tokens_at: TokensAt, slot_list: Sequence[int]) -> None:
        """Bring the processors up to date with a step; arguments as of :meth:`Sampler.sample`."""
        wanted = [self._by_slot[slot] for slot in slot_list]
        _read_outputs(wanted, slots.long(), lengths.long(), tokens_at)
        batch_update = self._change_members(wanted)
        row_of = {id(member): row for row, member in enumerate(wanted)}
        self._set_order([row_of[id(member)] for member in self._members])
        for processor in (*self._before, *self._after):
            processor.update_state(batch_update)

    def apply_before(self, logits: Tensor) -> Tensor:
        """Run the processors that may change which token is likeliest: ``[N, V]`` float32, rows as in the step."""
        return self._apply(self._before, logits)

    def apply_invariant(self, logits: Tensor) -> Tensor:
        """Run the processors that never change it, on logits divided by the temperature."""
        return self._apply(self._after, logits)

    def _apply(self, processors: Sequence[LogitsProcessor], logits: Tensor) -> Tensor:
        if not processors:
            return logits
        if self._order is not None:
            logits = logits.index_select(0, self._order)
        for processor in processors:
            logits = processor.apply(logits)
        return logits if self._inverse is None else logits.index_select(0, self._inverse)

    def _change_members(self, wanted: Sequence[_Member]) -> BatchUpdate | None:
        """Let requests leave, put new ones in their places or at the end, and close the gaps from the end."""
        members = self._members
        staying = {id(member) for member in wanted}
        present = {id(member) for member in members}
        free = [row for row, member in enumerate(members) if id(member) not in staying]
        newcomers = [member for member in wanted if id(member) not in present]
        if not free and not newcomers:
            return None
        added: list[AddedRequest] = []
        for member in newcomers:
            row = free.pop(0) if free else len(members)
            members[row : row + 1] = [member]
            added.append((row, member.params, member.prompt_token_ids, member.output_token_ids))
        return BatchUpdate(len(wanted), tuple(free), added, _close_gaps(members, free))

    def _set_order(self, order: list[int]) -> None:
        if order == list(range(len(order))):
            self._order = self._inverse = None
            return
        self._order = torch.tensor(order, dtype=torch.int64, device=self._device)
        self._inverse = self._order.argsort()


def _close_gaps(members: list[_Member], free: Sequence[int]) -> list[MovedRequest]:
    """Move members from the end into the free rows, lowest first, and cut the list to what is left."""
    gaps = set(free)
    moved: list[MovedRequest] = []
    for gap in free:
        while len(members) - 1 in gaps:
            gaps.discard(len(members) - 1)
            members.pop()
        if gap < len(members):
            members[gap] = members.pop()
            gaps.discard(gap)
            moved.append((len(members), gap, MoveDirectionality.UNIDIRECTIONAL))
    return moved


def _read_outputs(members: Sequence[_Member], slots: Tensor, lengths: Tensor, tokens_at: TokensAt) -> None:
    """Make the members' generated tokens those that are known; usually each grew by one."""
    newest = tokens_at(slots, lengths - 1).tolist()
    for member, slot, length, last in zip(members, slots, lengths.tolist(), newest, strict=True):
        output, start = member.output_token_ids, len(member.prompt_token_ids)
        missing = length - start - len(output)
        if missing == 1:
            output.append(last)
        elif missing > 1:
            output += tokens_at(slot, torch.arange(length - missing, length, device=slot.device)).tolist()
        elif missing < 0:
            del output[length - start :]
