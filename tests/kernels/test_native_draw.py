"""Draws by the compiled kernels against the sampler in plain PyTorch."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from draw_cases import KINDS, POISON, PROMPT_LEN, Table, check_unsound_rows, expected, logits_of
from native_builds import threads

from octavo.kernels.cpu.native_draw import NativeDraw
from octavo.platforms.native import NativeKernels
from octavo.records import SamplingParams


def draw(
    native: NativeKernels,
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    *,
    seeds: Sequence[int] | None = None,
    lengths: torch.Tensor | None = None,
    num_real: int | None = None,
) -> list[int]:
    table = Table(params, seeds)
    tokens = torch.full((len(params),), POISON)
    counts = torch.tensor([len(params) if num_real is None else num_real, POISON], dtype=torch.int32)
    lengths = torch.full((len(params),), PROMPT_LEN) if lengths is None else lengths
    NativeDraw(native, table, len(params), logits.shape[1]).sample(logits, table.slots, counts, lengths, tokens)
    return tokens.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [60, 256, 3001, 40_000])
def test_every_kind_of_row_agrees_with_the_sampler(native: NativeKernels, dtype: torch.dtype, vocab_size: int) -> None:
    params = [SamplingParams(**kind) for kind in KINDS]
    logits = logits_of(len(params), vocab_size, vocab_size).to(dtype)
    with threads(native, 2):
        assert draw(native, logits, params) == expected(logits, params).tolist()


@pytest.mark.parametrize("scale", [0.0, 0.05, 30.0])
def test_ties_flat_rows_and_extreme_temperatures_agree(native: NativeKernels, scale: float) -> None:
    kinds = [{"top_k": 10}, {"top_p": 0.5}, {"top_p": 0.3, "top_k": 9, "min_p": 0.5}, {"min_p": 1.0}, {"top_k": 1}]
    kinds += [{"temperature": t, **more} for t in (1e-4, 1e5) for more in ({}, {"top_k": 3, "top_p": 0.9})]
    params = [SamplingParams(**kind) for kind in kinds]
    logits = logits_of(len(params), 5000, 2, scale).bfloat16()
    logits[:, :3] = 0.125
    assert draw(native, logits, params) == expected(logits, params).tolist()


def test_draws_agree_whatever_the_seed_and_position(native: NativeKernels) -> None:
    count, generator = 4000, torch.Generator().manual_seed(0)
    seeds = torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator).tolist()
    lengths = PROMPT_LEN + torch.randint(1 << 20, (count,), generator=generator)
    params = [SamplingParams(top_p=0.999) if row % 2 else SamplingParams() for row in range(count)]
    logits = logits_of(count, 300, 4).bfloat16()
    mine = torch.tensor(draw(native, logits, params, seeds=seeds, lengths=lengths))
    assert (mine == expected(logits, params, seeds, lengths)).float().mean() > 0.999


def test_unsound_rows_fail_alone(native: NativeKernels) -> None:
    check_unsound_rows(partial(draw, native))


def test_other_rows_stay_and_rows_may_lie_apart(native: NativeKernels) -> None:
    params = [SamplingParams(**kind) for kind in KINDS]
    logits = logits_of(len(params), 333)
    wider = torch.full((len(params), 401), torch.nan)
    wider[:, :333] = logits
    tokens = draw(native, wider[:, :333], params, num_real=5)
    assert tokens == expected(logits, params).tolist()[:5] + [POISON] * (len(params) - 5)
