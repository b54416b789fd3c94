"""Compiled GEMMs with packed weights, against PyTorch in float64."""

import pytest
import torch
import torch.nn.functional as F
from native_builds import threads

from octavo.kernels.cpu.native_linear import NativeLinear
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
GATES = {"silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
ROWS = (*range(1, 14), 40, 300)


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_weight(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """A weight whose sums are about 1."""
    return (random(0, num_outputs, num_inputs) * num_inputs**-0.5).to(dtype)


def make(native: NativeKernels, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear:
    """The GEMM; it may take over the memory of a copy of the weight."""
    return NativeLinear(native, weight.clone(), bias)


def exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double())


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    tolerance = TOLERANCE[dtype or actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.sample(8)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (5, 3), (33, 7), (48, 64), (100, 129), (272, 577), (15, 2000)])
@pytest.mark.parametrize("dtype", TYPES)
def test_any_size_and_number_of_rows(
    native: NativeKernels, dtype: torch.dtype, shape: tuple[int, int], has_bias: bool
) -> None:
    weight = random_weight(*shape, dtype)
    bias = random(1, shape[0], dtype=dtype) if has_bias else None
    gemm = make(native, weight, bias)
    for num_rows in ROWS:
        x = random(num_rows, num_rows, shape[1], dtype=dtype)
        y = gemm(x)
        assert y.dtype == dtype
        close(y, exact(x, weight, bias))


@pytest.mark.parametrize("x_type", TYPES)
@pytest.mark.parametrize("weight_type", TYPES)
def test_inputs_may_have_another_type_than_the_weight(
    native: NativeKernels, weight_type: torch.dtype, x_type: torch.dtype
) -> None:
    weight, x = random_weight(40, 51, weight_type), random(1, 9, 51, dtype=x_type)
    y = make(native, weight)(x)
    assert y.dtype == x_type
    # AVX512-BF16 multiplies pairs of bfloat16, so other inputs are rounded first.
    close(y, exact(x, weight), max(weight_type, x_type, key=TOLERANCE.__getitem__))


@pytest.mark.parametrize("num_outputs", [2, 32, 40, 96, 288])
@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("dtype", TYPES)
def test_gates(native: NativeKernels, dtype: torch.dtype, activation: str, num_outputs: int) -> None:
    """With 40 outputs or 2, the halves share a panel."""
    weight, bias = random_weight(num_outputs, 75, dtype), random(1, num_outputs, dtype=dtype)
    gemm = make(native, weight, bias)
    for num_rows in (1, 2, 4, 5, 13, 40):
        x = 3 * random(num_rows, num_rows, 75, dtype=dtype)
        gate, up = exact(x, weight, bias).chunk(2, -1)
        y = gemm.gated(x, activation)
        assert y.dtype == dtype
        close(y / 10, GATES[activation](gate) * up / 10)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_result_goes_where_it_is_wanted(native: NativeKernels, dtype: torch.dtype) -> None:
    weight, x = random_weight(37, 20, dtype), random(1, 6, 20, dtype=dtype)
    gemm = make(native, weight)
    places = torch.full((8, 37), 7, dtype=dtype)
    out = places[1:7]
    assert gemm(x, out=out) is out
    assert torch.equal(out, gemm(x))
    assert (places[0] == 7).all() and (places[7] == 7).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_inputs_may_lie_anywhere(native: NativeKernels, dtype: torch.dtype) -> None:
    weight = random_weight(33, 24, dtype)
    gemm = make(native, weight)
    wide = random(1, 14, 60, dtype=dtype)
    expected = gemm(wide[:, 5:29].contiguous())
    assert torch.equal(gemm(wide[:, 5:29]), expected)
    assert torch.equal(gemm(wide[::2, 5:29]), expected[::2])
    assert torch.equal(gemm(wide[3, 5:29].expand(4, 24)), expected[3].expand(4, 33))
    assert torch.equal(gemm(wide[:, 5:29].view(2, 7, 24)), expected.view(2, 7, 33))
    assert torch.equal(gemm(wide[:, 5:29].t().contiguous().t()), expected)
    assert gemm(wide[:0, 5:29]).shape == (0, 33)


@pytest.mark.parametrize("shape", [(64, 30), (50, 31), (7, 1)])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_come_back_as_they_were(native: NativeKernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = random_weight(*shape, dtype)
    index = torch.randint(shape[0], (29,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(make(native, weight).rows(index), weight[index])
    assert make(native, weight).rows(index[:0]).shape == (0, shape[1])


@pytest.mark.parametrize("shape", [(64, 30), (50, 31)])
@pytest.mark.parametrize("dtype", TYPES)
def test_an_update_keeps_the_memory(native: NativeKernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight, other = random_weight(*shape, dtype), random(5, *shape, dtype=dtype)
    taken = weight.clone()
    gemm = NativeLinear(native, taken, None)
    is_whole = shape[0] % 16 == 0  # only then is the packed weight as large as the weight
    assert (gemm.memory is taken) == is_whole
    address = gemm.packed.data_ptr()
    assert gemm.update(other.clone())
    x = random(2, 5, shape[1], dtype=dtype)
    assert torch.equal(gemm(x), make(native, other)(x))
    if is_whole:  # the memory may be filled anew and packed where it is
        taken.copy_(weight)
        gemm.update(taken)
        assert torch.equal(gemm(x), make(native, weight)(x))
    assert gemm.packed.data_ptr() == address


@pytest.mark.parametrize("num_inputs", [77, 2000])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_rows_bits_depend_on_nothing_else(native: NativeKernels, dtype: torch.dtype, num_inputs: int) -> None:
    """Not on the other rows, nor on the number of threads."""
    weight, x = random_weight(96, num_inputs, dtype), random(1, 60, num_inputs, dtype=dtype)
    gemm = make(native, weight, random(2, 96, dtype=dtype))
    whole, gated = gemm(x), gemm.gated(x, "silu")
    for num_threads in (1, 2, 3, 4):
        with threads(native, num_threads):
            assert torch.equal(gemm(x), whole)
            for first, last in ((0, 1), (7, 9), (10, 13), (3, 7), (20, 25), (0, 11), (5, 17), (1, 14), (11, 59)):
                assert torch.equal(gemm(x[first:last]), whole[first:last])
                assert torch.equal(gemm.gated(x[first:last], "silu"), gated[first:last])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_nan_stays_in_its_row(native: NativeKernels, dtype: torch.dtype) -> None:
    weight, x = random_weight(48, 33, dtype), random(1, 14, 33, dtype=dtype)
    gemm = make(native, weight)
    clean = gemm(x)
    x[6, 32] = torch.nan
    y = gemm(x)
    assert y[6].isnan().all()
    assert torch.equal(y[:6], clean[:6]) and torch.equal(y[7:], clean[7:])


def test_large_values_do_not_overflow_in_gates(native: NativeKernels) -> None:
    weight = torch.cat((torch.eye(16), torch.ones(16, 16)))
    x = torch.diag(torch.tensor([200.0, -200, 1e15, -1e15, 90, -90, 88.8, -88.8, 0, 1, -1, 10, -10, 30, -30, 1e-30]))
    gate, up = exact(x, weight).chunk(2, -1)
    gemm = make(native, weight)
    close(gemm.gated(x, "silu"), F.silu(gate) * up)
    close(gemm.gated(x, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up)
