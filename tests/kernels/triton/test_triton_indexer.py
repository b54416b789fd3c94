"""The choice of tokens in Triton against sorted scores of whole sequences."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1]))
from mixer_cases import Lengths, indexer_case

from octavo.kernels.triton import indexer as triton_indexer
from octavo.kernels.triton.indexer import choose_tokens

STEPS: list[Lengths] = [
    [(1, 1)],
    [(5, 5)],
    [(1, 9), (1, 1), (1, 40), (1, 8)],
    [(1, 130), (1, 4), (9, 9), (3, 90), (2, 2)],
]


@pytest.mark.parametrize(("num_heads", "head_dim"), [(6, 12), (16, 32)])
@pytest.mark.parametrize("num_chosen", [1, 7, 200])
@pytest.mark.parametrize("lengths", STEPS)
def test_the_highest_scores_are_chosen(
    lengths: Lengths, num_chosen: int, num_heads: int, head_dim: int, device: torch.device
) -> None:
    case = indexer_case(
        lengths, num_chosen, num_heads=num_heads, head_dim=head_dim, num_padding=2, dtype=torch.float16, device=device
    )
    chosen = choose_tokens(case.q, case.weights, case.cache, case.inputs, num_chosen)
    for found, expected in zip(chosen.tolist(), case.expected, strict=False):
        assert found == expected + [-1] * (num_chosen - len(expected))
    assert (chosen[len(case.expected) :] == -1).all()


def test_scores_are_computed_for_some_tokens_at_a_time(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = indexer_case([(1, 30), (12, 50)], 6, device=device)
    span = case.inputs.block_tables.shape[1] * case.inputs.block_size
    monkeypatch.setattr(triton_indexer, "MAX_SCORES", 5 * span)
    monkeypatch.setattr(triton_indexer, "_MAX_TILE", 16)
    chosen = choose_tokens(case.q, case.weights, case.cache, case.inputs, 6)
    assert chosen.tolist() == case.expected


@pytest.mark.parametrize("num_nan", [1, 40])
def test_nans_are_never_chosen(num_nan: int, device: torch.device) -> None:
    """Positions are in the sequence whatever the scores are; a request whose scores are NaN ends for other reasons."""
    case = indexer_case([(1, 50)], 16, device=device)
    scores = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).to(device)
    scores[0, 3 : 3 + num_nan] = torch.nan
    chosen = torch.empty(1, 16, dtype=torch.int32, device=device)
    rows = case.inputs.rows
    triton_indexer._choose_kernel[(1,)](
        scores, rows.query_starts, rows.seq_lens, rows.counts, chosen, 0, 64, CHOSEN=16, TILE=32, PDL=False
    )
    real = scores[0, :50].nan_to_num(float("-inf"))
    count = min(16, 50 - num_nan)
    assert chosen[0].tolist() == sorted(real.topk(count).indices.tolist()) + [-1] * (16 - count)
