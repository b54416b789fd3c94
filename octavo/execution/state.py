"""Device state of the requests in the batch, by slot.

All state is in one int32 tensor, the arena; recent tokens, block tables and lengths are views of it. So everything that
the host changes for a step is one list of (index, value) pairs: one packed copy to the device and one scatter. A step
that changes nothing sends nothing.

Tokens of a prompt come with the steps that compute them. The device keeps a request's last tokens only: the one drawn
last, drafts, and what rules of sampling read.
"""

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.kernels import DeviceState
from octavo.platforms.transfer import to_device
from octavo.records import BlockUpdate, Plan, Step, TokenIds

_ON_DEVICE = -1
"""In place of a step's token that the device has already."""

_ALIGNMENT = 64
"""Numbers that what follows the step's tokens in the arena is aligned to."""

_SHORT_ROW = 512
"""Mean lengths below this make no difference to how attention splits rows."""

Changes = tuple[list[NDArray[np.int64]], list[NDArray[np.int32]]]


class BatchState(DeviceState):
    """Device state of up to ``S`` requests, indexed by slot.

    The header's fourth number is the approximate mean length of decoding rows, its fifth the number of their tokens.

    Args:
        max_tokens: maximum number of tokens of a step, padding included.
    """

    def __init__(self, plan: Plan, max_tokens: int, device: torch.device) -> None:
        slots, num_recent = plan.max_num_seqs, plan.num_recent_tokens
        self._num_blocks = plan.max_blocks_per_seq
        sizes = {
            "recent_tokens": slots * num_recent,
            "step_tokens": -(-max_tokens // _ALIGNMENT) * _ALIGNMENT,
            "num_computed": slots,
            "block_tables": len(plan.groups) * slots * self._num_blocks,
            "num_drafts": slots,
            "row_slots": slots,
            "row_num_scheduled": slots,
            "row_num_drawn": slots,
            "header": 5,
        }
        offsets = np.cumsum([0, *sizes.values()])
        self._offsets = dict(zip(sizes, offsets.tolist(), strict=False))
        self.arena = torch.zeros(int(offsets[-1]), dtype=torch.int32, device=device)
        views = {name: self.arena[self._offsets[name] :][:size] for name, size in sizes.items()}
        super().__init__(
            header=views["header"],
            row_slots=views["row_slots"],
            row_num_scheduled=views["row_num_scheduled"],
            row_num_drawn=views["row_num_drawn"],
            num_computed=views["num_computed"],
            recent_tokens=views["recent_tokens"].view(slots, num_recent),
            step_tokens=views["step_tokens"].fill_(_ON_DEVICE)[:max_tokens],
            block_tables=views["block_tables"].view(len(plan.groups), slots, self._num_blocks),
            block_sizes=to_device(np.array([group.block_size for group in plan.groups], np.int32), device),
            num_drafts=views["num_drafts"],
            max_len=plan.max_model_len + 1 + plan.num_drafts,
        )
        # By slot, the known tokens of requests whose steps so far did not reach the last of them.
        self._unread: dict[int, TokenIds] = {}
        self._is_unread = np.zeros(slots, np.bool_)
        self._num_sent = 0
        self._slots = slots
        self._last_rows: tuple[NDArray[np.generic], ...] = ()
        self._last_mean = 0

    def apply(self, step: Step) -> None:
        """Bring the device up to date with a step: one copy and one scatter."""
        changes: Changes = ([], [])
        for slot in step.freed_slots:
            self._unread.pop(slot, None)
            self._is_unread[slot] = False
        if step.new_rows:
            self._add_rows(changes, step)
        if self._unread:
            self._add_tokens(changes, step)
        elif self._num_sent:  # which may be a whole prompt: a fill is cheaper than to send as much
            self.step_tokens[: self._num_sent].fill_(_ON_DEVICE)
            self._num_sent = 0
        if step.block_updates:
            self._add_blocks(changes, step.block_updates)
        rows = (step.slots, step.num_scheduled_tokens, step.num_drawn)
        is_new = not _are_equal(rows, self._last_rows)
        if is_new:
            self._put(changes, "row_slots", 0, step.slots)
            self._put(changes, "row_num_scheduled", 0, step.num_scheduled_tokens)
            self._put(changes, "row_num_drawn", 0, step.num_drawn)
            self._last_rows = rows
        mean = int(step.num_computed[: step.num_decodes].sum()) // step.num_decodes if step.num_decodes else 0
        # The mean grows with every step; sending only changes of more than an eighth is precise enough for its readers.
        if is_new or 8 * abs(mean - self._last_mean) > max(self._last_mean, _SHORT_ROW):
            header = [len(step.slots), step.num_decodes, step.num_tokens, mean, step.num_decode_tokens]
            self._put(changes, "header", 0, np.array(header, np.int32))
            self._last_mean = mean
        if changes[0]:
            self._send(changes)

    @property
    def is_settled(self) -> bool:
        """Whether the next step changes nothing here if it has the same rows, no new blocks, and none of its own."""
        return not self._unread and not self._num_sent

    def _add_rows(self, changes: Changes, step: Step) -> None:
        self._unread |= {row.slot: row.token_ids for row in step.new_rows}
        slots = np.array([row.slot for row in step.new_rows])
        self._is_unread[slots] = True
        places = {slot: place for place, slot in enumerate(step.slots.tolist())}
        num_computed = step.num_computed[[places[row.slot] for row in step.new_rows]]
        changes[0].extend((self._offsets["num_computed"] + slots, self._offsets["num_drafts"] + slots))
        changes[1].extend((num_computed, np.zeros(len(slots), np.int32)))

    def _add_tokens(self, changes: Changes, step: Step) -> None:
        """Add the step's tokens of prompts and, with the last of a prompt, what the device keeps of it.

        What the last step sent is taken back in the same place, where nothing new is written.
        """
        ends = step.num_scheduled_tokens.cumsum()
        rows = self._is_unread[step.slots].nonzero()[0].tolist()
        num_sent = int(ends[rows[-1]]) if rows else 0
        step_tokens = np.full(max(num_sent, self._num_sent), _ON_DEVICE, np.int32)
        self._num_sent = num_sent
        for row in rows:
            slot, start = int(step.slots[row]), int(step.num_computed[row])
            count, end = int(step.num_scheduled_tokens[row]), int(ends[row])
            tokens = self._unread[slot]
            step_tokens[end - count : end] = tokens[start : start + count]
            if start + count >= len(tokens):
                self._keep_recent(changes, slot, self._unread.pop(slot))
                self._is_unread[slot] = False
        if len(step_tokens):
            self._put(changes, "step_tokens", 0, step_tokens)

    def _keep_recent(self, changes: Changes, slot: int, tokens: TokenIds) -> None:
        first = len(tokens) - self.num_recent
        recent = np.roll(tokens[first:], first) if first > 0 else tokens  # position p at p modulo the ring's size
        self._put(changes, "recent_tokens", slot * self.num_recent, recent)

    def _add_blocks(self, changes: Changes, updates: list[BlockUpdate]) -> None:
        """Add all updates at once: most steps have several, of one block each."""
        places: list[int] = []
        for update in updates:
            first = (update.group * self._slots + update.slot) * self._num_blocks + update.start
            places += range(first, first + len(update.block_ids))
        changes[0].append(self._offsets["block_tables"] + np.array(places))
        changes[1].append(np.fromiter(chain.from_iterable(u.block_ids for u in updates), np.int32, len(places)))

    def _put(self, changes: Changes, region: str, start: int, values: NDArray[np.int32]) -> None:
        first = self._offsets[region] + start
        changes[0].append(np.arange(first, first + len(values)))
        changes[1].append(values)

    def _send(self, changes: Changes) -> None:
        """One copy to the device, of the indices and then the values, and one scatter."""
        num_changes = sum(map(len, changes[1]))
        packed = np.empty(3 * num_changes, np.int32)
        np.concatenate(changes[0], out=packed[: 2 * num_changes].view(np.int64))
        np.concatenate(changes[1], out=packed[2 * num_changes :])
        on_device = to_device(packed, self.arena.device)
        self.arena.index_copy_(0, on_device[: 2 * num_changes].view(torch.int64), on_device[2 * num_changes :])


def _are_equal(rows: tuple[NDArray[np.generic], ...], others: tuple[NDArray[np.generic], ...]) -> bool:
    """Whether the arrays are pairwise equal; mostly they are the same objects."""
    return len(rows) == len(others) and all(
        row is other or row.tobytes() == other.tobytes() for row, other in zip(rows, others, strict=True)
    )
