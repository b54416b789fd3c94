"""The metrics that come from the engine's statistics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from octavo.records import STEP_SIZES, EngineStats
from octavo.telemetry.histogram import FastHistogram

LABELS = ("model_name", "engine")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
WAITING_REASONS = ("capacity", "deferred")
SOURCES = ("local_compute", "local_cache_hit")


class EngineMetrics:
    """Gauges of an engine, and counters that continue across its restarts."""

    def __init__(self, registry: CollectorRegistry, model_name: str, engine: str, prefix: str) -> None:
        self._prefix = prefix
        self._registry = registry
        self._label_values = (model_name, engine)
        self._last = EngineStats()
        self._num_running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._num_waiting = self._gauge("num_requests_waiting", "Requests waiting to be scheduled.")
        self._waiting_by_reason = self._gauges(
            "num_requests_waiting_by_reason",
            "Waiting requests by reason: for room (capacity), or for a grammar or the end of a pause (deferred).",
            "reason",
            WAITING_REASONS,
        )
        self._cache_usage = self._gauge("kv_cache_usage_perc", "Share of cache blocks in use, 0 to 1.")
        self._sleep_state = self._gauges(
            "engine_sleep_state", "1 for the engine's current state.", "sleep_state", SLEEP_STATES
        )
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._num_preemptions = self._counter("num_preemptions", "Preemptions.")
        self._num_corrupted = self._counter("corrupted_requests", "Requests ended by NaN in the model's output.")
        self._num_dropped_event_batches = self._counter(
            "kv_event_batches_dropped", "Batches of cache events that were not sent because too many were waiting."
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of answered requests.")
        self._prompt_tokens_by_source = self._counters(
            "prompt_tokens_by_source", "Prompt tokens by the source of their keys and values.", SOURCES
        )
        self._cached_tokens = self._counter("prompt_tokens_cached", "Prompt tokens served from a cache.")
        self._cached_tokens_by_source = self._counters(
            "prompt_tokens_cached_by_source", "Prompt tokens served from a cache, by cache.", SOURCES[1:]
        )
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._num_drafts = self._counter("spec_decode_num_drafts", "Steps of a request that verified drafts.")
        self._num_draft_tokens = self._counter("spec_decode_num_draft_tokens", "Drafts verified.")
        self._num_accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Drafts accepted.")
        self._accepted_by_position = Counter(
            f"{prefix}spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted, by their place among the drafts of a step.",
            (*LABELS, "position"),
            registry=registry,
        )
        labels = dict(zip(LABELS, self._label_values, strict=True))
        name = f"{prefix}iteration_tokens_total"
        self._step_sizes = StepSizeHistogram(name, "Tokens per step.", labels, STEP_SIZES, registry)
        self.record(EngineStats())

    @property
    def load(self) -> dict[str, float]:
        """See :attr:`Metrics.load`."""
        return {"kv_cache_usage_perc": self._last.cache_usage, "num_requests_waiting": float(self._last.num_waiting)}

    def record(self, stats: EngineStats) -> None:
        """Record an engine's statistics; its counters may start from zero again after a restart."""
        last = self._last if stats.num_steps >= self._last.num_steps else EngineStats()
        self._last = stats
        self._num_running.set(stats.num_running)
        self._num_waiting.set(stats.num_waiting)
        num_deferred = stats.num_waiting if stats.is_paused else stats.num_awaiting_grammar
        self._waiting_by_reason["capacity"].set(stats.num_waiting - num_deferred)
        self._waiting_by_reason["deferred"].set(num_deferred)
        self._cache_usage.set(stats.cache_usage)
        for level, state in enumerate(SLEEP_STATES):
            self._sleep_state[state].set(stats.sleep_level == level)
        self._prefix_queries.inc(max(0, stats.prefix_queries - last.prefix_queries))
        self._prefix_hits.inc(max(0, stats.prefix_hits - last.prefix_hits))
        self._num_preemptions.inc(max(0, stats.num_preemptions - last.num_preemptions))
        self._num_corrupted.inc(max(0, stats.num_corrupted - last.num_corrupted))
        self._num_dropped_event_batches.inc(max(0, stats.num_dropped_event_batches - last.num_dropped_event_batches))
        self._generation_tokens.inc(max(0, stats.generation_tokens - last.generation_tokens))
        num_prompt = max(0, stats.prompt_tokens - last.prompt_tokens)
        if num_prompt:
            num_cached = max(0, stats.cached_prompt_tokens - last.cached_prompt_tokens)
            self._prompt_tokens.inc(num_prompt)
            self._cached_tokens.inc(num_cached)
            self._cached_tokens_by_source["local_cache_hit"].inc(num_cached)
            self._prompt_tokens_by_source["local_cache_hit"].inc(num_cached)
            self._prompt_tokens_by_source["local_compute"].inc(max(0, num_prompt - num_cached))
        if stats.acceptances:
            self._record_drafts(stats, last)
        self._step_sizes.record(stats, last)

    def _record_drafts(self, stats: EngineStats, last: EngineStats) -> None:
        self._num_drafts.inc(max(0, stats.num_drafts - last.num_drafts))
        self._num_draft_tokens.inc(max(0, stats.num_draft_tokens - last.num_draft_tokens))
        accepted = stats.accepted_by_position
        before = last.accepted_by_position or [0] * len(accepted)
        for position, (count, earlier) in enumerate(zip(accepted, before, strict=True)):
            self._num_accepted_tokens.inc(max(0, count - earlier))
            self._accepted_by_position.labels(*self._label_values, str(position)).inc(max(0, count - earlier))

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"{self._prefix}{name}", documentation, LABELS, registry=self._registry).labels(
            *self._label_values
        )

    def _gauges(self, name: str, documentation: str, label: str, values: tuple[str, ...]) -> dict[str, Gauge]:
        gauge = Gauge(f"{self._prefix}{name}", documentation, (*LABELS, label), registry=self._registry)
        return {value: gauge.labels(*self._label_values, value) for value in values}

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"{self._prefix}{name}", documentation, LABELS, registry=self._registry).labels(
            *self._label_values
        )

    def _counters(self, name: str, documentation: str, sources: tuple[str, ...]) -> dict[str, Counter]:
        counter = Counter(f"{self._prefix}{name}", documentation, (*LABELS, "source"), registry=self._registry)
        return {source: counter.labels(*self._label_values, source) for source in sources}


class StepSizeHistogram(FastHistogram):
    """The histogram ``iteration_tokens_total``, counted by the engine, since frontends do not see every step."""

    def record(self, stats: EngineStats, last: EngineStats) -> None:
        """Add the difference between two of the engine's statistics."""
        if stats.num_step_tokens == last.num_step_tokens:
            return
        self._sum += max(0, stats.num_step_tokens - last.num_step_tokens)
        before = last.step_sizes or [0] * len(stats.step_sizes)
        for index, (count, earlier) in enumerate(zip(stats.step_sizes, before, strict=True)):
            self._counts[index] += max(0, count - earlier)
