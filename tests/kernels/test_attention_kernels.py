"""PyTorch's paged attention on the CPU: the fast path against the plain one, the plain one against dense attention."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import TERMS, Case, make_case, make_inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels import AttentionSpec, ReferenceAttention
from octavo.kernels.cpu.attention import CpuAttention


def attend(backend: ReferenceAttention | CpuAttention, case: Case) -> torch.Tensor:
    return backend.attend(case.q, case.cache, backend.plan(case.inputs, case.q.dtype), case.spec, case.terms)


@st.composite
def lengths(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Decode rows and chunks, with the cached part of any length."""
    query_lens = draw(st.lists(st.one_of(st.just(1), st.integers(1, 9)), min_size=1, max_size=6))
    return [(query_len, query_len + draw(st.integers(0, 40))) for query_len in query_lens]


@settings(max_examples=120)
@given(
    seed=st.integers(0, 999),
    lengths=lengths(),
    block_size=st.integers(1, 17),
    window=st.none() | st.integers(1, 20) | st.integers(-20, -1),
    num_kv_heads=st.integers(1, 3),
    ratio=st.integers(1, 3),
    head_dim=st.sampled_from([4, 8, 20]),
    spare_blocks=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16]),
    decode_len=st.integers(1, 4),
    softcap=st.none() | st.just(2.0),
    terms=st.sampled_from(["", *TERMS]),
)
def test_fast_attention_equals_the_reference(
    seed: int,
    lengths: list[tuple[int, int]],
    block_size: int,
    window: int | None,
    num_kv_heads: int,
    ratio: int,
    head_dim: int,
    spare_blocks: int,
    dtype: torch.dtype,
    decode_len: int,
    softcap: float | None,
    terms: str,
) -> None:
    case = make_case(
        seed,
        lengths,
        block_size=block_size,
        window=window,
        num_kv_heads=num_kv_heads,
        ratio=ratio,
        head_dim=head_dim,
        spare_blocks=spare_blocks,
        dtype=dtype,
        decode_len=decode_len,
        softcap=softcap,
        terms=terms,
    )
    expected = attend(ReferenceAttention(), case)
    result = attend(CpuAttention(), case)
    assert result.shape == expected.shape == case.q.shape
    assert result.dtype == dtype
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 1, 5, 100, -1, -5, -100])
def test_the_reference_equals_dense_attention_over_a_sequence_in_order(window: int | None) -> None:
    case = make_case(0, [(11, 23)], window=window)
    positions = torch.arange(23)
    blocks = case.inputs.block_tables[0].long()
    keys, values = (part[blocks[positions // 4], :, positions % 4] for part in case.cache)
    queries = positions[-11:, None]
    visible = positions <= queries
    if window is not None:
        visible &= positions > queries - window if window > 0 else positions // -window == queries // -window
    expected = F.scaled_dot_product_attention(
        case.q.transpose(0, 1).double(),
        keys.repeat_interleave(2, 1).transpose(0, 1).double(),
        values.repeat_interleave(2, 1).transpose(0, 1).double(),
        attn_mask=visible,
    ).transpose(0, 1)
    for backend in (ReferenceAttention(), CpuAttention()):
        torch.testing.assert_close(attend(backend, case).double(), expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=60)
@given(
    query_len=st.integers(1, 9),
    past=st.integers(0, 40),
    window=st.none() | st.integers(1, 20),
    ratio=st.sampled_from([1, 3, 5, 7]),
    head_dim=st.sampled_from([16, 64, 80, 128]),
    softcap=st.none() | st.just(2.0),
    terms=st.sampled_from(TERMS),
)
def test_terms_of_heads_follow_their_formula(
    query_len: int, past: int, window: int | None, ratio: int, head_dim: int, softcap: float | None, terms: str
) -> None:
    """``e^s / (e^sink + Σ e^s)`` for ``s = cap(q·k) − slope · (i − j)``, in float64 without a largest score."""
    options = {"window": window, "ratio": ratio, "head_dim": head_dim, "softcap": softcap, "terms": terms}
    case = make_case(0, [(query_len, past + query_len)], **options)
    positions = torch.arange(past + query_len)
    blocks = case.inputs.block_tables[0].long()
    keys, values = (
        part[blocks[positions // 4], :, positions % 4].repeat_interleave(ratio, 1).double() for part in case.cache
    )
    scores = torch.einsum("qhd,khd->hqk", case.q.double(), keys) * case.spec.scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    distances = positions[past:, None] - positions
    if case.terms.slopes is not None:
        scores = scores - case.terms.slopes.double()[:, None, None] * distances
    weights = scores.exp() * ((distances >= 0) & (distances < (window or 100)))
    total = weights.sum(-1, keepdim=True)
    if case.terms.sinks is not None:
        total = total + case.terms.sinks.double().exp()[:, None, None]
    expected = torch.einsum("hqk,khd->qhd", weights / total, values)
    for backend in (ReferenceAttention(), CpuAttention()):
        torch.testing.assert_close(attend(backend, case).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3, 130, 200, -130, -20])
@pytest.mark.parametrize("terms", ["", "sinks and slopes"])
def test_chunks_longer_than_a_tile_of_queries(window: int | None, terms: str) -> None:
    lengths = [(300, 300), (1, 40), (140, 333)]
    case = make_case(1, lengths, block_size=16, window=window, head_dim=4, terms=terms)
    expected = attend(ReferenceAttention(), case)
    torch.testing.assert_close(attend(CpuAttention(), case), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", [ReferenceAttention(), CpuAttention()])
def test_keys_and_values_are_stored_where_the_mapping_says_and_nowhere_else(
    backend: ReferenceAttention | CpuAttention,
) -> None:
    case = make_case(2, [(3, 3)])
    merged = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(9))
    k, v = merged[:, 2:4], merged[:, 4:]
    case.inputs.slot_mapping = torch.tensor([7, 0, 11])
    before = case.cache.clone()
    backend.store(k, v, case.cache, backend.plan(case.inputs, torch.float32))
    for index, place in enumerate([7, 0, 11]):
        block, offset = divmod(place, case.inputs.block_size)
        assert torch.equal(case.cache[:, block, :, offset], torch.stack((k[index], v[index])))
        before[:, block, :, offset] = case.cache[:, block, :, offset]
    assert torch.equal(case.cache, before)


def test_chunks_give_what_the_whole_gives() -> None:
    whole = make_case(3, [(20, 20)], window=6)
    expected = attend(CpuAttention(), whole)
    for start, stop in [(0, 7), (7, 8), (8, 20)]:
        inputs = make_inputs(whole.inputs.block_tables, whole.inputs.slots, [(stop - start, stop)], 4, 2, 6)
        part = Case(inputs, whole.q[start:stop], whole.cache, whole.spec)
        torch.testing.assert_close(attend(CpuAttention(), part), expected[start:stop], rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    together = make_case(5, [(1, 30), (6, 9), (1, 3), (1, 17)])
    result = attend(CpuAttention(), together)
    start = 0
    for row, (query_len, seq_len) in enumerate([(1, 30), (6, 9), (1, 3), (1, 17)]):
        slots = together.inputs.slots[row : row + 1]
        inputs = make_inputs(together.inputs.block_tables, slots, [(query_len, seq_len)], 4, 2, None)
        alone = Case(inputs, together.q[start : start + query_len], together.cache, together.spec)
        torch.testing.assert_close(result[start : start + query_len], attend(CpuAttention(), alone))
        start += query_len


def test_blocks_that_a_row_does_not_own_may_hold_what_is_not_a_number() -> None:
    lengths = [(1, 30), (1, 45), (5, 9), (1, 17), (1, 28)]
    case = make_case(6, lengths)
    own = {0}
    for row, (_, seq_len) in enumerate(lengths):
        own |= set(case.inputs.block_tables[row, : -(-seq_len // 4)].tolist())
    (foreign,) = set(range(case.cache.shape[1])) - own
    expected = attend(ReferenceAttention(), case)
    case.cache[:, foreign] = torch.nan
    for row, (_, seq_len) in enumerate(lengths):
        case.inputs.block_tables[row, -(-seq_len // 4) :] = foreign
    torch.testing.assert_close(attend(CpuAttention(), case), expected, rtol=1e-5, atol=1e-5)


def test_softcap_bounds_the_scores() -> None:
    case = make_case(7, [(1, 9), (5, 12)], softcap=2.0)
    expected = attend(ReferenceAttention(), case)
    torch.testing.assert_close(attend(CpuAttention(), case), expected, rtol=1e-5, atol=1e-5)
    uncapped = Case(case.inputs, case.q, case.cache, AttentionSpec(4, 2, 8, 8**-0.5))
    assert not torch.allclose(attend(CpuAttention(), uncapped), expected, atol=1e-3)
