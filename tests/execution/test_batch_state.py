"""Device state against plain lists, under random steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from cache_groups import cache_groups
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.execution.state import BatchState
from octavo.kernels import StepKernels
from octavo.records import BlockUpdate, NewRow, Plan, SamplingParams, Step, as_token_ids

CPU = torch.device("cpu")


def make_plan(num_groups: int = 2, max_num_seqs: int = 4, max_model_len: int = 12, block_size: int = 3) -> Plan:
    return Plan(
        dtype="float32",
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=50,
        block_bytes=4,
        groups=cache_groups(*[None] * num_groups, block_size=block_size),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        scheduling_policy="fcfs",
        num_steps_ahead=0,
    )


def make_step(
    rows: list[tuple[int, int, int]],
    new_rows: list[NewRow] | None = None,
    block_updates: list[BlockUpdate] | None = None,
    num_drawn: Sequence[int] = (),
) -> Step:
    """A step from (slot, tokens computed before, tokens to process) per row."""
    slots, computed, num_scheduled = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    drawn = np.array(num_drawn or [1] * len(rows), np.int32)
    return Step(1, slots, computed, num_scheduled, drawn, new_rows or [], block_updates=block_updates or [])


def new_row(slot: int, tokens: list[int]) -> NewRow:
    return NewRow(slot, as_token_ids(tokens), len(tokens), SamplingParams(), 0, [], [])


@dataclass
class Naive:
    """One slot, in plain lists."""

    tokens: list[int]
    num_computed: int
    tables: list[list[int]] = field(default_factory=lambda: [[], []])


class Mirror:
    """Applies random steps to the state and to the naive model."""

    def __init__(self) -> None:
        self.plan = make_plan()
        self.state = BatchState(self.plan, 64, CPU)
        self.slots: dict[int, Naive] = {}

    def run(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        leaving = [slot for slot in self.slots if draw(st.integers(0, 5)) == 0]
        for slot in leaving:
            del self.slots[slot]
        new_rows = []
        for slot in range(self.plan.max_num_seqs):
            if slot not in self.slots and draw(st.integers(0, 1)):
                tokens = [draw(st.integers(0, 99)) for _ in range(draw(st.integers(1, 8)))]
                self.slots[slot] = Naive(list(tokens), draw(st.integers(0, len(tokens) - 1)))
                new_rows.append(new_row(slot, tokens))
        self._step(draw, new_rows)

    def _step(self, draw: Callable[[st.SearchStrategy[int]], int], new_rows: list[NewRow]) -> None:
        names = {row.slot for row in new_rows}
        rows, updates = [], []
        for slot, naive in self.slots.items():
            room = len(naive.tokens) - naive.num_computed
            if len(naive.tokens) > self.plan.max_model_len or (slot not in names and draw(st.integers(0, 3)) == 0):
                continue
            num_scheduled = draw(st.integers(1, room))
            rows.append((slot, naive.num_computed, num_scheduled))
            updates += self._grow(draw, slot, naive, naive.num_computed + num_scheduled)
        if not rows:
            return
        num_drawn = [computed + num_scheduled == len(self.slots[slot].tokens) for slot, computed, num_scheduled in rows]
        step = make_step(rows, new_rows, updates, num_drawn)
        self.state.apply(step)
        self.check(step)
        self._carry_out(draw, rows)

    def _grow(
        self, draw: Callable[[st.SearchStrategy[int]], int], slot: int, naive: Naive, num_tokens: int
    ) -> list[BlockUpdate]:
        updates = []
        for group, table in enumerate(naive.tables):
            count = -(-num_tokens // self.plan.block_size) - len(table)
            if count > 0:
                blocks = [draw(st.integers(1, 49)) for _ in range(count)]
                updates.append(BlockUpdate(group, slot, len(table), blocks))
                table.extend(blocks)
        return updates

    def _carry_out(self, draw: Callable[[st.SearchStrategy[int]], int], rows: list[tuple[int, int, int]]) -> None:
        drawn, new_tokens = [], torch.zeros(len(rows), dtype=torch.int32)
        for slot, computed, num_scheduled in rows:
            naive = self.slots[slot]
            naive.num_computed = computed + num_scheduled
            drawn.append(draw(st.integers(-1, 99)))
            if naive.num_computed == len(naive.tokens):
                assert self.state.tokens_at(slot, torch.arange(len(naive.tokens))).tolist() == naive.tokens
                naive.tokens.append(max(0, drawn[-1]))
        StepKernels().append_tokens(self.state, torch.tensor(drawn), new_tokens, num_rows=len(rows))

    def check(self, step: Step) -> None:
        """Everything that a step reads is what the lists say."""
        num_rows = len(step.slots)
        assert self.state.row_slots[:num_rows].tolist() == step.slots.tolist()
        assert self.state.row_num_scheduled[:num_rows].tolist() == step.num_scheduled_tokens.tolist()
        known = []
        for slot, computed, num_scheduled in zip(step.slots, step.num_computed, step.num_scheduled_tokens, strict=True):
            positions = torch.arange(computed, computed + num_scheduled)
            known += self.state.tokens_at(int(slot), positions).tolist()
            assert num_scheduled == 1 or (self.state.step_tokens[len(known) - num_scheduled : len(known)] >= 0).all()
        sent = self.state.step_tokens[: len(known)].tolist()
        read = [mine if theirs < 0 else theirs for mine, theirs in zip(known, sent, strict=True)]
        rows = zip(step.slots.tolist(), step.num_computed.tolist(), step.num_scheduled_tokens.tolist(), strict=True)
        assert read == [
            token for slot, computed, count in rows for token in self.slots[slot].tokens[computed : computed + count]
        ]
        assert (self.state.step_tokens[len(known) :] < 0).all()
        for slot, naive in self.slots.items():
            assert int(self.state.num_computed[slot]) == naive.num_computed
            for group, table in enumerate(naive.tables):
                assert self.state.block_tables[group, slot, : len(table)].tolist() == table


@settings(max_examples=40)
@given(data=st.data(), num_steps=st.integers(1, 15))
def test_random_steps_leave_the_state_that_plain_lists_have(data: st.DataObject, num_steps: int) -> None:
    mirror = Mirror()
    for _ in range(num_steps):
        mirror.run(data.draw)


class TestWhatIsSent:
    """The arena is written in one place; a step without changes must not touch it."""

    def start(self) -> BatchState:
        state = BatchState(make_plan(), 64, CPU)
        blocks = [BlockUpdate(group, 0, 0, [1 + group]) for group in range(2)]
        state.apply(make_step([(0, 0, 2)], [new_row(0, [5, 6])], blocks))
        return state

    def is_written(self, state: BatchState, step: Step) -> bool:
        version = state.arena._version
        state.apply(step)
        return state.arena._version != version

    def test_a_steady_decode_step_sends_nothing(self) -> None:
        state = self.start()
        assert self.is_written(state, make_step([(0, 2, 1)]))
        assert not self.is_written(state, make_step([(0, 3, 1)]))
        assert not self.is_written(state, make_step([(0, 4, 1)]))

    def test_the_mean_length_of_rows_that_decode_is_sent_when_it_has_grown(self) -> None:
        state = self.start()
        state.apply(make_step([(0, 1000, 1), (1, 2000, 1), (2, 0, 50)]))
        assert state.header.tolist() == [3, 2, 52, 1500, 2]
        state.apply(make_step([(0, 1001, 1), (1, 2001, 1)]))
        assert not self.is_written(state, make_step([(0, 1100, 1), (1, 2100, 1)]))
        assert self.is_written(state, make_step([(0, 1300, 1), (1, 2300, 1)]))
        assert state.header.tolist() == [2, 2, 2, 1800, 2]

    def test_a_new_block_is_sent(self) -> None:
        state = self.start()
        state.apply(make_step([(0, 2, 1)]))
        assert self.is_written(state, make_step([(0, 3, 1)], block_updates=[BlockUpdate(1, 0, 1, [7])]))
        assert state.block_tables[1, 0, :2].tolist() == [2, 7]

    def test_another_set_of_rows_is_sent_though_all_decode(self) -> None:
        state = self.start()
        state.apply(make_step([(0, 2, 1)]))
        state.apply(make_step([(0, 3, 1), (2, 0, 1)], [new_row(2, [9])]))
        assert self.is_written(state, make_step([(2, 1, 1)]))
        assert state.row_slots[0] == 2
