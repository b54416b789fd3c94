"""State of running requests that changes with every token, as NumPy arrays indexed by slot.

A step changes hundreds of requests in the same way: one more token computed, one more known. As attributes of objects
this would be thousands of Python operations per step; as arrays it is a dozen. Python code looks only at rows that
need it: a block is full, or a token may be the last.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.cache import UNLIMITED
from octavo.records import NAN_TOKEN
from octavo.scheduling.request import Request

Slots = NDArray[np.intp]
Counts = NDArray[np.int32]
Mask = NDArray[np.bool_]

MAX_STOP_IDS = 8
"""Maximum number of stop tokens per request that are compared in arrays; requests with more are checked one by one."""
_NO_TOKEN = -2
assert _NO_TOKEN != NAN_TOKEN


@dataclass(slots=True, eq=False)
class StepPart:
    """Some or all rows of a step.

    Attributes:
        slots: ``[R]``.
        num_computed: ``[R]``, tokens in the cache before the step.
        num_scheduled_tokens: ``[R]``, tokens scheduled in the step.
        num_drawn: ``[R]``, after how many of these, from the last one back, a token is drawn.
    """

    slots: Slots
    num_computed: Counts
    num_scheduled_tokens: Counts
    num_drawn: Counts

    def __getitem__(self, rows: NDArray[np.intp] | Mask) -> "StepPart":
        """Some of the rows, or all of them in another order."""
        return StepPart(
            self.slots[rows], self.num_computed[rows], self.num_scheduled_tokens[rows], self.num_drawn[rows]
        )

    @classmethod
    def joined(cls, parts: list["StepPart"]) -> "StepPart":
        """The rows of all of them, in order; at least one is given."""
        parts = [part for part in parts if len(part.slots)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.slots for part in parts]),
            np.concatenate([part.num_computed for part in parts]),
            np.concatenate([part.num_scheduled_tokens for part in parts]),
            np.concatenate([part.num_drawn for part in parts]),
        )


class Rows:
    """Running requests, by slot.

    Attributes:
        order: ``[R]``, slots of running requests in the order of their admission; replaced, not mutated, on changes.
        requests, request_ids: ``[S]`` objects.
        slot_generations: ``[S]`` int64, a unique number for each stay of a request; 0 if the slot is free.
        token_ids: ``[S, L + 1]`` int32, prompt and generated tokens. Pages that no request reaches cost no memory.
        num_known: ``[S]``, tokens in ``token_ids``.
        num_tokens: ``[S]``, tokens including all that steps in flight may draw.
        num_computed: ``[S]``, tokens in the cache, including all of steps in flight that may stay.
        num_open: ``[S]``, how many of these steps in flight may show to be rejected drafts.
        max_drafts: ``[S]``, how many drafts may stand behind the request's last token in the next step.
        drafts, num_drafts: ``[S, K]`` and ``[S]``, those that wait on the device, as of the last results.
        max_computed: ``[S]``, maximum number of tokens ever computed: all but the last token that the request may have.
        expected_len: ``[S]``, expected number of tokens at which the request ends.
        next_block_boundary: ``[S]``, up to this many computed tokens the block table does not change.
        last_token: ``[S]``, when the last token arrived, in seconds since the epoch.
        next_check: ``[S]``, number of known tokens from which on the host must look at each new one: the request's
            maximum, or 0 if the next one is the first, or advances a rule.
        is_bound: ``[S]``, whether a rule of the request may forbid tokens.
        num_bound: number of such requests.
    """

    def __init__(self, num_slots: int, max_model_len: int, max_drafts: int = 0) -> None:
        self.order: Slots = np.empty(0, np.intp)
        self.requests = np.full(num_slots, None, object)
        self.request_ids = np.full(num_slots, "", object)
        self.slot_generations = np.zeros(num_slots, np.int64)
        self.token_ids = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.num_known = np.zeros(num_slots, np.int32)
        self.num_tokens = np.zeros(num_slots, np.int32)
        self.num_computed = np.zeros(num_slots, np.int32)
        self.num_open = np.zeros(num_slots, np.int32)
        self.max_drafts = np.zeros(num_slots, np.int32)
        self.drafts = np.zeros((num_slots, max_drafts), np.int32)
        self.num_drafts = np.zeros(num_slots, np.int32)
        self.max_computed = np.zeros(num_slots, np.int32)
        self.expected_len = np.zeros(num_slots, np.int32)
        self.next_block_boundary = np.zeros(num_slots, np.int32)
        self.last_token = np.zeros(num_slots, np.float64)
        self.next_check = np.zeros(num_slots, np.int32)
        self.is_bound = np.zeros(num_slots, np.bool_)
        self.num_bound = 0
        self._stop_ids = np.full((MAX_STOP_IDS, num_slots), _NO_TOKEN, np.int32)
        self._num_stop_columns = 0
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._num_slot_generations = 0

    def __len__(self) -> int:
        return len(self.order)

    @property
    def free_slots(self) -> list[int]:
        """Free slots; the last one is assigned next."""
        return self._free_slots

    def running(self) -> list[Request]:
        """Running requests in the order of their admission."""
        return self.requests[self.order].tolist()

    def enter(self, request: Request, num_computed: int) -> int:
        """Assign a slot to a request with ``num_computed`` tokens in the cache already; returns the slot."""
        slot, completion = self._free_slots.pop(), request.completion
        num_known = len(request.token_ids)
        self._num_slot_generations += 1
        self.slot_generations[slot] = self._num_slot_generations
        self.requests[slot], self.request_ids[slot] = request, request.request_id
        self.token_ids[slot, :num_known] = request.token_ids
        self.num_known[slot] = self.num_tokens[slot] = num_known
        self.num_computed[slot] = num_computed
        self.num_open[slot] = self.num_drafts[slot] = self.max_drafts[slot] = 0
        self.max_computed[slot] = max(completion.max_len - 1, num_known)
        self.expected_len[slot] = request.expected_len
        self.next_block_boundary[slot] = 0
        self.last_token[slot] = completion.times.last_token
        self.next_check[slot] = 0
        self.is_bound[slot] = completion.is_bound
        self.num_bound += completion.is_bound
        self._set_stop_ids(slot, completion.stop_token_ids)
        self.order = np.concatenate((self.order, (slot,)))
        request.cache.slot = slot
        return slot

    def leave(self, request: Request) -> int:
        """Copy a request's state back from its slot and free the slot; returns the slot."""
        slot = request.slot
        request.token_ids = self.token_ids[slot, : self.num_known[slot]].copy()
        request.completion.times.last_token = float(self.last_token[slot])
        request.cache.slot = -1
        self.slot_generations[slot] = 0
        self.num_bound -= int(self.is_bound[slot])
        self.is_bound[slot] = False
        self.requests[slot] = None
        self.order = self.order[self.order != slot]
        self._free_slots.append(slot)
        return slot

    def num_wanted(self) -> Counts:
        """``[R]``, number of tokens of each running request that could be computed next, in ``order``.

        0 for a request whose last token is in flight.
        """
        order = self.order
        num_tokens = self.num_tokens[order]
        if self.drafts.shape[1]:
            num_tokens += self.max_drafts[order]
        return np.minimum(num_tokens, self.max_computed[order]) - self.num_computed[order]

    def are_steady(self, num_wanted: Counts) -> bool:
        """Whether every running request decodes, and is to compute its newest token and all drafts there may be."""
        max_drafts = self.drafts.shape[1]
        if np.count_nonzero(num_wanted != 1 + max_drafts):
            return False
        # A chunk of a prompt may have as many tokens, but has left no drafts.
        return not max_drafts or not np.count_nonzero(self.max_drafts[self.order] != max_drafts)

    def advance(self, slots: Slots, before: Counts, num_scheduled: Counts) -> StepPart:
        """Count tokens as computed, and return the rows as part of a step.

        Args:
            before, num_scheduled: per row, its ``num_computed``, and how many tokens follow.
        """
        num_tokens, after = self.num_tokens[slots], before + num_scheduled
        if self.drafts.shape[1]:
            num_drawn = np.maximum(after - num_tokens + 1, 0)
            self.num_open[slots] += np.maximum(num_drawn - 1, 0)
            # Whatever draws a token leaves drafts behind it.
            self.max_drafts[slots] = self.drafts.shape[1] * (num_drawn > 0)
        else:
            num_drawn = (after == num_tokens).astype(np.int32)
        self.num_computed[slots] = after
        self.num_tokens[slots] = num_tokens + num_drawn
        return StepPart(slots, before, num_scheduled, num_drawn)

    def num_steady_steps(self, part: StepPart) -> int:
        """How many further steps advance the rows of a steady part by one token each and change no block table."""
        if self.drafts.shape[1]:
            return 0
        slots = part.slots
        last = np.minimum(self.max_computed[slots], self.next_block_boundary[slots])
        return int((last - self.num_computed[slots]).min())

    def advance_again(self, part: StepPart) -> StepPart:
        """:meth:`advance` for one of these steps, which follows ``part``."""
        before = part.num_computed + part.num_scheduled_tokens
        after = before + part.num_scheduled_tokens
        self.num_computed[part.slots] = after
        self.num_tokens[part.slots] = after + part.num_drawn
        return StepPart(part.slots, before, part.num_scheduled_tokens, part.num_drawn)

    def num_kept(self, slots: Slots) -> Counts:
        """Tokens in the cache of which none can be a rejected draft."""
        num_computed = self.num_computed[slots]
        return num_computed - self.num_open[slots] if self.drafts.shape[1] else num_computed

    def settle(self, slots: Slots, num_drawn: Counts, num_tokens: Counts) -> None:
        """Take back what rejected drafts had counted, when a step's results arrive.

        Args:
            num_drawn, num_tokens: per row, tokens drawn and tokens kept.
        """
        num_rejected = num_drawn - num_tokens
        self.num_computed[slots] -= num_rejected
        self.num_tokens[slots] -= num_rejected
        self.num_open[slots] -= np.maximum(num_drawn - 1, 0)

    def append(self, slots: Slots, token_ids: NDArray[np.int32], num_tokens: Counts | None, now: float) -> Mask:
        """Append the tokens of a step.

        Args:
            token_ids: ``[R]``, or ``[R, W]`` with ``num_tokens``.
            num_tokens: ``[R]``, how many they are per row, at least one.

        Returns:
            A mask of the rows that the host must check one by one.
        """
        positions = self.num_known[slots]
        if num_tokens is None:
            must_check = self._append_column(slots, positions, token_ids)
            num_known = positions + 1
        else:
            must_check = np.zeros(len(slots), np.bool_)
            for place, column in enumerate(token_ids.T):
                rows = (num_tokens > place).nonzero()[0]
                must_check[rows] |= self._append_column(slots[rows], positions[rows] + place, column[rows])
            num_known = positions + num_tokens
        must_check |= num_known >= self.next_check[slots]
        self.num_known[slots] = num_known
        self.last_token[slots] = now
        return must_check

    def _append_column(self, slots: Slots, positions: Counts, token_ids: NDArray[np.int32]) -> Mask:
        """Write one token per row; returns whether it may end the text or is none."""
        self.token_ids[slots, positions] = token_ids
        must_check = token_ids == NAN_TOKEN
        for stop_ids in self._stop_ids[: self._num_stop_columns]:
            must_check |= token_ids == stop_ids[slots]
        return must_check

    def cut(self, slot: int, num_tokens: int) -> None:
        """Drop a request's last tokens, which came after the end of its text."""
        self.num_known[slot] -= num_tokens

    def note_output(self, request: Request) -> None:
        """Stop checking each token of the request, unless its completion or its number of stop tokens requires it."""
        completion = request.completion
        checks_all = completion.needs_host_check or len(completion.stop_token_ids) > MAX_STOP_IDS
        self.next_check[request.slot] = 0 if checks_all else completion.max_len

    def _set_stop_ids(self, slot: int, token_ids: Collection[int]) -> None:
        stop_ids = [stop_id for stop_id in token_ids if 0 <= stop_id <= UNLIMITED][:MAX_STOP_IDS]
        self._num_stop_columns = max(self._num_stop_columns, len(stop_ids))
        self._stop_ids[:, slot] = _NO_TOKEN
        self._stop_ids[: len(stop_ids), slot] = stop_ids
