"""Per-token kernels against the formula in float64: those that run here, PyTorch's for CPUs, and the references."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import kernels
from octavo.kernels.cpu import basic
from octavo.kernels.cpu.linear import _linear as pytorch_linear

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def rms_norm_by_hand(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@settings(max_examples=30)
@given(seed=st.integers(0, 99), tokens=st.integers(0, 5), size=st.integers(1, 70), dtype=DTYPES, wide=st.booleans())
def test_rms_norm(seed: int, tokens: int, size: int, dtype: torch.dtype, wide: bool) -> None:
    x = random(seed, tokens, 2, size, dtype=dtype)
    weight = random(seed + 1, size, dtype=torch.float32 if wide else dtype)
    expected = rms_norm_by_hand(x, weight, 1e-6)
    for norm in (kernels.rms_norm, basic.rms_norm, kernels.rms_norm.reference):
        result = norm(x, weight, 1e-6)
        assert result.dtype == dtype
        close(result, expected)


@settings(max_examples=30)
@given(seed=st.integers(0, 99), tokens=st.integers(1, 5), size=st.integers(1, 70), dtype=DTYPES, wide=st.booleans())
def test_add_rms_norm(seed: int, tokens: int, size: int, dtype: torch.dtype, wide: bool) -> None:
    x, residual = random(seed, tokens, size, dtype=dtype), random(seed + 1, tokens, size, dtype=dtype)
    weight = random(seed + 2, size, dtype=torch.float32 if wide else dtype)
    total = residual + x
    for norm in (kernels.add_rms_norm, basic.add_rms_norm, kernels.add_rms_norm.reference):
        normed, new_residual = norm(x.clone(), residual.clone(), weight, 1e-6)
        assert torch.equal(new_residual, total)
        close(normed, rms_norm_by_hand(total, weight, 1e-6))


@settings(max_examples=30)
@given(seed=st.integers(0, 99), tokens=st.integers(1, 5), size=st.integers(2, 70), dtype=DTYPES, has_bias=st.booleans())
def test_layer_norm(seed: int, tokens: int, size: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, residual = random(seed, tokens, size, dtype=dtype), random(seed + 1, tokens, size, dtype=dtype)
    weight = random(seed + 2, size, dtype=dtype)
    bias = random(seed + 3, size, dtype=dtype) if has_bias else None
    total = residual + x
    wide = total.double()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    expected += 0 if bias is None else bias.double()
    normed, new_residual = kernels.add_layer_norm(x.clone(), residual.clone(), weight, bias, 1e-6)
    assert torch.equal(new_residual, total)
    close(normed, expected)
    assert torch.equal(kernels.layer_norm(total, weight, bias, 1e-6), normed)
    alone = [kernels.layer_norm(row[None].clone(), weight, bias, 1e-6) for row in total]
    assert torch.equal(torch.cat(alone), normed), "a row's bits depend on that row alone"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_activations(dtype: torch.dtype) -> None:
    x = 3 * random(0, 7, 32, dtype=dtype)
    gate, up = x[:, :16].double(), x[:, 16:].double()
    for silu, gelu in (
        (kernels.silu_and_mul, kernels.gelu_tanh_and_mul),
        (kernels.silu_and_mul.reference, kernels.gelu_tanh_and_mul.reference),
    ):
        close(silu(x), gate * gate.sigmoid() * up)
        close(gelu(x), F.gelu(gate, approximate="tanh") * up)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 99),
    tokens=st.integers(1, 5),
    heads=st.integers(1, 3),
    pairs=st.integers(1, 8),
    rest=st.integers(0, 6),
    dtype=DTYPES,
)
def test_rope_rotates_pairs_and_leaves_the_rest(
    seed: int, tokens: int, heads: int, pairs: int, rest: int, dtype: torch.dtype
) -> None:
    x = random(seed, tokens, heads, 2 * pairs + rest, dtype=dtype)
    angles = 6 * random(seed + 1, tokens, 1, pairs).double()
    cos, sin = angles.cos(), angles.sin()
    tables = torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
    real, imaginary = x[..., :pairs].double(), x[..., pairs : 2 * pairs].double()
    rotated = torch.complex(real, imaginary) * torch.complex(cos, sin)
    expected = torch.cat((rotated.real, rotated.imag, x[..., 2 * pairs :].double()), -1)
    for rope in (kernels.apply_rope, kernels.apply_rope.reference):
        before = x.clone()
        close(rope(x, *tables), expected)
        assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_a_linear_layer_multiplies_and_adds(rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    weight = random(0, 48, 64, dtype=dtype)
    bias = random(1, 48, dtype=dtype) if has_bias else None
    x = random(2, rows, 64, dtype=dtype)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for make in (kernels.linear, pytorch_linear):
        apply, _ = make(weight.clone(), bias, deterministic=False)
        result = apply(x)
        assert result.dtype == dtype
        tolerance = {"rtol": 1e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(result.double(), expected, **tolerance)


@pytest.mark.parametrize("in_features", [64, 576, 1536, 2048])
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(in_features: int) -> None:
    apply, is_packed = pytorch_linear(random(0, 256, in_features, dtype=torch.bfloat16), None, deterministic=False)
    if not is_packed or torch.cpu._is_amx_tile_supported():
        pytest.skip(
            "needs a processor with AVX512-BF16 and without AMX, whose tiles add up in another order (Zen 4 has it)"
        )
    x = random(1, 128, in_features, dtype=torch.bfloat16)
    together = apply(x)
    for count in (1, 2, 3, 4, 7, 8, 16, 33, 64):
        assert torch.equal(apply(x[:count]), together[:count])
        assert torch.equal(apply(x[-count:]), together[-count:])


def test_float32_weights_are_left_as_they_are_by_pytorch() -> None:
    _, is_copied = pytorch_linear(random(0, 4, 4), None, deterministic=False)
    assert not is_copied
