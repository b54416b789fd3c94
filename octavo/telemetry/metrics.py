"""Prometheus metrics, under vLLM's names with the prefix ``octavo:``.

Each API process has a registry of its own. Histograms and ``request_success`` speak of the requests that
process served; gauges and token counters come from the engine and are the same in every process.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from octavo.records import EngineInfo, EngineStats, RequestStateStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
FINISH_REASONS = ("stop", "length", "abort", "error")

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
NUM_COMPLETIONS_BUCKETS = (1, 2, 5, 10, 20)
LABELS = ("model_name", "engine")


class Metrics:
    """Everything that ``/metrics`` shows; methods are cheap enough to be called per token."""

    def __init__(self, model_name: str, max_model_len: int = 131072, engine: str = "0") -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._label_values = (model_name, engine)
        self._last_stats = EngineStats()
        token_buckets = one_two_five_up_to(max_model_len)

        self._num_running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._num_waiting = self._gauge("num_requests_waiting", "Requests that wait to be scheduled.")
        self._cache_usage = self._gauge("kv_cache_usage_perc", "Share of cache blocks in use, 0 to 1.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._num_preemptions = self._counter("num_preemptions", "Preemptions.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens computed.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")

        success = Counter(
            "octavo:request_success", "Finished requests.", (*LABELS, "finished_reason"), registry=self.registry
        )
        self._success = {reason: success.labels(*self._label_values, reason) for reason in FINISH_REASONS}

        self._time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Between successive outputs of a request.", INTER_TOKEN_BUCKETS
        )
        self._time_per_output_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first.", INTER_TOKEN_BUCKETS
        )
        self._e2e_latency = self._latency("e2e_request_latency_seconds", "From arrival to the last token.")
        self._queue_time = self._latency("request_queue_time_seconds", "From queueing to the first step.")
        self._prefill_time = self._latency("request_prefill_time_seconds", "From the first step to the first token.")
        self._decode_time = self._latency("request_decode_time_seconds", "From the first to the last token.")
        self._inference_time = self._latency("request_inference_time_seconds", "From the first step to the last token.")
        self._request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", token_buckets
        )
        self._request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens of a request.", token_buckets
        )
        self._params_max_tokens = self._histogram(
            "request_params_max_tokens", "The max_tokens a request came with.", token_buckets
        )
        self._params_n = self._histogram("request_params_n", "The n a request came with.", NUM_COMPLETIONS_BUCKETS)

    def set_cache_info(self, info: EngineInfo) -> None:
        """Publish the cache's size as labels of ``cache_config_info``; call once, when the engine is up."""
        values = {
            "engine": self._label_values[1],
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "enable_prefix_caching": str(info.supports_prefix_caching),
        }
        gauge = Gauge("octavo:cache_config_info", "The cache's configuration.", tuple(values), registry=self.registry)
        gauge.labels(**values).set(1)

    def record_stats(self, stats: EngineStats) -> None:
        """Take over an engine's figures; its counters may start from zero again after a restart."""
        last = self._last_stats if stats.num_steps >= self._last_stats.num_steps else EngineStats()
        self._last_stats = stats
        self._num_running.set(stats.num_running)
        self._num_waiting.set(stats.num_waiting)
        self._cache_usage.set(stats.cache_usage)
        self._prefix_queries.inc(max(0, stats.prefix_queries - last.prefix_queries))
        self._prefix_hits.inc(max(0, stats.prefix_hits - last.prefix_hits))
        self._num_preemptions.inc(max(0, stats.num_preemptions - last.num_preemptions))
        self._prompt_tokens.inc(max(0, stats.prompt_tokens - last.prompt_tokens))
        self._generation_tokens.inc(max(0, stats.generation_tokens - last.generation_tokens))

    def record_first_token(self, latency: float) -> None:
        """A sequence's first token came ``latency`` seconds after its request arrived."""
        self._time_to_first_token.observe(latency)

    def record_next_token(self, gap: float) -> None:
        """An output came ``gap`` seconds after the sequence's previous one."""
        self._inter_token_latency.observe(gap)

    def record_finished(
        self,
        stats: RequestStateStats,
        finish_reason: str,
        *,
        num_prompt_tokens: int,
        n: int,
        max_tokens: int | None,
        finished_time: float,
    ) -> None:
        """Account for a finished sequence; times it never reached (0) are left out.

        Args:
            stats: its times, in seconds since the epoch, and counts.
            finish_reason: ``stop``, ``length``, ``abort`` or ``error``.
            finished_time: when it ended, in seconds since the epoch.
        """
        self._success[finish_reason].inc()
        self._e2e_latency.observe(max(0.0, finished_time - stats.arrival_time))
        self._request_prompt_tokens.observe(num_prompt_tokens)
        self._request_generation_tokens.observe(stats.num_generation_tokens)
        self._params_n.observe(n)
        if max_tokens is not None:
            self._params_max_tokens.observe(max_tokens)
        if not stats.scheduled_ts:
            return
        self._queue_time.observe(max(0.0, stats.scheduled_ts - stats.queued_ts))
        if not stats.first_token_ts:
            return
        decode_time = max(0.0, stats.last_token_ts - stats.first_token_ts)
        self._prefill_time.observe(max(0.0, stats.first_token_ts - stats.scheduled_ts))
        self._decode_time.observe(decode_time)
        self._inference_time.observe(max(0.0, stats.last_token_ts - stats.scheduled_ts))
        if stats.num_generation_tokens > 1:
            self._time_per_output_token.observe(decode_time / (stats.num_generation_tokens - 1))

    def render(self) -> bytes:
        """The text that Prometheus scrapes, of type :data:`CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"octavo:{name}", documentation, LABELS, registry=self.registry).labels(*self._label_values)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"octavo:{name}", documentation, LABELS, registry=self.registry).labels(*self._label_values)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(f"octavo:{name}", documentation, LABELS, registry=self.registry, buckets=buckets)
        return histogram.labels(*self._label_values)

    def _latency(self, name: str, documentation: str) -> Histogram:
        return self._histogram(name, documentation, REQUEST_LATENCY_BUCKETS)


def one_two_five_up_to(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 … as far as ``limit``; at least one of them."""
    buckets = [1]
    power = 1
    while power <= limit:
        buckets += [value for value in (power, 2 * power, 5 * power) if buckets[-1] < value <= limit]
        power *= 10
    return buckets
