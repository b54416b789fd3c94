"""Products of a few dozen rows of 16-bit values: which tiles are chosen, and products in tiles of all kinds.

The kernel's warps have different tasks, which Triton's interpreter does not know: an H100 or H200 runs it.
"""

import dataclasses

import pytest
import torch
from product_case import Kind, ProductCase, every_kind, used_workspace

from octavo.kernels.triton.linear_hopper import MIN_ROWS, choose_tile, hopper_linear
from octavo.kernels.triton.linear_specialised import MAX_ROWS, SpecialisedTile

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)

SHARED_MEMORY = 227 << 10
TILES = [
    SpecialisedTile(1, 32, 128, 8, 1, 1),
    SpecialisedTile(3, 32, 64, 7, 1, 1),
    SpecialisedTile(1, 64, 128, 6, 1, 1),
    SpecialisedTile(2, 64, 64, 2, 1, 1),
    SpecialisedTile(1, 128, 64, 8, 1, 1),
    SpecialisedTile(3, 128, 64, 5, 1, 1),
    SpecialisedTile(2, 256, 64, 4, 1, 1),
]
"""Of one program; see :func:`divide`."""

SHAPES = [
    (6144, 4096, False),
    (4096, 4096, False),
    (24576, 4096, True),
    (4096, 12288, False),
    (4096, 1024, False),
    (1024, 2048, False),
    (6144, 1024, True),
    (1024, 3072, False),
    (16384, 2048, True),
    (2048, 8192, False),
    (208, 72, True),
]
"""Weight rows, inputs and whether there is a gate."""


def divide(tile: SpecialisedTile, num_rows: int, num_weights: int, num_parts: int) -> SpecialisedTile:
    """The tile for programs with a part of one tile of outputs each, or with two tiles if there is one part."""
    num_tiles = -(-num_weights // tile.num_weights) * -(-num_rows // tile.num_rows)
    num_programs = num_tiles * num_parts if num_parts > 1 else -(-num_tiles // 2)
    return dataclasses.replace(tile, num_programs=num_programs, num_parts=num_parts)


def multiply(case: ProductCase, tile: SpecialisedTile) -> torch.Tensor:
    """Twice over the same workspace, of the least size."""
    x, is_gated = case.x, case.activation != "none"
    out = x.new_full((len(x), len(case.weight) // (2 if is_gated else 1)), float("nan"))
    space = used_workspace(x.device, tile.workspace(len(x), len(case.weight)))
    hopper_linear(x, case.weight, case.bias, out, case.activation, tile, space)
    again = torch.full_like(out, float("nan"))
    hopper_linear(x, case.weight, case.bias, again, case.activation, tile, space)
    assert torch.equal(again, out)
    assert not space.arrivals.any()
    return out


@needs_hopper
@every_kind
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(17, 104, 392), (64, 8, 2048), (140, 160, 1000)])
def test_products(
    device: torch.device,
    tile: SpecialisedTile,
    num_parts: int,
    kind: Kind,
    shape: tuple[int, int, int],
) -> None:
    case = ProductCase.make(device, shape, *kind)
    case.check(multiply(case, divide(tile, len(case.x), len(case.weight), num_parts)))


@needs_hopper
@pytest.mark.parametrize("num_rows", [24, 40, 100, 250])
@pytest.mark.parametrize(("num_weights", "num_features", "is_gated"), SHAPES)
def test_what_is_chosen_for_models(
    device: torch.device, num_rows: int, num_weights: int, num_features: int, is_gated: bool
) -> None:
    tile = choose_tile(num_rows, num_weights, num_features, is_gated=is_gated, num_sms=132)
    if tile is None:
        pytest.skip("another kernel is faster")
    shape = (num_rows, num_weights // (2 if is_gated else 1), num_features)
    case = ProductCase.make(device, shape, torch.bfloat16, "silu" if is_gated else "none", padding=8)
    case.check(multiply(case, tile))


@pytest.mark.parametrize("num_sms", [16, 114, 132])
@pytest.mark.parametrize(("num_weights", "num_features", "is_gated"), SHAPES)
def test_what_is_chosen_fits_the_device(num_weights: int, num_features: int, is_gated: bool, num_sms: int) -> None:
    for num_rows in range(MIN_ROWS, MAX_ROWS + 1):
        tile = choose_tile(num_rows, num_weights, num_features, is_gated=is_gated, num_sms=num_sms)
        assert tile is not None or num_rows <= 32 or num_rows > 64
        if tile is None:
            continue
        num_tiles = -(-num_weights // tile.num_weights) * -(-num_rows // tile.num_rows)
        assert tile.num_parts * tile.num_columns < num_features + tile.num_columns
        if tile.num_parts > 1:  # programs wait for each other
            assert tile.num_programs == num_tiles * tile.num_parts <= num_sms
        assert 1 <= tile.num_programs <= min(num_tiles * tile.num_parts, num_sms)
        # A warpgroup's threads exchange outputs by way of 2 KiB.
        ring_bytes = 2 * tile.num_stages * tile.num_columns * (tile.num_weights + tile.num_rows)
        assert tile.num_stages >= 2 and ring_bytes + (tile.num_groups * 2 + 1 << 10) <= SHARED_MEMORY
        # The compiler spills sums that leave too few of the registers at the launch.
        assert tile.num_rows // 2 + 24 <= tile.num_registers


@pytest.mark.parametrize(("num_weights", "num_features", "is_gated"), SHAPES)
def test_rows_of_a_graph_are_divided_alike(num_weights: int, num_features: int, is_gated: bool) -> None:
    for fewest, most in ((MIN_ROWS, 32), (33, 64), (65, 128)):
        tiles = {
            choose_tile(num_rows, num_weights, num_features, is_gated=is_gated, num_sms=132)
            for num_rows in range(fewest, most + 1)
        }
        assert len(tiles) == 1


def test_what_is_left_to_other_kernels() -> None:
    for num_rows in (0, MIN_ROWS - 1, MAX_ROWS + 1):
        assert choose_tile(num_rows, 4096, 4096, is_gated=False, num_sms=132) is None
    # A block has eight rows of a gate and eight of its up projection.
    assert choose_tile(64, 200, 4096, is_gated=True, num_sms=132) is None
    assert choose_tile(64, 200, 4096, is_gated=False, num_sms=132) is not None
