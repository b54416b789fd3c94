"""Measures latency and throughput of a model in this process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tqdm import tqdm

from octavo.bench.statistics import percent_name, percentile
from octavo.bench.workload import BenchPrompt
from octavo.records import PromptType, RequestOutput, SamplingParams

LATENCY_PERCENTS = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)


class OfflineModel(Protocol):
    """The engine to measure: :class:`octavo.llm.LLM`, or any object with its ``generate``."""

    def generate(
        self,
        prompts: Sequence[PromptType],
        sampling_params: Sequence[SamplingParams],
        use_tqdm: bool | Callable[..., tqdm] = True,
    ) -> list[RequestOutput]:
        """Complete prompts."""


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Durations of the repetitions, in seconds."""

    latencies: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """The figures with vLLM's names."""
        ordered = sorted(self.latencies)
        return {
            "avg_latency": sum(ordered) / len(ordered),
            "latencies": list(self.latencies),
            "percentiles": {f"{percent:g}": percentile(ordered, percent) for percent in LATENCY_PERCENTS},
        }

    def table(self) -> str:
        """The figures as text."""
        ordered = sorted(self.latencies)
        lines = [f"average {sum(ordered) / len(ordered):.4f} s"]
        lines += [f"{percent_name(percent):<7} {percentile(ordered, percent):.4f} s" for percent in LATENCY_PERCENTS]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """Throughput of all requests together; ``elapsed`` in seconds, counts in tokens."""

    elapsed: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int

    def as_json(self) -> dict[str, Any]:
        """The figures with vLLM's names."""
        total = self.num_prompt_tokens + self.num_output_tokens
        return {
            "elapsed_time": self.elapsed,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "total_prompt_tokens": self.num_prompt_tokens,
            "total_output_tokens": self.num_output_tokens,
            "requests_per_second": self.num_requests / self.elapsed,
            "tokens_per_second": total / self.elapsed,
            "output_tokens_per_second": self.num_output_tokens / self.elapsed,
        }

    def table(self) -> str:
        """The figures as text."""
        figures = self.as_json()
        return (
            f"{self.num_requests} requests in {self.elapsed:.2f} s: {figures['requests_per_second']:.2f} requests/s, "
            f"{figures['tokens_per_second']:.1f} tokens/s in all, "
            f"{figures['output_tokens_per_second']:.1f} output tokens/s\n"
            f"{self.num_prompt_tokens} prompt tokens, {self.num_output_tokens} output tokens"
        )


def measure_latency(
    model: OfflineModel, batches: Sequence[Sequence[BenchPrompt]], num_warmups: int, n: int, detokenize: bool
) -> LatencyResult:
    """Time one batch after another; the first ``num_warmups`` do not count.

    Args:
        batches: different prompts for every repetition, so that there are no prefix-cache hits.
        n: completions of each prompt.
    """
    latencies = []
    for batch in tqdm(batches, desc="Repetitions", dynamic_ncols=True):
        start = time.perf_counter()
        model.generate(_prompts(batch), _params(batch, n, detokenize), use_tqdm=False)
        latencies.append(time.perf_counter() - start)
    return LatencyResult(tuple(latencies[num_warmups:]))


def measure_throughput(
    model: OfflineModel, prompts: Sequence[BenchPrompt], num_warmups: int, n: int, detokenize: bool
) -> ThroughputResult:
    """Time all prompts at once; the first ``num_warmups`` run beforehand and do not count."""
    warmups, counted = prompts[:num_warmups], prompts[num_warmups:]
    if warmups:
        model.generate(_prompts(warmups), _params(warmups, n, detokenize), use_tqdm=False)
    start = time.perf_counter()
    outputs = model.generate(_prompts(counted), _params(counted, n, detokenize))
    elapsed = time.perf_counter() - start
    return ThroughputResult(
        elapsed=elapsed,
        num_requests=len(counted),
        num_prompt_tokens=sum(len(prompt.token_ids) for prompt in counted),
        num_output_tokens=sum(len(completion.token_ids) for output in outputs for completion in output.outputs),
    )


def _prompts(batch: Sequence[BenchPrompt]) -> list[PromptType]:
    return [{"prompt_token_ids": prompt.token_ids} for prompt in batch]


def _params(batch: Sequence[BenchPrompt], n: int, detokenize: bool) -> list[SamplingParams]:
    """Sampling parameters for answers of exactly the given lengths."""
    return [
        SamplingParams(n=n, temperature=1.0, ignore_eos=True, max_tokens=prompt.output_len, detokenize=detokenize)
        for prompt in batch
    ]
