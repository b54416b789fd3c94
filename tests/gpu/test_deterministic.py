"""With ``deterministic`` a request's log-probabilities have the same bits whatever else is in the batch."""

import random
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from octavo import LLM, RequestOutput, SamplingParams

VOCAB = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=4096,
    )
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(path)
    return path


def figures(output: RequestOutput) -> tuple[list[int], list[float]]:
    completion = output.outputs[0]
    assert completion.logprobs is not None
    values = [row[token].logprob for row, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    return list(completion.token_ids), values


@pytest.mark.parametrize("drafter", [None, {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 1}])
def test_neighbours_do_not_change_a_bit(folder: Path, drafter: dict[str, Any] | None) -> None:
    llm = LLM(
        str(folder),
        deterministic=True,
        skip_tokenizer_init=True,
        max_model_len=2048,
        enable_prefix_caching=False,
        speculative_config=drafter,
    )
    source = random.Random(0)
    lengths = (3, 700, 64, 17, 128, 1, 1100, 33, *(source.randrange(1, 200) for _ in range(120)))
    prompts = [[source.randrange(VOCAB) for _ in range(length)] for length in lengths]
    params = [
        SamplingParams(temperature=0.9, seed=index, max_tokens=24, ignore_eos=True, logprobs=0, detokenize=False)
        for index in range(len(prompts))
    ]
    together = [figures(output) for output in llm.generate(prompts, params, use_tqdm=False)]
    for index in range(10):
        (alone,) = llm.generate([prompts[index]], [params[index]], use_tqdm=False)
        assert figures(alone) == together[index], index
    llm.shutdown()
