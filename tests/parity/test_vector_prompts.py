"""Prompts as vectors: those of tokens read as the tokens do, others as Hugging Face reads them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_checkpoints import Checkpoint

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError

Get = Callable[[str], Checkpoint]
Start = Callable[..., LLM]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)


def embed(source: Checkpoint, token_ids: list[int]) -> torch.Tensor:
    """``[T, hidden]``, as the model embeds the tokens."""
    with torch.inference_mode():
        return source.model.get_input_embeddings()(torch.tensor(token_ids)).clone()


def tokens_of(outputs: list[Any]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2-window", "granite"])
@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 8, "async_scheduling": True}], ids=["one", "chunks"]
)
def test_vectors_read_as_their_tokens(checkpoint: Get, start: Start, name: str, settings: dict[str, Any]) -> None:
    source = checkpoint(name)
    llm = start(source, enable_prompt_embeds=True, **settings)
    prompts = [list(range(3, 3 + size)) for size in (1, 7, 30)]
    expected = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY, use_tqdm=False)
    # Prompts of both kinds run side by side, and nothing of one is taken for the other's.
    mixed: list[Any] = [{"prompt_embeds": embed(source, prompt)} for prompt in prompts]
    mixed += [{"prompt_token_ids": [0] * 30}, *({"prompt_token_ids": prompt} for prompt in prompts)]
    found = llm.generate(mixed, GREEDY, use_tqdm=False)
    assert tokens_of(found[:3]) == tokens_of(found[4:]) == tokens_of(expected)
    again = llm.generate(mixed[2], GREEDY, use_tqdm=False)
    assert tokens_of(again) == tokens_of(expected[2:])
    assert again[0].num_cached_tokens > 0


@pytest.mark.parametrize("name", ["llama", "gemma3n"])
def test_vectors_of_no_token_read_as_hugging_face_reads_them(checkpoint: Get, start: Start, name: str) -> None:
    source = checkpoint(name)
    llm = start(source, enable_prompt_embeds=True)
    generator = torch.Generator().manual_seed(0)
    scale = float(embed(source, [5]).std())
    for size in (1, 9, 23):
        vectors = torch.randn(size, 48, generator=generator) * scale
        (found,) = llm.generate({"prompt_embeds": vectors}, GREEDY, use_tqdm=False)
        with torch.inference_mode():
            logits = source.model(inputs_embeds=vectors[None]).logits[0, -1]
        logprobs = found.outputs[0].logprobs
        assert logprobs is not None
        expected = logits.log_softmax(-1)
        for token_id, entry in logprobs[0].items():
            assert entry.logprob == pytest.approx(float(expected[token_id]), abs=2e-4)
        (sampled,) = llm.generate(
            {"prompt_embeds": vectors}, SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True), use_tqdm=False
        )
        assert len(sampled.outputs) == 3


def test_vectors_of_equal_length_are_told_apart(checkpoint: Get, start: Start) -> None:
    source = checkpoint("llama")
    llm = start(source, enable_prompt_embeds=True)
    prompts = [[7] * 20, [8] * 20]
    expected = [llm.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    found = [llm.generate({"prompt_embeds": embed(source, prompt)}, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert tokens_of(found) == tokens_of(expected)


def test_vectors_that_begin_alike_share_the_cache_of_their_beginning(checkpoint: Get, start: Start) -> None:
    source = checkpoint("llama")
    llm = start(source, enable_prompt_embeds=True, block_size=16)
    prompts = [[7] * 50, [7] * 40 + [8] * 10]
    expected = [llm.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    found = [llm.generate({"prompt_embeds": embed(source, prompt)}, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert tokens_of(found) == tokens_of(expected)
    assert [output.num_cached_tokens for output in found] == [0, 32]


def test_wrong_vectors_are_refused(checkpoint: Get, start: Start) -> None:
    source = checkpoint("llama")
    llm = start(source, enable_prompt_embeds=True)
    for vectors, message in (
        (torch.zeros(3, 47), "vectors have 48 numbers, got 47"),
        (torch.zeros(3), "shape"),
        (torch.zeros(0, 48), "shape"),
        (torch.zeros(2, 48, dtype=torch.int32), "of type"),
        (torch.full((2, 48), torch.nan), "finite"),
        (torch.full((2, 48), torch.inf, dtype=torch.bfloat16), "finite"),
        ([[0.0] * 48], "must be a tensor"),
        (torch.zeros(300, 48), "300 tokens"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            llm.generate({"prompt_embeds": vectors}, GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="prompt_logprobs"):
        llm.generate({"prompt_embeds": torch.zeros(3, 48)}, SamplingParams(prompt_logprobs=1), use_tqdm=False)
    closed = start(source)
    with pytest.raises(InvalidRequestError, match="--enable-prompt-embeds"):
        closed.generate({"prompt_embeds": torch.zeros(3, 48)}, GREEDY, use_tqdm=False)


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 8}], ids=["one", "chunks"])
@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_vectors_of_tokens_are_pooled_as_the_tokens(
    checkpoint: Get, start: Start, task: Any, settings: dict[str, Any]
) -> None:
    source = checkpoint("llama")
    llm = start(source, enable_prompt_embeds=True, runner="pooling", convert="embed", **settings)
    prompts = [list(range(3, 3 + size)) for size in (1, 7, 30)]
    expected = llm.encode([{"prompt_token_ids": prompt} for prompt in prompts], pooling_task=task, use_tqdm=False)
    found = llm.encode(
        [{"prompt_embeds": embed(source, prompt)} for prompt in prompts], pooling_task=task, use_tqdm=False
    )
    for output, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(output.outputs.data, wanted.outputs.data, rtol=0, atol=1e-6)
    assert [output.prompt_token_ids for output in found] == [[0] * len(prompt) for prompt in prompts]
    with pytest.raises(InvalidRequestError, match="300 tokens"):
        llm.encode({"prompt_embeds": torch.zeros(300, 48)}, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="vectors have 48 numbers, got 47"):
        llm.encode({"prompt_embeds": torch.zeros(3, 47)}, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="--enable-prompt-embeds"):
        start(source, runner="pooling", convert="embed").encode({"prompt_embeds": torch.zeros(3, 48)}, use_tqdm=False)
