"""Penalties and log-probabilities on the device against their plain versions."""

import pytest
import torch

from octavo.kernels.triton.sampling_logprobs import LogprobsWorkspace, logprobs
from octavo.kernels.triton.sampling_penalties import penalise
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.penalties import apply_penalties

POISON = -77


def penalised_rows(
    device: torch.device, logits: torch.Tensor, tokens: list[list[int]], prompt_lens: list[int], num_real: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel and its plain twin make of rows with known tokens, each with penalties of its own."""
    num_rows, vocab_size = logits.shape
    num_slots = num_rows + 3
    generator = torch.Generator().manual_seed(num_rows)
    slots = torch.randperm(num_slots, generator=generator)[:num_rows]
    max_len = max(map(len, tokens)) + 2
    token_ids = torch.randint(-5, vocab_size + 5, (num_slots, max_len), generator=generator, dtype=torch.int32)
    floats = torch.full((num_slots, 4), torch.nan, dtype=torch.float64)
    prompts = torch.full((num_slots, 2), 1 << 60, dtype=torch.int64)
    neutral = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for row, slot in enumerate(slots.tolist()):
        token_ids[slot, : len(tokens[row])] = torch.tensor(tokens[row], dtype=torch.int32)
        drawn = torch.rand(3, generator=generator, dtype=torch.float64) * 2 + torch.tensor([0.1, -1.0, -1.0])
        floats[slot, :3] = neutral if row == 2 else drawn
        prompts[slot, 0] = prompt_lens[row]
    lengths = torch.tensor([len(known) for known in tokens])

    wanted = logits.clone()
    real = slots[:num_real]
    columns = [column.index_select(0, real) for column in floats.unbind(1)[:3]]
    apply_penalties(
        wanted,
        torch.arange(num_real),
        token_ids[real],
        lengths[:num_real],
        prompts[real, 0],
        *columns,
    )
    got, occurrences = logits.to(device), torch.zeros(num_rows, vocab_size, dtype=torch.int32, device=device)
    penalise(
        got,
        slots.to(device),
        torch.tensor([num_real], dtype=torch.int32, device=device),
        lengths.int().to(device),
        token_ids.to(device),
        prompts.to(device)[:, 0],
        *floats.to(device).unbind(1)[:3],
        occurrences,
        num_rows=num_rows,
    )
    assert not occurrences.any()
    return got.cpu(), wanted


def test_penalties_agree(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 90, generator=generator) * 4
    tokens = [torch.randint(12, (length,), generator=generator).tolist() for length in (30, 1, 20, 7, 2500)]
    got, wanted = penalised_rows(device, logits, tokens, [10, 1, 5, 7, 1200], num_real=5)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


def test_rows_past_the_real_ones_keep_their_logits(device: torch.device) -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    got, wanted = penalised_rows(device, logits, [[1, 2], [3, 19, 19], [5]], [1, 1, 1], num_real=1)
    torch.testing.assert_close(got, wanted)
    assert torch.equal(got[1:], logits[1:])


def test_penalties_neither_hide_nor_make_failures(device: torch.device) -> None:
    logits = torch.tensor([[3e38, torch.nan, -torch.inf, 1.0], [torch.inf, 1.0, 2.0, 3.0]])
    got, _ = penalised_rows(device, logits, [[0, 1, 2, 3], [0, 1]], [4, 2], num_real=2)
    assert got[0, 0].isfinite() and got[0, 1].isnan() and got[0, 2] == -torch.inf and got[1, 0] == torch.inf


def listed(
    device: torch.device, logits: torch.Tensor, tokens: torch.Tensor, numbers: list[int], width: int, num_real: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel's ids, log-probabilities and ranks; rows lie in slots in falling order."""
    num_rows, vocab_size = logits.shape
    ids = torch.full((num_rows, 1 + width), POISON, dtype=torch.int64, device=device)
    values = torch.full((num_rows, 1 + width), POISON, dtype=torch.float32, device=device)
    ranks = torch.full((num_rows,), POISON, dtype=torch.int64, device=device)
    logprobs(
        logits.to(device),
        tokens.to(device),
        torch.arange(num_rows - 1, -1, -1, device=device),
        torch.tensor([num_real], dtype=torch.int32, device=device),
        torch.tensor(numbers[::-1], device=device),
        ids,
        values,
        ranks,
        LogprobsWorkspace(num_rows, vocab_size, device),
        num_rows=num_rows,
    )
    return ids.cpu(), values.cpu(), ranks.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [17, 1000, 5003])
def test_logprobs_agree(device: torch.device, dtype: torch.dtype, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    numbers, width = [5, 0, 12, -1, 3, 20], 12
    logits = (torch.randn(len(numbers), vocab_size, generator=generator) * 4).to(dtype)
    tokens = torch.randint(vocab_size, (len(numbers),), generator=generator)
    logits[4] = logits[4, 0]
    ids, values, ranks = listed(device, logits, tokens, numbers, width, num_real=6)
    for row, number in enumerate(numbers):
        if number < 0:
            assert (ids[row] == POISON).all() and ranks[row] == POISON
            continue
        num_top = min(number, width)
        wanted = token_logprobs(logits[row : row + 1], tokens[row : row + 1], num_top)
        assert ranks[row] == wanted.ranks[0]
        torch.testing.assert_close(values[row, : 1 + num_top], wanted.logprobs[0], rtol=1e-5, atol=1e-5)
        order = logits[row].float().sort(descending=True, stable=True).indices[:num_top]
        assert ids[row].tolist() == [tokens[row].item(), *order.tolist()] + [POISON] * (width - num_top)


def test_rows_past_the_real_ones_are_not_listed(device: torch.device) -> None:
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    ids, _, ranks = listed(device, logits, torch.tensor([-1, 3]), [2, 2], 2, num_real=1)
    assert ids[0, 0] == 0 and ranks[0] == 1 + (logits[0] > logits[0, 0]).sum()
    assert (ids[1] == POISON).all() and ranks[1] == POISON


def test_few_finite_logits_are_followed_by_the_lowest_ids(device: torch.device) -> None:
    logits = torch.full((1, 600), -torch.inf)
    logits[0, [3, 500]] = torch.tensor([1.0, 2.0])
    ids, values, _ = listed(device, logits, torch.tensor([3]), [5], 5, num_real=1)
    assert ids[0].tolist() == [3, 500, 3, 0, 1, 2]
    assert values[0, 3:].tolist() == [-torch.inf] * 3
