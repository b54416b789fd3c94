"""Compiled kernels around latent attention: GEMMs of heads, rotation, and the store of finished vectors."""

from types import SimpleNamespace

import pytest
import torch
from native_builds import operations_of, threads

from octavo.kernels import CacheScales, finish_latent, head_linear, rotate_heads
from octavo.kernels.cache_scales import LARGEST_VALUES, vector_scales
from octavo.kernels.cpu import native_latent_attention
from octavo.platforms.native import CACHE_NUMBERS, TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
OPERATIONS = {"head_linear": head_linear, "rotate_heads": rotate_heads, "finish_latent": finish_latent}


@pytest.fixture
def compiled(native: NativeKernels) -> SimpleNamespace:
    """This build's operations by name."""
    return operations_of(native, native_latent_attention.register, OPERATIONS)


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tables(num_tokens: int, rotary: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of some angles."""
    angles = normal(num_tokens, 1, rotary // 2, dtype=torch.float32, seed=3)
    sin = angles.sin()
    return torch.cat((angles.cos(),) * 2, -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.sample(24)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 13, 97, 130])
@pytest.mark.parametrize(
    ("num_heads", "outputs", "inputs"), [(1, 1, 1), (3, 20, 7), (16, 64, 48), (2, 512, 128), (5, 33, 96)]
)
@pytest.mark.parametrize("dtype", TYPES)
def test_gemms_of_heads(
    compiled: SimpleNamespace, dtype: torch.dtype, num_heads: int, outputs: int, inputs: int, num_rows: int
) -> None:
    """Vectors are parts of wider heads on both sides, and what lies between them stays."""
    weight = normal(num_heads, inputs, outputs, dtype=dtype).transpose(1, 2) * inputs**-0.5
    x = normal(num_rows, num_heads, inputs + 3, dtype=dtype, seed=1)[..., 2:-1]
    whole = torch.full((num_rows, num_heads, outputs + 5), 7.0, dtype=dtype)
    gemm = compiled.head_linear(weight)
    for count in (1, 3):
        with threads(compiled.native, count):
            gemm(x, whole[..., 1:-4])
        expected = torch.einsum("thi,hoi->tho", x.double(), weight.double())
        close(whole[..., 1:-4], expected)
    assert (whole[..., :1] == 7).all() and (whole[..., -4:] == 7).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_of_heads_has_the_same_bits_among_others(compiled: SimpleNamespace, dtype: torch.dtype) -> None:
    weight, x = normal(4, 80, 64, dtype=dtype), normal(131, 4, 64, dtype=dtype, seed=1)
    gemm = compiled.head_linear(weight)
    together = gemm(x, x.new_empty(131, 4, 80))
    for first, last in ((0, 1), (17, 18), (130, 131), (3, 7), (90, 131), (0, 20)):
        for count in (1, 4):
            with threads(compiled.native, count):
                alone = gemm(x[first:last], x.new_empty(last - first, 4, 80))
            assert torch.equal(alone, together[first:last])


def test_a_replay_follows_new_weights(compiled: SimpleNamespace) -> None:
    weight, x = normal(2, 32, 16, dtype=torch.bfloat16), normal(3, 2, 16, dtype=torch.bfloat16, seed=1)
    gemm, y = compiled.head_linear(weight), x.new_empty(3, 2, 32)
    compiled.native.start_tape([])
    gemm(x, y)
    tape = compiled.native.end_tape()
    gemm.update(weight * 2)
    before = y.clone()
    compiled.native.replay(tape)
    assert torch.equal(y, before * 2)


@pytest.mark.sample(16)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("num_heads", "head_dim", "rotary"), [(1, 2, 2), (3, 24, 8), (4, 128, 64), (2, 70, 70)])
@pytest.mark.parametrize("dtype", TYPES)
def test_rotation(
    compiled: SimpleNamespace,
    dtype: torch.dtype,
    num_heads: int,
    head_dim: int,
    rotary: int,
    *,
    is_interleaved: bool,
    is_last: bool,
) -> None:
    x = normal(9, num_heads, head_dim + 2, dtype=dtype)[..., 1:-1]
    cos, sin = tables(9, rotary, dtype)
    options = {"is_interleaved": is_interleaved, "is_last": is_last}
    expected = rotate_heads.reference(x.float(), cos.float(), sin.float(), **options)
    close(rotate_heads.reference(x, cos, sin, **options), expected)
    close(compiled.rotate_heads(x, cos, sin, **options), expected)
    whole = torch.full((9, num_heads, head_dim + 4), 7.0, dtype=dtype)
    assert compiled.rotate_heads(x, cos, sin, whole[..., 3:-1], **options) is not None
    close(whole[..., 3:-1], expected)
    assert (whole[..., :3] == 7).all() and (whole[..., -1] == 7).all()


@pytest.mark.sample(16)
@pytest.mark.parametrize("is_wide", [False, True], ids=["own type", "float32 norm"])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("rank", "rope_dim"), [(1, 2), (20, 6), (64, 32), (512, 64)])
@pytest.mark.parametrize("dtype", TYPES)
def test_finished_vectors_are_stored(
    compiled: SimpleNamespace, dtype: torch.dtype, rank: int, rope_dim: int, *, is_interleaved: bool, is_wide: bool
) -> None:
    latent = normal(11, rank + rope_dim + 5, dtype=dtype)[:, : rank + rope_dim]
    norm = normal(rank, dtype=torch.float32 if is_wide else dtype, seed=2)
    rope = tables(11, rope_dim, dtype)
    slots = torch.tensor([3, 40, 7, -1, 0, 12, 63, 62, 8])  # the last two rows are padding
    cache = torch.full((4, 17, rank + rope_dim), 7.0, dtype=dtype)[:, :16]
    compiled.finish_latent(latent, norm, 1e-6, rope, cache, slots, is_interleaved=is_interleaved)
    wide = torch.full(cache.shape, 7.0)
    wide_rope = rope[0].float(), rope[1].float()
    finish_latent.reference(latent.float(), norm.float(), 1e-6, wide_rope, wide, slots, is_interleaved=is_interleaved)
    close(cache, wide)
    twin = torch.full(cache.shape, 7.0, dtype=dtype)
    finish_latent.reference(latent, norm, 1e-6, rope, twin, slots, is_interleaved=is_interleaved)
    close(twin, wide)
    for first, last in ((0, 1), (4, 9)):  # a token's vector has the same bits among others
        again = cache.clone().fill_(5.0)
        own = rope[0][first:last], rope[1][first:last]
        compiled.finish_latent(
            latent[first:last], norm, 1e-6, own, again, slots[first:last], is_interleaved=is_interleaved
        )
        places = slots[first:last]
        assert torch.equal(again.flatten(0, 1)[places], cache.flatten(0, 1)[places])


@pytest.mark.parametrize("are_given", [False, True], ids=["own scales", "given scales"])
@pytest.mark.parametrize("stored", list(CACHE_NUMBERS))
@pytest.mark.parametrize("dtype", TYPES)
def test_finished_vectors_are_rounded(
    compiled: SimpleNamespace, dtype: torch.dtype, stored: torch.dtype, *, are_given: bool
) -> None:
    """What is stored of a finished vector is what is stored of the same vector as it is."""
    latent, norm, rope = normal(7, 24, dtype=dtype), normal(16, dtype=dtype, seed=2), tables(7, 8, dtype)
    slots = torch.tensor([5, 0, 9, 2, 15, 8, 1])
    plain, cache = torch.zeros(2, 8, 24, dtype=dtype), torch.zeros(2, 8, 24).to(stored)
    compiled.finish_latent(latent, norm, 1e-6, rope, plain, slots, is_interleaved=True)
    scales = CacheScales.given(torch.tensor([2 / LARGEST_VALUES[stored]]), cache)
    if not are_given:
        scales = CacheScales(torch.zeros(2, 8), are_given=False)
    compiled.finish_latent(latent, norm, 1e-6, rope, cache, slots, scales, is_interleaved=True)
    index = slots // 8, slots % 8
    if not are_given:
        assert torch.equal(scales.values[index], vector_scales(plain[index], stored))
    twin = torch.zeros(2, 8, 24).to(stored)
    twin[index] = CacheScales(scales.values.clone(), are_given).put(index, plain[index], stored)
    assert torch.equal(cache.view(torch.int8), twin.view(torch.int8))


def test_types_that_the_kernels_lack_run_as_the_reference(compiled: SimpleNamespace) -> None:
    x, rope = normal(5, 2, 12, dtype=torch.float64), tables(5, 12, torch.float64)
    assert torch.equal(compiled.rotate_heads(x, *rope), rotate_heads.reference(x, *rope))
    weight = normal(2, 3, 12, dtype=torch.float64)
    gemm = compiled.head_linear(weight)
    assert not gemm.is_copy
    close(gemm(x, x.new_empty(5, 2, 3)).float(), torch.einsum("thi,hoi->tho", x, weight))
