"""Rounding rows to 8 bits, and GEMMs of such values, in Triton against their plain twins."""

import pytest
import torch

from octavo.kernels import DeferredNorm, rms_norm, scaled
from octavo.kernels.scaled import FLOAT8, INT8
from octavo.kernels.triton import quantize
from octavo.kernels.triton import scaled as triton_scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 16), (5, 100), (3, 1), (2, 8192), (2, 9000), (2, 17000), (0, 8)])
@pytest.mark.parametrize("kind", [FLOAT8, INT8], ids=str)
def test_rows_are_rounded_as_the_twin_does(
    kind: torch.dtype, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = (x * torch.logspace(-6, 3, shape[0])[:, None]).to(device, dtype)
    values, scales = quantize.quantize_rows(x, kind)
    expected, expected_scales = scaled.quantize_rows.reference(x, kind)
    assert values.dtype is kind
    assert torch.equal(scales, expected_scales)
    assert torch.equal(values.float(), expected.float())


def test_every_magnitude_is_rounded_to_nearest_even(device: torch.device) -> None:
    """Halfway values between two neighbours of float8, subnormal ones included."""
    grid = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    x = torch.cat((grid, (grid[1:] + grid[:-1]) / 2, grid * 1.01)).clamp(max=448)[None].to(device)
    x = torch.cat((x, -x), 1)
    values, scales = quantize.quantize_rows(x)
    assert scales.item() == 1
    assert torch.equal(values.float(), scaled.quantize_rows.reference(x)[0].float())


def test_zeros_and_strides(device: torch.device) -> None:
    wide = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(device)
    wide[2] = 0
    for x in (wide[:, 8:40], wide.T):
        values, scales = quantize.quantize_rows(x)
        expected, expected_scales = scaled.quantize_rows.reference(x)
        assert torch.equal(scales, expected_scales)
        assert torch.equal(values.float(), expected.float())
    assert not quantize.quantize_rows(torch.zeros(1, 8, device=device))[0].float().any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [FLOAT8, INT8], ids=str)
def test_what_is_no_number_stays_in_its_row(kind: torch.dtype, bad: float, device: torch.device) -> None:
    x = torch.ones(3, 32, device=device)
    x[1, 5] = bad
    for apply in (quantize.quantize_rows, scaled.quantize_rows.reference):
        values, scales = apply(x, kind)
        y = (values.float() * scales).sum(1)
        assert y.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
@pytest.mark.parametrize("shape", [(5, 100), (1, 1024), (3, 1), (0, 8)])
@pytest.mark.parametrize("has_residual", [False, True])
def test_normed_rows_are_rounded_as_the_twins_do(
    has_residual: bool,
    shape: tuple[int, int],
    weight_dtype: torch.dtype | None,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape[0], shape[1] + 3, generator=generator).to(device, dtype)[:, :-3] for _ in "xr")
    weight = (1 + torch.randn(shape[1], generator=generator) / 4).to(device, weight_dtype or dtype)
    total = x + residual if has_residual else x.clone()
    norm = DeferredNorm(x, residual if has_residual else None, weight, 1e-6)
    values, scales = quantize.quantize_normed(norm)
    assert norm.total.data_ptr() == (residual if has_residual else x).data_ptr()
    assert torch.equal(norm.total, total)
    normed = rms_norm.reference(total, weight, 1e-6)
    expected, expected_scales = scaled.quantize_rows.reference(normed)
    # Sums of squares are added up in another order, which may move a value to the next of its type.
    torch.testing.assert_close(scales, expected_scales, rtol=2 * torch.finfo(dtype).eps, atol=0)
    torch.testing.assert_close(values.float() * scales, expected.float() * expected_scales, rtol=0.13, atol=1e-2)
    is_same = (values.float() == expected.float()).float()
    assert not shape[0] or is_same.mean() > 0.95


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 384), (4, 1024), (1, 128), (0, 256)])
@pytest.mark.parametrize("has_residual", [False, True])
def test_normed_rows_are_rounded_by_groups(
    has_residual: bool, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    num_rows, size = shape
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape, generator=generator).to(device, dtype) for _ in "xr")
    weight = (1 + torch.randn(size, generator=generator) / 4).to(device, dtype)
    total = x + residual if has_residual else x.clone()
    norm = DeferredNorm(x, residual if has_residual else None, weight, 1e-6)
    values, scales = quantize.quantize_normed(norm, 128)
    assert torch.equal(norm.total, total)
    expected, expected_scales = quantize.quantize_groups(rms_norm.reference(total, weight, 1e-6), 128, by_group=True)
    assert values.shape == expected.shape and scales.shape == expected_scales.shape
    assert scales.stride() == expected_scales.stride()
    values, scales, expected, expected_scales = (
        tensor[:num_rows] for tensor in (values, scales, expected, expected_scales)
    )
    torch.testing.assert_close(scales, expected_scales, rtol=2 * torch.finfo(dtype).eps, atol=0)
    is_same = (values.float() == expected.float()).float()
    assert not num_rows or is_same.mean() > 0.95


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_normed_row_that_is_no_number_stays_alone(bad: float, device: torch.device) -> None:
    x = torch.ones(3, 32, device=device, dtype=torch.bfloat16)
    x[1, 5] = bad
    norm = DeferredNorm(x, None, torch.ones(32, device=device, dtype=torch.bfloat16), 1e-6)
    values, scales = quantize.quantize_normed(norm)
    assert (values.float() * scales).sum(1).isnan().tolist() == [False, True, False]


def _has_row_scales(device: torch.device) -> bool:
    """Whether torch's GEMM on this device takes a scale per row; on CPUs not every version's does."""
    values = torch.zeros(16, 16, device=device).to(torch.float8_e4m3fn)
    scales = torch.ones(16, 1, device=device)
    try:
        torch._scaled_mm(values, values.T, scales, scales.T, out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_gemm_is_that_of_its_twin(has_bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    if not _has_row_scales(device):
        pytest.skip("this torch's float8 GEMM takes no scale per row on this device; torch 2.13 runs it on a CPU")
    generator = torch.Generator().manual_seed(0)
    weight, scales = scaled.quantize_rows.reference(torch.randn(32, 48, generator=generator).to(device))
    bias = torch.randn(32, generator=generator).to(device, dtype) if has_bias else None
    # More rows than the 8 that a GPU multiplies as they are.
    x = torch.randn(2, 10, 48, generator=generator).to(device, dtype)
    op, is_copied = triton_scaled.float8_linear(weight, scales[:, 0], bias, deterministic=False)
    wide = weight.to(torch.float32 if dtype is torch.float16 else dtype)
    twin, _ = scaled.float8_linear.reference(wide, scales[:, 0], bias, deterministic=False)
    assert not is_copied
    # Tensor cores add up products of float8 values in fewer bits than float32 has.
    wide_tolerance = 5e-4 if device.type == "cuda" else 1e-5
    tolerance = {torch.float32: wide_tolerance, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    y = op(x)
    assert y.shape == (2, 10, 32) and y.dtype is dtype
    torch.testing.assert_close(y, twin(x), rtol=tolerance, atol=tolerance * y.abs().max().item())
    gated = op.gated(x[0], "silu")
    torch.testing.assert_close(
        gated, twin.gated(x[0], "silu"), rtol=tolerance, atol=tolerance * y.abs().max().item() ** 2
    )


def test_halves_of_integers_are_rounded_to_even(device: torch.device) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 125.5]], device=device)
    values, scales = quantize.quantize_rows(x, INT8)
    assert scales.item() == 1
    assert values.tolist() == [[127, 0, 2, 2, 0, -2, 126, 126]]


def int8_case(
    device: torch.device,
    num_outputs: int,
    num_inputs: int,
    *,
    dtype: torch.dtype = torch.float32,
    has_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A weight, its scales and a bias."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-128, 128, (num_outputs, num_inputs), generator=generator, dtype=torch.int8)
    scales = (1 + torch.rand(num_outputs, generator=generator)) / 128 / num_inputs**0.5
    bias = torch.randn(num_outputs, generator=generator).to(device, dtype) if has_bias else None
    return weight.to(device), scales.to(device), bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "num_inputs", "has_bias"), [(1, 1536, False), (20, 200, True), (70, 256, True)])
def test_int8_products(
    num_rows: int, num_inputs: int, has_bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """Sums are exact, so that only the scaling can differ from the twin's; the second is added up in parts."""
    weight, scales, bias = int8_case(device, 136, num_inputs, dtype=dtype, has_bias=has_bias)
    x = torch.randn(2, num_rows, num_inputs, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    op, is_copied = triton_scaled.int8_linear(weight, scales, bias)
    twin, _ = scaled.int8_linear.reference(weight, scales, bias)
    assert not is_copied
    tolerance = 1e-6 if dtype is torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(op(x), twin(x), rtol=tolerance, atol=tolerance)
    gated = twin.gated(x[0], "silu")
    atol = 4 * tolerance * gated.abs().max().item()
    torch.testing.assert_close(op.gated(x[0], "silu"), gated, rtol=4 * tolerance, atol=atol)
    assert op(x[:, :0]).shape == (2, 0, 136)


@pytest.mark.parametrize("is_twin", [False, True])
def test_int8_sums_are_exact_and_a_rows_bits_its_own(is_twin: bool, device: torch.device) -> None:
    """The largest sums exceed what float32 holds exactly: 3,000 products of 127 and -128."""
    weight, scales, _ = int8_case(device, 40, 3000)
    weight[3], scales[:] = -128, 1
    x = torch.randn(70, 3000, generator=torch.Generator().manual_seed(1)).to(device)
    x[5] = 1
    make = scaled.int8_linear.reference if is_twin else triton_scaled.int8_linear
    op, _ = make(weight, scales, None)
    values, row_scales = scaled.quantize_rows.reference(x, INT8)
    sums = values.cpu().long() @ weight.cpu().long().T
    assert sums[5, 3] == -3000 * 127 * 128
    assert torch.equal(op(x).cpu(), sums.float() * row_scales.cpu())
    assert torch.equal(op(x)[5:6], op(x[5:6]))
