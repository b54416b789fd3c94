"""Float8 layers: how they are stored, filled again, and multiplied."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from octavo.kernels import scaled
from octavo.kernels.scaled import FLOAT8, quantize_rows
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.layers.weights import collect_slots, finish
from octavo.quantization.float8 import Float8Scheme, Source
from octavo.quantization.float8_config import Float8Config
from octavo.quantization.scheme import PlainScheme

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@contextmanager
def _compute_type(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _build(scheme: Float8Scheme) -> Build:
    return Build(Float8Config(PlainScheme(), scheme))


def _layer(dtype: torch.dtype, source: Source, weight: torch.Tensor, *, bias: torch.Tensor | None = None) -> Linear:
    with _compute_type(dtype):
        parts = {"a": 24, "b": len(weight) - 24}
        layer = _build(Float8Scheme(source)).linear("ab", weight.shape[1], parts, bias=bias is not None)
    _fill(layer, source, weight, bias)
    return layer


def _fill(layer: Linear, source: Source, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    slots = collect_slots(layer)
    for part, rows in (("a", weight[:24]), ("b", weight[24:])):
        tensors = {"weight": rows}
        if source == "channel":
            tensors = dict(zip(("weight", "weight_scale"), quantize_rows(rows), strict=True))
        elif source == "tensor":
            values, scale = quantize_rows(rows.reshape(1, -1))
            tensors = {"weight": values.view(rows.shape), "weight_scale": scale.view(())}
        if bias is not None:
            tensors["bias"] = bias[:24] if part == "a" else bias[24:]
        for name, tensor in tensors.items():
            for slot in slots.pop(f"{part}.{name}"):
                assert slot.takes(tensor.dtype) and tuple(tensor.shape) in slot.source_shapes
                slot.fill(tensor)
    assert not slots
    finish(layer)


def _weight(rows: int = 64, columns: int = 48, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * torch.logspace(-2, 1, rows)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", ["plain", "channel", "tensor"])
def test_products_are_those_of_the_rounded_values(source: Source, dtype: torch.dtype) -> None:
    weight, bias = _weight(), torch.randn(64)
    layer = _layer(dtype, source, weight, bias=bias)
    x = torch.randn(7, 48).to(dtype)
    if source == "tensor":
        parts = [quantize_rows(part.reshape(1, -1)) for part in (weight[:24], weight[24:])]
        rounded = torch.cat([(values.float() * scale).view(-1, 48) for values, scale in parts])
    else:
        values, scale = quantize_rows(weight)
        rounded = values.float() * scale
    values, scale = quantize_rows(x)
    expected = (values.float() * scale) @ rounded.T + bias.to(dtype).float()
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    y = layer(x)
    assert y.dtype is dtype
    torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())
    gate, up = layer(x).chunk(2, -1)
    torch.testing.assert_close(layer.gated(x, "silu"), torch.nn.functional.silu(gate) * up)
    out = torch.empty_like(y)
    assert torch.equal(layer(x, out), y) and torch.equal(out, y)


def test_many_rows_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = _layer(torch.float32, "plain", _weight())
    x = torch.randn(3, 7, 48)
    whole = layer(x)
    monkeypatch.setattr(scaled, "_MAX_ROWS", 5)
    torch.testing.assert_close(layer(x), whole)


def test_sums_may_exceed_float16() -> None:
    layer = _layer(torch.float16, "plain", torch.full((64, 48), 0.01))
    x = torch.full((1, 48), 0.01, dtype=torch.float16)
    torch.testing.assert_close(layer(x), torch.full((1, 64), 0.0048, dtype=torch.float16), rtol=0.05, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_updates_keep_addresses_where_kernels_read_them(dtype: torch.dtype) -> None:
    layer = _layer(dtype, "plain", _weight(seed=1))
    x = torch.randn(3, 48).to(dtype)
    before, places = layer(x), (layer.weight.data_ptr(), layer.weight_scale.data_ptr())
    _fill(layer, "plain", _weight(seed=2))
    assert torch.equal(layer(x), _layer(dtype, "plain", _weight(seed=2))(x))
    _fill(layer, "plain", _weight(seed=1))
    assert torch.equal(layer(x), before)
    assert layer.weight_scale.data_ptr() == places[1]
    if layer.packed is None:
        assert layer.weight.data_ptr() == places[0]
    else:
        assert not layer.weight.numel()


@pytest.mark.parametrize(
    ("is_native", "in_features", "dtype", "stored"),
    [
        (True, 48, torch.bfloat16, FLOAT8),
        (True, 40, torch.bfloat16, torch.bfloat16),
        (False, 48, torch.bfloat16, torch.bfloat16),
        (False, 48, torch.float16, torch.float32),
    ],
    ids=["native", "odd-size", "expanded", "expanded-float16"],
)
def test_what_is_stored(is_native: bool, in_features: int, dtype: torch.dtype, stored: torch.dtype) -> None:
    with _compute_type(dtype), torch.device("meta"):
        layer = _build(Float8Scheme("channel", is_native)).linear("proj", in_features, 64, bias=True)
    assert (layer.weight.dtype, layer.weight_scale.dtype) == (stored, torch.float32)
    assert layer.bias is not None and layer.bias.dtype is dtype
    (slot,) = collect_slots(layer)["proj.weight"]
    assert slot.takes(FLOAT8) and not slot.takes(torch.bfloat16), "other values would be taken for rounded ones"


def test_native_weights_are_filled_as_well() -> None:
    weight = _weight()
    layer = _build(Float8Scheme("plain", is_native=True)).linear("proj", 48, 64)
    for slot in collect_slots(layer)["proj.weight"]:
        slot.fill(weight)
    values, scales = quantize_rows(weight)
    assert torch.equal(layer.weight.float(), values.float())
    assert torch.equal(layer.weight_scale, scales[:, 0])
