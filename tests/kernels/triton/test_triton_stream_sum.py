"""Residual adds and norms of a few rows, divided between the GEMMs before and behind them.

The kernels are written for tensor cores thread by thread, which Triton's interpreter does not know: a GPU runs them.
"""

from collections.abc import Callable

import pytest
import torch
from product_case import random

from octavo.kernels import basic, scaled
from octavo.kernels.deferred_norm import DeferredNorm, WeightedRows
from octavo.kernels.grouped import GroupedTensors, dequantize, pack_codes
from octavo.kernels.linear import GATES, LinearOp
from octavo.kernels.triton import norm as triton_norm
from octavo.kernels.triton.grouped import GroupedLinear
from octavo.kernels.triton.linear import SmallBatchLinear
from octavo.kernels.triton.scaled import Float8Linear
from octavo.kernels.triton.stream_sum import FEWEST_ROWS, adds_rows

needs_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs an H100 or H200"
)
EPS = 1e-6
BF = torch.bfloat16
Made = tuple[LinearOp, torch.Tensor]
Make = Callable[..., Made]
"""Makes a layer of a device, numbers of outputs and inputs, and whether it is deterministic; its weight in float64."""


def plain(device: torch.device, num_outputs: int, num_inputs: int, *, deterministic: bool = False) -> Made:
    weight = random(device, 2, num_outputs, num_inputs, dtype=BF) / num_inputs**0.5
    bias = random(device, 4, num_outputs, dtype=BF)
    return SmallBatchLinear(weight, bias, deterministic=deterministic), weight.double()


def float8(device: torch.device, num_outputs: int, num_inputs: int, *, deterministic: bool = False) -> Made:
    wide = random(device, 2, num_outputs, num_inputs, dtype=torch.float32) / num_inputs**0.5
    weight, scales = scaled.quantize_rows.reference(wide)
    bias = random(device, 4, num_outputs, dtype=BF)
    return Float8Linear(weight, scales[:, 0], bias, deterministic=deterministic), weight.double() * scales


def int4(device: torch.device, num_outputs: int, num_inputs: int, *, deterministic: bool = False) -> Made:
    codes = torch.randint(16, (num_outputs, num_inputs), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    scales = torch.full((num_outputs, num_inputs // 128), 0.25 / num_inputs**0.5)
    weight = GroupedTensors(pack_codes(codes, 128).to(device), scales.to(device), None, 4)
    bias = random(device, 4, num_outputs, dtype=BF)
    return GroupedLinear(weight, bias, deterministic=deterministic), dequantize(weight, torch.float32).double()


every_weight = pytest.mark.parametrize("make", [plain, float8, int4])
MAX_ROWS = {plain: 16, float8: 8, int4: 8}
INPUTS = {plain: [200, 1024, 4096], float8: [208, 1024, 4096], int4: [384, 1024, 4096]}
cases = pytest.mark.parametrize(
    ("make", "num_inputs", "num_rows"),
    [
        (make, size, num_rows)
        for make, sizes in INPUTS.items()
        for size in sizes
        for num_rows in (2, 3, 8, 13)
        if num_rows <= MAX_ROWS[make]
    ],
)


def norm_weight(device: torch.device, size: int, dtype: torch.dtype = BF) -> torch.Tensor:
    return (1 + random(device, 3, size, dtype=torch.float32) / 4).to(dtype)


@needs_kernel
@cases
@pytest.mark.parametrize(("num_outputs", "scale_type"), [(72, torch.float32), (4096, BF)])
def test_sums_have_the_bits_of_a_launch_of_their_own(
    device: torch.device, make: Make, num_inputs: int, num_rows: int, num_outputs: int, scale_type: torch.dtype
) -> None:
    gemm, _ = make(device, num_outputs, num_inputs)
    x = random(device, 1, num_rows, num_inputs, dtype=BF)
    residual = 3 * random(device, 5, num_rows, num_outputs, dtype=BF)
    scale = norm_weight(device, num_outputs, scale_type)
    _, expected = triton_norm.add_rms_norm(gemm(x), residual.clone(), scale, EPS)
    weighted = gemm.added(x, residual, scale)
    assert weighted is not None
    assert torch.equal(residual, expected)
    assert torch.equal(weighted.values, (expected.float() * scale.float()).to(BF))
    torch.testing.assert_close(weighted.squares.sum(1), expected.float().square().sum(1))


def weighted_rows(rows: torch.Tensor, scale: torch.Tensor) -> WeightedRows:
    """As a GEMM of 12 channels a program would leave them."""
    squares = torch.stack([part.float().square().sum(1) for part in rows.split(12, 1)], 1)
    return WeightedRows((rows.float() * scale.float()).to(rows.dtype), squares)


@needs_kernel
@cases
@pytest.mark.parametrize(("num_outputs", "activation"), [(4096, "none"), (144, "silu")])
def test_products_of_weighted_rows(
    device: torch.device, make: Make, num_inputs: int, num_rows: int, num_outputs: int, activation: str
) -> None:
    gemm, weight = make(device, num_outputs, num_inputs)
    rows, scale = 3 * random(device, 1, num_rows, num_inputs, dtype=BF), norm_weight(device, num_inputs)
    norm = DeferredNorm(rows, None, scale, EPS, weighted_rows(rows, scale))
    out = gemm.normed(norm, activation)
    assert out is not None and not norm.is_computed
    expected = basic.rms_norm.reference(rows.double(), scale.double(), EPS) @ weight.T
    expected += random(device, 4, num_outputs, dtype=BF).double()
    expected = expected if activation == "none" else GATES[activation](expected)
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=2e-2 if activation == "none" else 5e-2)


@needs_kernel
@every_weight
def test_bits_of_a_row_do_not_depend_on_the_others(device: torch.device, make: Make) -> None:
    """A captured step may have more rows than it needs."""
    before, behind = make(device, 1024, 1024)[0], make(device, 256, 1024)[0]
    x, stream = random(device, 1, 8, 1024, dtype=BF), random(device, 5, 8, 1024, dtype=BF)
    scale = norm_weight(device, 1024)

    def chain(num_rows: int) -> torch.Tensor:
        residual = stream[:num_rows].clone()
        weighted = before.added(x[:num_rows], residual, scale)
        y = behind.normed(DeferredNorm(residual, None, scale, EPS, weighted))
        assert y is not None
        return y

    together = chain(8)
    # Tiles of packed weights are others for up to four rows.
    for num_rows in range(5 if make is int4 else FEWEST_ROWS, 8):
        assert torch.equal(chain(num_rows), together[:num_rows])


@needs_kernel
@every_weight
def test_other_numbers_of_rows_are_not_added(device: torch.device, make: Make) -> None:
    gemm, _ = make(device, 64, 128)
    for num_rows in (1, MAX_ROWS[make] + 1):
        x, residual = random(device, 1, num_rows, 128, dtype=BF), random(device, 5, num_rows, 64, dtype=BF)
        before = residual.clone()
        assert gemm.added(x, residual, norm_weight(device, 64)) is None
        assert torch.equal(residual, before)


@needs_kernel
def test_gemms_of_fewer_rows_leave_weighted_ones_to_the_norms_kernel(device: torch.device) -> None:
    """A layer of bfloat16 may come before one whose kernels add and take fewer rows."""
    rows, scale = random(device, 1, 16, 256, dtype=BF), norm_weight(device, 256)
    for make in (float8, int4):
        gemm, weight = make(device, 64, 256)
        norm = DeferredNorm(rows, None, scale, EPS, weighted_rows(rows, scale))
        y = gemm.normed(norm)
        y = gemm(norm.rows()) if y is None else y
        expected = basic.rms_norm.reference(rows.double(), scale.double(), EPS) @ weight.T
        expected += random(device, 4, 64, dtype=BF).double()
        torch.testing.assert_close(y.double(), expected, rtol=2e-2, atol=0.1)  # some round rows to float8


@every_weight
def test_deterministic_layers_add_nothing(device: torch.device, make: Make) -> None:
    """Their sums have one order for any number of rows."""
    gemm, _ = make(device, 64, 128, deterministic=True)
    x, residual = random(device, 1, 4, 128, dtype=BF), random(device, 5, 4, 64, dtype=BF)
    scale = norm_weight(device, 128)
    assert gemm.added(x, residual, norm_weight(device, 64)) is None
    assert gemm.normed(DeferredNorm(x, None, scale, EPS, weighted_rows(x, scale))) is None


@pytest.mark.parametrize(
    ("num_rows", "dtype", "expected"),
    [
        (1, BF, False),
        (FEWEST_ROWS, BF, True),
        (8, BF, True),
        (9, BF, False),
        (2, torch.float16, False),
        (2, torch.float32, False),
    ],
)
def test_which_rows_are_added(num_rows: int, dtype: torch.dtype, expected: bool) -> None:
    x, residual = torch.empty(num_rows, 64, dtype=dtype), torch.empty(num_rows, 32, dtype=dtype)
    assert adds_rows(x, residual, 8) == expected
    assert not adds_rows(x, torch.empty(num_rows, 64, dtype=dtype)[:, ::2], 8)
    assert not adds_rows(x, residual.float(), 8)
