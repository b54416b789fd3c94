"""The float8 GEMM's tiles, and the GEMM in tiles of all kinds against float64.

The kernel's warps have different tasks, which Triton's interpreter does not know: an H100 or H200 runs it. Whole layers
are in ``tests/gpu/test_float8_on_gpu.py``.
"""

import pytest
import torch
from product_case import used_workspace

from octavo.kernels import scaled as twins
from octavo.kernels.linear import GATES
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import linear_float8, linear_specialised, linear_stream
from octavo.kernels.triton.linear_float8 import choose_tile
from octavo.kernels.triton.linear_specialised import SpecialisedTile, specialised_linear
from octavo.kernels.triton.linear_workspace import Workspace
from octavo.kernels.triton.quantize import quantize_groups

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)

SHARED_MEMORY = 227 << 10
NUM_SMS = 132
SHAPES = [
    (6144, 4096, False),
    (4096, 4096, False),
    (24576, 4096, True),
    (4096, 12288, False),
    (1024, 2048, False),
    (6144, 1024, True),
    (8192, 28672, False),
    (100_000, 4096, False),
    (16, 16, True),
]
"""Weight rows, inputs and whether there is a gate."""

TILES = [
    SpecialisedTile(1, 16, 256, 10, 1, 1),
    SpecialisedTile(1, 32, 256, 3, 1, 1),
    SpecialisedTile(3, 16, 256, 4, 1, 1),
    SpecialisedTile(1, 64, 256, 6, 1, 1),
    SpecialisedTile(2, 64, 128, 2, 1, 1),
    SpecialisedTile(3, 64, 256, 3, 1, 1),
    SpecialisedTile(1, 128, 256, 4, 1, 1),
    SpecialisedTile(2, 128, 256, 3, 1, 1),
    SpecialisedTile(3, 128, 128, 5, 1, 1),
    SpecialisedTile(1, 256, 128, 5, 1, 1),
    SpecialisedTile(3, 256, 128, 3, 1, 1),
]
"""Of one program; see :func:`divide`."""

BLOCK_TILES = [
    SpecialisedTile(1, 16, 128, 20, 1, 1),
    SpecialisedTile(3, 16, 128, 2, 1, 1),
    SpecialisedTile(2, 32, 128, 10, 1, 1),
    SpecialisedTile(3, 64, 128, 6, 1, 1),
    SpecialisedTile(1, 64, 128, 13, 1, 1),
]
"""Likewise, for scales by block."""


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize(("num_weights", "num_features", "is_gated"), SHAPES)
def test_chosen_tiles_fit(num_weights: int, num_features: int, is_gated: bool, by_block: bool) -> None:
    for num_rows in range(1, (linear_float8.MAX_BLOCK_ROWS if by_block else linear_specialised.MAX_ROWS) + 1):
        tile = choose_tile(num_rows, num_weights, num_features, num_sms=NUM_SMS, by_block=by_block)
        assert tile is not None
        assert not by_block or (tile.num_rows <= 64 and tile.num_columns == 128)
        num_tiles = -(-num_weights // tile.num_weights) * -(-num_rows // tile.num_rows)
        assert 1 <= tile.num_parts <= -(-num_features // tile.num_columns)
        if tile.num_parts > 1:  # programs wait for each other
            assert tile.num_programs == num_tiles * tile.num_parts <= NUM_SMS
        assert 1 <= tile.num_programs <= min(num_tiles * tile.num_parts, NUM_SMS)
        # A warpgroup's threads exchange outputs by way of 2 KiB.
        ring_bytes = tile.num_stages * tile.num_columns * (tile.num_weights + tile.num_rows)
        if by_block:  # 128 bytes for a warpgroup's scale and its gate's each, and rows' scales
            ring_bytes += tile.num_stages * (256 * tile.num_groups + 4 * max(tile.num_rows, 32))
        assert tile.num_stages >= 2 and ring_bytes + (tile.num_groups * 2 + 1 << 10) <= SHARED_MEMORY
        assert (tile.num_groups + 1) * tile.num_registers * 128 <= 65536
        left = (tile.num_groups + 1) * tile.num_registers - tile.num_groups * tile.num_group_registers
        assert left >= linear_specialised.PRODUCER_REGISTERS


def test_rows_of_a_graph_are_divided_alike() -> None:
    for fewest, most in ((1, 16), (17, 32), (33, 64)):
        for num_weights, num_features, _ in SHAPES:
            tiles = {
                choose_tile(num_rows, num_weights, num_features, num_sms=NUM_SMS)
                for num_rows in range(fewest, most + 1)
            }
            assert len(tiles) == 1


def test_the_device_is_busy() -> None:
    for num_rows in (16, 64, 100, 128, 200, 256):
        for num_weights, num_features, _ in SHAPES[:-1]:
            tile = choose_tile(num_rows, num_weights, num_features, num_sms=NUM_SMS)
            assert tile is not None
            is_small = num_weights * num_features < 4 << 20  # parts have a least size
            assert is_small or tile.num_programs >= 0.45 * NUM_SMS


@pytest.mark.parametrize(("num_weights", "num_features", "is_gated"), SHAPES)
def test_chosen_streams_fit_and_are_one_for_all_rows(num_weights: int, num_features: int, is_gated: bool) -> None:
    num_channels = num_weights // 2 if is_gated else num_weights
    first, *others = (
        linear_stream.choose_float8_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=NUM_SMS)
        for num_rows in range(1, linear_stream.MAX_FLOAT8_ROWS + 1)
    )
    assert first is not None and set(others) == {first}
    ring_bytes = first.num_stages * first.num_weights + 2 * first.num_x_stages * first.block_m(8)
    assert first.num_warps * first.num_columns * ring_bytes < SHARED_MEMORY


def test_many_rows_are_left_to_the_library() -> None:
    most = linear_specialised.MAX_ROWS
    assert choose_tile(most, 4096, 12288, num_sms=NUM_SMS) is not None
    assert choose_tile(most + 1, 4096, 12288, num_sms=NUM_SMS) is None
    assert choose_tile(0, 4096, 12288, num_sms=NUM_SMS) is None
    most = linear_float8.MAX_BLOCK_ROWS
    assert choose_tile(most, 4096, 12288, num_sms=NUM_SMS, by_block=True) is not None
    assert choose_tile(most + 1, 4096, 12288, num_sms=NUM_SMS, by_block=True) is None
    assert linear_stream.choose_float8_tile(9, 4096, 4096, is_gated=False, num_sms=NUM_SMS) is None


def divide(tile: SpecialisedTile, num_rows: int, num_weights: int, num_features: int) -> list[SpecialisedTile]:
    """The tile for programs with one tile of outputs each, with several, and with a part of one."""
    num_tiles = -(-num_weights // tile.num_weights) * -(-num_rows // tile.num_rows)
    num_steps = -(-num_features // tile.num_columns)
    divisions = {(num_tiles, 1), (max(num_tiles // 2, 1), 1)}
    divisions |= {(num_tiles * parts, parts) for parts in (2, 3, 5) if parts <= num_steps}
    return [
        SpecialisedTile(tile.num_groups, tile.num_rows, tile.num_columns, tile.num_stages, *division)
        for division in sorted(divisions)
        if division[1] == 1 or division[0] <= NUM_SMS
    ]


@needs_hopper
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "num_weights", "num_features", "activation", "has_bias"),
    [
        (9, 272, 528, "none", False),
        (40, 400, 1040, "silu", True),
        (100, 8, 2048, "none", True),
        (300, 512, 1296, "gelu_tanh", False),
        (256, 16, 16, "silu", True),
    ],
)
def test_products(
    tile: SpecialisedTile, num_rows: int, num_weights: int, num_features: int, activation: str, has_bias: bool
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    weight, scales = twins.quantize_rows.reference(random(num_weights, num_features) / num_features**0.5)
    x, row_scales = twins.quantize_rows.reference(random(num_rows, num_features))
    bias = random(num_weights).bfloat16() if has_bias else None
    expected = (x.double() * row_scales) @ (weight.double() * scales).T
    expected = expected if bias is None else expected + bias.double()
    expected = expected if activation == "none" else GATES[activation](expected)
    for divided in divide(tile, num_rows, num_weights, num_features):
        space = used_workspace(x.device, divided.workspace(num_rows, num_weights))
        out, again = (torch.full(expected.shape, float("nan"), device="cuda").bfloat16() for _ in range(2))
        for y in (out, again):
            specialised_linear(x, row_scales, weight, scales[:, 0], bias, y, activation, divided, space)
        assert torch.equal(out, again)
        assert not space.arrivals.any()
        atol = 5e-3 * expected.abs().max().item()
        torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=atol)


@needs_hopper
@pytest.mark.parametrize("tile", BLOCK_TILES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "num_weights", "num_features", "activation", "has_bias"),
    [
        (9, 272, 512, "none", False),
        (40, 512, 1024, "silu", True),
        (100, 8, 2048, "none", True),
        (300, 768, 1536, "gelu_tanh", False),
    ],
)
def test_products_by_block(
    tile: SpecialisedTile, num_rows: int, num_weights: int, num_features: int, activation: str, has_bias: bool
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    weight = (random(num_weights, num_features) * 64).to(FLOAT8)
    scales = (random(-(-num_weights // 128), num_features // 128).abs() + 0.1) / 64 / num_features**0.5
    x, row_scales = quantize_groups(random(num_rows, num_features) * random(num_rows, 1), 128, by_group=True)
    bias = random(num_weights).bfloat16() if has_bias else None
    wide = weight.double() * scales.repeat_interleave(128, 0)[:num_weights].repeat_interleave(128, 1)
    expected = (x.double() * row_scales.repeat_interleave(128, 1))[:num_rows] @ wide.T
    expected = expected if bias is None else expected + bias.double()
    expected = expected if activation == "none" else GATES[activation](expected)
    for divided in divide(tile, num_rows, num_weights, num_features):
        space = used_workspace(x.device, divided.workspace(num_rows, num_weights))
        for dtype in (torch.bfloat16, torch.float16):
            y = torch.full(expected.shape, float("nan"), device="cuda", dtype=dtype)
            specialised_linear(x, row_scales, weight, scales, bias, y, activation, divided, space)
            torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=5e-3 * expected.abs().max().item())


@needs_hopper
def test_sums_of_many_features_lose_no_more_than_the_librarys() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    wide = (torch.randn(rows, 12288, generator=generator, device="cuda") for rows in (512, 256))
    (weight, scales), (x, row_scales) = (twins.quantize_rows.reference(rows) for rows in wide)
    expected = (x.double() * row_scales) @ (weight.double() * scales).T

    def error(y: torch.Tensor) -> float:
        return ((y.double() - expected).square().mean() / expected.square().mean()).sqrt().item()

    library = torch._scaled_mm(
        x, weight.T, row_scales, scales.T.contiguous(), out_dtype=torch.bfloat16, use_fast_accum=True
    )
    space = Workspace(torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.int32, device="cuda"))
    for tile in TILES:
        (whole, *_) = (divided for divided in divide(tile, 256, 512, 12288) if divided.num_parts == 1)
        out = torch.empty_like(library)
        specialised_linear(x, row_scales, weight, scales[:, 0], None, out, "none", whole, space)
        # Rounding to bfloat16 alone is an error of 0.0017.
        assert error(out) <= (0.0018 if tile.is_exact else 1.02 * error(library))
