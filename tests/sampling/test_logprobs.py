"""Log-probabilities against float64 arithmetic."""

import numpy as np
import pytest
import torch
from sampling_batch import Batch, read_logprobs

from octavo.records import SamplingParams
from octavo.sampling.logprobs import token_logprobs


def plain_logprobs(logits: torch.Tensor) -> np.ndarray:
    x = logits.double().numpy()
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("num_top", [0, 1, 5, 1000, 5000, -1])
def test_chosen_top_and_rank(num_top: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # Well apart, so that float32 and float64 order them alike.
    logits = torch.stack([torch.randperm(1000, generator=generator) for _ in range(30)]) / 100
    chosen = torch.randint(1000, (30,), generator=generator)
    expected = plain_logprobs(logits)
    count = 1000 if num_top < 0 else min(num_top, 1000)
    for i, found in enumerate(token_logprobs(logits, chosen, num_top).read()):
        row, token = expected[i], int(chosen[i])
        assert found.token_ids == [token, *np.argsort(-row)[:count].tolist()]
        np.testing.assert_allclose(found.logprobs, row[found.token_ids], atol=1e-5)
        assert found.rank == 1 + int((row > row[token]).sum())


def test_chunks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, chosen = torch.randn(9, 50), torch.arange(9)
    whole = token_logprobs(logits, chosen, 3).read()
    monkeypatch.setattr("octavo.sampling.logprobs._CHUNK_ELEMENTS", 100)
    assert token_logprobs(logits, chosen, 3).read() == whole
    assert token_logprobs(logits[:0], chosen[:0], 3).read() == []


def test_equals_share_a_rank() -> None:
    found = token_logprobs(torch.tensor([[1.0, 2.0, 2.0, 0.0]]), torch.tensor([2]), 0).read()
    assert (found[0].token_ids, found[0].rank) == ([2], 1)


def test_sampled_ones_are_the_models_own() -> None:
    batch = Batch(100)
    logits = torch.randn(4, 100).bfloat16()
    batch.add(0, SamplingParams(temperature=0.3, logprobs=2, presence_penalty=2, logit_bias={5: 100.0}))
    batch.add(1, SamplingParams(temperature=0))
    batch.add(2, SamplingParams(temperature=0, logprobs=0))
    batch.add(3, SamplingParams(temperature=0, logprobs=-1))
    samples = batch.sample(logits, [0, 1, 2, 3])
    expected = plain_logprobs(logits)
    logprobs = read_logprobs(samples)
    assert logprobs.keys() == {0, 2, 3}
    biased, bare, full = logprobs[0], logprobs[2], logprobs[3]
    assert biased.token_ids[0] == 5
    np.testing.assert_allclose(biased.logprobs, expected[0][biased.token_ids], atol=1e-5)
    assert len(bare.token_ids) == 1 and bare.rank == 1
    assert sorted(full.token_ids[1:]) == list(range(100))


def test_chosen_tokens_in_place_of_the_likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(100)
    logits = torch.randn(3, 100)
    batch.add(0, SamplingParams(temperature=0, logprob_token_ids=[7, 5]))
    batch.add(1, SamplingParams(temperature=0, logprobs=1))
    batch.add(2, SamplingParams(temperature=0, logprob_token_ids=[7, 5], logprobs=3))
    monkeypatch.setattr("octavo.sampling.logprobs._CHUNK_ELEMENTS", 100)
    samples = batch.sample(logits, [0, 1, 2])
    found, expected = read_logprobs(samples), plain_logprobs(logits)
    assert {row: entry.is_listed for row, entry in found.items()} == {0: True, 1: False, 2: True}
    for row, entry in found.items():
        best = int(logits[row].argmax())
        assert entry.token_ids == ([best, best] if row == 1 else [best, 7, 5])
        assert entry.rank == 1
        np.testing.assert_allclose(entry.logprobs, expected[row][entry.token_ids], atol=1e-5)
