"""Compiled GEMMs of 8-bit integers, against exact sums in PyTorch."""

from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from native_builds import built, load, threads

from octavo.kernels import int8_linear
from octavo.kernels.cpu.native_linear import Int8Linear
from octavo.kernels.linear import GATES
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def make(num_outputs: int, num_inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(num_inputs)
    weight = torch.randint(-128, 128, (num_outputs, num_inputs), dtype=torch.int8, generator=random)
    return weight, torch.rand(num_outputs, generator=random) / 100


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])).to(dtype)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype
    tolerance = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.float().abs().max()))


@pytest.mark.parametrize("shape", [(64, 64), (16, 1), (5, 7), (33, 130), (96, 2048), (48, 515)])
@pytest.mark.parametrize("dtype", TYPES)
def test_results_are_the_twins(native: NativeKernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight, scales = make(*shape)
    for bias in (None, draw(shape[0], dtype=dtype)):
        op, (twin, _) = Int8Linear(native, weight, scales, bias), int8_linear.reference(weight, scales, bias)
        for num_rows in (0, 1, 2, 4, 5, 12, 13, 40):
            x = 3 * draw(num_rows, shape[1], dtype=dtype)
            if num_rows:
                close(op(x), twin(x))
        assert op(x[:0]).shape == (0, shape[0])


def test_sums_are_exact(native: NativeKernels) -> None:
    """The largest sums that may occur; a float32 sum of them would not be exact."""
    num_inputs = 32768
    weight = torch.full((16, num_inputs), -128, dtype=torch.int8)
    weight[1] = 127
    x = torch.ones(3, num_inputs)
    x[1, 5] = -1
    found = Int8Linear(native, weight, torch.ones(16), None)(x)
    sums = (x.double() * 127) @ weight.double().T
    assert torch.equal(found, (sums.float() * (torch.tensor(1.0) / 127)))


@pytest.mark.parametrize("gate", list(GATES))
@pytest.mark.parametrize("half", [64, 24])
def test_gates(native: NativeKernels, half: int, gate: str) -> None:
    weight, scales = make(2 * half, 96)
    op, (twin, _) = Int8Linear(native, weight, scales, None), int8_linear.reference(weight, scales, None)
    for num_rows in (1, 30):
        x = draw(num_rows, 96)
        torch.testing.assert_close(op.gated(x, gate), twin.gated(x, gate), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_rows_bits_depend_on_nothing_else(native: NativeKernels, dtype: torch.dtype) -> None:
    op, x = Int8Linear(native, *make(100, 200), None), draw(50, 200, dtype=dtype)
    together = op(x)
    for num_threads in (1, 3):
        with threads(native, num_threads):
            for first, last in ((0, 1), (3, 9), (0, 50), (37, 50)):
                assert torch.equal(op(x[first:last]), together[first:last])


def test_a_weight_is_packed_once_for_all_numbers_of_rows() -> None:
    """A layer's GEMM never rearranges its weight, whatever number of rows comes."""
    native = Mock(wraps=load(built()[0]))
    op = Int8Linear(native, *make(100, 200), None)
    packed = op.packed.clone()
    for num_rows in (1, 16, 128, 512, 1):
        op(draw(num_rows, 200, dtype=torch.bfloat16))
    assert native.pack_int8.call_count == 1
    assert {call[0] for call in native.method_calls} == {"packed_bytes", "pack_int8", "linear"}
    assert torch.equal(op.packed, packed)


@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_stays_alone(native: NativeKernels, spoiled: float) -> None:
    op, x = Int8Linear(native, *make(32, 40), None), draw(9, 40)
    x[4, 39] = spoiled
    is_nan = op(x).isnan()
    assert is_nan[4].all()
    assert not is_nan[[0, 1, 2, 3, 5, 6, 7, 8]].any()


def test_it_is_near_the_dequantised_weights(native: NativeKernels) -> None:
    """What rounding the rows costs, for weights and rows as models have them."""
    weight, scales = make(256, 1024)
    x = draw(64, 1024)
    wanted = F.linear(x, weight.float() * scales[:, None])
    error = (
        Int8Linear(native, weight, scales, None)(x) - wanted
    ).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert error < 0.01
