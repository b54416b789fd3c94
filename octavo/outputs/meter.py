"""Latencies and token counts of requests, measured from their outputs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from octavo.records import PreparedRequest, RequestStateStats, SamplingParams, StepOutputs
from octavo.telemetry.tracing import RequestTrace, Tracer

if TYPE_CHECKING:  # its caller has imported it
    from octavo.telemetry.metrics import Metrics


@dataclass(slots=True)
class _MeteredSequence:
    """One sequence in flight."""

    request: "_MeteredRequest"
    stats: RequestStateStats
    num_cached: int = 0


@dataclass(slots=True)
class _MeteredRequest:
    """One request: what its sequences have in common.

    Attributes:
        num_longest: tokens of the longest sequence that has.
        num_generated: tokens of all that have.
    """

    request_id: str
    params: SamplingParams
    num_prompt: int
    num_sequences: int
    num_open: int
    trace_headers: Mapping[str, str]
    num_longest: int = 0
    num_generated: int = 0


class RequestMeter:
    """Records what a frontend's clients experience.

    Args:
        tracer: records every finished request; None without tracing.
        model_name: what traces call the model.
    """

    def __init__(self, metrics: "Metrics", tracer: Tracer | None = None, model_name: str = "") -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._model_name = model_name
        self._sequences: dict[str, _MeteredSequence] = {}

    def begin(self, prepared: PreparedRequest, trace_headers: Mapping[str, str] | None = None) -> None:
        """Start measuring a request."""
        count = len(prepared.children)
        request = _MeteredRequest(
            prepared.request_id, prepared.params, len(prepared.prompt_token_ids), count, count, trace_headers or {}
        )
        for child in prepared.children:
            stats = RequestStateStats(arrival_time=prepared.arrival_time)
            self._sequences[child.request_id] = _MeteredSequence(request, stats)

    def observe(self, outputs: StepOutputs) -> None:
        """Account for the engine's outputs."""
        now = time.time()
        find = self._sequences.get
        counts = outputs.num_tokens or repeat(1, len(outputs.request_ids))
        for request_id, count in zip(outputs.request_ids, counts, strict=True):
            if (sequence := find(request_id)) is not None:
                self._observe_tokens(sequence.stats, count, now)
        for output in outputs.others:
            sequence = self._sequences.get(output.request_id)
            if sequence is None:
                continue
            if output.new_token_ids:
                self._observe_tokens(sequence.stats, len(output.new_token_ids), now)
            if output.num_cached_tokens is not None:
                sequence.num_cached = output.num_cached_tokens
            if output.times is not None:
                sequence.stats.queued_ts = output.times.queued
                sequence.stats.scheduled_ts = output.times.scheduled
                sequence.stats.num_preemptions = output.times.num_preemptions
            if output.finish_reason is not None:
                self._end(output.request_id, output.finish_reason, now)

    def end(self, request_ids: list[str], finish_reason: str) -> None:
        """Sequences ended in the frontend: by a stop string, or because the client left."""
        now = time.time()
        for request_id in request_ids:
            self._end(request_id, finish_reason, now)

    def _observe_tokens(self, stats: RequestStateStats, num_tokens: int, now: float) -> None:
        stats.num_generation_tokens += num_tokens
        if stats.first_token_ts:
            self._metrics.record_next_token(now - stats.last_token_ts)
        else:
            stats.first_token_ts = now
            self._metrics.record_first_token(now - stats.arrival_time)
        stats.last_token_ts = now

    def _end(self, request_id: str, finish_reason: str, now: float) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return
        request, stats = sequence.request, sequence.stats
        self._metrics.record_finished(
            stats,
            finish_reason,
            num_prompt_tokens=request.num_prompt,
            num_cached_tokens=sequence.num_cached,
            n=request.params.n,
            max_tokens=request.params.max_tokens,
            finished_time=now,
        )
        request.num_open -= 1
        request.num_longest = max(request.num_longest, stats.num_generation_tokens)
        request.num_generated += stats.num_generation_tokens
        if request.num_open:
            return
        self._metrics.record_request(request.num_longest)
        if self._tracer is not None:
            self._tracer.record(
                RequestTrace(
                    request_id=request.request_id,
                    model=self._model_name,
                    params=request.params,
                    num_prompt_tokens=request.num_prompt,
                    num_generation_tokens=request.num_generated,
                    num_sequences=request.num_sequences,
                    stats=stats,
                    finish_reason=finish_reason,
                    headers=request.trace_headers,
                    end_time=now,
                )
            )
