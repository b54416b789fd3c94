from collections.abc import Sequence

import pytest

from octavo.bench.offline import LatencyResult, ThroughputResult, measure_latency, measure_throughput
from octavo.bench.workload import Lengths, random_prompts
from octavo.records import CompletionOutput, RequestOutput, SamplingParams


class FakeModel:
    """Answers with as many tokens as asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[object], list[SamplingParams]]] = []

    def generate(
        self, prompts: Sequence[object], sampling_params: Sequence[SamplingParams], use_tqdm: object = True
    ) -> list[RequestOutput]:
        self.calls.append((list(prompts), list(sampling_params)))
        return [
            RequestOutput(
                request_id="0",
                prompt=None,
                prompt_token_ids=None,
                prompt_logprobs=None,
                outputs=[CompletionOutput(index, "", range(params.max_tokens or 0)) for index in range(params.n)],
                finished=True,
            )
            for params in sampling_params
        ]


def test_latency_leaves_the_warm_ups_out() -> None:
    model = FakeModel()
    prompts = random_prompts(10, Lengths(4, 3), range(100), 0)
    batches = [prompts[start : start + 2] for start in range(0, 10, 2)]
    result = measure_latency(model, batches, 2, n=1, detokenize=True)
    assert len(model.calls) == 5
    assert len(result.latencies) == 3
    assert all(params.ignore_eos and params.max_tokens == 3 for _, batch in model.calls for params in batch)


def test_latency_figures() -> None:
    figures = LatencyResult((3.0, 1.0, 2.0)).as_json()
    assert figures["avg_latency"] == 2.0
    assert figures["latencies"] == [3.0, 1.0, 2.0]
    assert figures["percentiles"]["50"] == 2.0
    assert figures["percentiles"]["90"] == pytest.approx(2.8)


def test_throughput_counts_what_was_generated() -> None:
    model = FakeModel()
    result = measure_throughput(model, random_prompts(5, Lengths(4, 3), range(100), 0), 1, n=2, detokenize=False)
    assert [len(prompts) for prompts, _ in model.calls] == [1, 4]
    assert (result.num_requests, result.num_prompt_tokens, result.num_output_tokens) == (4, 16, 24)


def test_throughput_figures() -> None:
    figures = ThroughputResult(2.0, 4, 16, 24).as_json()
    assert (figures["requests_per_second"], figures["tokens_per_second"]) == (2.0, 20.0)
    assert figures["output_tokens_per_second"] == 12.0
