"""The compiled choice of tokens against sorted scores of whole sequences."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from mixer_cases import IndexerCase, Lengths, alone, indexer_case
from native_builds import threads

from octavo.kernels import choose_tokens
from octavo.kernels.cpu import native_indexer
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
MIXED: Lengths = [(1, 300), (37, 290), (5, 70), (1, 1), (3, 3), (2, 1700)]
Choose = Callable[..., torch.Tensor]


@pytest.fixture
def choose(native: NativeKernels) -> Choose:
    """This build's operation."""
    native_indexer.register(native)
    return choose_tokens.implementations["cpu"]


def make(lengths: Lengths, num_chosen: int, **options: object) -> IndexerCase:
    """A case with slots of the engine's type."""
    case = indexer_case(lengths, num_chosen, **options)
    return replace(case, inputs=replace(case.inputs, slots=case.inputs.slots.int()))


def check(choose: Choose, case: IndexerCase, num_chosen: int) -> None:
    chosen = choose(case.q, case.weights, case.cache, case.inputs, num_chosen)
    assert chosen.shape == (len(case.q), num_chosen) and chosen.dtype == torch.int32
    for found, expected in zip(chosen.tolist(), case.expected, strict=False):
        assert found == expected + [-1] * (num_chosen - len(expected))
    assert (chosen[len(case.expected) :] == -1).all()


@pytest.mark.parametrize("num_chosen", [1, 5, 64])
@pytest.mark.parametrize("lengths", [[(1, 1)], [(5, 5)], [(1, 9), (1, 1), (1, 40)], MIXED])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_highest_scores_are_chosen(
    choose: Choose, native: NativeKernels, dtype: torch.dtype, lengths: Lengths, num_chosen: int
) -> None:
    """Of the many equal ones the first."""
    for count in (1, 3):
        with threads(native, count):
            check(choose, make(lengths, num_chosen, num_padding=2, dtype=dtype), num_chosen)


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 1), (16, 16), (5, 20), (40, 64), (64, 128), (67, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_of_heads(choose: Choose, dtype: torch.dtype, num_heads: int, head_dim: int) -> None:
    lengths = [(1, 70), (9, 20), (2, 300), (13, 61)]
    check(choose, make(lengths, 17, num_heads=num_heads, head_dim=head_dim, dtype=dtype), 17)


@pytest.mark.parametrize("block_size", [1, 7, 16, 48])
def test_sizes_of_blocks(choose: Choose, block_size: int) -> None:
    check(choose, make(MIXED, 33, block_size=block_size), 33)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_choice_depends_on_the_sequence_alone(choose: Choose, native: NativeKernels, dtype: torch.dtype) -> None:
    """A number more at most would be chosen otherwise if a score had other bits in another step."""
    case = make([(1, 33), (9, 250), (4, 4), (40, 90), (1, 2000)], 31, num_heads=20, head_dim=24)
    random = torch.Generator().manual_seed(0)
    q = torch.randn(case.q.shape, generator=random).to(dtype)
    weights = torch.randn(case.weights.shape, generator=random)
    cache = torch.randn(case.cache.shape, generator=random).to(dtype)
    cache[:, :, 12:] = 0  # scores close to each other
    together = choose(q, weights, cache, case.inputs, 31)
    for count in (2, 4):
        with threads(native, count):
            assert torch.equal(choose(q, weights, cache, case.inputs, 31), together)
    wanted = choose_tokens.reference(q.float(), weights, cache.float(), case.inputs, 31)
    same = sum(len(set(a) & set(b)) for a, b in zip(together.tolist(), wanted.tolist(), strict=True))
    assert same >= 0.99 * sum(len(set(b)) for b in wanted.tolist())
    for token, (row, position) in enumerate(case.step.tokens()):
        own = slice(token, token + 1)
        found = choose(q[own], weights[own], cache, alone(case.inputs, row, position), 31)
        assert torch.equal(found[0], together[token])


def test_order_of_scores(choose: Choose) -> None:
    """Scores of all signs, and zeros of both; NaN is the highest, as in PyTorch's sort."""
    case = make([(1, 12)], 4, num_heads=1, head_dim=2, block_size=12)
    scores = [-1.0, 0.0, -0.0, 2.0, 1e30, float("nan"), -5.0, 1e-30, -1e30, 3.0, 3.0, 0.0]
    inputs = replace(case.inputs, block_tables=torch.zeros_like(case.inputs.block_tables))
    cache = torch.zeros(1, 12, 2)
    for place, score in enumerate(scores):  # a key's part above 0 counts, so signs come from the head's weight
        cache[0, place, 0] = score
    for weight in (1.0, -1.0):
        for num_chosen in (1, 3, 4, 7, 11):
            q, weights = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[weight]])
            found = choose(q, weights, cache, inputs, num_chosen)
            assert torch.equal(found, choose_tokens.reference(q, weights, cache, inputs, num_chosen))


def test_a_replay_follows_the_steps_rows(choose: Choose, native: NativeKernels) -> None:
    case = make([(1, 259), (1, 20)], 16)
    choose(case.q, case.weights, case.cache, case.inputs, 16)
    case.inputs.rows.seq_lens -= 6
    owners: list[object] = []
    native.start_tape(owners)
    chosen = choose(case.q, case.weights, case.cache, case.inputs, 16)
    tape = native.end_tape()
    for _ in range(6):  # the second row comes to have more tokens than are chosen
        case.inputs.rows.seq_lens += 1
        native.replay(tape)
        assert torch.equal(chosen, choose(case.q, case.weights, case.cache, case.inputs, 16))


def test_types_that_the_kernels_lack_run_as_the_reference(choose: Choose) -> None:
    case = make([(1, 9), (5, 12)], 4, dtype=torch.float64)
    check(choose, case, 4)
