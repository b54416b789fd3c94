"""With compiled kernels, a request's figures have the same bits on a CPU whatever runs beside it."""

import random

import pytest
import torch

from octavo import LLM, RequestOutput, SamplingParams
from octavo.platforms.native import native_kernels

pytestmark = pytest.mark.skipif(
    native_kernels() is None and (not torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()),
    reason="needs compiled kernels, or for PyTorch's a processor with AVX512-BF16 and without AMX (Zen 4)",
)

SETTINGS = {
    "dtype": "bfloat16",
    "max_model_len": 512,
    "kv_cache_memory_bytes": 100 << 20,
    "enable_prefix_caching": False,
    "num_threads": 1,
    "log_level": "warning",
}


def figures(output: RequestOutput) -> tuple[list[int], list[float], list[float]]:
    """Tokens, their log-probabilities and the prompt's, to the last bit."""
    completion = output.outputs[0]
    assert completion.logprobs is not None and output.prompt_logprobs is not None
    sampled = [row[token].logprob for row, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    prompt = [next(iter(row.values())).logprob for row in output.prompt_logprobs if row is not None]
    return list(completion.token_ids), sampled, prompt


def test_neighbours_and_chunks_do_not_change_a_bit() -> None:
    source = random.Random(0)
    prompts = [[source.randrange(100, 49_000) for _ in range(length)] for length in (70, 3, 33, 16)]
    params = [
        SamplingParams(temperature=0.9, seed=index, max_tokens=8, ignore_eos=True, logprobs=0, prompt_logprobs=0)
        for index in range(len(prompts))
    ]
    model = LLM("bundled:smollm2", **SETTINGS)
    alone = [
        figures(model.generate([prompt], param, use_tqdm=False)[0])
        for prompt, param in zip(prompts, params, strict=True)
    ]
    together = [figures(output) for output in model.generate(prompts, params, use_tqdm=False)]
    model.shutdown()
    assert together == alone
    # One at a time, so that no chunk is a single token: such a one is attended to as if it were generated, which rounds
    # otherwise.
    chunked = LLM("bundled:smollm2", max_num_batched_tokens=24, max_num_seqs=8, **SETTINGS)
    for prompt, param, expected in zip(prompts, params, alone, strict=True):
        assert figures(chunked.generate([prompt], param, use_tqdm=False)[0]) == expected
