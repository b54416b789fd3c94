"""Prompts as vectors on both runners: in chunks, beside others, and again after a preemption."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_device_runner import LAYERS, DeviceEngine
from tiny_engine import VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.models.base import CausalLM
from octavo.records import EngineRequest, PromptEmbeds, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = [[(7 * index + place) % VOCAB for place in range(size)] for index, size in enumerate((1, 19, 8, 13))]


def vectors_of(model: CausalLM, prompt: list[int]) -> PromptEmbeds:
    vectors = model.input_embedding(torch.tensor(prompt))
    return PromptEmbeds(vectors.numpy().tobytes(), "float32", *vectors.shape)


needs_interpreter = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton's interpreter is on without a GPU only"
)


@pytest.mark.parametrize("make", [TinyEngine, pytest.param(DeviceEngine, marks=needs_interpreter)])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_steps_ahead": 1, "max_num_batched_tokens": 9}, id="chunks, a step ahead"),
        pytest.param({"num_blocks": 20, "enable_prefix_caching": False}, id="preempted"),
    ],
)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_vectors_read_as_their_tokens(
    make: Callable[..., TinyEngine], settings: dict[str, Any], architecture: str
) -> None:
    config = tiny_config(architecture, LAYERS, 5)
    model = tiny_model(config)
    plain = [EngineRequest(f"t{index}", prompt, PARAMS) for index, prompt in enumerate(PROMPTS)]
    expected = TinyEngine(config, model).run(plain)
    given = [
        EngineRequest(f"v{index}", [0] * len(prompt), PARAMS, prompt_embeds=vectors_of(model, prompt))
        for index, prompt in enumerate(PROMPTS)
    ]
    mixed = [request for pair in zip(given, plain, strict=True) for request in pair]
    found = make(config, model, **settings).run(mixed)
    for index in range(len(PROMPTS)):
        assert tokens(found[f"v{index}"]) == tokens(found[f"t{index}"]) == tokens(expected[f"t{index}"])
