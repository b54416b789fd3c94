"""Generates workloads: prompts, lengths and arrival times."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError

COMMON_TOKEN_IDS = range(256, 1256)
"""Every vocabulary has these; without a tokenizer more is not known."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One request of a benchmark."""

    token_ids: list[int]
    output_len: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts and answers, in tokens.

    Attributes:
        input_len: length of prompts, without the prefix.
        range_ratio: lengths vary uniformly by this share up and down; 0 keeps them fixed.
        prefix_len: length of the prefix common to all prompts.
    """

    input_len: int
    output_len: int
    range_ratio: float = 0.0
    prefix_len: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"The range ratio must be at least 0 and below 1, not {self.range_ratio}.")
        if self.input_len < 0 or self.prefix_len < 0 or self.input_len + self.prefix_len < 1 or self.output_len < 1:
            raise ConfigError("Prompts and answers must have at least one token.")


def random_prompts(count: int, lengths: Lengths, token_ids: Sequence[int], seed: int) -> list[BenchPrompt]:
    """Prompts of random tokens; the same arguments give the same prompts."""
    source = random.Random(seed)
    prefix = source.choices(token_ids, k=lengths.prefix_len)
    return [
        BenchPrompt(
            prefix + source.choices(token_ids, k=_vary(lengths.input_len, lengths, source)),
            _vary(lengths.output_len, lengths, source),
        )
        for _ in range(count)
    ]


def _vary(length: int, lengths: Lengths, source: random.Random) -> int:
    low = math.floor(length * (1 - lengths.range_ratio))
    high = math.ceil(length * (1 + lengths.range_ratio))
    return max(min(1, length), source.randint(low, high))


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Arrival times of requests, in seconds from the start.

    Args:
        rate: mean requests/s; infinite sends all at once.
        burstiness: shape of the gamma distribution of the gaps: 1 is a Poisson process, less is burstier.
    """
    if not rate > 0 or not 0 < burstiness < math.inf:
        raise ConfigError("The request rate and the burstiness must be above 0.")
    return _arrivals(count, rate, burstiness, random.Random(seed))


def _arrivals(count: int, rate: float, burstiness: float, source: random.Random) -> Iterator[float]:
    time = 0.0
    for index in range(count):
        if index and rate < math.inf:
            time += source.gammavariate(burstiness, 1 / (rate * burstiness))
        yield time
