"""The benchmark of quality: how far each scheme's rounding is from a weight, and what is compared."""

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its scripts import each other by their own names

import quality


@pytest.mark.parametrize(
    ("scheme", "largest"), [("fp8", 0.026), ("int8", 0.021), ("int4", 0.114), ("mxfp4", 0.122), ("nvfp4", 0.097)]
)
def test_errors_of_gaussian_weights_with_outliers(scheme: str, largest: float) -> None:
    assert scheme in quality.BOUNDS
    assert 0.9 * largest < quality.weight_error(scheme) < largest


def test_distributions_are_compared_in_full() -> None:
    reference = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]).log()
    found = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()
    figures = quality.compare(reference, found, [0, 1, 1])
    assert figures["kl"] == pytest.approx(0.25 * math.log(2) / 2)
    assert figures["perplexity"] == pytest.approx(math.sqrt(8))
    assert figures["agreement"] == 0.5
