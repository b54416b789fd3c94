"""Prompts as vectors on both runners: in chunks, beside others, and again after a preemption."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_requests import engine_request
from test_device_runner import LAYERS, DeviceEngine
from tiny_engine import VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.models.base import CausalLM
from octavo.records import PromptEmbeds, SamplingParams

PROMPTS = [[(7 * index + place) % VOCAB for place in range(size)] for index, size in enumerate((1, 10, 6))]


def vectors_of(model: CausalLM, prompt: list[int]) -> PromptEmbeds:
    vectors = model.input_embedding(torch.tensor(prompt))
    return PromptEmbeds(vectors.numpy().tobytes(), "float32", *vectors.shape)


CHUNKS: dict[str, Any] = {"num_steps_ahead": 1, "max_num_batched_tokens": 9}
PREEMPTED: dict[str, Any] = {"num_blocks": 28, "enable_prefix_caching": False}
needs_interpreter = pytest.mark.skipif(
    torch.cuda.is_available(), reason="runs where Triton's interpreter is on: on machines without a GPU, such as CI's"
)


@pytest.mark.usefixtures("hasty_admission")
@pytest.mark.parametrize(
    ("make", "architecture", "settings"),
    [
        pytest.param(TinyEngine, "LlamaForCausalLM", CHUNKS, id="chunks"),
        pytest.param(TinyEngine, "Gemma3ForCausalLM", CHUNKS, id="scaled, chunks"),
        pytest.param(TinyEngine, "Gemma3ForCausalLM", PREEMPTED, id="preempted"),
        pytest.param(DeviceEngine, "Gemma3ForCausalLM", CHUNKS, id="device, chunks", marks=needs_interpreter),
    ],
)
def test_vectors_read_as_their_tokens(
    make: Callable[..., TinyEngine], architecture: str, settings: dict[str, Any]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=24 if settings is PREEMPTED else 3)
    config = tiny_config(architecture, LAYERS, 5)
    model = tiny_model(config)
    plain = [engine_request(f"t{index}", prompt, params) for index, prompt in enumerate(PROMPTS)]
    expected = TinyEngine(config, model).run(plain)
    given = [
        engine_request(f"v{index}", [0] * len(prompt), params, prompt_embeds=vectors_of(model, prompt))
        for index, prompt in enumerate(PROMPTS)
    ]
    mixed = [request for pair in zip(given, plain, strict=True) for request in pair]
    engine = make(config, model, **settings)
    found = engine.run(mixed)
    assert (engine.scheduler.stats.num_preemptions > 0) == (settings is PREEMPTED)
    for index in range(len(PROMPTS)):
        assert tokens(found[f"v{index}"]) == tokens(found[f"t{index}"]) == tokens(expected[f"t{index}"])
