import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.load import choose_aborts
from octavo.bench.workload import Lengths, arrival_times, random_prompts
from octavo.errors import ConfigError


@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.floats(0, 0.99),
    st.integers(0, 5),
    st.integers(0, 100),
)
def test_prompts_keep_to_their_lengths(
    input_len: int, output_len: int, ratio: float, prefix_len: int, seed: int
) -> None:
    lengths = Lengths(input_len, output_len, ratio, prefix_len)
    prompts = random_prompts(10, lengths, range(100, 200), seed)
    assert prompts == random_prompts(10, lengths, range(100, 200), seed)
    for prompt in prompts:
        num_own = len(prompt.token_ids) - prefix_len
        assert max(1, math.floor(input_len * (1 - ratio))) <= num_own <= math.ceil(input_len * (1 + ratio))
        assert max(1, math.floor(output_len * (1 - ratio))) <= prompt.output_len <= math.ceil(output_len * (1 + ratio))
        assert prompt.token_ids[:prefix_len] == prompts[0].token_ids[:prefix_len]
        assert set(prompt.token_ids) <= set(range(100, 200))


def test_without_a_ratio_lengths_are_exact() -> None:
    assert {(len(p.token_ids), p.output_len) for p in random_prompts(20, Lengths(7, 3), range(5), 0)} == {(7, 3)}


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (1, 1, 1.0), (1, 1, -0.1), (-1, 1, 0.0, 5)])
def test_impossible_lengths_are_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        Lengths(*arguments)


def test_arrivals() -> None:
    assert list(arrival_times(3, math.inf, 1.0, 0)) == [0.0, 0.0, 0.0]
    times = list(arrival_times(20_001, 50.0, 1.0, 0))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert times[0] == 0.0
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.05), "gaps of a Poisson process deviate by their mean"


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, math.inf)])
def test_impossible_rates_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError):
        arrival_times(1, rate, burstiness, 0)


@given(st.integers(1, 60), st.floats(0, 1), st.integers(1, 30))
def test_aborts_are_the_given_share(count: int, fraction: float, longest: int) -> None:
    aborts = choose_aborts(count, fraction, longest, seed=1)
    chosen = [abort for abort in aborts if abort is not None]
    assert len(aborts) == count
    assert len(chosen) == round(count * fraction)
    assert all(1 <= abort <= longest for abort in chosen)
