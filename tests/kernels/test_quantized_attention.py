"""PyTorch's attention on the CPU over keys and values of 8 bits."""

import pytest
import torch
from attention_cases import Case, make_case

from octavo.kernels import CacheScales, ReferenceAttention
from octavo.kernels.cache_scales import round_vectors, vector_scales
from octavo.kernels.cpu.attention import CpuAttention

TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]
# Relative to the largest magnitude of a vector: half a step of the coarsest values.
ERRORS = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3, torch.int8: 0.5 / 127}


def quantized(case: Case, stored: torch.dtype) -> tuple[Case, CacheScales]:
    scales = vector_scales(case.cache, stored)
    rounded = round_vectors(case.cache, scales, stored)
    case.cache = rounded
    return case, CacheScales(scales, are_given=False)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("stored", TYPES)
def test_fast_attention_equals_the_reference(stored: torch.dtype, softcap: float | None, window: int | None) -> None:
    lengths = [(1, 30), (1, 1), (1, 13), (7, 7), (5, 22)]
    case, scales = quantized(make_case(0, lengths, softcap=softcap, window=window), stored)
    found, expected = (
        backend.attend(case.q, case.cache, backend.plan(case.inputs, case.q.dtype), case.spec, scales=scales)
        for backend in (CpuAttention(), ReferenceAttention())
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stored", TYPES)
def test_given_scales_of_heads(stored: torch.dtype) -> None:
    """They are what scales of tokens are that are equal for a head's."""
    case = make_case(0, [(1, 30), (7, 7), (5, 22)])
    given = CacheScales.given(torch.tensor([[0.01, 0.03], [0.02, 0.005]]), case.cache)
    assert given.values[0, :, 1].eq(0.03).all()
    assert given.values[1, :, 0].eq(0.02).all()
    case.cache = round_vectors(case.cache, given.values, stored)
    found, expected = (
        backend.attend(case.q, case.cache, backend.plan(case.inputs, case.q.dtype), case.spec, scales=scales)
        for backend, scales in (
            (CpuAttention(), given),
            (ReferenceAttention(), CacheScales(given.values.clone(), are_given=True)),
        )
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stored", TYPES)
def test_values_are_rounded_to_the_nearest(stored: torch.dtype) -> None:
    """Vectors of very different magnitudes beside each other, and one of zeros; a NaN stays in its own."""
    x = torch.randn(40, 3, 16, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 40)[:, None, None]
    x[7, 1] = 0
    scales = vector_scales(x, stored)
    found = round_vectors(x, scales, stored).float() * scales[..., None]
    assert ((found - x).abs() <= ERRORS[stored] * x.abs().amax(-1, keepdim=True)).all()
    assert not found[7, 1].any()
    x[3, 2, 5] = torch.nan
    scales = vector_scales(x, stored)
    spoiled = round_vectors(x, scales, stored).float() * scales[..., None]
    assert spoiled[3, 2].isnan().all()
    spoiled[3, 2] = found[3, 2]
    assert torch.equal(spoiled, found)


@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("place", [0, 17, 62])
def test_a_needle_is_found(stored: torch.dtype, place: int) -> None:
    """One key of 63 is along the query, all others are across it."""
    case = make_case(0, [(1, 63)], head_dim=32, ratio=1)
    positions = torch.arange(63)
    blocks = case.inputs.block_tables[0, positions // 4].long()
    query = torch.nn.functional.normalize(case.q[0].float(), dim=-1)  # [Hkv, D]
    keys = torch.randn(63, 2, 32, generator=torch.Generator().manual_seed(1))
    keys -= (keys * query).sum(-1, keepdim=True) * query
    keys[place] = 2 * query
    case.cache[0][blocks, :, positions % 4] = keys
    case.q = query[None] * 400
    wanted = case.cache[1][blocks[place], :, place % 4].clone()
    case, scales = quantized(case, stored)
    attention = CpuAttention()
    found = attention.attend(case.q, case.cache, attention.plan(case.inputs, case.q.dtype), case.spec, scales=scales)
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=ERRORS[stored] * float(wanted.abs().max()) * 1.1)
