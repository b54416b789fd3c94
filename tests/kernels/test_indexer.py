"""The choice of tokens in plain PyTorch against sorted scores of whole sequences."""

from dataclasses import replace

import pytest
import torch
from mixer_cases import Lengths, indexer_case

from octavo.kernels import choose_tokens

STEPS: list[Lengths] = [
    [(1, 1)],
    [(5, 5)],
    [(1, 9), (1, 1), (1, 40), (1, 8), (1, 7)],
    [(1, 30), (1, 4), (9, 9), (3, 20), (2, 2)],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_chosen", [1, 5, 64])
@pytest.mark.parametrize("lengths", STEPS)
def test_the_highest_scores_are_chosen(lengths: Lengths, num_chosen: int, dtype: torch.dtype) -> None:
    case = indexer_case(lengths, num_chosen, num_padding=2, dtype=dtype)
    chosen = choose_tokens.reference(case.q, case.weights, case.cache, case.inputs, num_chosen)
    assert chosen.shape == (len(case.q), num_chosen) and chosen.dtype == torch.int32
    for found, expected in zip(chosen.tolist(), case.expected, strict=False):
        assert found == expected + [-1] * (num_chosen - len(expected))
    assert (chosen[len(case.expected) :] == -1).all()


def test_a_choice_depends_on_the_sequence_alone() -> None:
    case = indexer_case([(1, 33), (9, 50), (4, 4)], 7)
    case.q.add_(torch.randn(case.q.shape, generator=torch.Generator().manual_seed(0)))
    together = choose_tokens.reference(case.q, case.weights, case.cache, case.inputs, 7)
    for token, (row, position) in enumerate(case.step.tokens()):
        counts, starts = torch.tensor([1, 1, 1, 0]), torch.tensor([0, 1])
        rows = replace(case.inputs.rows, counts=counts, query_starts=starts, seq_lens=torch.tensor([position + 1]))
        inputs = replace(case.inputs, rows=rows, slots=case.inputs.slots[row : row + 1])
        own = slice(token, token + 1)
        alone = choose_tokens.reference(case.q[own], case.weights[own], case.cache, inputs, 7)
        assert torch.equal(alone[0], together[token])
