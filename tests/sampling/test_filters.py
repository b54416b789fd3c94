"""Top-k, top-p and min-p keep what the plain definition keeps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import probabilities

from octavo.records import SamplingParams
from octavo.sampling import filters


def kept(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities after the filters, for one row."""
    x = torch.from_numpy(logits).float().unsqueeze(0)
    temperature = torch.tensor([params.temperature])
    weights = filters.to_weights(x, x.amax(-1), temperature, out=torch.empty_like(x))
    spare = torch.empty_like(x)
    filters.drop_below(weights, filters.min_p_least(weights, torch.tensor([params.min_p])), spare)
    if 0 < params.top_k < len(logits):
        filters.drop_below(weights, filters.top_k_least(weights, torch.tensor([params.top_k]), params.top_k), spare)
    if params.top_p < 1:
        least = filters.top_p_least(weights, torch.tensor([params.top_p], dtype=torch.float64))
        filters.drop_below(weights, least, spare)
    return (weights / weights.sum())[0].numpy()


@settings(max_examples=200)
@given(
    seed=st.integers(0, 1 << 32),
    size=st.sampled_from([1, 2, 7, 300, 1000]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 20, 999, 5000]),
    top_p=st.floats(1e-6, 1.0),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_agrees_with_the_plain_definition(
    seed: int, size: int, spread: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32).astype(np.float64)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    mine, plain = kept(logits, params), probabilities(logits, params)
    # A rounding may move the border of the nucleus by one token, or by what float32 loses in the sum of the others.
    has_mine, has_plain = mine > 1e-30, plain > 1e-30
    differs = has_mine != has_plain
    assert differs.sum() <= 1 or np.maximum(mine, plain)[differs].sum() < 1e-6
    if (has_mine == has_plain).all():
        np.testing.assert_allclose(mine, plain, rtol=1e-3, atol=1e-7)


def test_ties_with_the_last_one_kept_are_kept() -> None:
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    assert (kept(logits, SamplingParams(top_k=2)) > 0).tolist() == [True, True, True, False, False]
    assert (kept(logits, SamplingParams(top_p=0.5)) > 0).tolist() == [True, True, True, False, False]


def test_a_tiny_top_p_keeps_the_likeliest() -> None:
    assert (kept(np.array([0.0, 1.0, 0.5]), SamplingParams(top_p=1e-9)) > 0).tolist() == [False, True, False]


def test_a_top_p_of_almost_one_keeps_almost_all() -> None:
    logits = np.linspace(-5, 5, 1000)
    assert (kept(logits, SamplingParams(top_p=1 - 1e-12)) > 0).sum() >= 999


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 10.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.9, 0.999, 1 - 1e-6])
def test_kernel_equals_its_plain_twin(spread: float, top_p: float) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = (torch.randn(8, 3000, generator=generator) * spread).softmax(-1)
    weights[1] *= weights[1] > weights[1].median()
    mass, shares = weights.double().sum(-1), torch.full((8,), top_p, dtype=torch.float64)
    fast = filters.nucleus_least(weights, mass, shares)
    assert torch.equal(fast, filters.nucleus_least.reference(weights, mass, shares))


def test_rows_that_are_not_numbers_do_no_harm() -> None:
    weights = torch.full((1, 300), torch.nan)
    filters.top_p_least(weights, torch.tensor([0.9], dtype=torch.float64))
    filters.top_k_least(weights, torch.tensor([5]), 5)
