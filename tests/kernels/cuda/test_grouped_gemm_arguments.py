"""What a GEMM with packed weights is launched with, with a driver that only keeps it; and which tile it has."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from fakes import FakeDriver
from gemm_shapes import MODEL_SHAPES

from octavo.kernels.cuda import grouped_gemm as grouped_module
from octavo.kernels.cuda.gemm_tiles import SHARED_BYTES
from octavo.kernels.cuda.grouped_gemm import SOURCE, GroupedGemm
from octavo.kernels.cuda.grouped_gemm_tiles import MAX_ROWS, MIN_ROWS, GroupedTile, choose_tile
from octavo.kernels.cuda.library import KernelLibrary
from octavo.kernels.cuda.nvrtc import CompileError
from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.triton.grouped_terms import make_terms

NUM_WEIGHTS, NUM_FEATURES, GROUP = 512, 768, 256
SHAPES = [shape for shapes in MODEL_SHAPES.values() for shape in shapes]


@pytest.fixture(autouse=True)
def _forgotten(library: KernelLibrary) -> Iterator[None]:
    grouped_module._prepare.cache_clear()
    yield
    grouped_module._prepare.cache_clear()


def new_gemm(num_weights: int = NUM_WEIGHTS, bias: torch.Tensor | None = None) -> GroupedGemm:
    codes = torch.zeros(num_weights, NUM_FEATURES // 2, dtype=torch.uint8)
    weight = GroupedTensors(codes, torch.ones(num_weights, NUM_FEATURES // GROUP), None, 4)
    return GroupedGemm(weight, make_terms(weight, "wide"), bias, num_sms=132)


def new_tile(num_groups: int, num_rows: int, share_w: int, num_parts: int, num_clusters: int) -> GroupedTile:
    tile = GroupedTile.deepest(num_groups, num_rows, share_w, num_parts)
    assert tile is not None
    return replace(tile, num_clusters=num_clusters)


def multiply(gemm: GroupedGemm, tile: GroupedTile, num_rows: int, activation: str = "none") -> torch.Tensor:
    x = torch.zeros(num_rows, NUM_FEATURES, dtype=torch.bfloat16)
    num_outputs = len(gemm._weight.codes) // (1 if activation == "none" else 2)
    gemm.multiply(x, torch.empty(num_rows, num_outputs, dtype=torch.bfloat16), activation, tile)
    return x


def test_tiles_of_codes_terms_and_rows(fake_driver: FakeDriver) -> None:
    gemm = new_gemm()
    x = multiply(gemm, new_tile(2, 128, 2, 1, 2), 100)
    codes, terms = gemm._weight.codes, gemm._terms
    assert fake_driver.encoded == [
        (codes.data_ptr(), (NUM_WEIGHTS, NUM_FEATURES // 2), (NUM_FEATURES // 2, 1), (64, 64)),
        (terms.data_ptr(), (NUM_WEIGHTS // 8, 3 * 32), (3 * 32, 1), (8, 32)),
        (x.data_ptr(), (100, NUM_FEATURES), (NUM_FEATURES, 1), (50, 64)),
    ]
    ((_, _, values),) = fake_driver.launched
    assert values[:3] == [2, 0, 1]  # the maps
    assert values[4:] == [NUM_FEATURES // 128, GROUP // 128, 50, 1, 4]


def test_rows_of_a_gate_alternate_with_those_of_its_projection(fake_driver: FakeDriver) -> None:
    multiply(new_gemm(), new_tile(3, 128, 1, 1, 2), 128, "silu")
    (_, *codes), (_, *terms) = fake_driver.encoded[:2]
    half, size = NUM_WEIGHTS // 16, NUM_FEATURES // 2
    assert codes == [(half, 2, 8, size), (8 * size, NUM_WEIGHTS // 2 * size, size, 1), (12, 2, 8, 64)]
    assert terms[0] == (half, 2, 1, 96) and terms[1][:2] == (96, half * 96) and terms[2] == (12, 2, 1, 32)


def test_weights_that_moved_are_found(fake_driver: FakeDriver) -> None:
    gemm, tile = new_gemm(), new_tile(2, 128, 2, 1, 2)
    multiply(gemm, tile, 100)
    codes = gemm._weight.codes
    held = codes.untyped_storage()
    codes.data = torch.zeros_like(codes)
    assert held.data_ptr() != codes.data_ptr()
    multiply(gemm, tile, 100)
    assert fake_driver.encoded[-2][0] == codes.data_ptr()


def test_what_the_kernel_does_not_write_is_left_to_others(library: KernelLibrary) -> None:
    def chooses(gemm: GroupedGemm, dtype: torch.dtype = torch.bfloat16, *, is_gated: bool = False) -> bool:
        return gemm.choose(128, dtype, is_gated=is_gated) is not None

    assert chooses(new_gemm(4096)) and not chooses(new_gemm(4096), torch.float32)
    assert not chooses(new_gemm(4100))
    assert chooses(new_gemm(4104)) and not chooses(new_gemm(4104), is_gated=True)
    assert not chooses(new_gemm(4096, torch.zeros(4096)))
    library._give_up(SOURCE, CompileError("a log"))
    assert not chooses(new_gemm(4096))


@pytest.mark.parametrize("num_sms", [16, 114, 132])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_chosen_fits(shape: tuple[int, int, str], num_sms: int) -> None:
    num_weights, num_features, activation = shape
    is_gated = activation != "none"
    for num_rows in range(MIN_ROWS, MAX_ROWS + 1, 3):
        tile = choose_tile(num_rows, num_weights, num_features, is_gated=is_gated, num_sms=num_sms)
        if num_rows <= 32 and num_features > 8192:
            assert tile is None
            continue
        assert tile is not None and tile.shared_bytes <= SHARED_BYTES
        assert tile.num_stages >= 4 and tile.num_code_stages >= 2
        row_tiles = tile.num_row_groups(num_rows) * tile.share_w
        assert (row_tiles - tile.share_w) * tile.num_rows < num_rows <= row_tiles * tile.num_rows
        own_rows = tile.num_rows // tile.num_parts
        assert own_rows % 32 == 0 or (own_rows in (8, 16) and not is_gated)
        if tile.num_parts > 1:
            assert tile.num_clusters == tile.num_weight_tiles(num_weights)
            received = 4 * (tile.num_parts - 1) * own_rows * tile.num_weights
            assert received <= tile.num_stages * 128 * tile.num_rows
        # Clusters of more than two blocks do not reach all multiprocessors.
        if num_sms == 132:
            assert tile.num_blocks(num_rows) <= (132 if tile.cluster_size <= 2 else 120)


def test_what_is_left_to_other_kernels() -> None:
    for num_rows in (0, MIN_ROWS - 1, MAX_ROWS + 1):
        assert choose_tile(num_rows, 4096, 4096, is_gated=False, num_sms=132) is None


def test_known_choices() -> None:
    """Of Qwen3-8B: the best in a sweep on an H200."""

    def division(num_rows: int, shape: tuple[int, int, str]) -> tuple[int, int, int, int]:
        num_weights, num_features, activation = shape
        is_gated = activation != "none"
        tile = choose_tile(num_rows, num_weights, num_features, is_gated=is_gated, num_sms=132)
        assert tile is not None
        return tile.num_groups, tile.num_rows, tile.share_w, tile.num_parts

    qkv, output, gate, down = MODEL_SHAPES["Qwen3-8B"]
    assert [division(256, shape) for shape in (qkv, output, gate, down)] == [
        (3, 128, 1, 2),
        (2, 128, 1, 2),
        (3, 256, 1, 1),
        (2, 128, 1, 2),
    ]
    assert division(128, gate) == (3, 128, 1, 1)
    assert division(64, qkv) == (2, 64, 1, 2)
    assert division(32, output) == (1, 32, 1, 2)
