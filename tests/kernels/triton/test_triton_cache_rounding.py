"""Keys and values of any size are rounded to the bits that the plain twin has."""

import pytest
import torch

from octavo.kernels.cache_scales import CacheScales, round_vectors, vector_scales
from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.kernels.triton.rotary import qk_rope_store

SIZE, BLOCK = 64, 16


@pytest.mark.sample(9)
@pytest.mark.parametrize("are_given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("factor", [1.0, 1e-3, 30.0, 1e-9, 0.0])
@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_codes_are_those_of_the_twin(stored: torch.dtype, factor: float, are_given: bool, device: torch.device) -> None:
    """Zeros and what rounds to zero, of both signs, and what is larger than the type's largest value among them."""
    random = torch.Generator().manual_seed(0)
    num_tokens = 64 if IS_INTERPRETED else 16384
    qkv = torch.randn(num_tokens, 4, SIZE, generator=random)
    qkv *= (torch.rand(num_tokens, 4, 1, generator=random) * 6).exp() * factor
    qkv = qkv.to(device, torch.float16 if IS_INTERPRETED else torch.bfloat16)
    heads = qkv[:, 2:].clone()  # [T, 2, D]
    cache = torch.zeros(2, num_tokens // BLOCK, 1, BLOCK, SIZE, dtype=stored, device=device)
    scales = CacheScales(torch.zeros(cache.shape[:-1], device=device), are_given=False)
    wanted_scales = vector_scales(heads, stored)
    if are_given:
        values = torch.tensor([0.013, 2e-5], device=device)
        scales, wanted_scales = CacheScales.given(values, cache), values.expand(num_tokens, 2)
    cos, sin = (torch.full((num_tokens, 1, SIZE), value, dtype=qkv.dtype, device=device) for value in (1.0, 0.0))
    places = torch.arange(num_tokens, device=device)
    qk_rope_store(qkv, None, None, 0.0, cos, sin, cache, places, 2, 1, scales=scales, rounds_in_place=True)
    wanted = round_vectors(heads, wanted_scales, stored)
    found = cache.view(2, num_tokens, SIZE).transpose(0, 1)
    assert torch.equal(scales.values.reshape(2, num_tokens).T, wanted_scales)
    # A rotation by nothing adds zero to keys, so that those that are zero lose their sign.
    assert torch.equal(found[:, 1].contiguous().view(torch.uint8), wanted[:, 1].contiguous().view(torch.uint8))
    assert torch.equal(found.float(), wanted.float())
    assert torch.equal(qkv[:, 2:], (wanted.float() * wanted_scales[..., None]).to(qkv.dtype))
