"""GEMMs with weights of integers in groups, against the values that GGUF's own library says they have."""

import pytest
import torch
from block_rows import dequantised, random_rows

from octavo.kernels.blocks import FORMATS, LANES, round_inputs
from octavo.kernels.cpu.native_blocks import NativeBlocks
from octavo.kernels.grouped import dequantize, round_weight
from octavo.platforms.native import BLOCK_NUMBERS, NativeKernels
from octavo.quantization.blocks import MADE_AT_LOAD

FILE_TYPES = [name for name in FORMATS if name not in MADE_AT_LOAD]


@pytest.mark.parametrize("name", FORMATS)
def test_sizes(native: NativeKernels, name: str) -> None:
    for num_inputs in (256, 1024):
        assert native.packed_bytes(BLOCK_NUMBERS[name], 33, num_inputs) == 3 * FORMATS[name].panel_bytes(num_inputs)


@pytest.mark.parametrize("name", FILE_TYPES)
def test_a_files_values_stay(native: NativeKernels, name: str) -> None:
    rows = random_rows(name, 37, 512)
    packed = NativeBlocks(native).pack(rows, name, 512)
    gemm = NativeBlocks(native).linear(packed, name, (37, 512), None, torch.float32)
    torch.testing.assert_close(gemm.rows(torch.arange(37)), dequantised(name, rows), rtol=1e-6, atol=1e-9)
    assert packed.nbytes * 37 <= 1.03 * rows.nbytes * -(-37 // LANES) * LANES, "no larger than in the file"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMATS)
def test_products(native: NativeKernels, name: str, dtype: torch.dtype) -> None:
    blocks = NativeBlocks(native)
    if name in MADE_AT_LOAD:
        weight = torch.randn(50, 256, generator=torch.Generator().manual_seed(0))
        packed = blocks.quantize(weight, name)
    else:
        packed = blocks.pack(random_rows(name, 50, 256), name, 256)
    bias = torch.randn(50, generator=torch.Generator().manual_seed(1)).to(dtype)
    gemm = blocks.linear(packed, name, (50, 256), bias, torch.float32)
    weight = gemm.rows(torch.arange(50)).double()
    x = torch.randn(21, 256, generator=torch.Generator().manual_seed(2)).to(dtype)
    x[::3, 40] *= 30  # large values, whose groups are rounded to finer steps in those rows
    x[::4, 200] = 20
    y = gemm(x)
    tolerance = 1e-3 if dtype is torch.float32 else 2e-2
    expected = round_inputs(x).double() @ weight.T + bias.double()
    # A value halfway between two codes may be rounded either way, hence the tolerance even in float32.
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    assert torch.equal(y, torch.cat([gemm(x[row : row + 1]) for row in range(21)])), "bits depend on no other row"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [32, 512])
def test_four_bit_codes_with_scales_of_groups_or_outputs(native: NativeKernels, group: int, dtype: torch.dtype) -> None:
    """vLLM's W4A8 on Arm: inputs of all types, against the product with the dequantised weight."""
    random = torch.Generator().manual_seed(0)
    codes = torch.randint(-8, 8, (50, 512), generator=random)
    scales = torch.rand(50, 512 // group, generator=random).half() + 0.1
    weight = codes * scales.float().repeat_interleave(group, 1)
    scales = scales.repeat_interleave(group // 32, 1)
    halves = (codes + 8).view(50, 16, 2, 16).to(torch.uint8)
    nibbles = halves[:, :, 0] | halves[:, :, 1] << 4
    numbers = torch.stack((scales, -8 * scales), -1).view(torch.uint8)
    packed = NativeBlocks(native).pack(torch.cat((numbers, nibbles), -1).flatten(1), "Q4_1", 512)
    gemm = NativeBlocks(native).linear(packed, "Q4_1", (50, 512), None, torch.float32)
    assert torch.equal(gemm.rows(torch.arange(50)), weight)
    x = torch.randn(9, 512, generator=random).to(dtype)
    y, expected = gemm(x), x.double() @ weight.double().T
    assert y.dtype == dtype
    assert (y - expected).square().mean() < 1e-4 * expected.square().mean()


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "int8"])
def test_infinities_and_nans_stay_in_their_row(native: NativeKernels, name: str) -> None:
    blocks = NativeBlocks(native)
    packed = (
        blocks.quantize(torch.ones(16, 256), name)
        if name == "int8"
        else blocks.pack(random_rows(name, 16, 256), name, 256)
    )
    gemm = blocks.linear(packed, name, (16, 256), None, torch.float32)
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    alone = gemm(x)
    x[1, 7], x[2, 100] = float("nan"), float("inf")
    y = gemm(x)
    assert y[1].isnan().all() and not y[2].isfinite().any()
    assert torch.equal(y[[0, 3]], alone[[0, 3]])


@pytest.mark.parametrize(("name", "steps", "share"), [("int8", 254, 1.05), ("int4", 15, 0.8)])
def test_errors_of_gaussian_weights_with_outliers(native: NativeKernels, name: str, steps: int, share: float) -> None:
    """Squares of errors beside those of evenly spaced values over each group's range; some weights are large."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 512, generator=random)
    weight[torch.rand(64, 512, generator=random) < 1 / 256] *= 8
    packed = NativeBlocks(native).quantize(weight, name)
    found = NativeBlocks(native).linear(packed, name, (64, 512), None, torch.float32).rows(torch.arange(64))
    groups = weight.view(64, -1, 32)
    largest = 2 * groups.abs().amax(-1) if name == "int8" else groups.amax(-1) - groups.amin(-1)
    expected = (largest / steps).square().mean() / 12
    assert (found - weight).square().mean() < share * expected


def test_sixteen_steps_stay_as_they_are(native: NativeKernels) -> None:
    """What another quantiser made of groups of 32, with all codes and a minimum of its own, is not rounded again."""
    codes = torch.arange(16.0).repeat(16, 4)[:, torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    codes[:, ::32], codes[:, 1::32] = 0, 15
    weight = (codes - torch.linspace(-1, 16, 16)[:, None].half().float()) * 2.0 ** torch.arange(-8, 8)[:, None]
    blocks = NativeBlocks(native)
    gemm = blocks.linear(blocks.quantize(weight, "int4"), "int4", (16, 64), None, torch.float32)
    torch.testing.assert_close(gemm.rows(torch.arange(16)), weight, rtol=2e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_4_bit_floats_made_at_load(native: NativeKernels, dtype: torch.dtype) -> None:
    """All sizes of groups, values half way between two codes, and scales at the ends of the exponents."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 96, generator=random) * torch.exp2(torch.randint(-30, 30, (40, 1), generator=random))
    weight[0] = torch.arange(96) % 32 * 0.25
    weight[1], weight[2] = -weight[0], 2.0**-126 * weight[0]
    weight[3, 32:64] = 0
    weight[4] = 2.0**119 * weight[0]
    weight = weight.to(dtype)
    blocks = NativeBlocks(native)
    found = blocks.linear(blocks.quantize(weight, "mxfp4"), "mxfp4", (40, 96), None, torch.float32).rows(
        torch.arange(40)
    )
    assert torch.equal(found, dequantize(round_weight(weight, "mxfp4", 32), torch.float32))


def test_rows_of_zeros(native: NativeKernels) -> None:
    for name in MADE_AT_LOAD:
        packed = NativeBlocks(native).quantize(torch.zeros(16, 64), name)
        gemm = NativeBlocks(native).linear(packed, name, (16, 64), None, torch.float32)
        assert torch.equal(gemm(torch.ones(2, 64)), torch.zeros(2, 16))
        assert torch.equal(gemm(torch.zeros(2, 64)), torch.zeros(2, 16))
