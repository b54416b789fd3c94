"""Products that stream their weight, held against the plain product in float64.

The kernel is written for tensor cores thread by thread, which Triton's interpreter does not know: a GPU runs it.
"""

import dataclasses

import pytest
import torch
from product_case import Kind, ProductCase, every_kind, random

from octavo.kernels import basic
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import GATES
from octavo.kernels.triton.linear_stream import MAX_ROWS, StreamGemmTile, choose_tile, stream_linear
from octavo.kernels.triton.stream_norm import padded_rounds

needs_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0), reason="needs tensor cores"
)

FEW = StreamGemmTile(16, 64, 4, 4, weight_first=True, num_warps=4)
TILES = [
    FEW,
    dataclasses.replace(FEW, num_weights=32, num_columns=128, num_stages=3, num_x_stages=2, num_warps=1),
    dataclasses.replace(FEW, num_stages=5, num_x_stages=3, weight_first=False, num_warps=2),
    dataclasses.replace(FEW, num_weights=32, num_columns=32, weight_first=False, num_warps=8),
]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=2e-2)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, tile: StreamGemmTile
) -> torch.Tensor:
    num_channels = len(weight) // (1 if activation == "none" else 2)
    out = x.new_full((len(x), num_channels), float("nan"))
    stream_linear(x, weight, bias, out, activation, tile)
    return out


@needs_kernel
@every_kind
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(5, 100, 392), (8, 1, 8), (19, 72, 2048)])
def test_products(
    device: torch.device,
    tile: StreamGemmTile,
    kind: Kind,
    shape: tuple[int, int, int],
) -> None:
    case = ProductCase.make(device, shape, *kind)
    case.check(multiply(case.x, case.weight, case.bias, case.activation, tile))


@needs_kernel
def test_rows_apart(device: torch.device) -> None:
    wide = random(device, 1, 6, 400, dtype=torch.bfloat16)
    weight = random(device, 2, 40, 200, dtype=torch.bfloat16) / 200**0.5
    close(multiply(wide[:, :200], weight, None, "none", FEW), wide[:, :200].double() @ weight.double().T)


@needs_kernel
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_bits_of_a_row_do_not_depend_on_the_others(device: torch.device, activation: str) -> None:
    weight = random(device, 1, 256, 1024, dtype=torch.bfloat16)
    x = random(device, 2, 8, 1024, dtype=torch.bfloat16)
    together = multiply(x, weight, None, activation, FEW)
    for row in range(8):
        assert torch.equal(multiply(x[row : row + 1], weight, None, activation, FEW)[0], together[row])


@needs_kernel
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("num_features", [392, 2048, 5120])
@pytest.mark.parametrize("scale_type", [torch.bfloat16, torch.float32])
def test_products_of_a_normed_row(
    device: torch.device, has_residual: bool, activation: str, num_features: int, scale_type: torch.dtype
) -> None:
    x, residual = random(device, 1, 2, 1, num_features, dtype=torch.bfloat16)
    weight = random(device, 2, 144, num_features, dtype=torch.bfloat16) / num_features**0.5
    scale = (1 + random(device, 3, num_features, dtype=torch.float32) / 4).to(scale_type)
    norm = DeferredNorm(x, residual if has_residual else None, scale, 1e-6)
    out = x.new_full((1, 144 if activation == "none" else 72), float("nan"))
    stream_linear(x, weight, None, out, activation, FEW, norm=norm)
    assert torch.equal(norm.total, x + residual if has_residual else x)
    normed = basic.rms_norm.reference(norm.total, scale, 1e-6)
    close(multiply(normed, weight, None, activation, FEW), out.double())
    expected = normed.double() @ weight.double().T
    close(out, expected if activation == "none" else GATES["silu"](expected))


SHAPES = [
    (6144, 4096, False),
    (4096, 1024, False),
    (12288, 4096, True),
    (4096, 12288, False),
    (1024, 2048, False),
    (3072, 1024, True),
]


@pytest.mark.parametrize(("num_channels", "num_features", "is_gated"), SHAPES)
def test_chosen_tiles_fit(num_channels: int, num_features: int, is_gated: bool) -> None:
    for num_rows in range(1, MAX_ROWS + 2):
        tile = choose_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=132)
        if tile is not None:
            num_rows_in_rings = tile.num_stages * tile.num_weights + tile.num_x_stages * tile.block_m(num_rows)
            assert 2 * tile.num_warps * tile.num_columns * num_rows_in_rings <= 227 * 1024
        if num_rows == 1:
            assert tile is not None
            width = tile.num_warps * tile.num_columns
            num_rounds = padded_rounds(-(-num_features // width), tile.num_columns)  # of the normed row, all there
            assert 2 * width * ((tile.num_stages + 1) * tile.num_weights + num_rounds) <= 227 * 1024
    assert choose_tile(8, num_channels, num_features, is_gated=is_gated, num_sms=132) is not None
    assert choose_tile(MAX_ROWS + 1, num_channels, num_features, is_gated=is_gated, num_sms=132) is None


@needs_kernel
@pytest.mark.parametrize(("num_channels", "num_features", "is_gated"), SHAPES)
@pytest.mark.parametrize("num_rows", [2, 8, 9, 16, 32])
def test_chosen_tiles(
    device: torch.device, num_rows: int, num_channels: int, num_features: int, is_gated: bool
) -> None:
    tile = choose_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=132)
    if tile is None:
        pytest.skip("the library is faster")
    num_weights = num_channels * (2 if is_gated else 1)
    weight = random(device, 1, num_weights, num_features, dtype=torch.bfloat16) / num_features**0.5
    x = random(device, 2, num_rows, num_features, dtype=torch.bfloat16)
    expected = (x.float() @ weight.float().T).double()
    activation = "silu" if is_gated else "none"
    close(multiply(x, weight, None, activation, tile), GATES["silu"](expected) if is_gated else expected)
