"""Norms of a few rows inside the GEMM that reads them.

The kernel is written for tensor cores thread by thread, which Triton's interpreter does not know: a GPU runs it.
"""

import pytest
import torch
from product_case import random

from octavo.kernels import basic
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import GATES
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import norm as triton_norm
from octavo.kernels.triton import scaled as triton_scaled
from octavo.kernels.triton.linear import SmallBatchLinear, defers_norms
from octavo.kernels.triton.linear_normed_rows import MAX_FEATURES, MAX_ROWS, norms_rows
from octavo.kernels.triton.linear_stream import MAX_FLOAT8_ROWS
from octavo.kernels.triton.scaled import Float8Linear

needs_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs an H100 or H200"
)
EPS = 1e-6


def rows_of_stream(device: torch.device, num_rows: int, num_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's output and the stream, whose sums must be rounded."""
    x, residual = random(device, 1, 2, num_rows, num_features, dtype=torch.bfloat16)
    return x, 3 * residual


def norm_weight(device: torch.device, num_features: int, dtype: torch.dtype) -> torch.Tensor:
    return (1 + random(device, 3, num_features, dtype=torch.float32) / 4).to(dtype)


@needs_kernel
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("num_features", [64, 392, 640, 896, 1024])
@pytest.mark.parametrize("scale_type", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_rows", [2, 5, 8])
def test_products_of_normed_rows(
    device: torch.device,
    has_residual: bool,
    activation: str,
    num_features: int,
    scale_type: torch.dtype,
    num_rows: int,
) -> None:
    x, residual = rows_of_stream(device, num_rows, num_features)
    weight = random(device, 2, 144, num_features, dtype=torch.bfloat16) / num_features**0.5
    bias = random(device, 4, 144, dtype=torch.bfloat16)
    scale = norm_weight(device, num_features, scale_type)
    norm = DeferredNorm(x, residual.clone() if has_residual else None, scale, EPS)
    out = SmallBatchLinear(weight, bias).normed(norm, activation)
    assert out is not None and not norm.is_computed
    total = x.double() + residual.double() if has_residual else x.double()
    normed = basic.rms_norm.reference(total.to(torch.bfloat16).double(), scale.double(), EPS)
    expected = normed @ weight.double().T + bias.double()
    expected = expected if activation == "none" else GATES[activation](expected)
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=2e-2)


@needs_kernel
@pytest.mark.parametrize("num_features", [392, 1024])
def test_the_sum_has_the_bits_of_the_norms_own_kernel(device: torch.device, num_features: int) -> None:
    x, residual = rows_of_stream(device, MAX_ROWS, num_features)
    scale = norm_weight(device, num_features, torch.bfloat16)
    weight = random(device, 2, 64, num_features, dtype=torch.bfloat16)
    norm = DeferredNorm(x, residual.clone(), scale, EPS)
    assert SmallBatchLinear(weight, None).normed(norm) is not None
    _, total = triton_norm.add_rms_norm(x, residual.clone(), scale, EPS)
    assert torch.equal(norm.total, total)
    # What a second layer reads, or code that wants the rows themselves.
    torch.testing.assert_close(norm.rows(), triton_norm.rms_norm(total, scale, EPS))


@needs_kernel
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_bits_of_a_row_do_not_depend_on_the_others(device: torch.device, activation: str) -> None:
    """A captured step may have more rows than it needs."""
    x, residual = rows_of_stream(device, MAX_ROWS, 1024)
    scale, weight = norm_weight(device, 1024, torch.bfloat16), random(device, 2, 256, 1024, dtype=torch.bfloat16)
    gemm = SmallBatchLinear(weight, None)
    together = gemm.normed(DeferredNorm(x, residual, scale, EPS), activation)
    assert together is not None
    for num_rows in range(2, MAX_ROWS):
        fewer = gemm.normed(DeferredNorm(x[:num_rows], residual[:num_rows], scale, EPS), activation)
        assert fewer is not None and torch.equal(fewer, together[:num_rows])


@needs_kernel
def test_rows_apart(device: torch.device) -> None:
    """Compressed queries are columns of a wider product."""
    wide = random(device, 1, 6, 400, dtype=torch.bfloat16)
    weight = random(device, 2, 40, 200, dtype=torch.bfloat16) / 200**0.5
    scale = norm_weight(device, 200, torch.bfloat16)
    out = SmallBatchLinear(weight, None).normed(DeferredNorm(wide[:, :200], None, scale, EPS))
    assert out is not None
    expected = basic.rms_norm.reference(wide[:, :200].double(), scale.double(), EPS) @ weight.double().T
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2, MAX_FEATURES), torch.bfloat16, True),
        ((MAX_ROWS, 64), torch.bfloat16, True),
        ((1, 64), torch.bfloat16, False),  # another kernel's
        ((MAX_ROWS + 1, 64), torch.bfloat16, False),
        ((2, MAX_FEATURES + 8), torch.bfloat16, False),
        ((2, 60), torch.bfloat16, False),
        ((2, 64), torch.float16, False),
        ((2, 64), torch.float32, False),
        ((2, 2, 64), torch.bfloat16, False),
    ],
)
def test_which_rows_it_norms(shape: tuple[int, ...], dtype: torch.dtype, expected: bool) -> None:
    assert norms_rows(shape, dtype) == expected


@needs_kernel
def test_norms_are_deferred_by_their_rows(device: torch.device) -> None:
    rows = torch.empty(16, MAX_FEATURES, dtype=torch.bfloat16, device=device)
    rounded = list(range(MAX_FLOAT8_ROWS + 1, 17))  # those that a float8 layer rounds
    assert [n for n in range(17) if defers_norms(device, rows[:n])] == [*range(1, MAX_ROWS + 1), *rounded]
    wide = torch.empty(16, 2 * MAX_FEATURES, dtype=torch.bfloat16, device=device)
    assert [n for n in range(17) if defers_norms(device, wide[:n])] == [1, *rounded]


@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_deterministic_layer_leaves_norms_to_their_kernel(device: torch.device, num_rows: int) -> None:
    """Whose sums have one order for any number of rows."""
    x, residual = rows_of_stream(device, num_rows, 64)
    norm = DeferredNorm(x, residual, norm_weight(device, 64, torch.bfloat16), EPS)
    gemm = SmallBatchLinear(random(device, 2, 32, 64, dtype=torch.bfloat16), None, deterministic=True)
    assert gemm.normed(norm) is None and norm.residual is not None


def test_a_float8_layer_leaves_norms_of_a_few_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels norm one, and round those of many."""
    rows, scale = random(device, 1, 9, 64, dtype=torch.bfloat16), norm_weight(device, 64, torch.bfloat16)
    weight, scales = torch.empty(32, 64, device=device).to(FLOAT8), torch.ones(32, device=device)
    monkeypatch.setattr(triton_scaled, "is_hopper", lambda device: True)
    monkeypatch.setattr(Float8Linear, "_stream", lambda self, x, *_: x)
    monkeypatch.setattr(Float8Linear, "_multiply_rounded", lambda self, values, *_: values)
    gemm = Float8Linear(weight, scales, None, deterministic=False)
    assert gemm.normed(DeferredNorm(rows[:1], None, scale, EPS)) is not None
    for num_rows in (2, MAX_FLOAT8_ROWS):
        assert gemm.normed(DeferredNorm(rows[:num_rows], None, scale, EPS)) is None
    many = DeferredNorm(rows, None, scale, EPS)
    values = gemm.normed(many)
    assert values is not None and values.dtype is FLOAT8
    many.rows()
    assert gemm.normed(many) is None, "they are there"
    for other in (many, DeferredNorm(rows, None, scale, EPS)):
        assert Float8Linear(weight, scales, None, deterministic=True).normed(other) is None
