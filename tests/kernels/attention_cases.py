"""Steps of paged attention: requests whose blocks are strewn over a cache full of garbage."""

import math
from dataclasses import dataclass
from itertools import accumulate

import torch
from visible_keys import first_key

from octavo.kernels import NO_TERMS, AttentionInputs, AttentionSpec, DeviceRows, HeadTerms, StepShape


@dataclass
class Case:
    """One step's attention: inputs, queries, cache."""

    inputs: AttentionInputs
    q: torch.Tensor
    cache: torch.Tensor
    spec: AttentionSpec
    terms: HeadTerms = NO_TERMS


def make_inputs(
    tables: torch.Tensor,
    slots: torch.Tensor,
    lengths: list[tuple[int, int]],
    block_size: int,
    num_kv_heads: int,
    window: int | None,
    decode_len: int = 1,
) -> AttentionInputs:
    """Inputs of requests of (query length, length after the step); all tokens are mapped to the first place."""
    query_lens = [query_len for query_len, _ in lengths]
    num_tokens, num_decodes = sum(query_lens), sum(count <= decode_len for count in query_lens)
    rows = DeviceRows(
        torch.tensor([len(lengths), num_decodes, num_tokens, 0], dtype=torch.int32),
        torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32),
        torch.tensor([seq_len for _, seq_len in lengths], dtype=torch.int32),
    )
    has_chunks = num_decodes < len(lengths)
    shape = StepShape(len(lengths), num_tokens, max(query_lens), num_decodes > 0, has_chunks, False, decode_len)
    mapping = torch.zeros(num_tokens, dtype=torch.int64)
    return AttentionInputs(tables, slots, mapping, block_size, num_kv_heads, num_kv_heads, window, rows, shape)


def make_case(
    seed: int,
    lengths: list[tuple[int, int]],
    *,
    block_size: int = 4,
    window: int | None = None,
    num_kv_heads: int = 2,
    ratio: int = 2,
    head_dim: int = 8,
    spare_blocks: int = 2,
    softcap: float | None = None,
    dtype: torch.dtype = torch.float32,
    decode_len: int = 1,
    terms: str = "",
) -> Case:
    """Requests of (query length, length after the step), their blocks strewn over a cache full of garbage.

    Entries of the block tables past a request's length, and leading ones that no query sees, name arbitrary blocks.

    Args:
        terms: names of the terms that heads have, see :func:`make_terms`.
    """
    random = torch.Generator().manual_seed(seed)
    counts = [-(-seq_len // block_size) for _, seq_len in lengths]
    num_blocks = sum(counts) + 2
    order = (torch.randperm(num_blocks - 1, generator=random) + 1).tolist()
    tables = torch.randint(0, num_blocks, (len(lengths), max(counts) + spare_blocks), generator=random)
    for row, count in enumerate(counts):
        first_query = lengths[row][1] - lengths[row][0]
        first = first_key(first_query, window) // block_size
        own, order = order[:count], order[count:]
        tables[row, first:count] = torch.tensor(own[first:], dtype=torch.int64)
    num_tokens = sum(query_len for query_len, _ in lengths)
    slots = torch.arange(len(tables), dtype=torch.int32)
    inputs = make_inputs(tables.int(), slots, lengths, block_size, num_kv_heads, window, decode_len)
    # Queries are a slice of a wider projection, as in the model.
    num_heads = num_kv_heads * ratio
    merged = torch.randn(num_tokens, num_heads + num_kv_heads, head_dim, generator=random).to(dtype)
    cache = 2 * torch.randn(2, num_blocks, num_kv_heads, block_size, head_dim, generator=random).to(dtype)
    spec = AttentionSpec(num_heads, num_kv_heads, head_dim, head_dim**-0.5, softcap)
    return Case(inputs, merged[:, :num_heads], cache, spec, make_terms(terms, num_heads))


TERMS = ("sinks", "slopes", "sinks and slopes")
"""Kinds of terms of heads."""


def make_terms(names: str, num_heads: int) -> HeadTerms:
    """Terms of heads: sinks below and above usual scores, slopes steep and flat; no name for none."""
    sinks = torch.linspace(-2.0, 6.0, num_heads) if "sinks" in names else None
    slopes = 2 ** -torch.linspace(1.0, 8.0, num_heads) if "slopes" in names else None
    return HeadTerms(sinks, slopes)


NUM_NEEDLES = 3
"""Query heads of :func:`needles`."""


def needles(num_tokens: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A context in which each query head gives one token about half of its weight, and all others the rest.

    The tokens are the first one, one amid and one near the end. The others' weights are so small that sums of few bits
    would lose them.

    Returns:
        Queries ``[NUM_NEEDLES, head_dim]`` for the scale ``head_dim**-0.5``; keys and values, both
        ``[num_tokens, head_dim]``.
    """
    random = torch.Generator().manual_seed(0)
    keys = torch.randn(num_tokens, head_dim, generator=random)
    keys[:, :NUM_NEEDLES] = 0
    values = 1 + 0.1 * torch.randn(num_tokens, head_dim, generator=random)
    for head, place in enumerate((0, num_tokens * 3 // 5, num_tokens - 70)):
        keys[place] = torch.eye(head_dim)[head]
        values[place] = -1 - head
    return torch.eye(head_dim)[:NUM_NEEDLES] * math.log(num_tokens) * head_dim**0.5, keys, values


def needles_found(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, num_rows: int) -> torch.Tensor:
    """What the last ``num_rows`` tokens' heads find there in float64, ``[rows, heads, head_dim]``."""
    scores = queries.double() @ keys.double().T * queries.shape[-1] ** -0.5
    ends = range(len(keys) - num_rows + 1, len(keys) + 1)
    return torch.stack([scores[:, :end].softmax(-1) @ values[:end].double() for end in ends])
