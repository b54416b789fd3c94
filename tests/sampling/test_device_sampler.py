"""What the host plans for, with the kernels of a GPU's engine: the same as in plain PyTorch."""

import pytest
import torch
from sampling_batch import CPU, Batch, read_logprobs

from octavo.records import SamplingParams
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.penalties import count_tokens, penalise

VOCAB = 300


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU, or a CPU that is told to use the same kernels."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    for kernel in (token_logprobs, penalise, count_tokens):
        monkeypatch.setitem(kernel.bound, "cpu", kernel.implementations["cuda"])
    return CPU


def test_penalties_and_logprobs_of_a_batch_agree(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [
        {"temperature": 0, "presence_penalty": 1.0, "repetition_penalty": 1.2, "logprobs": 0},
        {"temperature": 0},
        {"temperature": 0.7, "frequency_penalty": 0.5, "top_p": 0.9, "logprobs": 4},
        {"temperature": 0, "logprobs": 4, "logit_bias": {7: 2.0}},
        {"temperature": 1.0, "repetition_penalty": 0.8, "logprobs": 200},
    ]
    logits = torch.randn(len(kinds), VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    logits[:, :12] += 3
    steps = []
    for place in (device, None):
        if place is None:
            monkeypatch.undo()
        batch = Batch(VOCAB, device=place or CPU, is_on_device=place is not None)
        for row, kind in enumerate(kinds):
            batch.add(9 - row, SamplingParams(**kind), prompt=[1, 2, 3, row], output=[2, 5, 5, 9], seed=row)
        steps.append(batch.sample(logits, range(9, 9 - len(kinds), -1)))
    found, wanted = steps
    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    mine, theirs = read_logprobs(found), read_logprobs(wanted)
    assert mine.keys() == theirs.keys() == {0, 2, 3, 4}
    for row, entry in theirs.items():
        assert (mine[row].token_ids, mine[row].rank) == (entry.token_ids, entry.rank)
        assert mine[row].logprobs == pytest.approx(entry.logprobs, abs=1e-5)


@pytest.mark.parametrize("num_top", [0, 3, 129, -1])
def test_more_rows_than_are_listed_at_once(device: torch.device, num_top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.sampling.device_sampler._ROWS_AT_ONCE", 2)
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1)).bfloat16()
    tokens = torch.tensor([5, 0, VOCAB - 1, 9, 10])
    found = token_logprobs(logits.to(device), tokens.to(device), num_top)
    wanted = token_logprobs.reference(logits, tokens, num_top)
    assert torch.equal(found.ranks.cpu(), wanted.ranks)
    torch.testing.assert_close(found.logprobs.cpu(), wanted.logprobs, atol=1e-5, rtol=1e-5)
    assert len(token_logprobs(logits[:0].to(device), tokens[:0].to(device), num_top).read()) == 0


def test_a_warm_up_has_no_other_effect(device: torch.device) -> None:
    batch = Batch(VOCAB, device=device, is_on_device=True)
    logits = torch.randn(2, VOCAB, device=device)
    before = logits.clone()
    batch.add(0, SamplingParams(temperature=0, presence_penalty=2.0), prompt=[1], output=[2])
    batch.sampler.flush()
    batch.sampler.warm_up(logits[:1], num_drafts=2)
    assert torch.equal(logits, before)
    batch.count([0], [[5]])
    logits[0, :] = torch.arange(VOCAB) / VOCAB
    assert batch.step(logits[:1], [0]) == [VOCAB - 1]
