"""Octavo's log-probabilities and tokens against those of a Hugging Face model."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from octavo import RequestOutput
from octavo.records import CompletionOutput, Logprob

TOLERANCE = 1e-4


@torch.inference_mode()
def reference_logprobs(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities behind each position of a sequence, ``[len(token_ids), V]``, without any cache."""
    # Transformers reads Gemma 3's cap on attention scores but does not hand it down; its attention takes it from here.
    is_gemma3 = model.config.model_type == "gemma3_text"
    own = {"softcap": model.config.attn_logit_softcapping} if is_gemma3 else {}
    logits = model(torch.tensor([token_ids]), use_cache=False, **own).logits[0]
    return logits.float().log_softmax(-1)


def assert_logprobs(model: PreTrainedModel, output: RequestOutput) -> None:
    """Hold the log-probabilities of the whole vocabulary against the reference, at every position that has them."""
    prompt = _prompt_of(output)
    if output.prompt_logprobs is not None:
        assert output.prompt_logprobs[0] is None
        _assert_close(output.prompt_logprobs[1:], reference_logprobs(model, prompt)[:-1])
    for completion in output.outputs:
        assert completion.logprobs is not None
        _assert_close(completion.logprobs, _behind_prompt(model, prompt, completion))


def assert_greedy(model: PreTrainedModel, output: RequestOutput) -> None:
    """Check that greedy search with the reference gives the same tokens.

    The reference sees the finished sequence at once: where its likeliest token at every place is the one that stands
    there, its own search would have gone the same way.
    """
    prompt = _prompt_of(output)
    for completion in output.outputs:
        expected = _behind_prompt(model, prompt, completion).argmax(-1)
        assert list(completion.token_ids) == expected.tolist()


def _prompt_of(output: RequestOutput) -> list[int]:
    assert output.prompt_token_ids is not None
    return output.prompt_token_ids


def _behind_prompt(model: PreTrainedModel, prompt: list[int], completion: CompletionOutput) -> torch.Tensor:
    """The reference's log-probabilities at the places of the completion's tokens, ``[tokens, V]``."""
    return reference_logprobs(model, [*prompt, *completion.token_ids])[len(prompt) - 1 : -1]


def _assert_close(actual: Sequence[dict[int, Logprob] | None], expected: torch.Tensor) -> None:
    torch.testing.assert_close(_dense(actual, expected.shape[1]), expected, rtol=0, atol=TOLERANCE)


def _dense(rows: Sequence[dict[int, Logprob] | None], vocab_size: int) -> torch.Tensor:
    """``[rows, V]``; every token of the vocabulary must be there."""
    table = torch.full((len(rows), vocab_size), float("nan"))
    for index, row in enumerate(rows):
        assert row is not None
        assert len(row) == vocab_size
        table[index, list(row)] = torch.tensor([entry.logprob for entry in row.values()])
    return table
