"""Compiled norms, activations and gathers, against the PyTorch references."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from native_builds import operations_of, threads

from octavo.kernels import basic, routing
from octavo.kernels.cpu import native_rows
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
SIZES = (1, 7, 15, 16, 17, 64, 100, 576)
NAMES = (
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "add_layer_norm",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "activate",
    "gather_rows",
    "soft_cap",
    "square_root",
    "xielu",
)
ROUTING = ("sigmoid", "softplus", "split_identities")


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def rows(native: NativeKernels) -> SimpleNamespace:
    """This build's operations by name."""
    operations = {name: getattr(basic, name) for name in NAMES}
    operations |= {name: getattr(routing, name) for name in ROUTING}
    return operations_of(native, native_rows.register, operations)


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_norms(rows: SimpleNamespace, dtype: torch.dtype, weight_type: torch.dtype) -> None:
    for size in SIZES:
        for num_rows in (0, 1, 8, 9, 40):
            x, weight = 3 * random(num_rows, num_rows, size, dtype=dtype), random(1, size, dtype=weight_type)
            close(rows.rms_norm(x, weight, 1e-5), basic.rms_norm.reference(x, weight, 1e-5))


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_norms_of_sums(rows: SimpleNamespace, dtype: torch.dtype, weight_type: torch.dtype) -> None:
    for size in SIZES:
        x, residual = random(0, 11, size, dtype=dtype), random(1, 11, size, dtype=dtype)
        weight = random(2, size, dtype=weight_type)
        expected, total = basic.add_rms_norm.reference(x, residual, weight, 1e-5)
        normed, new_residual = rows.add_rms_norm(x, residual, weight, 1e-5)
        assert torch.equal(new_residual, total)
        assert new_residual.data_ptr() == residual.data_ptr()
        close(normed, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_soft_caps(rows: SimpleNamespace, dtype: torch.dtype) -> None:
    x = 20 * random(0, 3, 40_000, dtype=dtype)
    capped = rows.soft_cap(x.clone(), 5.0)
    close(capped, basic.soft_cap.reference(x.clone(), 5.0))
    odd = x[:1, 1:18].clone()
    assert torch.equal(rows.soft_cap(odd, 5.0), capped[:1, 1:18]), "a value's bits do not depend on its place"


def test_norms_of_slices(rows: SimpleNamespace) -> None:
    x, weight = random(0, 5, 3, 40), random(1, 20)
    close(rows.rms_norm(x[..., 7:27], weight, 1e-6), basic.rms_norm.reference(x[..., 7:27], weight, 1e-6))


@pytest.mark.parametrize("parameters", ["both", "weight", "none"])
@pytest.mark.parametrize("dtype", TYPES)
def test_layer_norms(rows: SimpleNamespace, dtype: torch.dtype, parameters: str) -> None:
    for size in SIZES:
        weight = None if parameters == "none" else random(1, size, dtype=dtype)
        bias = random(2, size, dtype=dtype) if parameters == "both" else None
        for num_rows in (0, 1, 9, 40):
            x = 3 * random(num_rows, num_rows, size, dtype=dtype) + 5
            close(rows.layer_norm(x, weight, bias, 1e-5), basic.layer_norm.reference(x, weight, bias, 1e-5))
        residual = random(3, 40, size, dtype=dtype)
        expected, total = basic.add_layer_norm.reference(x, residual, weight, bias, 1e-5)
        normed, new_residual = rows.add_layer_norm(x, residual, weight, bias, 1e-5)
        assert torch.equal(new_residual, total)
        assert new_residual.data_ptr() == residual.data_ptr()
        close(normed, expected)


def test_layer_norms_of_other_types_are_the_references(rows: SimpleNamespace) -> None:
    x, weight = random(0, 3, 20, dtype=torch.float64), random(1, 20, dtype=torch.float64)
    assert torch.equal(rows.layer_norm(x, weight, None, 1e-5), basic.layer_norm.reference(x, weight, None, 1e-5))


@pytest.mark.parametrize("kind", list(basic.ACTIVATIONS))
@pytest.mark.parametrize("dtype", TYPES)
def test_activations(rows: SimpleNamespace, dtype: torch.dtype, kind: str) -> None:
    plain = basic.ACTIVATIONS[kind]
    for size in SIZES:
        x, times = 4 * random(size, 9, size, dtype=dtype), random(1, 9, size, dtype=dtype)
        close(rows.activate(x.clone(), kind), plain(x.float()).to(dtype))
        close(rows.activate(x.clone(), kind, times), (plain(x.float()) * times.float()).to(dtype))
    wide = 4 * random(0, 9, 200, dtype=dtype)
    left, right = wide.chunk(2, -1)
    expected = (plain(right.float()) * left.float()).to(dtype)
    close(rows.activate(right, kind, left), expected)
    assert torch.equal(wide[:, :100], left)
    extreme = torch.tensor([[-1e4, -20.0, 20.0, 100.0]]).to(dtype)
    assert rows.activate(extreme.clone(), kind).isfinite().all()


def test_the_exact_gelu_is_exact(rows: SimpleNamespace) -> None:
    x = torch.linspace(-10, 10, 100_001)
    expected = basic.ACTIVATIONS["gelu"](x.double())
    assert (rows.activate(x[None].clone(), "gelu")[0] - expected).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize("dtype", TYPES)
def test_gates(rows: SimpleNamespace, dtype: torch.dtype, name: str) -> None:
    apply: Callable[[torch.Tensor], torch.Tensor] = getattr(rows, name)
    reference: Any = getattr(basic, name).reference
    for size in SIZES:
        x = 4 * random(size, 9, 2 * size, dtype=dtype)
        close(apply(x), reference(x.float()).to(dtype))
    close(apply(x.view(3, 3, -1)), reference(x.view(3, 3, -1).float()).to(dtype))
    close(apply(x[:, 10:30]), reference(x[:, 10:30].float()).to(dtype))
    assert apply(x[:0]).shape == (0, x.shape[1] // 2)


@pytest.mark.parametrize("dtype", [*TYPES, torch.int64, torch.uint8])
def test_gathers(rows: SimpleNamespace, dtype: torch.dtype) -> None:
    for shape in ((50, 33), (50, 1, 8), (50,)):
        table = (100 * random(0, *shape).abs()).to(dtype)
        for count in (0, 1, 64, 65, 200):
            index = torch.randint(50, (count,), generator=torch.Generator().manual_seed(count))
            assert torch.equal(rows.gather_rows(table, index), table[index])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_rows_bits_depend_on_nothing_else(rows: SimpleNamespace, dtype: torch.dtype) -> None:
    x, weight = random(0, 70, 130, dtype=dtype), random(1, 130, dtype=dtype)
    normed, gated = rows.rms_norm(x, weight, 1e-6), rows.silu_and_mul(x)
    centred, activated = rows.layer_norm(x, weight, None, 1e-6), rows.activate(x.clone(), "gelu")
    for num_threads in (1, 2, 4):
        with threads(rows.native, num_threads):
            for first, last in ((0, 70), (0, 1), (5, 14), (69, 70)):
                assert torch.equal(rows.rms_norm(x[first:last], weight, 1e-6), normed[first:last])
                assert torch.equal(rows.silu_and_mul(x[first:last]), gated[first:last])
                assert torch.equal(rows.layer_norm(x[first:last], weight, None, 1e-6), centred[first:last])
                assert torch.equal(rows.activate(x[first:last].clone(), "gelu"), activated[first:last])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_nan_stays_in_its_row(rows: SimpleNamespace, dtype: torch.dtype) -> None:
    x, weight = random(0, 12, 34, dtype=dtype), random(1, 34, dtype=dtype)
    x[5, 33] = torch.nan
    is_nan = torch.arange(12) == 5
    assert torch.equal(rows.rms_norm(x, weight, 1e-6).isnan().all(-1), is_nan)
    assert torch.equal(rows.rms_norm(x, weight, 1e-6).isnan().any(-1), is_nan)
    assert torch.equal(rows.silu_and_mul(x).isnan().any(-1), is_nan)
    assert torch.equal(rows.layer_norm(x, weight, None, 1e-6).isnan().all(-1), is_nan)
    for kind in ("silu", "gelu", "gelu_tanh"):
        assert torch.equal(rows.activate(x.clone(), kind).isnan().any(-1), is_nan)


@pytest.mark.parametrize("name", ["sigmoid", "softplus"])
def test_sigmoid_and_softplus(rows: SimpleNamespace, name: str) -> None:
    operation = getattr(rows, name)
    x = torch.cat((torch.linspace(-30, 30, 1001), torch.tensor([-1e4, -90.0, 90.0, 1e4, torch.inf, -torch.inf])))
    expected = getattr(torch.nn.functional, name)(x.double())
    torch.testing.assert_close(operation(x).double(), expected, rtol=3e-7, atol=1e-12)
    assert operation(torch.tensor([torch.nan, 1.0])).isnan().tolist() == [True, False]
    for size in (1, 5, 16, 33):
        assert torch.equal(operation(x[7 : 7 + size]), operation(x)[7 : 7 + size]), "bits depend on the place"


@pytest.mark.parametrize("dtype", TYPES)
def test_square_roots(rows: SimpleNamespace, dtype: torch.dtype) -> None:
    x = random(0, 3, 50, dtype=dtype).square()[:, 1:]
    assert torch.equal(rows.square_root(x), x.double().sqrt().to(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_xielu(rows: SimpleNamespace, dtype: torch.dtype) -> None:
    slopes = torch.tensor([0.8, 1.1, 0.5, -1e-6])
    x = torch.cat((torch.linspace(-20, 20, 803), torch.linspace(-1e-3, 1e-3, 101), torch.tensor([-1e3, 0.0]))).to(dtype)
    exact = basic.xielu.reference(x.double(), slopes.double())
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    result = rows.xielu(x, slopes)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance / 10)
    turned = x[:800].view(20, 40).t()
    close(rows.xielu(turned, slopes), basic.xielu.reference(turned, slopes))


def test_split_identities(rows: SimpleNamespace) -> None:
    chosen = torch.tensor([[1, 4, 3, 7], [6, 5, 4, 7], [0, 2, 1, 3], [7, 0, 4, 5]]).repeat(40, 1)
    shares = random(0, *chosen.shape).softmax(-1)
    for given in (chosen, chosen[:1], chosen[:0]):
        own = shares[: len(given)]
        for result, expected in zip(
            rows.split_identities(given, own, 4), routing.split_identities.reference(given, own, 4), strict=True
        ):
            assert result.shape == expected.shape
            torch.testing.assert_close(result, expected)
