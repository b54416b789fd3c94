"""What stands around latent attention, in Triton, against the twins: GEMMs of heads, rotation, the store of vectors."""

import pytest
import torch

from octavo.kernels.attention import RopeTables
from octavo.kernels.basic import rotate_heads
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.head_linear import PlainHeadLinear
from octavo.kernels.latent_attention import finish_latent, latent_inputs
from octavo.kernels.triton.head_linear import TritonHeadLinear
from octavo.kernels.triton.latent_inputs import latent_inputs as inputs_in_triton
from octavo.kernels.triton.latent_store import finish_latent as finish_in_triton
from octavo.kernels.triton.rotate import rotate_heads as rotate_in_triton

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3}


def normal(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def tables(num_tokens: int, rotary: int, dtype: torch.dtype, device: torch.device) -> RopeTables:
    """Cosines and sines of some angles."""
    angles = normal(num_tokens, 1, rotary // 2, device=device, seed=3)
    sin = angles.sin()
    return torch.cat((angles.cos(),) * 2, -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("size", "rotary"), [(12, 12), (20, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rotated_heads(
    dtype: torch.dtype, size: int, rotary: int, is_interleaved: bool, is_last: bool, device: torch.device
) -> None:
    """Vectors are parts of wider heads on both sides, and what lies between them stays."""
    x = normal(3, 5, size + 3, dtype=dtype, device=device)[..., 2:-1]
    rope = tables(3, rotary, dtype, device)
    options = {"is_interleaved": is_interleaved, "is_last": is_last}
    expected = rotate_heads.reference(x, *rope, **options)
    whole = torch.full((3, 5, size + 4), 7.0, dtype=dtype, device=device)
    for found in (rotate_in_triton(x, *rope, **options), rotate_in_triton(x, *rope, whole[..., 1:-3], **options)):
        torch.testing.assert_close(found, expected, rtol=0, atol=0 if dtype is torch.float16 else 1e-6)
    assert (whole[..., 0] == 7).all() and (whole[..., -3:] == 7).all()


@pytest.mark.parametrize("num_tokens", [1, 20, 70])
@pytest.mark.parametrize(("outputs", "inputs"), [(40, 24), (16, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gemms_of_heads(dtype: torch.dtype, outputs: int, inputs: int, num_tokens: int, device: torch.device) -> None:
    """For few tokens and, by the library, for many; weight and vectors are parts of wider ones, in either order."""
    for weight in (
        normal(3, outputs + 2, inputs, dtype=dtype, device=device)[:, 2:],
        normal(3, inputs + 2, outputs, dtype=dtype, device=device)[:, 2:].transpose(1, 2),
    ):
        x = normal(num_tokens, 3, inputs + 5, dtype=dtype, device=device, seed=1)[..., 3:-2]
        whole = torch.full((num_tokens, 3, outputs + 4), 7.0, dtype=dtype, device=device)
        found = TritonHeadLinear(weight)(x, whole[..., 1:-3])
        close(found, torch.einsum("thi,hoi->tho", x.double(), weight.double()))
        assert (whole[..., 0] == 7).all() and (whole[..., -3:] == 7).all()


@pytest.mark.parametrize("num_tokens", [1, 20, 70])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("rank", "key_dim", "rope_dim"), [(40, 24, 12), (64, 16, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_inputs_of_latent_attention(
    dtype: torch.dtype,
    rank: int,
    key_dim: int,
    rope_dim: int,
    is_interleaved: bool,
    num_tokens: int,
    device: torch.device,
) -> None:
    """Of one projection, from a step with padding, by one launch for few tokens and by several for many."""
    num_heads, size = 3, rank + rope_dim
    projected = normal(num_tokens, num_heads * (key_dim + rope_dim) + size, dtype=dtype, device=device)
    queries, latent = projected.tensor_split((-size,), 1)
    queries = queries.unflatten(1, (num_heads, -1))
    weight = normal(num_heads, key_dim, rank, dtype=dtype, device=device, seed=1).transpose(1, 2)
    norm, rope = normal(rank, device=device, seed=2), tables(num_tokens, rope_dim, dtype, device)
    slots = torch.randperm(num_tokens + 3, generator=torch.Generator().manual_seed(0))[:num_tokens].to(device)
    slots[5:7] = -1
    pages = torch.full((num_tokens // 4 + 2, 6, size), float("nan"), dtype=dtype, device=device)
    twin = pages.clone()
    arguments, options = (norm, 1e-6, rope), {"is_interleaved": is_interleaved}
    expected = latent_inputs.reference(
        queries, latent, PlainHeadLinear(weight), *arguments, twin[:, :4], slots, **options
    )
    found = inputs_in_triton(queries, latent, TritonHeadLinear(weight), *arguments, pages[:, :4], slots, **options)
    close(found, expected)
    assert torch.equal(pages.isnan(), twin.isnan())
    close(pages.nan_to_num(), twin.nan_to_num())


@pytest.mark.parametrize("norm_type", [torch.float32, torch.float16])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("rank", "rope_dim"), [(40, 12), (16, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_finished_vectors(
    dtype: torch.dtype,
    rank: int,
    rope_dim: int,
    is_interleaved: bool,
    norm_type: torch.dtype,
    device: torch.device,
) -> None:
    """Of a wider projection with padding; blocks lie apart, and tokens without a place are not stored."""
    latent = normal(7, rank + rope_dim + 5, dtype=dtype, device=device)[:, 3:-2]
    norm = normal(rank, dtype=norm_type, device=device, seed=1)
    rope = tables(7, rope_dim, dtype, device)
    slots = torch.tensor([5, -1, 0, 11, -1], device=device)
    pages = torch.full((3, 6, rank + rope_dim), float("nan"), dtype=dtype, device=device)
    twin = pages.clone()
    finish_latent.reference(latent, norm, 1e-6, rope, twin[:, :4], slots, is_interleaved=is_interleaved)
    finish_in_triton(latent, norm, 1e-6, rope, pages[:, :4], slots, is_interleaved=is_interleaved)
    assert torch.equal(pages.isnan(), twin.isnan())
    close(pages.nan_to_num(), twin.nan_to_num())


@pytest.mark.parametrize("are_given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_finished_vectors_in_a_quantised_cache(stored: torch.dtype, are_given: bool, device: torch.device) -> None:
    rank, rope_dim = 40, 12
    latent, norm = normal(5, rank + rope_dim, device=device), normal(rank, device=device, seed=1)
    rope = tables(5, rope_dim, torch.float32, device)
    slots = torch.tensor([5, -1, 0, 11, 6], device=device)
    caches = [torch.zeros(3, 4, rank + rope_dim, device=device).to(stored) for _ in range(2)]
    values = [torch.ones(3, 4, device=device) for _ in range(2)]
    scales = [CacheScales(value, are_given=False) for value in values]
    if are_given:
        scales = [CacheScales.given(torch.tensor([0.02], device=device), cache) for cache in caches]
    finish_latent.reference(latent, norm, 1e-6, rope, caches[0], slots, scales[0], is_interleaved=True)
    finish_in_triton(latent, norm, 1e-6, rope, caches[1], slots, scales[1], is_interleaved=True)
    torch.testing.assert_close(values[1], values[0])
    expected, found = (cache.double() for cache in caches)
    # A sum in another order may move a value across a boundary between two of the type's.
    step = 1 if stored is torch.int8 else expected.abs() / 4
    assert ((found - expected).abs() <= step).all()
    assert (found == expected).double().mean() > 0.97
