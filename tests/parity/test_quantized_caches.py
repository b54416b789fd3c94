"""Families whose attention is unlike Llama's, with a quantised cache beside an unquantised one."""

from collections.abc import Callable

import pytest
from tiny_checkpoints import Checkpoint

from octavo import LLM, SamplingParams

PROMPTS = [[5, 6, 7, 8, 9], list(range(20, 90)), [3] * 17]
SCORED = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)


def _logprobs(llm: LLM) -> list[float]:
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], SCORED)
    rows = [row for answer in answers for row in answer.prompt_logprobs or [] if row is not None]
    return [entry.logprob for row in rows for entry in row.values()]


# A recurrent state beside attention; keys wider than values; expanded latent vectors; sinks and windows; latent
# vectors; caches that several layers share; the transformers library's modules.
@pytest.mark.parametrize(
    "name",
    [
        "granite4",
        "mimo-v2-flash",
        "longcat-flash",
        "gpt-oss",
        "deepseek-v3",
        "deepseek-v3.2",
        "gemma3n",
        "generic-gpt2",
    ],
)
def test_log_probabilities_stay_close(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]
) -> None:
    source = checkpoint(name)
    expected = _logprobs(start(source))
    found = _logprobs(start(source, kv_cache_dtype="int8_per_token_head"))
    differences = [abs(one - other) for one, other in zip(found, expected, strict=True)]
    assert 0 < sum(differences) / len(differences) < 0.06
