"""Products of a few dozen rows, held against the plain product in float64.

The kernel's warps have different tasks, which Triton's interpreter does not know: an H100 or H200 runs it.
"""

import pytest
import torch
from product_case import Kind, ProductCase, every_kind

from octavo.kernels.triton.linear_hopper import (
    FEWEST_ROWS,
    MOST_ROWS,
    TILE,
    HopperGemmTile,
    choose_tile,
    hopper_linear,
    workspace_size,
)
from octavo.kernels.triton.linear_workspace import Workspace

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)

TILES = [
    HopperGemmTile(num_columns=64, num_parts=1, num_stages=2, is_shared=True),
    HopperGemmTile(num_columns=128, num_parts=3, num_stages=4, is_shared=False),
    HopperGemmTile(num_columns=64, num_parts=2, num_stages=3, is_shared=True),
]
SHAPES = [(6144, 4096, False), (4096, 4096, False), (12288, 4096, True), (4096, 12288, False)]
SHAPES += [(4096, 1024, False), (1024, 2048, False), (3072, 1024, True), (1024, 3072, False), (100, 72, True)]


def multiply(case: ProductCase, tile: HopperGemmTile) -> torch.Tensor:
    """Twice over the same workspace, of the least size, full of what an earlier launch may have left."""
    x, is_gated = case.x, case.activation != "none"
    out = x.new_full((len(x), len(case.weight) // (2 if is_gated else 1)), float("nan"))
    num_partials, num_tiles = workspace_size(len(x), out.shape[1], tile, is_gated=is_gated)
    space = Workspace(
        torch.full((num_partials,), float("nan"), device=x.device),
        torch.zeros(num_tiles, dtype=torch.int32, device=x.device),
    )
    hopper_linear(x, case.weight, case.bias, out, case.activation, tile, space)
    again = torch.full_like(out, float("nan"))
    hopper_linear(x, case.weight, case.bias, again, case.activation, tile, space)
    assert torch.equal(again, out)
    assert not space.arrivals.any()
    return out


@needs_hopper
@every_kind
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(33, 100, 392), (64, 8, 2048), (128, 320, 1000)])
def test_products(
    device: torch.device,
    tile: HopperGemmTile,
    kind: Kind,
    shape: tuple[int, int, int],
) -> None:
    case = ProductCase.make(device, shape, *kind)
    case.check(multiply(case, tile))


@needs_hopper
@pytest.mark.parametrize("num_rows", [40, 100])
@pytest.mark.parametrize(("num_channels", "num_features", "is_gated"), SHAPES)
def test_what_is_chosen_for_models(
    device: torch.device, num_rows: int, num_channels: int, num_features: int, is_gated: bool
) -> None:
    tile = choose_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=132)
    if tile is None:
        assert num_rows > TILE
        return
    shape = (num_rows, num_channels, num_features)
    case = ProductCase.make(device, shape, torch.bfloat16, "silu" if is_gated else "none", padding=8)
    case.check(multiply(case, tile))


@pytest.mark.parametrize("num_sms", [16, 114, 132])
@pytest.mark.parametrize(("num_channels", "num_features", "is_gated"), SHAPES)
def test_what_is_chosen_fits_the_device(num_channels: int, num_features: int, is_gated: bool, num_sms: int) -> None:
    for num_rows in (FEWEST_ROWS, TILE, TILE + 1, MOST_ROWS):
        tile = choose_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=num_sms)
        assert (tile is None) == (num_rows > TILE and num_features >= 4096)
        if tile is None:
            continue
        assert tile.num_parts * tile.num_columns < num_features + tile.num_columns
        ring_bytes = 2 * tile.num_stages * tile.num_columns * TILE * (3 if is_gated else 2)
        assert tile.num_stages >= 2
        assert ring_bytes <= (110 if tile.is_shared else 222) * 1024
    for num_rows in (FEWEST_ROWS - 1, MOST_ROWS + 1):
        assert choose_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=num_sms) is None
