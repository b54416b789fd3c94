"""Stateless random numbers: what SplitMix64 gives, uniform, and a function of seed and position alone."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.random import stream_key, uniforms

MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def draw(seeds: list[int], counters: list[int]) -> np.ndarray:
    keys = torch.tensor([stream_key(seed) for seed in seeds], dtype=torch.int64)
    return uniforms(keys, torch.tensor(counters, dtype=torch.int64)).numpy()


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(0, 1 << 31))
def test_equals_arithmetic_without_size_limits(seed: int, counter: int) -> None:
    golden = 0x9E3779B97F4A7C15
    expected = mix((mix((seed + golden) & MASK) + counter * golden) & MASK) >> 12
    assert draw([seed], [counter])[0] == expected * 2.0**-52


def test_known_vector() -> None:
    # SplitMix64 seeded with 0 is known to begin with this number; stream_key is its first step.
    assert stream_key(0) & MASK == 0xE220A8397B1DCDAF


def test_uniform_over_positions_and_over_seeds() -> None:
    for values in (draw([7] * 20000, list(range(20000))), draw(list(range(20000)), [3] * 20000)):
        counts = np.histogram(values, bins=50, range=(0, 1))[0]
        chi_square = ((counts - 400) ** 2 / 400).sum()
        assert 20 < chi_square < 95  # 49 degrees of freedom
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_streams_of_neighbouring_seeds_do_not_overlap() -> None:
    values = np.concatenate([draw([seed] * 200, list(range(200))) for seed in range(50)])
    assert len(np.unique(values)) == len(values)
