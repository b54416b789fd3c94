"""With compiled kernels, what a model computes for a token has the same bits whatever other tokens are there."""

from collections.abc import Callable

import pytest
from comparison import assert_logprobs
from tiny_checkpoints import Checkpoint
from torch import nn

from octavo import LLM, RequestOutput, SamplingParams
from octavo.layers.experts import Experts
from octavo.platforms.native import native_kernels

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, prompt_logprobs=0, detokenize=False)
PROMPTS = [{"prompt_token_ids": prompt} for prompt in ([5, 6, 7, 8], list(range(20, 61)), [9] * 17)]


def figures(output: RequestOutput) -> list[float]:
    rows = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
    return [next(iter(row.values())).logprob for row in rows if row is not None]


@pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["qwen2-moe", "gpt-oss-unbiased", "llama4-chunks", "laguna-per-channel", "gemma3n"])
def test_neighbours_do_not_change_a_bit(
    name: str, dtype: str, checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]
) -> None:
    llm = start(checkpoint(name), dtype=dtype, device="cpu", enable_prefix_caching=False, block_size=16)
    alone = [figures(llm.generate([prompt], PARAMS, use_tqdm=False)[0]) for prompt in PROMPTS]
    assert [figures(output) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)] == alone


def test_experts_by_pytorchs_operations(checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]) -> None:
    source = checkpoint("qwen3-moe")
    llm = start(source, moe_backend="torch", device="cpu")
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=-1, prompt_logprobs=-1, detokenize=False)
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        assert_logprobs(source.model, output)
    (kinds,) = llm.apply_model(_kinds_of_experts)
    assert kinds == {"PlainExperts"}


def _kinds_of_experts(model: nn.Module) -> set[str]:
    return {type(module._op).__name__ for module in model.modules() if isinstance(module, Experts)}
