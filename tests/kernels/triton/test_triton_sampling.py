"""Sampling on the device against the sampler in plain PyTorch."""

from collections.abc import Sequence

import pytest
import torch
from draw_cases import KINDS, POISON, PROMPT_LEN, Table, check_unsound_rows, expected, logits_of

from octavo.kernels.triton.sampling import SamplingLayout, SamplingWorkspace, sample
from octavo.records import SamplingParams


def draw(
    device: torch.device,
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    *,
    seeds: Sequence[int] | None = None,
    lengths: torch.Tensor | None = None,
    num_real: int | None = None,
    workspace: SamplingWorkspace | None = None,
    layout: SamplingLayout | None = None,
) -> torch.Tensor:
    num_rows, vocab_size = logits.shape
    table = Table(params, seeds, device)
    tokens = torch.full((num_rows + 1,), POISON, dtype=torch.int64, device=device)
    sample(
        logits.to(device),
        table.slots,
        torch.tensor([num_rows if num_real is None else num_real, POISON], dtype=torch.int32, device=device),
        (torch.full((num_rows,), PROMPT_LEN) if lengths is None else lengths).to(device),
        table.temperature,
        table.top_p,
        table.min_p,
        table.top_k,
        table.stream_key,
        table.prompt_len,
        tokens,
        workspace or SamplingWorkspace(num_rows, vocab_size, device),
        num_rows=num_rows,
        layout=layout or SamplingLayout(),
    )
    assert tokens[-1] == POISON
    return tokens[:-1].cpu()


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [60, 256, 3001])
def test_every_kind_of_row_agrees_with_the_sampler(device: torch.device, dtype: torch.dtype, vocab_size: int) -> None:
    params = [SamplingParams(**kind) for kind in KINDS]
    logits = logits_of(len(params), vocab_size, vocab_size).to(dtype)
    assert draw(device, logits, params).tolist() == expected(logits, params).tolist()


def test_rows_over_many_groups_agree(device: torch.device) -> None:
    kinds = [{"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"min_p": 1e-3, "top_p": 0.7}, {"top_k": 5000}, {}]
    params = [SamplingParams(**kind) for kind in kinds]
    logits = logits_of(len(params), 30_001, 1).bfloat16()
    assert draw(device, logits, params).tolist() == expected(logits, params).tolist()


@pytest.mark.parametrize("scale", [0.0, 0.05])
def test_logits_without_profile_agree(device: torch.device, scale: float) -> None:
    """Ties and flat rows have more candidates than there is room for."""
    kinds = [{"top_k": 10}, {"top_p": 0.5}, {"top_p": 0.3, "top_k": 9, "min_p": 0.5}, {"min_p": 1.0}, {"top_k": 1}]
    params = [SamplingParams(**kind) for kind in kinds]
    logits = logits_of(len(params), 5000, 2, scale).bfloat16()
    logits[:, :3] = 0.125
    assert draw(device, logits, params).tolist() == expected(logits, params).tolist()


def test_likely_tokens_that_crowd_together_agree(device: torch.device) -> None:
    """Groups without a likely token then say too little of what is unlikely in the others."""
    kinds = [{"top_p": 0.4}, {"top_p": 0.9}, {"top_p": 0.995}, {"top_k": 300, "min_p": 1e-4}]
    params = [SamplingParams(**kind) for kind in kinds]
    logits = logits_of(len(params), 9001, 7, 2.5) - 1.5 * (1 + torch.arange(9001) / 100).log()
    assert draw(device, logits.bfloat16(), params).tolist() == expected(logits.bfloat16(), params).tolist()


def test_draws_agree_whatever_the_seed_and_position(device: torch.device) -> None:
    count = 4000 if device.type == "cuda" else 40
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator).tolist()
    lengths = PROMPT_LEN + torch.randint(1 << 20, (count,), generator=generator)
    params = [SamplingParams(top_p=0.999) if row % 2 else SamplingParams() for row in range(count)]
    logits = logits_of(count, 300, 4).bfloat16()
    agree = draw(device, logits, params, seeds=seeds, lengths=lengths) == expected(logits, params, seeds, lengths)
    assert agree.float().mean() > 0.999


def test_frequencies_follow_the_weights(device: torch.device) -> None:
    count = 8000 if device.type == "cuda" else 25
    logits = torch.tensor([0.5, 0.3, 0.0, 0.15, 0.05]).log().bfloat16().repeat(count, 1)
    for params, shares in [
        (SamplingParams(), [0.5, 0.3, 0, 0.15, 0.05]),
        (SamplingParams(top_k=2), [0.625, 0.375, 0, 0, 0]),
        (SamplingParams(top_p=0.9), [0.5 / 0.95, 0.3 / 0.95, 0, 0.15 / 0.95, 0]),
    ]:
        frequencies = draw(device, logits, [params] * count).bincount(minlength=5) / count
        wanted = torch.tensor(shares)
        assert (frequencies[wanted == 0] == 0).all()
        assert ((frequencies - wanted).abs() < 4 * (wanted * (1 - wanted) / count).sqrt() + 1e-6).all()


def test_greedy_takes_the_lowest_of_equals(device: torch.device) -> None:
    logits = torch.full((2, 3000), -1.0)
    logits[:, [299, 300, 2900]] = 5
    assert draw(device, logits, [SamplingParams(temperature=0), SamplingParams(top_k=1)]).tolist() == [299, 299]


def test_unsound_rows_fail_alone(device: torch.device) -> None:
    check_unsound_rows(lambda logits, params: draw(device, logits, params).tolist())


def test_extreme_temperatures(device: torch.device) -> None:
    params = [SamplingParams(temperature=t, **more) for t in (1e-4, 1e5) for more in ({}, {"top_k": 3, "top_p": 0.9})]
    logits = logits_of(4, 700, 5, 30.0)
    assert draw(device, logits, params).tolist() == expected(logits, params).tolist()


def test_rows_past_the_real_ones_are_left_alone(device: torch.device) -> None:
    params = [SamplingParams(**kind) for kind in KINDS]
    logits = logits_of(len(params), 300)
    tokens = draw(device, logits, params, num_real=5).tolist()
    assert tokens == expected(logits, params).tolist()[:5] + [POISON] * (len(params) - 5)


def test_a_workspace_serves_one_call_after_another(device: torch.device) -> None:
    workspace = SamplingWorkspace(16, 600, device)
    for num_rows in (13, 2, 15):
        params = [SamplingParams(**KINDS[(row + num_rows) % len(KINDS)]) for row in range(num_rows)]
        logits = logits_of(num_rows, 600, num_rows).bfloat16()
        tokens = draw(device, logits, params, workspace=workspace)
        assert tokens.tolist() == expected(logits, params).tolist()


@pytest.mark.long
def test_a_row_does_not_depend_on_how_the_work_is_shared(device: torch.device) -> None:
    params = [SamplingParams(**kind) for kind in KINDS]
    logits = logits_of(len(params), 12_000, 6).bfloat16()
    tokens = draw(device, logits, params)
    # Copies of the rows, so many that a program reads several tiles of each.
    copies = 300 if device.type == "cuda" else 1
    together = draw(
        device,
        logits.repeat(copies, 1),
        params * copies,
        seeds=list(range(len(params))) * copies,
        layout=SamplingLayout(programs_per_multiprocessor=1),
    )
    assert together.tolist() == tokens.tolist() * copies


def test_rows_may_lie_apart(device: torch.device) -> None:
    params = [SamplingParams(**kind) for kind in KINDS]
    logits = logits_of(len(params), 333)
    wider = torch.full((len(params), 401), torch.nan, device=device)
    wider[:, :333] = logits.to(device)
    assert draw(device, wider[:, :333], params).tolist() == expected(logits, params).tolist()
