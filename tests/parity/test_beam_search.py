"""Beam search finds what Hugging Face's finds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_checkpoints import VOCAB_SIZE, Checkpoint

from octavo import LLM, BeamSearchParams

Get = Callable[[str], Checkpoint]
Start = Callable[..., LLM]


def expected(source: Checkpoint, prompt: list[int], width: int, max_tokens: int, **options: Any) -> Any:
    """Texts and scores of Hugging Face's search."""
    return source.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=max_tokens,
        do_sample=False,
        early_stopping="never",
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@pytest.mark.sample(6)
@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5, -1.0])
def test_texts_and_scores_are_those_of_hugging_face(checkpoint: Get, start: Start, width: int, penalty: float) -> None:
    source = checkpoint("llama")
    llm = start(source)
    generator = torch.Generator().manual_seed(width)
    prompts = [torch.randint(3, VOCAB_SIZE, (size,), generator=generator).tolist() for size in (3, 9, 17)]
    params = BeamSearchParams(beam_width=width, max_tokens=12, length_penalty=penalty)
    # Ends must come up among the likeliest tokens for the search to have something to decide: many tokens are ends.
    ends = list(range(2, VOCAB_SIZE, 9))
    llm._inputs._eos_token_ids = ends
    found = llm.beam_search(prompts, params, concurrency_limit=2)
    num_ended = 0
    for prompt, output in zip(prompts, found, strict=True):
        reference = expected(source, prompt, width, 12, length_penalty=penalty, eos_token_id=ends)
        scores = reference.sequences_scores.tolist()
        assert len(output.sequences) == width
        for sequence, tokens, score in zip(output.sequences, reference.sequences.tolist(), scores, strict=True):
            num_generated = len(sequence.tokens) - len(prompt)
            assert sequence.tokens == tokens[: len(sequence.tokens)]
            assert set(tokens[len(sequence.tokens) :]) <= {ends[0]}
            assert sequence.cum_logprob / num_generated**penalty == pytest.approx(score, abs=2e-4)
            assert sequence.finish_reason == ("length" if sequence.stop_reason is None else "stop")
            num_ended += sequence.stop_reason is not None
    assert num_ended or penalty > 1
