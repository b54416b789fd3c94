"""Token usage and latency metrics of requests."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from octavo.api.request_body import StreamOptions
from octavo.config import ServerSettings
from octavo.records import RequestOutput


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class SpeculationMetrics(msgspec.Struct):
    """How many of the tokens that a drafter proposed for one request were accepted.

    Attributes:
        acceptance_histogram: entry ``i`` counts the steps that accepted ``i`` draft tokens.
        per_step_accepted, per_step_drafted: one entry per step, where that is recorded.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None


class RequestMetrics(msgspec.Struct):
    """How long one request took; None where that is not known, or there is nothing to measure.

    Attributes:
        time_to_first_token_ms: from the request's arrival.
        generation_time_ms: from the first token to the last.
        queue_time_ms: before the engine began with it.
        mean_itl_ms: between tokens of one completion.
        tokens_per_second: of all completions, from the time that the engine began.
        speculative_decoding: None without a drafter.
    """

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: SpeculationMetrics | None = None


class StreamedMetrics(RequestMetrics, omit_defaults=True):
    """The same in a stream's last event, which leaves out what is not known."""


class UsageCounter:
    """Adds up the tokens of one request over its prompts and outputs.

    Args:
        shows_cached: whether to report tokens from the prefix cache.

    Attributes:
        num_reasoning: tokens of reasoning so far, by completion; None if reasoning is not parsed.
    """

    def __init__(self, num_prompts: int, shows_cached: bool) -> None:
        self._prompt_tokens = [0] * num_prompts
        self._cached_tokens = [0] * num_prompts
        self._completion_tokens: Counter[tuple[int, int]] = Counter()
        self._shows_cached = shows_cached
        self.num_reasoning: Mapping[int, int] | None = None

    @property
    def num_prompts(self) -> int:
        """Prompts in the request."""
        return len(self._prompt_tokens)

    def add_output(self, prompt_index: int, output: RequestOutput, counts_output: bool = True) -> None:
        """Account for one output of a prompt (a part, or the whole)."""
        if output.prompt_token_ids is not None:
            self._prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        if output.num_cached_tokens is not None:
            self._cached_tokens[prompt_index] = output.num_cached_tokens
        if counts_output:
            for completion in output.outputs:
                self._completion_tokens[prompt_index, completion.index] += len(completion.token_ids)

    def add_token(self, index: int) -> None:
        """Account for one more token of a completion of the only prompt."""
        self._completion_tokens[0, index] += 1

    def usage(self) -> Usage:
        """The figures so far."""
        num_reasoning = None if self.num_reasoning is None else sum(self.num_reasoning.values())
        return self._usage(
            sum(self._prompt_tokens), sum(self._completion_tokens.values()), sum(self._cached_tokens), num_reasoning
        )

    def usage_of(self, prompt_index: int, index: int) -> Usage:
        """The figures of one completion so far."""
        num_reasoning = None if self.num_reasoning is None else self.num_reasoning.get(index, 0)
        num_tokens = self._completion_tokens[prompt_index, index]
        return self._usage(
            self._prompt_tokens[prompt_index], num_tokens, self._cached_tokens[prompt_index], num_reasoning
        )

    def _usage(self, num_prompt: int, num_tokens: int, num_cached: int, num_reasoning: int | None) -> Usage:
        details = PromptTokensDetails(num_cached) if self._shows_cached else None
        usage = Usage(num_prompt, num_prompt + num_tokens, num_tokens, details)
        if num_reasoning is not None:
            usage.completion_tokens_details = CompletionTokensDetails(num_reasoning)
        return usage


@dataclass(frozen=True, slots=True)
class UsageMode:
    """Which events of a stream have usage.

    Attributes:
        is_sent: an event of its own at the end; the others have ``usage`` null.
        is_continuous: the figures of its completion so far in every event.
    """

    is_sent: bool
    is_continuous: bool

    @classmethod
    def of(cls, options: StreamOptions | None, settings: ServerSettings) -> "UsageMode":
        """What the request asks for, or the settings impose."""
        if settings.enable_force_include_usage:
            return cls(True, True)
        is_sent = bool(options and options.include_usage)
        return cls(is_sent, is_sent and bool(options and options.continuous_usage_stats))

    def within(self, counter: UsageCounter, prompt_index: int, index: int) -> Usage | UnsetType | None:
        """The ``usage`` of an event that carries text of a prompt's completion."""
        if self.is_continuous:
            return counter.usage_of(prompt_index, index)
        return None if self.is_sent else UNSET


def request_metrics(
    output: RequestOutput, num_completions: int, kind: type[RequestMetrics] = RequestMetrics
) -> RequestMetrics:
    """The latencies of a request, from its last output.

    Args:
        num_completions: among how many its tokens are shared out.
        kind: :class:`StreamedMetrics` for a stream.
    """
    stats = output.metrics
    if stats is None or not stats.first_token_ts:
        return kind()
    metrics = kind(
        time_to_first_token_ms=_milliseconds(stats.first_token_ts - stats.arrival_time),
        generation_time_ms=_milliseconds(stats.last_token_ts - stats.first_token_ts),
        queue_time_ms=_milliseconds(stats.scheduled_ts - stats.queued_ts),
    )
    num_gaps = stats.num_generation_tokens / num_completions - 1
    if num_gaps > 0:
        metrics.mean_itl_ms = _milliseconds((stats.last_token_ts - stats.first_token_ts) / num_gaps)
    busy = stats.last_token_ts - stats.scheduled_ts
    if busy > 0:
        metrics.tokens_per_second = round(stats.num_generation_tokens / busy, 2)
    return metrics


def _milliseconds(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1e3, 3)
