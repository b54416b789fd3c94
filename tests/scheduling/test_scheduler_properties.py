"""The scheduler under any interleaving of requests, aborts, steps and results, against a simulated device."""

import copy
import random
from dataclasses import fields, replace

import numpy as np
from cache_groups import STATE, cache_group
from engine_requests import engine_request
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from scheduler_harness import END, STOP, Harness
from simulated_device import make_plan

from octavo.cache import CacheManager
from octavo.records import CacheSpec, EngineRequest, KeySpan, NewRow, Plan, SamplingParams, Step

WINDOWS = st.integers(1, 12) | st.integers(-12, -1)
KINDS = st.one_of(
    st.just((None,)),
    st.tuples(WINDOWS),
    st.just((STATE,)),
    st.tuples(st.none(), WINDOWS),
    st.tuples(st.none(), st.just(STATE)),
    st.tuples(st.none(), WINDOWS, WINDOWS),
    st.tuples(st.none(), WINDOWS, st.just(STATE)),
)
Kinds = tuple[CacheSpec | int | None, ...]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Small engines whose cache is often just large enough for one or two of the longest requests."""
    kinds = draw(KINDS)
    length, block_size = draw(st.integers(2, 40)), draw(st.integers(1, 8))
    ratios = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=len(kinds), max_size=len(kinds)))
    blocks_of_one = sum(-(-length // (block_size * ratio)) for ratio in ratios)
    budget = draw(st.one_of(st.integers(1, 8), st.integers(8, 64)))
    plan = make_plan(
        max_model_len=length,
        block_size=block_size,
        num_blocks=1 + draw(st.integers(max(1, blocks_of_one // 2), 3 * blocks_of_one)),
        kinds=kinds,
        ratios=ratios,
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=draw(st.none() | st.integers(1, budget)),
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        num_steps_ahead=draw(st.integers(0, 2)),
        num_drafts=draw(st.sampled_from([0, 0, 1, 3])),
    )
    num_mixed = plan.max_num_seqs * (1 + plan.num_drafts) + draw(st.integers(1, 4))
    is_limited = draw(st.booleans()) and plan.enable_chunked_prefill and num_mixed < plan.token_budget
    return replace(plan, max_num_mixed_tokens=num_mixed if is_limited else None)


PROMPTS = st.one_of(
    st.builds(lambda head, tail: [0] * head + tail, st.integers(0, 20), st.lists(st.integers(0, 2), max_size=8)),
    st.lists(st.integers(0, 1), max_size=12),
)
PARAMS = st.builds(
    lambda max_tokens, min_tokens, prompt_logprobs, logprobs, stop_token_ids, skip: SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens or min_tokens),
        prompt_logprobs=prompt_logprobs,
        logprobs=logprobs,
        stop_token_ids=stop_token_ids,
        skip_reading_prefix_cache=skip,
    ),
    max_tokens=st.one_of(st.none(), st.integers(1, 20)),
    min_tokens=st.integers(0, 3),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
    logprobs=st.sampled_from([None, None, None, 0]),
    # None of the other numbers is ever sampled; long lists, and ids of no vocabulary, are looked at in another way.
    stop_token_ids=st.sampled_from([[STOP], [STOP, 1 << 31], [*range(90, 100), STOP], None]),
    skip=st.sampled_from([None, None, True]),
)


SPAN_LENGTHS = {"cat": 2, "dog": 5}


@st.composite
def key_spans(draw: st.DrawFn, prompt: list[int]) -> list[KeySpan]:
    """Images in a prompt; equal keys have equal lengths."""
    if draw(st.booleans()):
        return []
    drawn = draw(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(sorted(SPAN_LENGTHS))), max_size=2))
    spans = [KeySpan(start, start + SPAN_LENGTHS[key], key, "image") for start, key in drawn]
    return [span for span in spans if span.end <= len(prompt)]


@st.composite
def forks(draw: st.DrawFn) -> list[EngineRequest]:
    """One prompt with ``n`` completions, ids still to be made unique; some were begun before a restart."""
    prompt, params = draw(PROMPTS), draw(PARAMS)
    count, priority = draw(st.sampled_from([1, 1, 1, 2, 4])), draw(st.integers(0, 2))
    salt, client = draw(st.sampled_from([None, None, "tenant"])), draw(st.sampled_from(["", "", "one", "two"]))
    spans = draw(key_spans(prompt))
    replayed = draw(st.lists(st.integers(0, 2), max_size=3)) if draw(st.booleans()) else []
    if params.max_tokens is not None:
        replayed = replayed[: params.max_tokens - 1]
    return [
        engine_request(
            request_id=str(index),
            prompt_token_ids=prompt,
            params=params,
            eos_token_ids=[END],
            output_token_ids=replayed,
            priority=priority,
            cache_salt=salt,
            client=client,
            leader_id="0" if count > 1 else None,
            key_spans=spans,
        )
        for index in range(count)
    ]


def add_forks(harness: Harness, sources: list[EngineRequest], number: int) -> int:
    """Add the requests under ids of their own; returns how many were accepted."""
    accepted = 0
    room = harness.plan.max_model_len - len(sources[0].prompt_token_ids)
    for index, source in enumerate(sources):
        source.request_id = f"{number}.{index}"
        source.leader_id = f"{number}.0" if source.leader_id is not None else None
        source.output_token_ids = source.output_token_ids[: max(0, room - 1)]
        accepted += harness.add(source)
    return accepted


def plain(value: object) -> object:
    """A step's field, in which arrays within rows are lists and can be compared."""
    if isinstance(value, list) and value and isinstance(value[0], NewRow):
        return [replace(row, token_ids=row.token_ids.tolist()) for row in value]
    return value


@settings(max_examples=150)
@given(plan=plans(), seed=st.integers(0, 1 << 16), batch=st.lists(forks(), min_size=1, max_size=5))
def test_requests_that_take_blocks_together_get_what_they_would_get_one_by_one(
    plan: Plan, seed: int, batch: list[list[EngineRequest]]
) -> None:
    """As long as no window gives blocks back: where one does depends on who is asked first."""
    plan = replace(plan, groups=(cache_group(block_size=plan.block_size),))
    together, one_by_one = Harness(plan, seed), Harness(plan, seed)
    running = one_by_one.scheduler._running
    grow = running._grow
    running._grow = lambda slots, num_tokens: len(slots) == 1 and grow(slots, num_tokens)
    steps: list[list[Step]] = []
    for harness in (together, one_by_one):
        for number, sources in enumerate(copy.deepcopy(batch)):
            add_forks(harness, sources, number)
        steps.append([])
        while harness.scheduler.has_unfinished or harness.results:
            while (step := harness.schedule()) is not None:
                steps[-1].append(step)
                # With drafts, rows advance unequally: a batch that goes on would keep its first step's order.
                harness.scheduler._last_batch = None
            harness.update()
    for one, other in zip(*steps, strict=True):
        for field in fields(Step):
            assert np.array_equal(plain(getattr(one, field.name)), plain(getattr(other, field.name))), field.name
    assert together.received == one_by_one.received


class SchedulerMachine(RuleBasedStateMachine):
    """Any interleaving of what an engine may ask of its scheduler."""

    @initialize(
        plan=plans(),
        seed=st.integers(0, 1 << 16),
        nan_share=st.sampled_from([0.0, 0.0, 0.05]),
        end_share=st.sampled_from([0.0, 0.1]),
        is_hasty=st.booleans(),
    )
    def start(self, plan: Plan, seed: int, nan_share: float, end_share: float, is_hasty: bool) -> None:
        self.harness = Harness(plan, seed, nan_share, end_share, is_hasty=is_hasty)
        self.num_added = 0

    @rule(batch=st.lists(forks(), min_size=1, max_size=3))
    def add(self, batch: list[list[EngineRequest]]) -> None:
        for sources in batch:
            accepted = add_forks(self.harness, sources, self.num_added)
            self.num_added += 1
            event("accepted" if accepted else "refused")

    @rule(choices=st.lists(st.integers(0, 20), min_size=1, max_size=3))
    def abort(self, choices: list[int]) -> None:
        alive = [*self.harness.scheduler.requests, "unknown"]
        self.harness.abort(alive[choice % len(alive)] for choice in choices)

    @rule()
    def schedule(self) -> None:
        self.harness.schedule()

    @rule()
    def update(self) -> None:
        self.harness.update()

    @rule(count=st.integers(1, 12))
    def run_on(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.drain()
        assert self.harness.scheduler.reset_prefix_cache()
        for reason in set(self.harness.finished.values()):
            event(f"finished: {reason}")
        if self.harness.scheduler.stats.num_preemptions:
            event("preempted")
        if self.harness.scheduler.stats.prefix_hits:
            event("hit")


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=25)


@settings(max_examples=150)
@given(plan=plans(), num_prompt=st.integers(1, 40), max_tokens=st.integers(1, 40))
def test_what_is_accepted_finishes_alone(plan: Plan, num_prompt: int, max_tokens: int) -> None:
    harness = Harness(plan, end_share=0.0)
    source = engine_request("alone", [0] * num_prompt, SamplingParams(max_tokens=max_tokens))
    if harness.add(source):
        harness.drain()
        assert harness.finished == {"alone": "length"}
        assert len(harness.received["alone"]) == min(max_tokens, plan.max_model_len - num_prompt)
        assert harness.scheduler.stats.num_preemptions == 0
    else:
        longest = plan.token_budget + (plan.num_steps_ahead + 1) * plan.num_drafts
        cache = CacheManager(plan.num_blocks, plan.block_size, plan.groups, longest)
        too_long = num_prompt >= plan.max_model_len
        unchunked = not plan.enable_chunked_prefill and num_prompt > plan.token_budget
        assert too_long or unchunked or not cache.fits(min(plan.max_model_len, num_prompt + max_tokens))


@settings(max_examples=200)
@given(
    kinds=KINDS,
    seed=st.integers(0, 1 << 32),
    num_steps_ahead=st.integers(0, 2),
    budget=st.integers(4, 24),
    enable_prefix_caching=st.booleans(),
    is_hasty=st.booleans(),
)
def test_many_requests_in_a_cache_for_hardly_two(
    kinds: Kinds,
    seed: int,
    num_steps_ahead: int,
    budget: int,
    enable_prefix_caching: bool,
    is_hasty: bool,
) -> None:
    """Preemption all the time, with steps under way."""
    source = random.Random(seed)
    plan = make_plan(
        max_model_len=24,
        block_size=2,
        num_blocks=1 + len(kinds) * source.randint(12, 18),
        kinds=kinds,
        max_num_seqs=6,
        max_num_batched_tokens=budget,
        enable_prefix_caching=enable_prefix_caching,
        num_steps_ahead=num_steps_ahead,
    )
    harness = Harness(plan, seed, end_share=0.02, is_hasty=is_hasty)
    for number in range(10):
        prompt = [source.randint(0, 1) for _ in range(source.randint(1, 12))]
        assert harness.add(
            engine_request(str(number), prompt, SamplingParams(max_tokens=source.randint(4, 12)), eos_token_ids=[END])
        )
        for _ in range(source.randint(0, 3)):
            harness.step()
        if source.random() < 0.2:
            harness.abort([str(source.randint(0, number))])
    harness.drain()
    event("preempted" if harness.scheduler.stats.num_preemptions else "not preempted")
