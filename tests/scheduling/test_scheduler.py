"""What the scheduler promises, one behaviour at a time."""

from collections.abc import Iterator

import pytest
from engine_requests import engine_request
from scheduler_harness import END, STOP, Harness
from simulated_device import make_plan

from octavo.errors import InvalidRequestError
from octavo.records import NAN_TOKEN, EngineRequest, KeySpan, Plan, SamplingParams, Step
from octavo.scheduling import Scheduler


def request(
    request_id: str,
    prompt: list[int],
    max_tokens: int | None = 4,
    *,
    priority: int = 0,
    leader_id: str | None = None,
    output: list[int] | None = None,
    prompt_logprobs: int | None = None,
    min_tokens: int = 0,
) -> EngineRequest:
    params = SamplingParams(
        max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=[STOP], prompt_logprobs=prompt_logprobs
    )
    return engine_request(
        request_id,
        prompt,
        params,
        eos_token_ids=[END],
        output_token_ids=output or [],
        priority=priority,
        leader_id=leader_id,
    )


def quiet(plan: Plan) -> Harness:
    """A harness whose device never samples an end or stop token."""
    return Harness(plan, end_share=0.0)


def admitted(harness: Harness) -> list[str]:
    """Request ids in the order of their first admission."""
    return list(harness.device.admissions)


class TestRefusals:
    def test_an_empty_prompt(self) -> None:
        with pytest.raises(InvalidRequestError, match="empty"):
            Scheduler(make_plan()).add_request(request("a", []))

    def test_a_prompt_that_leaves_no_room_for_an_answer(self) -> None:
        scheduler = Scheduler(make_plan(max_model_len=8))
        with pytest.raises(InvalidRequestError, match="8 tokens; the engine takes at most 8"):
            scheduler.add_request(request("a", [0] * 8))
        scheduler.add_request(request("a", [0] * 7))

    def test_an_id_in_use_until_its_request_ends(self) -> None:
        scheduler = Scheduler(make_plan())
        scheduler.add_request(request("a", [0]))
        with pytest.raises(InvalidRequestError, match="'a' is already in use"):
            scheduler.add_request(request("a", [0]))
        scheduler.abort(["a"])
        scheduler.add_request(request("a", [0]))

    def test_a_request_that_can_never_fit_the_cache(self) -> None:
        scheduler = Scheduler(make_plan(max_model_len=32, block_size=4, num_blocks=5))
        with pytest.raises(InvalidRequestError, match="may grow to 17 tokens, more than the cache's 4 blocks of 4"):
            scheduler.add_request(request("a", [0] * 10, max_tokens=7))
        assert not scheduler.has_unfinished
        scheduler.add_request(request("a", [0] * 10, max_tokens=6))

    def test_a_prompt_beyond_the_budget_without_chunked_prefill(self) -> None:
        scheduler = Scheduler(make_plan(max_num_batched_tokens=8, enable_chunked_prefill=False))
        with pytest.raises(InvalidRequestError, match="without chunked prefill at most 8"):
            scheduler.add_request(request("a", [0] * 9))

    def test_a_step_holds_no_more_than_the_scheduler_may_give_out(self) -> None:
        scheduler = Scheduler(make_plan(max_num_batched_tokens=16, max_num_scheduled_tokens=5))
        scheduler.add_request(request("a", [0] * 12))
        step = scheduler.schedule()
        assert step is not None and int(step.num_scheduled_tokens.sum()) == 5
        without_chunks = Scheduler(make_plan(max_num_scheduled_tokens=5, enable_chunked_prefill=False))
        with pytest.raises(InvalidRequestError, match="without chunked prefill at most 5"):
            without_chunks.add_request(request("a", [0] * 6))

    def test_a_refused_request_leaves_the_others_alone(self) -> None:
        harness = quiet(make_plan(max_model_len=16))
        assert harness.add(request("good", [0] * 3))
        assert not harness.add(request("bad", [0] * 16))
        harness.drain()
        assert harness.finished == {"good": "length"}


class TestSteps:
    def test_a_long_prompt_is_cut_into_chunks_that_fill_the_budget(self) -> None:
        harness = quiet(make_plan(max_num_batched_tokens=8))
        harness.add(request("a", [0] * 20))
        sizes = []
        for _ in range(4):
            step = harness.schedule()
            assert step is not None
            sizes.append((step.num_scheduled_tokens.tolist(), step.num_drawn.tolist()))
            harness.update()
        assert sizes == [([8], [0]), ([8], [0]), ([4], [1]), ([1], [1])]

    def test_running_requests_get_their_token_before_a_prompt_takes_the_rest(self) -> None:
        harness = quiet(make_plan(max_num_batched_tokens=8))
        harness.add(request("short", [1]))
        harness.step()
        harness.add(request("long", [0] * 20))
        step = harness.schedule()
        assert step is not None
        assert step.num_scheduled_tokens.tolist() == [1, 7]
        assert step.num_drawn.tolist() == [1, 0]

    def test_without_chunked_prefill_a_prompt_waits_for_a_step_with_room(self) -> None:
        harness = quiet(make_plan(max_num_batched_tokens=8, enable_chunked_prefill=False))
        harness.add(request("first", [1] * 5, max_tokens=2))
        harness.add(request("second", [0] * 8, max_tokens=1))
        assert [step.num_scheduled_tokens.tolist() for step in iter_steps(harness)] == [[5], [1], [8]]
        assert harness.finished == {"first": "length", "second": "length"}

    def test_nothing_to_do_is_no_step(self) -> None:
        assert Scheduler(make_plan()).schedule() is None

    def test_steps_ahead_stop_at_the_last_token_a_request_may_have(self) -> None:
        harness = quiet(make_plan(num_steps_ahead=2))
        harness.add(request("a", [0], max_tokens=2))
        assert harness.schedule() is not None
        assert harness.schedule() is not None
        assert harness.schedule() is None
        harness.drain()
        assert harness.device.sampled["a"] == harness.received["a"]

    def test_a_token_too_many_of_a_step_ahead_is_dropped(self) -> None:
        harness = quiet(make_plan(num_steps_ahead=1))
        harness.device.sample = lambda request_id, num_tokens, draft: END
        harness.add(request("a", [0], max_tokens=9))
        harness.drain()
        assert harness.received["a"] == [END]
        assert harness.finished == {"a": "stop"}

    def test_steps_of_the_same_rows_share_what_they_say_of_them(self) -> None:
        harness = quiet(make_plan(max_num_seqs=3))
        for name in "abc":
            harness.add(request(name, [1] * 3, max_tokens=9))
        harness.step()
        first, second = harness.schedule(), None
        ids = harness.scheduler.update(harness.results.popleft()).request_ids
        for _ in range(3):
            second = harness.schedule()
            assert first is not None and second is not None
            assert (
                second.slots is first.slots
                and second.num_scheduled_tokens is first.num_scheduled_tokens
                and second.num_drawn is first.num_drawn
            )
            assert second.num_computed.tolist() == [count + 1 for count in first.num_computed.tolist()]
            outputs = harness.scheduler.update(harness.results.popleft())
            assert outputs.request_ids is ids and len(outputs.token_ids) == 3 and not outputs.others
            first = second
        harness.scheduler.abort(["b"])
        third = harness.schedule()
        assert third is not None and third.slots.tolist() == [0, 2]

    def test_rows_that_decode_come_first_and_the_longest_of_them_foremost(self) -> None:
        harness = quiet(make_plan(max_num_seqs=4))
        for name, length in (("a", 3), ("b", 9), ("c", 6)):
            harness.add(request(name, [1] * length, max_tokens=9))
        harness.step()
        harness.add(request("d", [2] * 12, max_tokens=9))
        step = harness.schedule()
        assert step is not None
        assert step.slots.tolist() == [1, 2, 0, 3]
        assert step.num_computed.tolist() == [9, 6, 3, 0]
        assert step.num_decodes == 3
        outputs = harness.scheduler.update(harness.results.popleft())
        assert {*outputs.request_ids, *(output.request_id for output in outputs.others)} == {"a", "b", "c", "d"}


class TestEnds:
    @pytest.mark.parametrize(("token", "stop_reason"), [(END, None), (STOP, STOP)])
    def test_end_and_stop_tokens(self, token: int, stop_reason: int | None) -> None:
        harness = quiet(make_plan())
        harness.device.sample = lambda request_id, num_tokens, draft: token
        harness.add(request("a", [0]))
        (output,) = harness.step()
        assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([token], "stop", stop_reason)
        assert output.times is not None
        assert output.times.first_token > 0

    def test_the_context_ends_a_request_without_max_tokens(self) -> None:
        harness = quiet(make_plan(max_model_len=10))
        harness.add(request("a", [0] * 6, max_tokens=None))
        harness.drain()
        assert len(harness.received["a"]) == 4
        assert harness.finished == {"a": "length"}

    def test_an_abort_while_waiting_frees_nothing_and_leaves_nothing(self) -> None:
        harness = quiet(make_plan(max_num_seqs=1))
        harness.add(request("a", [0]))
        harness.add(request("b", [0]))
        harness.step()
        harness.abort(["b", "b", "nobody"])
        harness.drain()
        assert harness.finished == {"a": "length", "b": "abort"}

    def test_an_id_is_free_again_while_its_aborted_step_is_in_flight(self) -> None:
        harness = quiet(make_plan())
        harness.add(request("a", [0] * 5))
        step = harness.schedule()
        assert step is not None
        harness.scheduler.abort(["a"])
        harness.scheduler.add_request(request("a", [1] * 3, max_tokens=1))
        assert not harness.scheduler.update(harness.results.popleft())
        assert not harness.received["a"]

    def test_a_replay_counts_what_was_generated_before_and_does_not_repeat_it(self) -> None:
        harness = quiet(make_plan())
        harness.add(request("a", [0, 1], max_tokens=5, output=[2, 2, 2]))
        harness.drain()
        assert len(harness.received["a"]) == 2
        assert harness.finished == {"a": "length"}

    def test_a_token_that_is_not_a_number_ends_its_request_alone(self) -> None:
        harness = quiet(make_plan())
        harness.device.sample = lambda request_id, num_tokens, draft: NAN_TOKEN if request_id == "bad" else 0
        harness.add(request("bad", [0] * 9))
        harness.add(request("good", [1] * 9))
        outputs = {output.request_id: output for output in harness.step() + harness.step()}
        assert outputs["bad"].finish_reason == "error"
        assert "not a number" in (outputs["bad"].error or "")
        harness.drain()
        assert harness.finished == {"bad": "error", "good": "length"}

    def test_blocks_of_a_failed_request_are_wiped_before_use_and_never_found(self) -> None:
        harness = quiet(make_plan())
        harness.device.sample = lambda request_id, num_tokens, draft: NAN_TOKEN if request_id == "bad" else 0
        harness.add(request("bad", [0] * 9))
        harness.step()
        harness.add(request("next", [0] * 9))
        step = harness.schedule()
        assert step is not None
        assert step.blocks_to_wipe == [block for update in step.block_updates for block in update.block_ids]
        assert harness.device.admissions["next"] == [0]
        harness.update()
        assert harness.received["next"] == [0]

    def test_a_request_whose_limits_leave_no_token_proves_nothing(self) -> None:
        harness = quiet(make_plan())
        harness.device.sample = lambda request_id, num_tokens, draft: NAN_TOKEN if request_id == "dry" else 0
        dry = request("dry", [0] * 9)
        dry.params.allowed_token_ids = [3]
        harness.add(dry)
        (output,) = harness.step()
        assert output.finish_reason == "error" and "limits" in (output.error or "")
        harness.add(request("next", [0] * 9))
        step = harness.schedule()
        assert step is not None and not step.blocks_to_wipe
        assert harness.scheduler.current_stats().num_corrupted == 0

    def test_blocks_are_not_wiped_before_anything_failed(self) -> None:
        harness = quiet(make_plan())
        harness.add(request("a", [0] * 9))
        assert [step.blocks_to_wipe for step in iter_steps(harness)] == [[]] * 4

    def test_a_failure_that_comes_in_after_an_abort_still_has_blocks_wiped(self) -> None:
        harness = quiet(make_plan())
        harness.device.sample = lambda request_id, num_tokens, draft: NAN_TOKEN if request_id == "bad" else 0
        harness.add(request("bad", [0] * 9))
        harness.schedule()
        harness.abort(["bad"])
        harness.update()
        harness.add(request("next", [1] * 9))
        step = harness.schedule()
        assert step is not None
        assert len(step.blocks_to_wipe) == 3


class TestSharing:
    def test_a_second_prompt_finds_the_blocks_of_the_first(self) -> None:
        harness = quiet(make_plan())
        harness.add(request("a", [0] * 9))
        harness.step()
        harness.add(request("b", [0] * 10))
        harness.drain()
        assert harness.device.admissions["b"] == [8]
        cached = {output.request_id: output.num_cached_tokens for output in harness.outputs if output.num_cached_tokens}
        assert cached == {"b": 8}
        assert (harness.scheduler.stats.prefix_queries, harness.scheduler.stats.prefix_hits) == (19, 8)

    def test_text_before_an_image_is_shared_and_the_image_is_not(self) -> None:
        harness = quiet(make_plan())
        for name, key in (("plain", None), ("cat", "cat"), ("dog", "dog"), ("again", "cat")):
            source = request(name, [0] * 20, max_tokens=1)
            source.key_spans = [] if key is None else [KeySpan(9, 14, key, "image")]
            harness.add(source)
            harness.drain()
        assert harness.device.admissions == {"plain": [0], "cat": [8], "dog": [8], "again": [16]}

    def test_a_salt_is_not_mistaken_for_a_key_of_another_source(self) -> None:
        harness = quiet(make_plan())
        salted, keyed = request("salted", [0] * 9, max_tokens=1), request("keyed", [0] * 9, max_tokens=1)
        salted.cache_salt, keyed.key_spans = "x", [KeySpan(0, 1, "x", "image")]
        for source in (salted, keyed):
            harness.add(source)
            harness.drain()
        assert harness.device.admissions == {"salted": [0], "keyed": [0]}

    def test_the_last_prompt_token_is_computed_even_if_cached(self) -> None:
        harness = quiet(make_plan())
        for name in ("a", "b"):
            harness.add(request(name, [0] * 8, max_tokens=1))
            harness.drain()
        assert harness.device.admissions["b"] == [4]

    @pytest.mark.parametrize("enable_prefix_caching", [True, False])
    def test_completions_of_one_prompt_share_its_blocks(self, enable_prefix_caching: bool) -> None:
        harness = quiet(make_plan(enable_prefix_caching=enable_prefix_caching, max_num_batched_tokens=8))
        for name in ("0_a", "1_a", "2_a"):
            harness.add(request(name, [0] * 17, leader_id="0_a"))
        harness.drain()
        assert harness.device.admissions == {"0_a": [0], "1_a": [16], "2_a": [16]}

    def test_followers_go_on_if_their_leader_is_aborted(self) -> None:
        harness = quiet(make_plan(max_num_batched_tokens=4))
        for name in ("0_a", "1_a"):
            harness.add(request(name, [0] * 17, leader_id="0_a"))
        harness.step()
        harness.abort(["0_a"])
        harness.drain()
        assert harness.finished == {"0_a": "abort", "1_a": "length"}

    def test_without_prefix_caching_strangers_share_nothing(self) -> None:
        harness = quiet(make_plan(enable_prefix_caching=False))
        for name in ("a", "b"):
            harness.add(request(name, [0] * 9, max_tokens=1))
            harness.drain()
        assert harness.device.admissions == {"a": [0], "b": [0]}

    def test_prompt_logprobs_compute_the_whole_prompt(self) -> None:
        harness = quiet(make_plan())
        harness.add(request("a", [0] * 9, max_tokens=1))
        harness.drain()
        harness.add(request("b", [0] * 9, max_tokens=1, prompt_logprobs=0))
        harness.drain()
        assert harness.device.admissions["b"] == [0]

    def test_the_prefix_cache_is_forgotten_only_while_nobody_uses_it(self) -> None:
        harness = quiet(make_plan())
        harness.add(request("a", [0] * 9, max_tokens=2))
        harness.step()
        assert not harness.scheduler.reset_prefix_cache()
        harness.drain()
        assert harness.scheduler.reset_prefix_cache()
        harness.add(request("b", [0] * 9, max_tokens=1))
        harness.drain()
        assert harness.device.admissions["b"] == [0]


class TestOrder:
    def test_first_come_first_served(self) -> None:
        harness = quiet(make_plan(max_num_seqs=1))
        for name, priority in (("a", 2), ("b", 0), ("c", 1)):
            harness.add(request(name, [0], priority=priority))
        harness.drain()
        assert admitted(harness) == ["a", "b", "c"]

    def test_lower_priority_values_run_first_and_ties_in_order_of_arrival(self) -> None:
        harness = quiet(make_plan(max_num_seqs=1, scheduling_policy="priority"))
        for name, priority in (("a", 2), ("b", 0), ("c", 1), ("d", 0), ("e", -1)):
            harness.add(request(name, [0], priority=priority))
        harness.drain()
        assert admitted(harness) == ["e", "b", "d", "c", "a"]

    def test_a_request_too_large_for_now_is_not_overtaken(self) -> None:
        harness = quiet(make_plan(num_blocks=9, enable_prefix_caching=False))
        harness.add(request("running", [0] * 16, max_tokens=4))
        harness.step()
        harness.add(request("large", [1] * 16, max_tokens=16))
        harness.add(request("small", [2], max_tokens=1))
        harness.drain()
        assert admitted(harness) == ["running", "large", "small"]


class TestPreemption:
    # Five blocks of two tokens: both requests start, but only one can grow to eight tokens.
    plan = make_plan(max_model_len=8, block_size=2, num_blocks=6, enable_prefix_caching=False)

    def test_the_first_in_order_goes_on_and_the_other_loses_no_token(self) -> None:
        harness = quiet(self.plan)
        for name in ("a", "b"):
            harness.add(request(name, [0], max_tokens=7))
        harness.drain()
        assert harness.scheduler.stats.num_preemptions > 0
        assert harness.device.admissions["a"] == [0]
        assert len(harness.device.admissions["b"]) > 1
        assert {name: len(tokens) for name, tokens in harness.received.items()} == {"a": 7, "b": 7}

    def test_the_lowest_priority_is_preempted(self) -> None:
        harness = quiet(make_plan(max_model_len=8, block_size=2, num_blocks=6, scheduling_policy="priority"))
        harness.add(request("low", [0], max_tokens=7, priority=5))
        harness.add(request("high", [1], max_tokens=7, priority=1))
        harness.drain()
        assert len(harness.device.admissions["high"]) == 1
        assert len(harness.device.admissions["low"]) > 1

    def test_the_request_that_loses_least_work_is_preempted(self) -> None:
        harness = quiet(make_plan(block_size=2, num_blocks=12, enable_prefix_caching=False))
        harness.add(request("first", [0] * 4, max_tokens=16))
        harness.add(request("short", [1] * 2, max_tokens=12))
        harness.add(request("long", [2] * 8, max_tokens=12))
        while not harness.scheduler.stats.num_preemptions:
            harness.step()
        assert [request.request_id for request in harness.scheduler.running] == ["first", "long"]
        harness.drain()

    def test_times_count_preemptions(self) -> None:
        harness = quiet(self.plan)
        for name in ("a", "b"):
            harness.add(request(name, [0], max_tokens=7))
        harness.drain()
        last = {output.request_id: output.times for output in harness.outputs if output.finish_reason}
        assert last["b"] is not None
        assert last["b"].num_preemptions == len(harness.device.admissions["b"]) - 1


def test_a_window_lets_a_sequence_run_that_is_longer_than_the_cache() -> None:
    harness = quiet(make_plan(max_model_len=32, block_size=2, num_blocks=6, kinds=(4,), max_num_batched_tokens=4))
    assert harness.add(request("a", [0] * 12, max_tokens=20))
    harness.drain()
    assert len(harness.received["a"]) == 20
    assert harness.scheduler.stats.num_preemptions == 0
    full = quiet(make_plan(max_model_len=32, block_size=2, num_blocks=6, max_num_batched_tokens=4))
    assert not full.add(request("a", [0] * 12, max_tokens=20))


def iter_steps(harness: Harness) -> Iterator[Step]:
    """Run to the end, yielding each step."""
    while (step := harness.schedule()) is not None:
        yield step
        harness.update()
