"""With drafts from a request's own text: the same tokens and log-probabilities as without, in fewer steps."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_requests import engine_request
from test_device_runner import LAYERS, Alternating, DeviceEngine
from tiny_engine import VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.records import EngineOutput, EngineRequest, NgramDrafts, RepetitionDetectionParams, SamplingParams
from octavo.sampling.grammar.constraint import Constraint
from octavo.sampling.repetition import RepetitionDetector
from octavo.sampling.rules import TokenRule

DRAFTS = NgramDrafts(3, 1, 3)


def make_requests(max_tokens: int = 12) -> list[EngineRequest]:
    """Prompts that repeat themselves, so that drafts are found."""
    source = random.Random(4)
    greedy = {"temperature": 0.0, "max_tokens": max_tokens}
    wishes: list[dict[str, Any]] = [
        greedy,
        greedy | {"presence_penalty": 0.5, "repetition_penalty": 1.1, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0.3, "top_k": 5, "max_tokens": max_tokens, "logprobs": 0},
        {"temperature": 0.4, "top_p": 0.9, "min_p": 0.02, "max_tokens": max_tokens},
        greedy | {"logit_bias": {3: 4.0}, "min_tokens": 4, "stop_token_ids": [3]},
        {"temperature": 1.0, "max_tokens": max_tokens},
    ]
    requests = []
    for index, wish in enumerate(wishes):
        phrase = [source.randrange(VOCAB) for _ in range(3 + index % 3)]
        requests.append(engine_request(str(index), phrase * 3, SamplingParams(**wish), seed=index))
    return requests


def all_logprobs(outputs: list[EngineOutput]) -> list[float]:
    return [
        value
        for output in outputs
        for entry in (*(output.prompt_logprobs or []), *(output.logprobs or []))
        for value in entry.logprobs
    ]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"num_steps_ahead": 1}, id="a step ahead"),
        pytest.param({"num_steps_ahead": 1, "max_num_batched_tokens": 13}, id="chunks"),
        pytest.param({"num_blocks": 24, "num_steps_ahead": 1, "enable_prefix_caching": False}, id="preempted"),
        pytest.param({"drafter": replace(DRAFTS, num_drafts=1, min_length=2)}, id="one draft"),
        pytest.param({"decode_len": 1, "num_steps_ahead": 1}, id="as chunks"),
    ],
)
@pytest.mark.usefixtures("hasty_admission")
@pytest.mark.parametrize(
    "architecture",
    ["Qwen3ForCausalLM", "Gemma3ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV32ForCausalLM", "Mamba2ForCausalLM"],
)
def test_the_same_answers(architecture: str, settings: dict[str, Any]) -> None:
    config = tiny_config(architecture, LAYERS, 5)
    model = tiny_model(config)
    plain = TinyEngine(config, model)
    expected = plain.run(make_requests())
    drafting = TinyEngine(config, model, **{"drafter": DRAFTS, **settings})
    found = drafting.run(make_requests())
    for request_id, outputs in expected.items():
        assert tokens(found[request_id]) == tokens(outputs), request_id
        assert all_logprobs(found[request_id]) == pytest.approx(all_logprobs(outputs), abs=1e-4)


def test_drafts_save_steps() -> None:
    config = tiny_config("LlamaForCausalLM", ("full_attention",), None)
    model = tiny_model(config)
    requests = make_requests(max_tokens=40)[:1]
    plain, drafting = TinyEngine(config, model), TinyEngine(config, model, drafter=DRAFTS)
    assert tokens(drafting.run(requests)["0"]) == tokens(plain.run(requests)["0"])
    stats = drafting.scheduler.stats
    assert stats.num_steps < plain.scheduler.stats.num_steps
    # Each step draws a token, and one more for each draft that it accepts.
    assert stats.num_steps + sum(stats.accepted_by_position) == stats.generation_tokens == 40
    assert sum(stats.accepted_by_position) <= stats.num_draft_tokens <= 3 * stats.num_drafts
    assert stats.num_drafts < stats.num_steps
    assert not plain.scheduler.stats.acceptances


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs in Triton's interpreter; tests/gpu does it with a GPU")
def test_the_kernels_of_a_gpu_give_the_same_answers() -> None:
    """A step ahead, with one rule; three short answers, since the interpreter is slow."""
    config = tiny_config("Qwen3ForCausalLM", ("full_attention",), None)
    model = tiny_model(config)
    requests = make_requests(max_tokens=5)[1:4]
    rules: dict[str, list[TokenRule]] = {"2": [Constraint(Alternating())]}
    expected = TinyEngine(config, model).run(requests, rules)
    rules["2"] = [Constraint(Alternating())]
    found = DeviceEngine(config, model, drafter=DRAFTS, num_steps_ahead=1).run(requests, rules)
    for request_id, outputs in expected.items():
        assert tokens(found[request_id]) == tokens(outputs)
        assert all_logprobs(found[request_id]) == pytest.approx(all_logprobs(outputs), abs=1e-4)


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
def test_rules_hold_behind_drafts(num_steps_ahead: int) -> None:
    config = tiny_config("Qwen3ForCausalLM", LAYERS, 5)
    model = tiny_model(config)
    params = RepetitionDetectionParams(2, 1, 3)

    def run(kind: type[TinyEngine], **settings: Any) -> dict[str, list[EngineOutput]]:
        rules: dict[str, list[TokenRule]] = {str(index): [Constraint(Alternating())] for index in range(3)}
        rules["4"] = [RepetitionDetector(params)]
        return kind(config, model, **settings).run(make_requests(20), rules)

    expected = run(TinyEngine)
    found = run(TinyEngine, drafter=DRAFTS, num_steps_ahead=num_steps_ahead)
    for request_id, outputs in expected.items():
        assert tokens(found[request_id]) == tokens(outputs)
        assert found[request_id][-1].finish_reason == outputs[-1].finish_reason
    for request_id in "012":
        text = tokens(found[request_id])
        assert [token % 2 for token in text] == [index % 2 for index in range(len(text))]


def test_draws_with_drafts_follow_the_same_distribution() -> None:
    """Whatever is drafted: the drawn token is the one of the position's own random number."""
    config = tiny_config("LlamaForCausalLM", ("full_attention",), None)
    model = tiny_model(config)
    requests = [
        engine_request(str(seed), [5, 6, 7, 5, 6], SamplingParams(temperature=2.0, max_tokens=3), seed=seed)
        for seed in range(200)
    ]
    plain = {name: tokens(found) for name, found in TinyEngine(config, model).run(requests).items()}
    drafted = {name: tokens(found) for name, found in TinyEngine(config, model, drafter=DRAFTS).run(requests).items()}
    assert drafted == plain
    assert len(np.unique([text[0] for text in plain.values()])) > 10
