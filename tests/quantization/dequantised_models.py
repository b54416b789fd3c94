"""Holds a quantised model against the transformers library's with the weights that its checkpoint stands for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_llama import SETTINGS
from transformers import LlamaForCausalLM

from octavo import LLM, SamplingParams
from octavo.layers.linear import Linear, PartedLinear

PROMPTS = [[1, 5, 9, 33, 70, 2], [8] * 11]


def assert_computes(
    folder: Path, source: Path, weights: dict[str, torch.Tensor], *, tolerance: float = 1e-3, **settings: Any
) -> LLM:
    """Hold a model's log-probabilities against those of the transformers library with these weights."""
    model = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.load_state_dict(weights)
    llm = LLM(str(folder), **(SETTINGS | settings))
    for prompt in PROMPTS:
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        (answer,) = llm.generate(
            [{"prompt_token_ids": prompt}], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=20)
        )
        assert answer.prompt_logprobs is not None
        for position, entries in enumerate(answer.prompt_logprobs[1:]):
            assert entries is not None
            for token, entry in entries.items():
                assert entry.logprob == pytest.approx(expected[position, token].item(), abs=tolerance)
    return llm


def layers_of(llm: LLM) -> dict[str, Any]:
    (found,) = llm.apply_model(lambda model: dict(model.named_modules()))
    return {name: layer for name, layer in found.items() if isinstance(layer, (Linear, PartedLinear))}
