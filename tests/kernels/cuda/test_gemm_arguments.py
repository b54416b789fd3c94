"""What a GEMM by clusters is launched with, with a driver that only keeps it."""

from collections.abc import Iterator

import pytest
import torch
from fakes import FakeDriver

from octavo.kernels.cuda import gemm as gemm_module
from octavo.kernels.cuda.gemm import SOURCE, ClusterGemm
from octavo.kernels.cuda.gemm_tiles import GemmTile, SlicedTile
from octavo.kernels.cuda.library import KernelLibrary
from octavo.kernels.cuda.nvrtc import CompileError
from octavo.kernels.linear import RoundedRows

FLOAT8 = torch.float8_e4m3fn
NUM_WEIGHTS, NUM_FEATURES = 512, 640
"""With a gate, twice as many."""


@pytest.fixture(autouse=True)
def _forgotten(library: KernelLibrary) -> Iterator[None]:
    caches = gemm_module._prepare, gemm_module._runs_alone
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def new_gemm(
    dtype: torch.dtype = FLOAT8, num_weights: int = NUM_WEIGHTS, bias: torch.Tensor | None = None
) -> ClusterGemm:
    weight = torch.zeros(num_weights, NUM_FEATURES).to(dtype)
    scales = torch.ones(num_weights) if dtype is FLOAT8 else None
    return ClusterGemm(weight, scales, bias, num_sms=132)


def multiply(gemm: ClusterGemm, tile: GemmTile, num_rows: int, activation: str = "none") -> torch.Tensor:
    x = torch.zeros(num_rows, NUM_FEATURES).to(gemm._weight.dtype)
    num_outputs = len(gemm._weight) // (1 if activation == "none" else 2)
    out = torch.empty(num_rows, num_outputs, dtype=torch.bfloat16)
    gemm.multiply(x, torch.ones(num_rows, 1) if x.dtype is FLOAT8 else None, out, activation, tile)
    return x


def test_tiles_of_both_matrices(fake_driver: FakeDriver) -> None:
    gemm, tile = new_gemm(), GemmTile(2, 128, 6, 2, 1, 2)
    x = multiply(gemm, tile, 100)
    weight = gemm._weight
    assert fake_driver.encoded == [
        (weight.data_ptr(), (NUM_WEIGHTS, NUM_FEATURES), (NUM_FEATURES, 1), (64, 128)),
        (x.data_ptr(), (100, NUM_FEATURES), (NUM_FEATURES, 1), (50, 128)),
    ]
    ((_, stream, values),) = fake_driver.launched
    assert stream == 7
    assert values[:2] == [1, 0]  # the maps
    assert values[3:] == [NUM_FEATURES // 128, 50, 1, 4]


def test_rows_of_a_gate_alternate_with_those_of_its_projection(fake_driver: FakeDriver) -> None:
    gemm, tile = new_gemm(torch.bfloat16), GemmTile(3, 256, 4, 1, 1, 2)
    multiply(gemm, tile, 256, "silu")
    shape, strides = (
        (NUM_WEIGHTS // 16, 2, 8, NUM_FEATURES),
        (8 * NUM_FEATURES, NUM_WEIGHTS // 2 * NUM_FEATURES, NUM_FEATURES, 1),
    )
    assert fake_driver.encoded[0] == (gemm._weight.data_ptr(), shape, strides, (12, 2, 8, 64))
    ((_, _, values),) = fake_driver.launched
    assert values[3:] == [NUM_FEATURES // 64, 256, 1, 3]


def test_blocks_share_tiles_of_many_rows(fake_driver: FakeDriver) -> None:
    multiply(new_gemm(torch.bfloat16), SlicedTile(3, 256, 4, 1, 1, 2, 8), 5000, "silu")
    ((_, _, values),) = fake_driver.launched
    assert values[3:] == [NUM_FEATURES // 64, 250, 20, 3]
    assert b"-DSLICE=8" in fake_driver.loaded[0]


def test_maps_are_made_once_and_follow_addresses(fake_driver: FakeDriver) -> None:
    first, second, tile = new_gemm(), new_gemm(), GemmTile(2, 128, 6, 2, 1, 2)
    for gemm in (first, second, first, second):
        x = multiply(gemm, tile, 100)
        assert fake_driver.encoded[1][0] == x.data_ptr()
    assert len(fake_driver.encoded) == 3  # two weights, and rows of one shape
    assert [values[1] for _, _, values in fake_driver.launched] == [0, 2, 0, 2]
    assert len(fake_driver.loaded) == 1
    multiply(first, tile, 99)
    assert len(fake_driver.encoded) == 4


def test_weights_that_moved_are_found(fake_driver: FakeDriver) -> None:
    """As after sleep: the tensor is the same, its memory another."""
    gemm, tile = new_gemm(), GemmTile(2, 128, 6, 2, 1, 2)
    multiply(gemm, tile, 100)
    held = gemm._weight.untyped_storage()
    other = torch.zeros_like(gemm._weight)
    gemm._weight.set_(other)
    assert held.data_ptr() != gemm._weight.data_ptr()
    multiply(gemm, tile, 100)
    assert fake_driver.encoded[-1][0] == other.data_ptr()
    assert fake_driver.launched[-1][2][1] == len(fake_driver.encoded) - 1


def test_what_the_kernel_does_not_write_is_left_to_others() -> None:
    def chooses(gemm: ClusterGemm, dtype: torch.dtype = torch.bfloat16, *, is_gated: bool = False) -> bool:
        return any(gemm.choose(num_rows, dtype, is_gated=is_gated) is not None for num_rows in range(300))

    size = 4096
    assert chooses(new_gemm(num_weights=size))
    assert not chooses(new_gemm(num_weights=size), torch.float32)
    assert not chooses(new_gemm(num_weights=size + 4))
    assert chooses(new_gemm(num_weights=size + 8)) and not chooses(new_gemm(num_weights=size + 8), is_gated=True)
    assert not chooses(new_gemm(num_weights=size, bias=torch.zeros(size)))
    assert chooses(new_gemm(num_weights=size, bias=torch.zeros(size, dtype=torch.bfloat16)))


def test_outputs_are_rounded_where_blocks_can_wait_for_each_other(fake_driver: FakeDriver) -> None:
    def chooses(gemm: ClusterGemm, num_rows: int) -> bool:
        return gemm.choose_rounding(num_rows, torch.bfloat16, is_gated=True) is not None

    gemm = new_gemm(num_weights=4096)
    assert chooses(gemm, 256) and not chooses(gemm, 8)
    assert not chooses(new_gemm(num_weights=1 << 15), 512), "blocks have several tiles"
    gemm_module._runs_alone.cache_clear()
    fake_driver.is_alone = False
    assert not chooses(gemm, 256), "another process has some of the multiprocessors"


def test_the_kernel_that_rounds_its_outputs(fake_driver: FakeDriver) -> None:
    gemm, num_rows = new_gemm(), 100
    tile = gemm.choose_rounding(num_rows, torch.bfloat16, is_gated=True)
    assert tile is not None
    x = torch.zeros(num_rows, NUM_FEATURES).to(FLOAT8)
    rounded = RoundedRows.empty(num_rows, NUM_WEIGHTS // 2, torch.bfloat16, x.device)
    gemm.multiply(x, torch.ones(num_rows, 1), None, "silu", tile, rounded=rounded)
    assert len(fake_driver.launched) == 1
    assert b"-DROUNDED=1" in fake_driver.loaded[0] and b"-DHALF=0" in fake_driver.loaded[0]


def test_a_kernel_that_does_not_compile_is_not_chosen(library: KernelLibrary, caplog: pytest.LogCaptureFixture) -> None:
    gemm = new_gemm(num_weights=4096)
    assert gemm.choose(128, torch.bfloat16, is_gated=False) is not None
    library._give_up(SOURCE, CompileError("a log"))
    assert gemm.choose(128, torch.bfloat16, is_gated=False) is None
