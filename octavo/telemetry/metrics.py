"""Prometheus metrics under vLLM's names, with the prefix ``octavo:`` or ``vllm:`` (``--metrics-prefix``).

Each API process has its own registry. Histograms and ``request_success`` cover the requests that the process served;
gauges, token counters and step sizes come from the engine and are the same in every process.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from octavo.records import EngineInfo, EngineStats, RequestStateStats
from octavo.telemetry.engine_metrics import EngineMetrics
from octavo.telemetry.histogram import FastHistogram

CONTENT_TYPE = CONTENT_TYPE_LATEST
FINISH_REASONS = ("stop", "length", "repetition", "abort", "error")

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
NUM_PREEMPTIONS_BUCKETS = (0, 1, 2, 3, 5, 10, 20, 50)
OPERATION_BUCKETS = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)
REJECTION_REASONS = ("queue_full", "token_limit")
LABELS = ("model_name", "engine")


class Metrics:
    """All metrics of ``/metrics``; methods are cheap enough to be called per token.

    Args:
        max_model_len: largest bucket of token histograms.
        engine: value of the label; index of this frontend.

    Attributes:
        sleep: durations of sleep and wake-up.
        weight_update: durations of weight updates.
    """

    def __init__(
        self, model_name: str, max_model_len: int = 131072, engine: str = "0", prefix: str = "octavo:"
    ) -> None:
        self._prefix = prefix
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._label_values = (model_name, engine)
        self._engine = EngineMetrics(self.registry, model_name, engine, prefix)
        token_buckets = one_two_five_buckets(max_model_len)

        success = Counter(
            f"{prefix}request_success", "Finished requests.", (*LABELS, "finished_reason"), registry=self.registry
        )
        self._success = {reason: success.labels(*self._label_values, reason) for reason in FINISH_REASONS}

        rejections = Counter(
            f"{prefix}admission_rejections",
            "Requests rejected because too many requests or tokens are waiting.",
            ("model_name", "reason"),
            registry=self.registry,
        )
        self._rejections = {reason: rejections.labels(model_name, reason) for reason in REJECTION_REASONS}

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
        self._max_generation_tokens = self._histogram(
            "request_max_num_generation_tokens", "Tokens of a request's longest completion.", token_buckets
        )
        self._prefill_computed_tokens = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens not found in the cache.", token_buckets
        )
        self._request_preemptions = self._histogram(
            "request_num_preemptions", "Preemptions of a request.", NUM_PREEMPTIONS_BUCKETS
        )
        self._params_max_tokens = self._histogram("request_params_max_tokens", "A request's max_tokens.", token_buckets)
        self._params_n = self._histogram("request_params_n", "A request's n.", NUM_COMPLETIONS_BUCKETS)
        self.sleep = self._operation("sleep_mode", "Sleep and wake-up operations")
        self.weight_update = self._operation("rl_weight_update", "Weight updates")

    def set_cache_info(self, info: EngineInfo, settings: Mapping[str, object] | None = None) -> None:
        """Publish the cache's size as labels of ``cache_config_info``; call once, when the engine is ready."""
        num_tokens = info.num_blocks * info.block_size
        values = {
            **{name: str(value) for name, value in (settings or {}).items()},
            "engine": self._label_values[1],
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "enable_prefix_caching": str(info.supports_prefix_caching),
            "kv_cache_size_tokens": str(num_tokens),
            "kv_cache_max_concurrency": f"{num_tokens / max(1, info.max_model_len):.2f}",
        }
        name = f"{self._prefix}cache_config_info"
        gauge = Gauge(name, "The cache's configuration.", tuple(values), registry=self.registry)
        gauge.labels(**values).set(1)

    @property
    def load(self) -> dict[str, float]:
        """Load figures for load balancers: the share of the cache in use and the number of waiting requests."""
        return self._engine.load

    def record_stats(self, stats: EngineStats) -> None:
        """Record an engine's statistics; its counters may start from zero again after a restart."""
        self._engine.record(stats)

    def record_rejection(self, reason: str) -> None:
        """Count a rejected request: ``queue_full`` or ``token_limit``."""
        self._rejections[reason].inc()

    def record_request(self, num_generation_tokens: int) -> None:
        """Record a request whose completions have all ended, with the longest one's number of tokens."""
        self._max_generation_tokens.observe(num_generation_tokens)

    def record_first_token(self, latency: float) -> None:
        """Record a sequence's first token, ``latency`` seconds after its request arrived."""
        self._time_to_first_token.observe(latency)

    def record_next_token(self, gap: float) -> None:
        """Record an output, ``gap`` seconds after the sequence's previous one."""
        self._inter_token_latency.observe(gap)

    def record_finished(
        self,
        stats: RequestStateStats,
        finish_reason: str,
        *,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        n: int,
        max_tokens: int | None,
        finished_time: float,
    ) -> None:
        """Record a finished sequence; times that it never reached (0) are left out.

        Args:
            stats: its times, in seconds since the epoch, and counts.
            finish_reason: one of :data:`FINISH_REASONS`.
            num_cached_tokens: prompt tokens that came from the prefix cache.
            finished_time: when it ended, in seconds since the epoch.
        """
        self._success[finish_reason].inc()
        self._e2e_latency.observe(max(0.0, finished_time - stats.arrival_time))
        self._request_prompt_tokens.observe(num_prompt_tokens)
        self._request_generation_tokens.observe(stats.num_generation_tokens)
        self._params_n.observe(n)
        self._request_preemptions.observe(stats.num_preemptions)
        if max_tokens is not None:
            self._params_max_tokens.observe(max_tokens)
        if not stats.scheduled_ts:
            return
        self._queue_time.observe(max(0.0, stats.scheduled_ts - stats.queued_ts))
        if not stats.first_token_ts:
            return
        decode_time = max(0.0, stats.last_token_ts - stats.first_token_ts)
        self._prefill_computed_tokens.observe(max(0, num_prompt_tokens - num_cached_tokens))
        self._prefill_time.observe(max(0.0, stats.first_token_ts - stats.scheduled_ts))
        self._decode_time.observe(decode_time)
        self._inference_time.observe(max(0.0, stats.last_token_ts - stats.scheduled_ts))
        if stats.num_generation_tokens > 1:
            self._time_per_output_token.observe(decode_time / (stats.num_generation_tokens - 1))

    def render(self) -> bytes:
        """The text that Prometheus scrapes, of type :data:`CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> FastHistogram:
        labels = dict(zip(LABELS, self._label_values, strict=True))
        return FastHistogram(f"{self._prefix}{name}", documentation, labels, buckets, self.registry)

    def _operation(self, name: str, description: str) -> "TimedOperation":
        registry = self.registry
        return TimedOperation(
            Histogram(
                f"{self._prefix}{name}_operation_duration_seconds",
                f"{description}: how long each took.",
                registry=registry,
                buckets=OPERATION_BUCKETS,
            ),
            Gauge(f"{self._prefix}{name}_operations_in_flight", f"{description} in flight.", registry=registry),
        )

    def _latency(self, name: str, documentation: str) -> FastHistogram:
        return self._histogram(name, documentation, REQUEST_LATENCY_BUCKETS)


class TimedOperation:
    """Metrics of a rare, long operation: number in flight, and durations."""

    def __init__(self, duration: Histogram, in_flight: Gauge) -> None:
        self._duration, self._in_flight = duration, in_flight

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count and time the body, whether or not it succeeds."""
        start = time.monotonic()
        self._in_flight.inc()
        try:
            yield
        finally:
            self._in_flight.dec()
            self._duration.observe(time.monotonic() - start)


def one_two_five_buckets(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 … up to ``limit``; at least one value."""
    buckets = [1]
    power = 1
    while power <= limit:
        buckets += [value for value in (power, 2 * power, 5 * power) if buckets[-1] < value <= limit]
        power *= 10
    return buckets
