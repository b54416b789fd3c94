"""Which division of a GEMM among thread blocks is chosen: it fits the device and the kernel, and is known as fast."""

import pytest

from octavo.kernels.cuda.gemm_tiles import MAX_ROWS, MIN_ROWS, GemmTile, SlicedTile, choose_tile

SHARED_MEMORY = 227 << 10
SHAPES = [
    (6144, 4096, False),
    (4096, 4096, False),
    (24576, 4096, True),
    (4096, 12288, False),
    (4096, 1024, False),
    (1024, 2048, False),
    (6144, 1024, True),
    (1024, 3072, False),
    (34816, 5120, True),
    (2048, 8192, False),
    (151936, 1024, False),
    (208, 128, True),
    (8, 128, False),
]
"""Weight rows, inputs and whether there is a gate."""


def choose(
    num_rows: int, shape: tuple[int, int, bool], *, is_float8: bool = False, num_sms: int = 132
) -> GemmTile | None:
    num_weights, num_features, is_gated = shape
    return choose_tile(num_rows, num_weights, num_features, is_gated=is_gated, is_float8=is_float8, num_sms=num_sms)


@pytest.mark.parametrize("num_sms", [16, 114, 132])
@pytest.mark.parametrize("is_float8", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_chosen_fits(shape: tuple[int, int, bool], is_float8: bool, num_sms: int) -> None:
    num_weights, num_features, is_gated = shape
    for num_rows in range(MIN_ROWS, MAX_ROWS + 1):
        tile = choose(num_rows, shape, is_float8=is_float8, num_sms=num_sms)
        if tile is None:
            assert num_rows > 256
            continue
        assert tile.shared_bytes <= SHARED_MEMORY and tile.num_stages >= 4
        num_weight_tiles = tile.num_weight_tiles(num_weights)
        assert 1 <= tile.num_clusters <= num_weight_tiles
        row_tiles = tile.num_row_groups(num_rows) * tile.share_w
        assert (row_tiles - tile.share_w) * tile.num_rows < num_rows <= row_tiles * tile.num_rows
        own_rows = tile.num_rows // tile.num_parts
        assert own_rows % 32 == 0 or (own_rows in (8, 16) and not is_gated)
        if tile.num_parts > 1:
            assert tile.num_clusters == num_weight_tiles
            assert tile.num_parts * 128 <= num_features * (1 if is_float8 else 2) + 127
            # A block's ring for rows takes in the other parts' sums.
            received = 4 * (tile.num_parts - 1) * own_rows * tile.num_weights
            assert received <= tile.num_stages * 128 * tile.num_rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_of_one_tile_run_at_once(shape: tuple[int, int, bool]) -> None:
    for num_rows in (32, 64, 128, 192, 256):
        tile = choose(num_rows, shape)
        assert tile is not None
        # Clusters of more than two blocks do not reach all multiprocessors.
        assert tile.num_blocks(num_rows) <= (132 if tile.cluster_size <= 2 else 120)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_a_graph_are_divided_alike(shape: tuple[int, int, bool]) -> None:
    for fewest, most in ((MIN_ROWS, 32), (33, 64), (65, 128), (129, 192), (193, 256), (385, 512)):
        assert len({choose(num_rows, shape) for num_rows in range(fewest, most + 1)}) == 1


def test_blocks_that_wait_for_each_other_run_at_once() -> None:
    def meets(tile: GemmTile, num_rows: int = 256, num_weights: int = 24576) -> bool:
        return tile.can_meet(num_rows, num_weights, 132)

    assert meets(GemmTile(3, 256, 4, 1, 1, 128))
    assert not meets(GemmTile(3, 256, 4, 1, 1, 64)), "a block has two tiles"
    assert not meets(GemmTile(3, 256, 4, 1, 1, 128), 300), "twice as many blocks"
    assert meets(GemmTile(1, 128, 9, 2, 1, 64), num_weights=4096)
    assert not meets(GemmTile(1, 128, 9, 1, 4, 16), num_weights=1024), "clusters of four do not reach everywhere"


def test_known_choices() -> None:
    """Of Qwen3-8B in bfloat16: the best in a sweep on an H100 and an H200."""

    def division(num_rows: int, shape: tuple[int, int, bool]) -> tuple[int, int, int, int]:
        tile = choose(num_rows, shape)
        assert tile is not None
        return tile.num_groups, tile.num_rows, tile.share_w, tile.num_parts

    gate, output, down = (24576, 4096, True), (4096, 4096, False), (4096, 12288, False)
    assert division(256, gate) == (3, 256, 1, 1)
    assert division(256, output) == (1, 128, 2, 1)
    assert division(128, gate) == (3, 128, 1, 1)
    assert division(128, down) == (1, 128, 1, 2)
    assert division(32, down) == (1, 32, 1, 2)


def test_gates_of_many_rows_have_the_largest_tiles() -> None:
    gate, short = (24576, 4096, True), (6144, 1024, True)
    largest = SlicedTile(3, 256, 4, 1, 1, 132, 8)
    assert largest.shared_bytes <= SHARED_MEMORY and largest.num_blocks(8192) == 132
    assert {choose(num_rows, gate) for num_rows in (1024, 2048, 5000, 6500, 7000, 8192, 16384)} == {largest}
    # Nine tiles, of which a tenth is empty, take two rounds of all blocks.
    assert choose(2100, gate) is None
    # A gate's launch takes as long as 231 features, of which there are fewer.
    assert choose(4100, short) == largest
    assert choose(1300, gate) is None and choose(1300, short) is None
    assert choose(8192, gate, is_float8=True) is None
    assert choose(8192, (6144, 4096, False)) is None


def test_what_is_left_to_other_kernels() -> None:
    for num_rows in (0, MIN_ROWS - 1, MAX_ROWS + 1):
        assert choose(num_rows, (4096, 4096, False)) is None
    # The library shares what it reads among more blocks.
    assert choose(512, (4096, 12288, False)) is None
    assert choose(512, (24576, 4096, True)) is not None
