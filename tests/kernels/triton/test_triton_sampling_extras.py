"""Penalties and log-probabilities on the device against their plain versions."""

from collections.abc import Callable

import pytest
import torch

from octavo.kernels.triton import sampling_penalties as triton_penalties
from octavo.kernels.triton.sampling_logprobs import LogprobsWorkspace, logprobs
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.penalties import IN_PROMPT, MAX_COUNT, count_tokens, penalise

POISON = -77


def random_table(num_slots: int, vocab_size: int, generator: torch.Generator) -> torch.Tensor:
    """Counts of which most are 0, some full, and half are of tokens of the prompt."""
    counts = torch.randint(-8, 4, (num_slots, vocab_size), generator=generator).clamp_(min=0)
    counts[:, ::7] *= MAX_COUNT // 3
    is_in_prompt = torch.randint(2, counts.shape, generator=generator)
    return (counts + is_in_prompt * IN_PROMPT).to(torch.int16)


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_penalties_agree(device: torch.device, dtype: torch.dtype, num_drafts: int) -> None:
    generator = torch.Generator().manual_seed(num_drafts)
    num_rows, vocab_size = 5, 300
    logits = (torch.randn(num_rows, vocab_size, generator=generator) * 4).to(dtype)
    slots = torch.randperm(num_rows + 3, generator=generator)[:num_rows].int()
    table = random_table(num_rows + 3, vocab_size, generator)
    floats = torch.rand(num_rows + 3, 4, generator=generator, dtype=torch.float64) * 2
    floats += torch.tensor([0.1, -1.0, -1.0, torch.nan])
    floats[slots[2], :3] = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    drafts = torch.randint(-1, 4, (num_rows, num_drafts), generator=generator) if num_drafts else None

    def run(function: Callable[..., None], place: torch.device) -> torch.Tensor:
        own = logits.to(place, copy=True)
        out = own if dtype is torch.float32 else torch.full_like(own, torch.nan, dtype=torch.float32)
        columns = floats.to(place).unbind(1)[:3]
        function(own, out, slots.to(place), table.to(place), *columns, None if drafts is None else drafts.to(place))
        return out.cpu()

    found = run(triton_penalties.penalise, device)
    torch.testing.assert_close(found, run(penalise.reference, torch.device("cpu")), rtol=1e-5, atol=1e-4)
    assert torch.equal(found[2], logits[2].float())
    assert not torch.equal(found[1], logits[1].float())


def test_penalties_neither_hide_nor_make_failures(device: torch.device) -> None:
    logits = torch.tensor([[3e38, torch.nan, -torch.inf, 1.0], [torch.inf, 1.0, 2.0, 3.0]], device=device)
    table = torch.full((2, 4), IN_PROMPT + 2, dtype=torch.int16, device=device)
    columns = [torch.full((2,), value, dtype=torch.float64, device=device) for value in (0.1, 0.5, 0.5)]
    triton_penalties.penalise(logits, logits, torch.arange(2, device=device), table, *columns)
    found = logits.cpu()
    assert found[0, 0].isfinite() and found[0, 1].isnan() and found[0, 2] == -torch.inf and found[1, 0] == torch.inf


@pytest.mark.parametrize("is_packed", [False, True])
def test_counts_agree(is_packed: bool, device: torch.device) -> None:
    """Also if tokens and their numbers are columns of one tensor, as with drafts."""
    generator = torch.Generator().manual_seed(0)
    table = random_table(9, 20, generator)
    slots, tokens = torch.randperm(9, generator=generator)[:6], torch.randint(-1, 22, (6, 4), generator=generator)
    tokens[0], num_tokens = 7, torch.tensor([4, 0, 1, 2, 3, 4])
    if is_packed:
        packed = torch.cat((tokens, num_tokens[:, None], tokens), 1).to(device)
        tokens, num_tokens = packed[:, :4], packed[:, 4]
    table[slots[0], 7] = IN_PROMPT + MAX_COUNT - 2
    found = table.to(device, copy=True)
    triton_penalties.count_tokens(found, slots.to(device), tokens.to(device), num_tokens.to(device))
    wanted = table.clone()
    count_tokens.reference(wanted, slots, tokens.cpu(), num_tokens.cpu())
    assert torch.equal(found.cpu(), wanted)
    assert wanted[slots[0], 7] == IN_PROMPT + MAX_COUNT
    assert int((wanted != table).sum()) > 5


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
