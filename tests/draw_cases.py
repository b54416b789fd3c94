"""Rows to draw tokens for on a device, and what the sampler in plain PyTorch draws."""

from collections.abc import Callable, Sequence

import torch

from octavo.records import NAN_TOKEN, NewRow, SamplingParams, as_token_ids
from octavo.sampling.random import stream_key
from octavo.sampling.sampler import Sampler

POISON = -77
PROMPT_LEN = 3

KINDS = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 10**6},
    {"top_p": 0.9},
    {"top_p": 0.2, "temperature": 2.0},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.95, "temperature": 0.6},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.01, "temperature": 1.5},
    {"top_p": 0.99, "min_p": 1e-6},
    {"top_k": 400, "temperature": 3.0},
]


class Table:
    """Parameters of rows whose slots are strewn over larger tables, the rest of which is nonsense."""

    def __init__(
        self, params: Sequence[SamplingParams], seeds: Sequence[int] | None = None, device: torch.device | None = None
    ) -> None:
        num_rows = len(params)
        slots = torch.randperm(num_rows + 5, generator=torch.Generator().manual_seed(num_rows))[:num_rows]
        floats = torch.full((num_rows + 5, 4), torch.nan, dtype=torch.float64)
        integers = torch.full((num_rows + 5, 4), 1 << 60, dtype=torch.int64)
        for row, (slot, p) in enumerate(zip(slots.tolist(), params, strict=True)):
            temperature = 0.0 if p.is_greedy else p.temperature
            floats[slot, :3] = torch.tensor([temperature, p.top_p, p.min_p], dtype=torch.float64)
            integers[slot, :3] = torch.tensor([stream_key(seeds[row] if seeds else row), PROMPT_LEN, p.top_k])
        self.slots = slots.int().to(device)
        self.temperature, self.top_p, self.min_p, _ = floats.to(device).unbind(1)
        self.stream_key, self.prompt_len, self.top_k, _ = integers.to(device).unbind(1)


def expected(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    seeds: Sequence[int] | None = None,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The plain sampler's tokens."""
    num_rows, vocab_size = logits.shape
    sampler = Sampler(num_rows, vocab_size, torch.device("cpu"))
    for row, p in enumerate(params):
        seed = seeds[row] if seeds else row
        sampler.add_row(NewRow(row, as_token_ids([0] * PROMPT_LEN), PROMPT_LEN, p, seed, [], []))
    if lengths is None:
        lengths = torch.full((num_rows,), PROMPT_LEN)
    rows = torch.arange(num_rows)
    return sampler.sample(logits, rows, lengths, lambda slots, _: torch.zeros_like(slots), rows.tolist()).token_ids


def logits_of(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * scale


def check_unsound_rows(draw: Callable[[torch.Tensor, list[SamplingParams]], list[int]]) -> None:
    """Rows that hold a NaN or an infinity, or nothing but minus infinity, fail alone; a single token is drawn."""
    for params in (SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_p=0.5, top_k=3)):
        logits = logits_of(6, 700, 3)
        logits[0, 650] = torch.nan
        logits[2, 3] = torch.inf
        logits[3] = -torch.inf
        logits[4, 1:] = -torch.inf
        tokens = draw(logits, [params] * 6)
        assert tokens == expected(logits, [params] * 6).tolist()
        assert [tokens[row] for row in (0, 2, 3, 4)] == [NAN_TOKEN, NAN_TOKEN, NAN_TOKEN, 0]
