"""Compiled attention of encoders, against the PyTorch reference."""

import numpy as np
import pytest
import torch
from native_builds import threads

from octavo.kernels import AttentionSpec, HeadNorms
from octavo.kernels.cpu import native_packed_attention
from octavo.kernels.packed_attention import PackedPlan, packed_attention
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

CPU = torch.device("cpu")
TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
LENGTHS = [1, 70, 5, 48, 16, 131, 49]


@pytest.fixture
def native(native: NativeKernels) -> NativeKernels:
    """This build, used in place of the one that was chosen."""
    native_packed_attention.register(native)
    return native


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_qkv(spec: AttentionSpec, num_tokens: int, dtype: torch.dtype) -> torch.Tensor:
    return random(1, num_tokens, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim).to(dtype)


@pytest.mark.parametrize("window", [None, 1, 20, 200])
@pytest.mark.parametrize("spec", [(12, 12, 32), (3, 1, 64), (4, 2, 80), (2, 2, 20), (2, 1, 7)])
@pytest.mark.parametrize("dtype", TYPES)
def test_attention(native: NativeKernels, dtype: torch.dtype, spec: tuple[int, int, int], window: int | None) -> None:
    layer = AttentionSpec(*spec, spec[2] ** -0.5)
    plan = PackedPlan(np.array(LENGTHS), CPU)
    qkv = make_qkv(layer, plan.num_tokens + 3, dtype)
    expected = packed_attention.reference(qkv.float(), plan, layer, window)
    found = packed_attention(qkv, plan, layer, window)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=TOLERANCE[dtype])
    assert not found[plan.num_tokens :].any()


@pytest.mark.parametrize("dtype", TYPES)
def test_rotation_norms_and_caps(native: NativeKernels, dtype: torch.dtype) -> None:
    spec = AttentionSpec(4, 2, 32, 0.3, softcap=2.0)
    plan = PackedPlan(np.array(LENGTHS), CPU)
    for rotary in (16, 32):
        angles = 3 * random(2, plan.num_tokens, 1, rotary // 2)
        cos, sin = angles.cos(), angles.sin()
        rope = torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
        norms = HeadNorms(random(3, 32).to(dtype), random(4, 32).to(dtype), 1e-6)
        qkv = make_qkv(spec, plan.num_tokens, dtype)
        wide = rope[0].float(), rope[1].float()
        wide_norms = HeadNorms(norms.query.float(), norms.key.float(), norms.eps)
        expected = packed_attention.reference(qkv.float(), plan, spec, 40, wide, wide_norms)
        found = packed_attention(qkv, plan, spec, 40, rope, norms)
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_sequences_bits_depend_on_nothing_else(native: NativeKernels, dtype: torch.dtype, window: int | None) -> None:
    spec = AttentionSpec(4, 2, 32, 0.2)
    plan = PackedPlan(np.array(LENGTHS), CPU)
    qkv = make_qkv(spec, plan.num_tokens, dtype)
    together = packed_attention(qkv, plan, spec, window)
    for num_threads in (1, 3):
        with threads(native, num_threads):
            for part, of_all in zip(qkv.split(LENGTHS), together.split(LENGTHS), strict=True):
                assert torch.equal(packed_attention(part, PackedPlan(np.array([len(part)]), CPU), spec, window), of_all)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_nan_stays_in_its_sequence(native: NativeKernels, dtype: torch.dtype) -> None:
    spec = AttentionSpec(2, 2, 16, 0.2)
    plan = PackedPlan(np.array(LENGTHS), CPU)
    qkv = make_qkv(spec, plan.num_tokens, dtype)
    qkv[3] = torch.nan
    is_nan = packed_attention(qkv, plan, spec).isnan().any(-1)
    assert is_nan[1:71].all()
    assert not is_nan[0]
    assert not is_nan[71:].any()
