"""Rounding rows to float8 in Triton against its plain twin."""

import pytest
import torch

from octavo.kernels import float8
from octavo.kernels.triton import float8 as triton_float8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 16), (5, 100), (3, 1), (2, 8192), (2, 9000), (0, 8)])
def test_rows_are_rounded_as_the_twin_does(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = (x * torch.logspace(-6, 3, shape[0])[:, None]).to(device, dtype)
    values, scales = triton_float8.quantize_rows(x)
    expected, expected_scales = float8.quantize_rows.reference(x)
    assert values.dtype is torch.float8_e4m3fn
    assert torch.equal(scales, expected_scales)
    assert torch.equal(values.float(), expected.float())


def test_every_magnitude_is_rounded_to_nearest_even(device: torch.device) -> None:
    """Halfway values between two neighbours of float8, subnormal ones included."""
    grid = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    x = torch.cat((grid, (grid[1:] + grid[:-1]) / 2, grid * 1.01)).clamp(max=448)[None].to(device)
    x = torch.cat((x, -x), 1)
    values, scales = triton_float8.quantize_rows(x)
    assert scales.item() == 1
    assert torch.equal(values.float(), float8.quantize_rows.reference(x)[0].float())


def test_zeros_and_strides(device: torch.device) -> None:
    wide = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(device)
    wide[2] = 0
    for x in (wide[:, 8:40], wide.T):
        values, scales = triton_float8.quantize_rows(x)
        expected, expected_scales = float8.quantize_rows.reference(x)
        assert torch.equal(scales, expected_scales)
        assert torch.equal(values.float(), expected.float())
    assert not triton_float8.quantize_rows(torch.zeros(1, 8, device=device))[0].float().any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(bad: float, device: torch.device) -> None:
    x = torch.ones(3, 32, device=device)
    x[1, 5] = bad
    for quantize in (triton_float8.quantize_rows, float8.quantize_rows.reference):
        values, scales = quantize(x)
        y = (values.float() * scales).sum(1)
        assert y.isnan().tolist() == [False, True, False]


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
    weight, scales = float8.quantize_rows.reference(torch.randn(32, 48, generator=generator).to(device))
    bias = torch.randn(32, generator=generator).to(device, dtype) if has_bias else None
    x = torch.randn(2, 5, 48, generator=generator).to(device, dtype)
    op, is_copied = triton_float8.float8_linear(weight, scales[:, 0], bias, deterministic=False)
    wide = weight.to(torch.float32 if dtype is torch.float16 else dtype)
    twin, _ = float8.float8_linear.reference(wide, scales[:, 0], bias, deterministic=False)
    assert not is_copied
    # Tensor cores add up products of float8 values in fewer bits than float32 has.
    wide_tolerance = 5e-4 if device.type == "cuda" else 1e-5
    tolerance = {torch.float32: wide_tolerance, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    y = op(x)
    assert y.shape == (2, 5, 32) and y.dtype is dtype
    torch.testing.assert_close(y, twin(x), rtol=tolerance, atol=tolerance * y.abs().max().item())
    gated = op.gated(x[0], "silu")
    torch.testing.assert_close(
        gated, twin.gated(x[0], "silu"), rtol=tolerance, atol=tolerance * y.abs().max().item() ** 2
    )
