"""The choice between float8 kernels: a GPU runs the kernels, see ``tests/gpu/test_float8_on_gpu.py``."""

import pytest

from octavo.kernels.triton import linear_float8, linear_stream
from octavo.kernels.triton.linear_hopper import TILE

SHARED_MEMORY = 227 << 10
SHAPES = [
    (6144, 4096, False),
    (4096, 4096, False),
    (12288, 4096, True),
    (4096, 12288, False),
    (1024, 2048, False),
    (3072, 1024, True),
    (8192, 28672, False),
    (100_000, 4096, False),
    (8, 16, True),
]


@pytest.mark.parametrize(("num_channels", "num_features", "is_gated"), SHAPES)
def test_chosen_tiles_fit(num_channels: int, num_features: int, is_gated: bool) -> None:
    for num_rows in range(1, linear_float8.MAX_ROWS + 1):
        tile = linear_float8.choose_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=132)
        if tile is None:
            assert num_rows > linear_float8.MAX_GATED_ROWS
            continue
        assert num_rows <= tile.num_rows
        assert 1 <= tile.num_parts <= -(-num_features // tile.num_columns)
        assert tile.num_stages >= 1
        num_ring_rows = tile.num_stages * (tile.num_rows + TILE * (2 if is_gated else 1))
        assert num_ring_rows * tile.num_columns < SHARED_MEMORY


@pytest.mark.parametrize(("num_channels", "num_features", "is_gated"), SHAPES)
def test_chosen_streams_fit_and_are_one_for_all_rows(num_channels: int, num_features: int, is_gated: bool) -> None:
    first, *others = (
        linear_stream.choose_float8_tile(num_rows, num_channels, num_features, is_gated=is_gated, num_sms=132)
        for num_rows in range(1, linear_stream.MAX_FLOAT8_ROWS + 1)
    )
    assert first is not None and set(others) == {first}
    ring_bytes = first.num_stages * first.num_weights + 2 * first.num_x_stages * first.block_m(8)
    assert first.num_warps * first.num_columns * ring_bytes < SHARED_MEMORY


def test_many_rows_are_left_to_the_library() -> None:
    assert linear_float8.choose_tile(65, 12288, 4096, is_gated=True, num_sms=132) is None
    assert linear_float8.choose_tile(128, 4096, 12288, is_gated=False, num_sms=132) is not None
    assert linear_float8.choose_tile(129, 4096, 12288, is_gated=False, num_sms=132) is None
    assert linear_stream.choose_float8_tile(9, 4096, 4096, is_gated=False, num_sms=132) is None
