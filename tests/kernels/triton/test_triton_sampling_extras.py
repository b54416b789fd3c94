"""Penalties and log-probabilities on the device against their plain versions."""

import pytest
import torch

from octavo.kernels.triton.sampling_logprobs import LogprobsWorkspace, logprobs
from octavo.kernels.triton.sampling_penalties import penalise
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.penalties import apply_penalties

POISON = -77


def penalised_rows(
    device: torch.device, logits: torch.Tensor, tokens: list[list[int]], prompt_lens: list[int], rows: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel and its plain twin make of some rows with known tokens, each with penalties of its own."""
    vocab_size, num_slots = logits.shape[1], len(rows) + 3
    generator = torch.Generator().manual_seed(len(rows))
    slots = torch.randperm(num_slots, generator=generator)[: len(rows)]
    max_len = max(map(len, tokens)) + 2
    token_ids = torch.randint(-5, vocab_size + 5, (num_slots, max_len), generator=generator, dtype=torch.int32)
    floats = torch.full((num_slots, 4), torch.nan, dtype=torch.float64)
    prompts = torch.full((num_slots, 2), 1 << 60, dtype=torch.int64)
    for index, slot in enumerate(slots.tolist()):
        token_ids[slot, : len(tokens[index])] = torch.tensor(tokens[index], dtype=torch.int32)
        drawn = torch.rand(3, generator=generator, dtype=torch.float64) * 2 + torch.tensor([0.1, -1.0, -1.0])
        floats[slot, :3] = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64) if index == 2 else drawn
        prompts[slot, 0] = prompt_lens[index]
    lengths = torch.tensor([len(known) for known in tokens])
    spare = torch.full((len(rows), vocab_size), torch.nan)

    wanted = logits.clone()
    columns = floats.unbind(1)[:3]
    apply_penalties(wanted, torch.tensor(rows), slots, lengths, token_ids, prompts[:, 0], *columns, spare.clone())
    got = logits.to(device)
    penalise(
        got,
        torch.tensor(rows, device=device),
        slots.to(device),
        lengths.to(device),
        token_ids.to(device),
        prompts.to(device)[:, 0],
        *floats.to(device).unbind(1)[:3],
        spare.view(torch.int32).to(device),
    )
    return got.cpu(), wanted


def test_penalties_agree(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 90, generator=generator) * 4
    tokens = [torch.randint(12, (length,), generator=generator).tolist() for length in (30, 1, 20, 7, 2500)]
    got, wanted = penalised_rows(device, logits, tokens, [10, 1, 5, 7, 1200], rows=[1, 0, 3, 5, 6])
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)
    assert torch.equal(got[[2, 4]], logits[[2, 4]])


def test_penalties_neither_hide_nor_make_failures(device: torch.device) -> None:
    logits = torch.tensor([[3e38, torch.nan, -torch.inf, 1.0], [torch.inf, 1.0, 2.0, 3.0]])
    got, _ = penalised_rows(device, logits, [[0, 1, 2, 3], [0, 1]], [4, 2], rows=[0, 1])
    assert got[0, 0].isfinite() and got[0, 1].isnan() and got[0, 2] == -torch.inf and got[1, 0] == torch.inf


def listed(
    device: torch.device, logits: torch.Tensor, tokens: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel's ids, log-probabilities and ranks."""
    num_rows, vocab_size = logits.shape
    ids = torch.full((num_rows, 1 + num_top), POISON, dtype=torch.int64, device=device)
    values = torch.full((num_rows, 1 + num_top), POISON, dtype=torch.float32, device=device)
    ranks = torch.full((num_rows,), POISON, dtype=torch.int64, device=device)
    workspace = LogprobsWorkspace(num_rows + 2, vocab_size, device)
    logprobs(logits.to(device), tokens.to(device), ids, values, ranks, workspace)
    return ids.cpu(), values.cpu(), ranks.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab_size", "num_top"), [(17, 12), (17, 17), (1000, 0), (1000, 5), (5003, 3)])
def test_logprobs_agree(device: torch.device, dtype: torch.dtype, vocab_size: int, num_top: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (torch.randn(4, vocab_size, generator=generator) * 4).to(dtype)
    tokens = torch.randint(vocab_size, (len(logits),), generator=generator)
    logits[3] = logits[3, 0]
    ids, values, ranks = listed(device, logits, tokens, num_top)
    wanted = token_logprobs(logits, tokens, num_top)
    assert torch.equal(ranks, wanted.ranks)
    torch.testing.assert_close(values, wanted.logprobs, rtol=1e-5, atol=1e-5)
    order = logits.float().sort(descending=True, stable=True).indices[:, :num_top]
    assert torch.equal(ids, torch.cat((tokens.unsqueeze(1), order), 1))


def test_few_finite_logits_are_followed_by_the_lowest_ids(device: torch.device) -> None:
    logits = torch.full((1, 600), -torch.inf)
    logits[0, [3, 500]] = torch.tensor([1.0, 2.0])
    ids, values, _ = listed(device, logits, torch.tensor([3]), 5)
    assert ids[0].tolist() == [3, 500, 3, 0, 1, 2]
    assert values[0, 3:].tolist() == [-torch.inf] * 3
