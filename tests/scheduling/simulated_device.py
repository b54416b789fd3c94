"""A device without tensors: it keeps what a real one would keep, and checks every step against it.

What a key/value entry holds depends on the tokens up to its position and on nothing else, so an entry is simulated
by a hash of those tokens and of what lies below them (an image, say), together with the cache group it is for and the
tenant it belongs to. A step whose queries would see anything but their own request's prefix is refused by an assertion.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from cache_groups import cache_group
from visible_keys import first_key

from octavo.cache import NULL_BLOCK
from octavo.records import (
    NAN_TOKEN,
    BlockUpdate,
    CacheSpec,
    NewRow,
    NgramDrafts,
    Plan,
    RowLogprobs,
    State,
    Step,
    StepResult,
    TokenLogprobs,
)

POISON = "not a number"

Sample = Callable[[str, int, int | None], int]
"""Request id, number of tokens so far and the draft in the next token's place, if any → the next token."""

Draft = Callable[[], list[int]]
"""Drafts for a request's next step."""


def make_plan(
    *,
    max_model_len: int = 32,
    block_size: int = 4,
    num_blocks: int = 33,
    kinds: Sequence[CacheSpec | int | None] = (None,),
    ratios: Sequence[int] = (),
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    enable_prefix_caching: bool = True,
    enable_chunked_prefill: bool = True,
    scheduling_policy: str = "fcfs",
    num_steps_ahead: int = 0,
    num_drafts: int = 0,
    max_num_scheduled_tokens: int | None = None,
) -> Plan:
    """A plan for a small engine.

    Args:
        block_size: tokens per prefix hash.
        num_blocks: the null block included.
        kinds: of cache groups; a number is a window, a negative one a chunk, None full attention.
        ratios: the groups' block sizes, in hashes; 1 if left out.
    """
    sizes = [block_size * ratio for ratio in ratios] or [block_size] * len(kinds)
    pairs = enumerate(zip(kinds, sizes, strict=True))
    return Plan(
        dtype="float32",
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        block_bytes=4,
        groups=tuple(cache_group(kind, index=index, block_size=size) for index, (kind, size) in pairs),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        enable_chunked_prefill=enable_chunked_prefill,
        scheduling_policy=scheduling_policy,
        num_steps_ahead=num_steps_ahead,
        drafter=NgramDrafts(num_drafts, 1, 1) if num_drafts else None,
        decode_len=1 + num_drafts,
        max_num_scheduled_tokens=max_num_scheduled_tokens,
    )


@dataclass
class Row:
    """A slot's state on the device.

    Attributes:
        chain: per token, the hash of it and all before.
        tables: per cache group, the block table.
        drafts: tokens that a drafter expects next.
        has_drawn: whether a token was drawn, so that a drafter may have left drafts.
    """

    request_id: str
    source: NewRow
    num_computed: int
    tokens: list[int]
    chain: list[int]
    tables: list[list[int]]
    drafts: list[int] = field(default_factory=list)
    has_drawn: bool = False

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.chain.append(hash((self.chain[-1], token, ())))

    def content(self, position: int) -> int:
        """What a key at a position stands for: the tokens up to it, the drafts behind the known ones included."""
        value = self.chain[min(position + 1, len(self.tokens))]
        for index in range(position + 1 - len(self.tokens)):
            value = hash((value, self.drafts[index] if index < len(self.drafts) else "nothing", ()))
        return value


@dataclass
class SimulatedDevice:
    """Carries out steps in the order given.

    Attributes:
        owner_of: slot → request id, asked when a row is new.
        tenant_of: request id → whatever must be equal for two requests to share blocks.
        keys_at: request id and position → whatever must be equal, beside the token, for the entry to be the same.
        sampled: request id → tokens in the order in which they were sampled.
        admissions: request id → tokens found in the cache, per admission.
    """

    plan: Plan
    owner_of: Callable[[int], str]
    tenant_of: Callable[[str], Hashable]
    keys_at: Callable[[str, int], Hashable]
    sample: Sample
    draft: Draft = list
    rows: dict[int, Row] = field(default_factory=dict)
    memory: dict[tuple[int, int], object] = field(default_factory=dict)
    sampled: dict[str, list[int]] = field(default_factory=dict)
    admissions: dict[str, list[int]] = field(default_factory=dict)

    def execute(self, step: Step) -> StepResult:
        """Carry out a step; raises AssertionError where a real device would compute nonsense."""
        self._take_changes(step)
        self._check_shape(step)
        # Rows of a step do not read the states that others leave behind in it.
        slots = step.slots.tolist()
        are_poisoned = [self._read_states(self.rows[slot]) for slot in slots]
        self._write(step)
        num_rows, num_drafts = len(step.slots), self.plan.num_drafts
        result = StepResult(np.zeros((num_rows, 1 + num_drafts) if num_drafts else num_rows, np.int32))
        if num_drafts:
            result.num_tokens, result.num_drafts = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
            result.drafts = np.zeros((num_rows, num_drafts), np.int32)
        for index, slot in enumerate(slots):
            num_scheduled, num_drawn = int(step.num_scheduled_tokens[index]), int(step.num_drawn[index])
            self._run_row(index, self.rows[slot], num_scheduled, num_drawn, result, is_poisoned=are_poisoned[index])
        return result

    def _take_changes(self, step: Step) -> None:
        for slot in step.freed_slots:
            # A request that was admitted and ended before its first step was submitted cannot exist.
            del self.rows[slot]
        for block in step.blocks_to_wipe:
            for place in [place for place in self.memory if place[0] == block]:
                del self.memory[place]
        for new in step.new_rows:
            self._add_row(new, step)
        for update in step.block_updates:
            self._add_blocks(update)

    def _add_row(self, new: NewRow, step: Step) -> None:
        assert new.slot not in self.rows, "a slot is given to two requests"
        request_id = self.owner_of(new.slot)
        index = step.slots.tolist().index(new.slot)
        found = int(step.num_computed[index])
        self.admissions.setdefault(request_id, []).append(found)
        chain = [hash(self.tenant_of(request_id))]
        for position, token in enumerate(new.token_ids):
            chain.append(hash((chain[-1], token, self.keys_at(request_id, position))))
        row = Row(request_id, new, found, list(new.token_ids), chain, [[] for _ in self.plan.groups])
        self.rows[new.slot] = row

    def _add_blocks(self, update: BlockUpdate) -> None:
        table = self.rows[update.slot].tables[update.group]
        assert update.start == len(table), "a block table has a hole or is written twice"
        table.extend(update.block_ids)
        assert len(table) <= self.plan.max_blocks_per_seq
        assert all(0 <= block < self.plan.num_blocks for block in update.block_ids)

    def _check_shape(self, step: Step) -> None:
        slots, num_scheduled = step.slots.tolist(), step.num_scheduled_tokens.tolist()
        assert 0 < len(slots) <= self.plan.max_num_seqs
        assert len(set(slots)) == len(slots)
        assert min(num_scheduled) >= 1
        assert sum(num_scheduled) == step.num_tokens <= self.plan.token_budget
        if any(self.rows[slot].has_drawn for slot in slots):
            assert step.num_tokens <= (self.plan.max_num_mixed_tokens or step.num_tokens)
        decode_len = self.plan.decode_len
        is_chunk = [count > decode_len for count in num_scheduled]
        assert sorted(is_chunk) == is_chunk, "rows of at most decode_len tokens come first"
        assert step.num_decodes == is_chunk.count(False)
        assert step.num_decode_tokens == sum(count for count in num_scheduled if count <= decode_len)
        assert step.max_query_len == max(num_scheduled)
        chunks = [
            first for first, count in zip(step.num_computed.tolist(), num_scheduled, strict=True) if count > decode_len
        ]
        assert step.is_fresh == (not any(chunks))
        for slot, computed, count, num_drawn in zip(
            slots, step.num_computed.tolist(), num_scheduled, step.num_drawn.tolist(), strict=True
        ):
            row = self.rows[slot]
            num_behind = computed - row.num_computed
            most_behind = self.plan.num_drafts * self.plan.num_steps_ahead
            assert 0 <= num_behind <= most_behind, "host and device disagree on what is computed"
            assert computed + count <= self.plan.max_model_len and len(row.tokens) <= self.plan.max_model_len
            # Rows that draw have nothing but drafts behind the last known token.
            num_drafts = row.num_computed + count - len(row.tokens)
            assert num_drawn == max(0, num_drafts + 1)
            assert num_drafts <= (self.plan.num_drafts if row.has_drawn else 0)

    def _write(self, step: Step) -> None:
        """Store the keys of all rows before any row reads, as each layer does."""
        written: set[tuple[int, int]] = set()
        for slot, count in zip(step.slots.tolist(), step.num_scheduled_tokens.tolist(), strict=True):
            row = self.rows[slot]
            for group, table in enumerate(row.tables):
                for position in self._written(group, row.num_computed, row.num_computed + count):
                    place = self._place(group, table, position)
                    assert place[0] != NULL_BLOCK, "a token is written to the null block"
                    assert place not in written, "two requests write to one place"
                    written.add(place)
                    self.memory[place] = (group, row.content(position))

    def _written(self, group: int, first: int, end: int) -> list[int]:
        """The positions of a row that leave something behind: all, or those with a state that may be needed."""
        if not self._is_state(group):
            return list(range(first, end))
        size, last = self.plan.groups[group].block_size, end - self.plan.num_places
        return [position for position in range(first, end) if position >= last or (position + 1) % size == 0]

    def _run_row(
        self, index: int, row: Row, num_scheduled: int, num_drawn: int, result: StepResult, *, is_poisoned: bool
    ) -> None:
        is_poisoned |= self._read(row, num_scheduled)
        first = row.num_computed
        if is_poisoned:
            self._poison(row, first, first + num_scheduled)
        drawn: list[int] = []
        if num_drawn:
            drawn = [NAN_TOKEN] if is_poisoned else self._draw(row, num_drawn)
        # What precedes the first draw is computed, and so is every draft that was drawn.
        row.num_computed = len(row.tokens) + len(drawn) - 1 if drawn else first + num_scheduled
        self._collect_prompt_logprobs(index, row, first, result)
        if drawn:
            self._take_drawn(index, row, drawn, result)

    def _draw(self, row: Row, num_drawn: int) -> list[int]:
        """Tokens up to the first that differs from its draft."""
        drawn: list[int] = []
        for draft in [*row.drafts, None][:num_drawn]:
            token = self.sample(row.request_id, len(row.tokens) + len(drawn), draft)
            drawn.append(token)
            if token != draft:
                break
        return drawn

    def _take_drawn(self, index: int, row: Row, drawn: list[int], result: StepResult) -> None:
        if drawn[-1] == NAN_TOKEN:
            self._poison(row, row.num_computed - 1, row.num_computed)
        assert isinstance(result.token_ids, np.ndarray)
        result.token_ids[index, ...].flat[: len(drawn)] = drawn
        self.sampled.setdefault(row.request_id, []).extend(drawn)
        for token in drawn:
            row.append(max(token, 0))
        row.has_drawn = True
        if row.source.params.logprobs is not None:
            found = [TokenLogprobs([token], [-0.5], 1) for token in drawn]
            result.logprobs.setdefault(index, RowLogprobs()).sampled = found
        if self.plan.num_drafts:
            assert result.num_tokens is not None and result.num_drafts is not None and result.drafts is not None
            row.drafts = self.draft()
            result.num_tokens[index] = len(drawn)
            result.num_drafts[index] = len(row.drafts)
            result.drafts[index, : len(row.drafts)] = row.drafts

    def _read(self, row: Row, num_scheduled: int) -> bool:
        """Check everything that the row's queries see; returns whether a failure of another request is among it."""
        is_poisoned = False
        first, end = row.num_computed, row.num_computed + num_scheduled
        for group, table in enumerate(row.tables):
            if self._is_state(group):
                continue
            begin = first_key(first, self.plan.groups[group].signed_window)
            for position in range(begin, end):
                is_poisoned |= self._check_entry(row, group, table, position)
        return is_poisoned

    def _read_states(self, row: Row) -> bool:
        """Check the states that a row continues from; returns whether one is of a failure."""
        if not row.num_computed:
            return False
        is_poisoned = False
        for group, table in enumerate(row.tables):
            if self._is_state(group):
                is_poisoned |= self._check_entry(row, group, table, row.num_computed - 1)
        return is_poisoned

    def _check_entry(self, row: Row, group: int, table: list[int], position: int) -> bool:
        entry = self.memory.get(self._place(group, table, position))
        expected = (group, row.content(position))
        assert entry in (POISON, expected), f"position {position} of group {group} holds something else"
        return entry == POISON

    def _poison(self, row: Row, begin: int, end: int) -> None:
        """What queries leave behind whose values were not numbers."""
        for group, table in enumerate(row.tables):
            for position in self._written(group, begin, end):
                self.memory[self._place(group, table, position)] = POISON

    def _collect_prompt_logprobs(self, index: int, row: Row, first: int, result: StepResult) -> None:
        """Logprobs of prompt positions carry the position in place of a rank."""
        if row.source.params.prompt_logprobs is None:
            return
        begin = max(first + 1, row.source.prompt_logprobs_from)
        end = min(row.num_computed + 1, row.source.prompt_len)
        found = [TokenLogprobs([row.tokens[position]], [-1.0], position) for position in range(begin, end)]
        if found:
            result.logprobs.setdefault(index, RowLogprobs()).prompt.extend(found)

    def _is_state(self, group: int) -> bool:
        return isinstance(self.plan.groups[group].spec, State)

    def _place(self, group: int, table: list[int], position: int) -> tuple[int, int]:
        size = self.plan.groups[group].block_size
        return table[position // size], position % (self.plan.num_places if self._is_state(group) else size)
