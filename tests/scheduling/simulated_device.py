"""A device without tensors: it keeps what a real one would keep, and checks every step against it.

What a key/value entry holds depends on the tokens up to its position and on nothing else, so an entry is simulated
by a hash of those tokens, together with the cache group it is for and the tenant it belongs to. A step whose
queries would see anything but their own request's prefix is refused by an assertion.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from octavo.cache import NULL_BLOCK
from octavo.records import (
    NAN_TOKEN,
    BlockUpdate,
    CacheGroup,
    NewRow,
    Plan,
    RowLogprobs,
    Step,
    StepResult,
    TokenLogprobs,
)

FULL = (CacheGroup((0,), None),)
POISON = "not a number"

Sample = Callable[[str, int], int]
"""Request id and number of tokens so far → the next token."""


def make_plan(
    *,
    max_model_len: int = 32,
    block_size: int = 4,
    num_blocks: int = 33,
    groups: tuple[CacheGroup, ...] = FULL,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    enable_prefix_caching: bool = True,
    enable_chunked_prefill: bool = True,
    scheduling_policy: str = "fcfs",
    num_steps_ahead: int = 0,
    max_num_scheduled_tokens: int | None = None,
) -> Plan:
    """A plan for a small engine; ``num_blocks`` includes the null block."""
    return Plan(
        dtype="float32",
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        groups=groups,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        enable_chunked_prefill=enable_chunked_prefill,
        scheduling_policy=scheduling_policy,
        num_steps_ahead=num_steps_ahead,
        max_num_scheduled_tokens=max_num_scheduled_tokens,
    )


@dataclass
class Row:
    """A slot's state on the device.

    Attributes:
        chain: per token, the hash of it and all before.
        tables: per cache group, the block table.
    """

    request_id: str
    source: NewRow
    num_computed: int
    tokens: list[int]
    chain: list[int]
    tables: list[list[int]]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.chain.append(hash((self.chain[-1], token)))


@dataclass
class SimulatedDevice:
    """Carries out steps in the order given.

    Attributes:
        owner_of: slot → request id, asked when a row is new.
        tenant_of: request id → whatever must be equal for two requests to share blocks.
        sampled: request id → tokens in the order in which they were sampled.
        admissions: request id → tokens found in the cache, per admission.
    """

    plan: Plan
    owner_of: Callable[[int], str]
    tenant_of: Callable[[str], Hashable]
    sample: Sample
    rows: dict[int, Row] = field(default_factory=dict)
    memory: dict[tuple[int, int], object] = field(default_factory=dict)
    sampled: dict[str, list[int]] = field(default_factory=dict)
    admissions: dict[str, list[int]] = field(default_factory=dict)

    def execute(self, step: Step) -> StepResult:
        """Carry out a step; raises AssertionError where a real device would compute nonsense."""
        self._take_changes(step)
        self._check_shape(step)
        self._write(step)
        result = StepResult([0] * len(step.slots))
        for index, slot in enumerate(step.slots.tolist()):
            self._run_row(index, self.rows[slot], int(step.num_new[index]), bool(step.samples[index]), result)
        return result

    def _take_changes(self, step: Step) -> None:
        for slot in step.freed_slots:
            # A request that was admitted and ended before its first step was submitted cannot exist.
            del self.rows[slot]
        for block in step.blocks_to_wipe:
            for offset in range(self.plan.block_size):
                self.memory.pop((block, offset), None)
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
        for token in new.token_ids:
            chain.append(hash((chain[-1], token)))
        row = Row(request_id, new, found, list(new.token_ids), chain, [[] for _ in self.plan.groups])
        self.rows[new.slot] = row

    def _add_blocks(self, update: BlockUpdate) -> None:
        table = self.rows[update.slot].tables[update.group]
        assert update.start == len(table), "a block table has a hole or is written twice"
        table.extend(update.block_ids)
        assert len(table) <= self.plan.max_blocks_per_seq
        assert all(0 <= block < self.plan.num_blocks for block in update.block_ids)

    def _check_shape(self, step: Step) -> None:
        slots, num_new = step.slots.tolist(), step.num_new.tolist()
        assert 0 < len(slots) <= self.plan.max_num_seqs
        assert len(set(slots)) == len(slots)
        assert min(num_new) >= 1
        assert sum(num_new) == step.num_tokens <= self.plan.max_num_batched_tokens
        assert sorted(num_new, key=lambda count: count > 1) == num_new, "rows of one token come first"
        assert step.num_decodes == num_new.count(1)
        assert step.max_query_len == max(num_new)
        chunks = [first for first, count in zip(step.num_computed.tolist(), num_new, strict=True) if count > 1]
        assert step.is_fresh == (not any(chunks))
        for slot, computed, count, samples in zip(
            slots, step.num_computed.tolist(), num_new, step.samples.tolist(), strict=True
        ):
            row = self.rows[slot]
            assert row.num_computed == computed, "host and device disagree on what is computed"
            assert computed + count <= len(row.tokens) <= self.plan.max_model_len
            assert samples == (computed + count == len(row.tokens))

    def _write(self, step: Step) -> None:
        """Store the keys of all rows before any row reads, as each layer does."""
        written: set[tuple[int, int]] = set()
        for slot, count in zip(step.slots.tolist(), step.num_new.tolist(), strict=True):
            row = self.rows[slot]
            for group, table in enumerate(row.tables):
                for position in range(row.num_computed, row.num_computed + count):
                    place = self._place(table, position)
                    assert place[0] != NULL_BLOCK, "a token is written to the null block"
                    assert place not in written, "two requests write to one place"
                    written.add(place)
                    self.memory[place] = (group, row.chain[position + 1])

    def _run_row(self, index: int, row: Row, num_new: int, samples: bool, result: StepResult) -> None:
        is_poisoned = self._read(row, num_new)
        first, row.num_computed = row.num_computed, row.num_computed + num_new
        if is_poisoned:
            self._poison(row, first, row.num_computed)
        self._collect_prompt_logprobs(index, row, first, result)
        if not samples:
            return
        token = self.sample(row.request_id, len(row.tokens)) if not is_poisoned else NAN_TOKEN
        if token == NAN_TOKEN:
            self._poison(row, row.num_computed - 1, row.num_computed)
        result.token_ids[index] = token
        self.sampled.setdefault(row.request_id, []).append(token)
        row.append(max(token, 0))
        if row.source.params.logprobs is not None:
            result.logprobs.setdefault(index, RowLogprobs()).sampled = [TokenLogprobs([token], [-0.5], 1)]

    def _read(self, row: Row, num_new: int) -> bool:
        """Check everything that the row's queries see; returns whether a failure of another request is among it."""
        is_poisoned = False
        first, end = row.num_computed, row.num_computed + num_new
        for group, table in enumerate(row.tables):
            window = self.plan.groups[group].window
            begin = 0 if window is None else max(0, first - window + 1)
            for position in range(begin, end):
                entry = self.memory.get(self._place(table, position))
                is_poisoned |= entry == POISON
                expected = (group, row.chain[position + 1])
                assert entry in (POISON, expected), f"position {position} of group {group} holds something else"
        return is_poisoned

    def _poison(self, row: Row, begin: int, end: int) -> None:
        """What queries leave behind whose values were not numbers."""
        for table in row.tables:
            for position in range(begin, end):
                self.memory[self._place(table, position)] = POISON

    def _collect_prompt_logprobs(self, index: int, row: Row, first: int, result: StepResult) -> None:
        """Logprobs of prompt positions carry the position in place of a rank."""
        if row.source.params.prompt_logprobs is None:
            return
        begin = max(first + 1, row.source.prompt_logprobs_from)
        end = min(row.num_computed + 1, row.source.prompt_len)
        found = [TokenLogprobs([row.tokens[position]], [-1.0], position) for position in range(begin, end)]
        if found:
            result.logprobs.setdefault(index, RowLogprobs()).prompt.extend(found)

    def _place(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self.plan.block_size], position % self.plan.block_size
