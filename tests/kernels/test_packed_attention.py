"""Attention over sequences laid end to end is that of each by itself."""

from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels import AttentionSpec
from octavo.kernels.packed_attention import PackedPlan, packed_attention

CPU = torch.device("cpu")
SIZE = 4


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=9),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2)]),
    padding=st.integers(0, 5),
    window=st.none() | st.integers(1, 80),
    queries_at_a_time=st.sampled_from([7, 512]),
    softcap=st.none() | st.just(0.5),
)
def test_every_sequence_is_by_itself(
    lengths: list[int],
    heads: tuple[int, int],
    padding: int,
    window: int | None,
    queries_at_a_time: int,
    softcap: float | None,
) -> None:
    num_heads, num_kv_heads = heads
    spec = AttentionSpec(num_heads, num_kv_heads, SIZE, 0.4, softcap)
    total = sum(lengths)
    qkv = torch.randn(
        total + padding, (num_heads + 2 * num_kv_heads) * SIZE, generator=torch.Generator().manual_seed(1)
    )
    with patch("octavo.kernels.packed_attention._NEAR_QUERIES", queries_at_a_time):
        found = packed_attention.reference(qkv, PackedPlan(np.array(lengths), CPU), spec, window)
    assert not found[total:].any()
    start = 0
    for length in lengths:
        part = qkv[start : start + length].view(length, -1, SIZE)
        q, k, v = part.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        k, v = (x.repeat_interleave(num_heads // num_kv_heads, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * 0.4
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        positions = torch.arange(length)
        is_far = (positions[:, None] - positions).abs() >= (length if window is None else window)
        weights = scores.masked_fill(is_far, float("-inf")).softmax(-1)
        wanted = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        torch.testing.assert_close(found[start : start + length], wanted, rtol=0, atol=1e-5)
        start += length


def test_little_is_computed_for_padding() -> None:
    lengths = np.array([500, 3, 480, 5, 250, 240, 3])
    padded = sum(group.tokens.numel() for group in PackedPlan(lengths, CPU).groups)
    assert padded < 1.3 * lengths.sum()
