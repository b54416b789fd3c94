"""What the host plans for, with the kernels of a GPU's engine: the same as in plain PyTorch."""

import pytest
import torch
from sampling_batch import CPU, Batch

from octavo.records import SamplingParams
from octavo.sampling.device_sampler import DeviceSampler
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.parameters import SlotParameters
from octavo.sampling.penalties import apply_penalties

VOCAB = 300


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU, or a CPU that is told to use the same kernels."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    for kernel in (token_logprobs, apply_penalties):
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
        batch = Batch(VOCAB, device=place or CPU)
        for row, kind in enumerate(kinds):
            batch.add(9 - row, SamplingParams(**kind), prompt=[1, 2, 3, row], output=[2, 5, 5, 9], seed=row)
        steps.append(batch.sample(logits, range(9, 9 - len(kinds), -1)))
    found, wanted = steps
    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    mine, theirs = found.read_logprobs(), wanted.read_logprobs()
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


def test_the_first_step_has_no_other_effect(device: torch.device) -> None:
    """It tries the kernels that other requests may need later."""
    parameters = SlotParameters(2, device)
    tokens = torch.full((2,), -77, dtype=torch.int64, device=device)
    logits = torch.randn(2, VOCAB, device=device)
    before = logits.clone()
    slots = torch.arange(2, device=device)
    counts = torch.tensor([2], dtype=torch.int32, device=device)
    DeviceSampler(parameters, tokens).sample(logits, slots, counts, slots)
    assert torch.equal(logits, before)
    assert torch.equal(tokens, logits.argmax(-1))
