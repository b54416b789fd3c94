"""Figures of ``octavo bench serve``: builds the requests and sums up their records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.load import RequestRecord
from octavo.bench.statistics import Summary, percent_name, summarise
from octavo.errors import ConfigError

METRICS = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}


def completion_body(model: str, token_ids: Sequence[int], max_tokens: int, extra: Mapping[str, Any]) -> bytes:
    """A streaming request for ``/v1/completions``."""
    return _body(model, {"prompt": list(token_ids), "max_tokens": max_tokens}, extra)


def chat_body(model: str, text: str, max_tokens: int, extra: Mapping[str, Any]) -> bytes:
    """A streaming request for ``/v1/chat/completions``."""
    messages = [{"role": "user", "content": text}]
    return _body(model, {"messages": messages, "max_completion_tokens": max_tokens}, extra)


def _body(model: str, content: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps({"model": model, **content, **stream, **extra}).encode()


@dataclass(frozen=True, slots=True)
class ServingResult:
    """Results of a load. Lengths in tokens, ``duration`` in seconds, summaries in milliseconds.

    Attributes:
        goodput: requests/s that met the objectives; None without objectives.
        metrics: a summary for each requested metric of :data:`METRICS`.
    """

    duration: float
    completed: int
    failed: int
    aborted: int
    total_input_tokens: int
    total_output_tokens: int
    goodput: float | None
    metrics: dict[str, Summary]
    errors: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The figures with vLLM's names."""
        total = self.total_input_tokens + self.total_output_tokens
        result: dict[str, Any] = {
            "duration": self.duration,
            "completed": self.completed,
            "failed": self.failed,
            "aborted": self.aborted,
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "request_throughput": self.completed / self.duration,
            "request_goodput": self.goodput,
            "output_throughput": self.total_output_tokens / self.duration,
            "total_token_throughput": total / self.duration,
        }
        for name, summary in self.metrics.items():
            result[f"mean_{name}_ms"] = summary.mean
            result[f"median_{name}_ms"] = summary.median
            result[f"std_{name}_ms"] = summary.std
            result.update({f"{percent_name(p)}_{name}_ms": value for p, value in summary.percentiles.items()})
        return result

    def table(self) -> str:
        """The figures as text."""
        lines = [
            f"{self.completed} requests done, {self.aborted} aborted, {self.failed} failed, in {self.duration:.2f} s",
            f"{self.completed / self.duration:.2f} requests/s, "
            f"{self.total_output_tokens / self.duration:.1f} output tokens/s, "
            f"{(self.total_input_tokens + self.total_output_tokens) / self.duration:.1f} tokens/s in all",
            f"{self.total_input_tokens} prompt tokens, {self.total_output_tokens} output tokens",
        ]
        if self.goodput is not None:
            lines.append(f"{self.goodput:.2f} requests/s within the objectives")
        percents = [percent_name(p) for summary in list(self.metrics.values())[:1] for p in summary.percentiles]
        lines += ["", f"{'milliseconds':<24}" + "".join(f"{name:>10}" for name in ("mean", "median", *percents))]
        for name, summary in self.metrics.items():
            values = (summary.mean, summary.median, *summary.percentiles.values())
            lines.append(f"{METRICS[name]:<24}" + "".join(f"{value:>10.2f}" for value in values))
        lines += [f"failed: {error}" for error in self.errors]
        return "\n".join(lines)


def summarise_records(
    records: Sequence[RequestRecord],
    duration: float,
    *,
    metrics: Sequence[str] = tuple(METRICS),
    percents: Sequence[float] = (90, 99),
    objectives: Mapping[str, float] | None = None,
) -> ServingResult:
    """Sum up the records of a load. Times are of finished requests; aborted ones count only with their tokens.

    Args:
        duration: seconds from the first request to the last answer.
        objectives: maximum milliseconds of ``ttft``, ``tpot`` or ``e2el`` for goodput.
    """
    done = [record for record in records if record.status == "done"]
    served = [record for record in records if record.status != "failed"]
    errors = [record.error for record in records if record.status == "failed"]
    times = {
        "ttft": [record.ttft for record in done if record.ttft is not None],
        "tpot": [record.tpot for record in done if record.tpot is not None],
        "itl": [gap for record in done for gap in record.itl],
        "e2el": [record.latency for record in done],
    }
    good = sum(_is_good(record, objectives or {}) for record in done)
    return ServingResult(
        duration=max(duration, 1e-9),
        completed=len(done),
        failed=len(errors),
        aborted=len(served) - len(done),
        total_input_tokens=sum(record.prompt_tokens for record in served),
        total_output_tokens=sum(record.output_tokens for record in served),
        goodput=good / max(duration, 1e-9) if objectives else None,
        metrics={name: summarise([1000 * value for value in times[name]], percents) for name in metrics},
        errors=tuple(dict.fromkeys(errors))[:5],
    )


def parse_objectives(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Parse objectives such as ``ttft:200``, in milliseconds."""
    objectives: dict[str, float] = {}
    for name, text in pairs:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if name not in ("ttft", "tpot", "e2el") or not value > 0:
            raise ConfigError(f"An objective is ttft, tpot or e2el with milliseconds, as ttft:200, not {name}:{text}.")
        objectives[name] = value
    return objectives


def _is_good(record: RequestRecord, objectives: Mapping[str, float]) -> bool:
    values = {"ttft": record.ttft, "tpot": record.tpot, "e2el": record.latency}
    return all(1000 * (values[name] or 0.0) <= limit for name, limit in objectives.items())
