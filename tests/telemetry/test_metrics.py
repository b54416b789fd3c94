"""What Prometheus reads is what happened."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from octavo.records import STEP_SIZES, EngineInfo, EngineStats, RequestStateStats
from octavo.telemetry.metrics import Metrics, one_two_five_buckets
from octavo.telemetry.reader import Vector, read_metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """Sample name (with a finished_reason, if any) → value."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason")
            found[sample.name + (f"[{reason}]" if reason else "")] = sample.value
    return found


def test_counters_follow_the_engine_through_a_restart() -> None:
    metrics = Metrics("m")
    metrics.record_stats(EngineStats(num_running=3, cache_usage=0.5, generation_tokens=100, num_steps=50))
    metrics.record_stats(EngineStats(num_waiting=2, generation_tokens=130, num_steps=60))
    metrics.record_stats(EngineStats(generation_tokens=7, num_steps=2))
    found = samples(metrics)
    assert found["octavo:generation_tokens_total"] == 137
    assert found["octavo:num_requests_running"] == 0
    assert found["octavo:num_requests_waiting"] == 0


def test_a_finished_request_shows_in_every_histogram_it_reached() -> None:
    metrics = Metrics("m", max_model_len=2048)
    stats = RequestStateStats(
        num_generation_tokens=11, arrival_time=10, queued_ts=10, scheduled_ts=11, first_token_ts=13, last_token_ts=18
    )
    metrics.record_first_token(3.0)
    metrics.record_next_token(0.5)
    metrics.record_finished(
        stats, "stop", num_prompt_tokens=5, num_cached_tokens=2, n=1, max_tokens=16, finished_time=18
    )
    found = samples(metrics)
    assert found["octavo:request_success_total[stop]"] == 1
    assert found["octavo:request_success_total[abort]"] == 0
    assert found["octavo:e2e_request_latency_seconds_sum"] == 8
    assert found["octavo:request_queue_time_seconds_sum"] == 1
    assert found["octavo:request_prefill_time_seconds_sum"] == 2
    assert found["octavo:request_decode_time_seconds_sum"] == 5
    assert found["octavo:request_inference_time_seconds_sum"] == 7
    assert found["octavo:request_time_per_output_token_seconds_sum"] == 0.5
    assert found["octavo:time_to_first_token_seconds_sum"] == 3
    assert found["octavo:inter_token_latency_seconds_sum"] == 0.5
    assert found["octavo:request_params_max_tokens_sum"] == 16
    assert found["octavo:request_prefill_kv_computed_tokens_sum"] == 3


def test_a_request_aborted_in_the_queue_has_no_step_times() -> None:
    metrics = Metrics("m")
    stats = RequestStateStats(arrival_time=10, queued_ts=10)
    metrics.record_finished(
        stats, "abort", num_prompt_tokens=5, num_cached_tokens=2, n=1, max_tokens=None, finished_time=12
    )
    found = samples(metrics)
    assert found["octavo:request_success_total[abort]"] == 1
    assert found["octavo:request_queue_time_seconds_count"] == 0
    assert found["octavo:request_decode_time_seconds_count"] == 0


def test_two_engines_in_one_process_do_not_share_figures() -> None:
    first, second = Metrics("a"), Metrics("b")
    first.record_first_token(1.0)
    assert samples(second)["octavo:time_to_first_token_seconds_count"] == 0


def test_cache_size_is_published() -> None:
    metrics = Metrics("m")
    metrics.set_cache_info(EngineInfo(1024, 100, 77, 16, 8, True), {"gpu_memory_utilization": 0.5, "block_size": None})
    text = metrics.render().decode()
    assert 'num_gpu_blocks="77"' in text
    assert 'block_size="16"' in text
    assert 'gpu_memory_utilization="0.5"' in text
    assert 'kv_cache_size_tokens="1232"' in text
    assert 'kv_cache_max_concurrency="1.20"' in text
    assert 'model_name="m"' in text


def test_all_names_can_begin_as_vllms_do() -> None:
    metrics = Metrics("m", prefix="vllm:")
    metrics.set_cache_info(EngineInfo(1024, 100, 77, 16, 8, True))
    names = {family.name for family in text_string_to_metric_families(metrics.render().decode())}
    assert {"vllm:cache_config_info", "vllm:iteration_tokens_total", "vllm:time_to_first_token_seconds"} <= names
    assert all(name.startswith(("vllm:", "process_")) for name in names)


def test_the_load_is_the_engines_latest() -> None:
    metrics = Metrics("m")
    assert metrics.load == {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 0.0}
    metrics.record_stats(EngineStats(num_waiting=3, cache_usage=0.25))
    assert metrics.load == {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3.0}


def test_steps_are_counted_by_their_size_through_a_restart() -> None:
    metrics = Metrics("m")
    sizes = [0] * (len(STEP_SIZES) + 1)
    metrics.record_stats(EngineStats(num_steps=3, num_step_tokens=20, step_sizes=[1, 0, 2, *sizes[3:]]))
    metrics.record_stats(EngineStats(num_steps=4, num_step_tokens=20020, step_sizes=[1, 0, 2, *sizes[4:], 1]))
    metrics.record_stats(EngineStats(num_steps=1, num_step_tokens=5, step_sizes=[0, 1, *sizes[2:]]))
    text = metrics.render().decode()
    for bound, count in (("1.0", 1), ("8.0", 2), ("16.0", 4), ("16384.0", 4), ("+Inf", 5)):
        assert f'iteration_tokens_total_bucket{{engine="0",le="{bound}",model_name="m"}} {count}.0' in text
    assert samples(metrics)["octavo:iteration_tokens_total_sum"] == 20025


def test_drafts_are_counted_by_position_through_a_restart() -> None:
    metrics = Metrics("m")
    metrics.record_stats(EngineStats(num_steps=5, num_draft_tokens=9, acceptances=[1, 2, 3]))
    metrics.record_stats(EngineStats(num_steps=7, num_draft_tokens=12, acceptances=[1, 3, 4]))
    metrics.record_stats(EngineStats(num_steps=1, num_draft_tokens=2, acceptances=[0, 0, 1]))
    found = samples(metrics)
    assert found["octavo:spec_decode_num_drafts_total"] == 9
    assert found["octavo:spec_decode_num_draft_tokens_total"] == 14
    assert found["octavo:spec_decode_num_accepted_tokens_total"] == 3 + 2 * 5
    (vector,) = (metric for metric in read_metrics(metrics.registry) if isinstance(metric, Vector))
    assert vector.name == "vllm:spec_decode_num_accepted_tokens_per_pos"
    assert vector.values == [8, 5]
    assert vector.labels == {"model_name": "m", "engine": "0"}


def test_cached_tokens_are_told_from_computed_ones() -> None:
    metrics = Metrics("m")
    metrics.record_stats(EngineStats(num_steps=1, prompt_tokens=10, cached_prompt_tokens=4))
    text = metrics.render().decode()
    assert 'prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 6.0' in text
    assert 'prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 4.0' in text
    assert samples(metrics)["octavo:prompt_tokens_cached_total"] == 4


def test_a_paused_engine_defers_and_a_sleeping_one_says_so() -> None:
    metrics = Metrics("m")
    metrics.record_stats(EngineStats(num_waiting=3, is_paused=True, sleep_level=1))
    text = metrics.render().decode()
    assert 'num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 3.0' in text
    assert 'num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 0.0' in text
    assert 'engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1.0' in text
    assert 'engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0.0' in text


def test_a_grammar_that_is_awaited_is_no_lack_of_room() -> None:
    metrics = Metrics("m")
    metrics.record_stats(EngineStats(num_waiting=3, num_awaiting_grammar=1))
    text = metrics.render().decode()
    assert 'num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 1.0' in text
    assert 'num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0' in text


@given(st.integers(1, 10**7))
def test_buckets_rise_and_stay_within_the_limit(limit: int) -> None:
    buckets = one_two_five_buckets(limit)
    assert buckets == sorted(set(buckets))
    assert buckets[0] == 1
    assert limit / 2.5 <= buckets[-1] <= limit
