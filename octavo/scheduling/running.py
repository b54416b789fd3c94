"""Running requests and their blocks: schedules their next tokens, grows block tables, preempts."""

import numpy as np

from octavo.cache import CacheManager
from octavo.records import BlockUpdate, NewRow, Plan
from octavo.scheduling.batch import Changes
from octavo.scheduling.request import Request
from octavo.scheduling.rows import Counts, Rows, Slots, StepPart

_NO_COUNTS = np.empty(0, np.int32)


class Running:
    """The requests that have a slot.

    Attributes:
        changes: the changes for the next step.
        wipes_blocks: whether blocks are zeroed before reuse.
    """

    def __init__(self, plan: Plan, cache: CacheManager) -> None:
        self.rows = Rows(plan.max_num_seqs, plan.max_model_len, plan.num_drafts)
        self.changes = Changes()
        self.wipes_blocks = plan.has_foreign_bytes
        self._cache = cache
        self._plan = plan
        self._max_drafts = plan.num_drafts
        self._last_part = StepPart(self.rows.order, _NO_COUNTS, _NO_COUNTS, _NO_COUNTS)
        self._num_steady_steps = 0  # that follow the last part
        self._newest: dict[int, int] = {}  # slot → tokens of chunks in the newest step, which others may not read yet

    def take_changes(self) -> Changes:
        """The changes since the last call."""
        changes, self.changes = self.changes, Changes()
        return changes

    def budget(self, num_scheduled: Counts) -> int:
        """Maximum number of tokens of a step in which running requests compute ``num_scheduled`` tokens each."""
        most, mixed = self._plan.token_budget, self._plan.max_num_mixed_tokens
        if mixed is None or not np.count_nonzero((num_scheduled > 0) & (num_scheduled <= 1 + self._max_drafts)):
            return most
        return mixed

    def schedule_running(self) -> tuple[StepPart, list[Request]]:
        """Schedule tokens of running requests, in order, as many as a step may have.

        Returns:
            Their part of the step, whose ``slots`` is the array ``rows.order`` itself if every request decodes its
            newest token and all drafts; and the preempted requests, whose blocks and slots are free.
        """
        if self._newest:
            self._publish_newest()
        if self._num_steady_steps and self._last_part.slots is self.rows.order:
            self._num_steady_steps -= 1
            self._last_part = self.rows.advance_again(self._last_part)
            return self._last_part, []
        if not len(self.rows):
            return StepPart(self.rows.order, _NO_COUNTS, _NO_COUNTS, _NO_COUNTS), []
        slots, num_scheduled = self.rows.order, self.rows.num_wanted()
        budget = self._plan.token_budget
        if len(slots) * (1 + self._max_drafts) > budget or not self.rows.are_steady(num_scheduled):
            budget = self.budget(num_scheduled)
            slots, num_scheduled = _within(budget, slots, num_scheduled)
        preempted: list[Request] = []
        before = self.rows.num_computed[slots]
        after = before + num_scheduled
        changing = (after > self.rows.next_block_boundary[slots]).nonzero()[0]
        if len(changing) and not self._grow(slots[changing], after[changing]):
            slots, num_scheduled = self._schedule_one_by_one(budget, preempted)
            before = self.rows.num_computed[slots]
        part = self.rows.advance(slots, before, num_scheduled)
        if slots is self.rows.order and not len(changing):
            self._last_part, self._num_steady_steps = part, self.rows.num_steady_steps(part)
        else:
            self._num_steady_steps = 0
        if slots is not self.rows.order:
            chunks = part.num_scheduled_tokens > np.maximum(part.num_drawn, 1)
            for slot, count in zip(slots[chunks].tolist(), part.num_scheduled_tokens[chunks].tolist(), strict=True):
                self._publish(slot, count)
        return part, preempted

    def enter(self, request: Request, num_found: int, num_scheduled: int) -> StepPart:
        """Give a request a slot, and blocks for ``num_scheduled`` tokens after the ``num_found`` that the cache holds.

        The caller has checked that there is room.
        """
        slot = self.rows.enter(request, num_found)
        for group, table in enumerate(request.cache.tables):
            if table:
                self.changes.block_updates.append(BlockUpdate(group, slot, 0, list(table)))
        slots, before, counts = np.array([slot]), np.array([num_found], np.int32), np.array([num_scheduled], np.int32)
        has_grown = self._grow(slots, before + counts)
        assert has_grown, "blocks were counted as free"
        part = self.rows.advance(slots, before, counts)
        self.changes.new_rows.append(_new_row(request))
        self._publish(slot, num_scheduled)
        return part

    def leave(self, request: Request, *, is_trusted: bool = True) -> None:
        """Free a request's slot and blocks; if ``is_trusted``, its full blocks stay in the prefix cache."""
        if is_trusted:
            self._publish(request.slot)
        self.changes.freed_slots.append(self.rows.leave(request))
        self._cache.free(request.cache)

    def num_computed(self, request: Request) -> int:
        """Tokens of the request in the cache, including those of steps in flight; 0 if it does not run."""
        return 0 if request.slot < 0 else int(self.rows.num_computed[request.slot])

    def num_shareable(self, request: Request) -> int:
        """Tokens of the request whose blocks other rows of the step that is being made may read."""
        return self.num_computed(request) - self._newest.get(request.slot, 0)

    def _publish_newest(self) -> None:
        """Publish what rows of the step before could not read."""
        newest, self._newest = self._newest, {}
        for slot in newest:
            if self.rows.requests[slot] is not None:
                self._publish(slot)

    def _publish(self, slot: int, num_scheduled: int = 0) -> None:
        """Enter the full blocks whose tokens are known into the prefix index.

        Blocks of steps in flight are included: steps run in order, so a block is filled before a later step reads it.
        Called for chunks of a prompt, which other requests may be about to share, and before blocks are freed;
        generated tokens are not published before the request ends.

        Args:
            num_scheduled: tokens of the request in the step that is being made, if it is advanced already.
        """
        if num_scheduled and self._cache.defers_reads:
            self._newest[slot] = num_scheduled
        rows = self.rows
        computed, known = int(rows.num_computed[slot]), int(rows.num_known[slot])
        self._cache.publish(rows.requests[slot].cache, rows.token_ids[slot], min(computed, known), num_scheduled)

    def _grow(self, slots: Slots, num_tokens: Counts) -> bool:
        """Allocate blocks for ``num_tokens`` tokens in all rows; False, without allocating, if too few are free."""
        if self._cache.drops_blocks:
            # Growing frees blocks; publish them first, so that they can still be found.
            for slot in slots.tolist():
                self._publish(slot)
        caches = [request.cache for request in self.rows.requests[slots]]
        added = self._cache.grow(caches, self.rows.num_kept(slots).tolist(), num_tokens.tolist())
        if added is None:
            return False
        self.changes.block_updates += added
        if self.wipes_blocks:
            self.changes.blocks_to_wipe += [block for update in added for block in update.block_ids]
        self.rows.next_block_boundary[slots] = [self._cache.num_tokens_before_change(cache) for cache in caches]
        return True

    def _schedule_one_by_one(self, budget: int, preempted: list[Request]) -> tuple[Slots, Counts]:
        """:meth:`schedule_running` if blocks are short: earlier requests get theirs first, others may be preempted."""
        order = self.rows.order.tolist()
        wanted = dict(zip(order, self.rows.num_wanted().tolist(), strict=True))
        chosen: dict[int, int] = {}
        index = 0
        while index < len(order) and budget > 0:
            slot = order[index]
            num_scheduled = min(wanted[slot], budget)
            if num_scheduled > 0 and not self._grow_one(slot, num_scheduled):
                victim = self._choose_victim()
                if victim is not None:
                    position = order.index(victim.slot)
                    del order[position]
                    index -= position < index
                    budget += chosen.pop(victim.slot, 0)
                    preempted.append(victim)
                    self._preempt(victim)
                    continue
                # A single request always fits, so here it can only be waiting for results of steps in flight.
                num_scheduled = 0
            if num_scheduled > 0:
                chosen[slot] = num_scheduled
                budget -= num_scheduled
            index += 1
        return np.array(list(chosen), np.intp), np.array(list(chosen.values()), np.int32)

    def _grow_one(self, slot: int, num_scheduled: int) -> bool:
        return self._grow(np.array([slot]), self.rows.num_computed[slot : slot + 1] + np.int32(num_scheduled))

    def _choose_victim(self) -> Request | None:
        """The running request to preempt: lowest priority first, then least work lost; never the first in order.

        Since the first in order is never preempted, at least one request runs to its end, so none starves.
        """
        running = self.rows.running()
        first = min(running, key=lambda request: request.rank)
        others = [request for request in running if request is not first]
        if not others:
            return None
        return min(
            others,
            key=lambda request: (-request.rank[0], self._cache.num_blocks_lost(request.cache), -request.rank[1]),
        )

    def _preempt(self, victim: Request) -> None:
        updates = self.changes.block_updates
        updates[:] = [update for update in updates if update.slot != victim.slot]
        self.leave(victim)


def _within(budget: int, slots: Slots, num_scheduled: Counts) -> tuple[Slots, Counts]:
    """The first rows with tokens to compute that fit the budget; the last one may be cut."""
    rows = num_scheduled.nonzero()[0]
    slots, num_scheduled = slots[rows], num_scheduled[rows]
    total = np.cumsum(num_scheduled)
    if len(total) and total[-1] > budget:
        last = int(np.searchsorted(total, budget))
        num_scheduled[last] -= total[last] - budget
        slots, num_scheduled = slots[: last + 1], num_scheduled[: last + 1]
    return slots, num_scheduled


def _new_row(request: Request) -> NewRow:
    source = request.source
    return NewRow(
        slot=request.slot,
        token_ids=request.token_ids,
        prompt_len=request.num_prompt,
        params=source.params,
        seed=source.seed,
        stop_token_ids=sorted(request.completion.stop_token_ids),
        bad_words_token_ids=source.bad_words_token_ids,
        prompt_logprobs_from=request.completion.num_logprobs_done,
        pooling=source.pooling,
        prompt_embeds=source.prompt_embeds,
    )
