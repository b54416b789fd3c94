"""A request's tokens do not depend on how its steps were cut, on its neighbours, or on where its blocks lie."""

import random
from typing import Any

import pytest
from engine_requests import engine_request
from tiny_engine import VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.hub.model_config import LayerType
from octavo.kernels import ReferenceAttention
from octavo.records import EngineRequest, SamplingParams

FULL: LayerType = "full_attention"
SLIDING: LayerType = "sliding_attention"
MODELS: dict[str, tuple[tuple[LayerType, ...], int | None]] = {
    "LlamaForCausalLM": ((FULL, FULL), None),
    "MistralForCausalLM": ((SLIDING, SLIDING), 7),
    "Qwen2ForCausalLM": ((FULL, FULL), None),
    "Qwen3ForCausalLM": ((FULL, SLIDING), 5),
    "Gemma3ForCausalLM": ((SLIDING, FULL, SLIDING), 6),
}
# Numbers of blocks are per cache group; one request needs up to 13 blocks of 4 tokens in each.
SETTINGS: dict[str, dict[str, Any]] = {
    "batched": {"num_blocks": 200},
    "chunks": {"num_blocks": 200, "max_num_batched_tokens": 9},
    "preemption": {"num_blocks": 20, "enable_prefix_caching": False},
    "preemption and hits": {"num_blocks": 20, "max_num_batched_tokens": 17},
    "ahead": {"num_steps_ahead": 2, "num_blocks": 24},
    "large blocks": {"block_size": 16, "num_blocks": 40},
    "single tokens": {"block_size": 1, "max_num_batched_tokens": 13, "num_blocks": 200},
}
PARAMS = SamplingParams(temperature=0, max_tokens=12, prompt_logprobs=2, logprobs=1)


def make_requests(num_requests: int = 9) -> list[EngineRequest]:
    """Prompts of 1 to 40 tokens; some begin alike, the last two are completions of one prompt."""
    source = random.Random(1)
    prompts = [[source.randrange(VOCAB) for _ in range(source.randrange(1, 40))] for _ in range(num_requests - 4)]
    prompts += [[*max(prompts, key=len), 5, 6], [*max(prompts, key=len)[:13], 7]]
    params = [
        PARAMS if index % 3 == 0 else SamplingParams(temperature=0, max_tokens=12) for index in range(len(prompts))
    ]
    requests = [engine_request(str(index), prompt, params[index]) for index, prompt in enumerate(prompts)]
    sampled = SamplingParams(temperature=0.8, top_k=20, max_tokens=12)
    fork = [source.randrange(VOCAB) for _ in range(22)]
    return requests + [
        engine_request(f"{index}_fork", fork, sampled, seed=40 + index, leader_id="0_fork") for index in range(2)
    ]


@pytest.mark.usefixtures("hasty_admission")
@pytest.mark.parametrize("architecture", list(MODELS))
def test_tokens_and_logprobs_equal_those_of_each_request_alone(architecture: str) -> None:
    config = tiny_config(architecture, *MODELS[architecture])
    model = tiny_model(config)
    alone = {}
    for request in make_requests():
        engine = TinyEngine(config, model, enable_prefix_caching=False)
        engine.runner.forward.contexts.backend = ReferenceAttention()
        alone |= engine.run([request])
    num_preemptions = 0
    for name, settings in SETTINGS.items():
        num_groups = len(TinyEngine(config, model).plan.groups)
        engine = TinyEngine(config, model, **{**settings, "num_blocks": settings["num_blocks"] * num_groups})
        together = engine.run(make_requests())
        num_preemptions += engine.scheduler.stats.num_preemptions
        for request_id, expected in alone.items():
            assert tokens(together[request_id]) == tokens(expected), (name, request_id)
            for kind in ("prompt_logprobs", "logprobs"):
                found = [entry for output in together[request_id] for entry in getattr(output, kind) or []]
                wanted = [entry for output in expected for entry in getattr(output, kind) or []]
                assert [entry.token_ids for entry in found] == [entry.token_ids for entry in wanted], (name, kind)
                assert [entry.rank for entry in found] == [entry.rank for entry in wanted]
                assert [value for entry in found for value in entry.logprobs] == pytest.approx(
                    [value for entry in wanted for value in entry.logprobs], abs=1e-4
                )
    # With sliding windows alone requests give back what they take.
    assert num_preemptions > 0 or FULL not in config.layer_types


def test_prompt_logprobs_cover_the_prompt_from_its_second_token() -> None:
    config = tiny_config("LlamaForCausalLM", (FULL, FULL), None)
    engine = TinyEngine(config, tiny_model(config), max_num_batched_tokens=5)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    (first, *rest) = engine.run([engine_request("a", prompt, PARAMS)])["a"]
    assert first.prompt_logprobs is not None
    assert [entry.token_ids[0] for entry in first.prompt_logprobs] == prompt[1:]
    assert all(output.prompt_logprobs is None for output in rest)


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_a_request_whose_values_are_not_numbers_ends_alone(architecture: str, num_steps_ahead: int) -> None:
    config = tiny_config(architecture, *MODELS[architecture])
    poison = VOCAB - 1
    good = [
        engine_request(str(index), [index, 1, 2, 3, index], SamplingParams(temperature=0, max_tokens=8))
        for index in range(3)
    ]
    clean = TinyEngine(config, tiny_model(config)).run(good)
    settings = {"num_blocks": 40, "num_steps_ahead": num_steps_ahead, "max_num_batched_tokens": 16}
    engine = TinyEngine(config, tiny_model(config, poison), **settings)
    bad = engine_request("bad", [4, 5, poison, *range(20)], SamplingParams(temperature=0, max_tokens=8))
    # The later rounds run in blocks that the failed requests have left.
    for _ in range(4):
        outputs = engine.run([good[0], bad, *good[1:]])
        assert outputs["bad"][-1].finish_reason == "error"
        assert not any(output.new_token_ids for output in outputs["bad"])
        for request in good:
            assert tokens(outputs[request.request_id]) == tokens(clean[request.request_id])
