"""Requests are let in with a view to the fullest moment that the cache will see."""

import numpy as np
import pytest
from engine_requests import engine_request
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import Harness
from simulated_device import make_plan

from octavo.records import SamplingParams
from octavo.scheduling.outlook import Outlook
from octavo.scheduling.rows import Rows

REQUESTS = st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=1, max_size=8)


@given(requests=REQUESTS)
def test_the_fullest_moment_is_the_one_that_going_through_all_finds(requests: list[tuple[int, int, int]]) -> None:
    """Each has computed so many tokens, so many more of its prompt are left, and it will write so many."""
    *running, (held, left, rest) = requests
    rows = Rows(len(requests), 200)
    rows.order = np.arange(len(running))
    for slot, (computed, to_compute, to_write) in enumerate(running):
        rows.num_computed[slot], rows.num_tokens[slot] = computed, computed + to_compute
        rows.expected_len[slot] = computed + to_compute + to_write
    fullest = max(
        sum(computed + to_compute + moment for computed, to_compute, to_write in requests if to_write >= moment)
        for moment in {to_write for _, _, to_write in requests}
    )
    in_use = sum(computed for computed, _, _ in requests)
    new = held, held + left, held + left + rest
    assert Outlook().fits(rows, *new, room=fullest - in_use)
    assert not Outlook().fits(rows, *new, room=fullest - in_use - 1)


@pytest.mark.parametrize("max_tokens", [8, 24])
@pytest.mark.parametrize("num_prompt", [5, 30])
def test_requests_of_known_length_are_never_computed_twice(num_prompt: int, max_tokens: int) -> None:
    plan = make_plan(
        max_model_len=64, block_size=4, num_blocks=61, max_num_seqs=32, max_num_batched_tokens=64, num_steps_ahead=1
    )
    most = 0
    harness = Harness(plan, end_share=0.0, is_hasty=False)
    for number in range(40):
        assert harness.add(
            engine_request(str(number), [number + 10] * num_prompt, SamplingParams(max_tokens=max_tokens))
        )
    while harness.scheduler.has_unfinished:
        harness.step()
        most = max(most, len(harness.scheduler.running))
    assert harness.scheduler.stats.num_preemptions == 0
    # As many run together as their prompts and answers have room, short of what rounding to blocks takes.
    assert most >= min(32, int(0.8 * 60 // ((num_prompt + max_tokens) / 4 + 1)))


def test_lengths_are_learned() -> None:
    outlook = Outlook()
    harness = Harness(make_plan(max_model_len=64), end_share=0.0)
    assert harness.add(engine_request("a", [0] * 10, SamplingParams(max_tokens=None)))
    request = harness.scheduler.requests["a"]
    assert outlook.expected_len(request) == 64
    for _ in range(500):
        outlook.note_end(6)
    assert 16 <= outlook.expected_len(request) <= 17
    assert harness.add(engine_request("b", [0] * 10, SamplingParams(max_tokens=2)))
    assert outlook.expected_len(harness.scheduler.requests["b"]) == 12
