"""GEMMs by thread-block clusters against float64, divided in all ways, of sizes that are no multiples of a tile.

A Hopper GPU (H100 or H200) runs the kernel. ``test_gemm_tiles.py`` tests everywhere which division is chosen.
"""

import pytest
import torch

from octavo.kernels.cuda.gemm import ClusterGemm
from octavo.kernels.cuda.gemm_tiles import GemmTile, SlicedTile
from octavo.kernels.linear import GATES

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)

FLOAT8 = torch.float8_e4m3fn
# Warpgroups, rows, stages, blocks that share W, parts of K.
DIVISIONS = [
    (1, 32, 4, 2, 2),
    (1, 32, 10, 1, 4),
    (2, 64, 4, 2, 1),
    (3, 64, 7, 1, 4),
    (1, 128, 9, 2, 1),
    (1, 128, 6, 1, 2),
    (2, 128, 6, 2, 2),
    (2, 128, 6, 1, 4),
    (3, 128, 5, 1, 1),
    (3, 128, 5, 1, 4),
    (1, 192, 6, 1, 2),
    (3, 192, 4, 1, 1),
    (1, 256, 5, 1, 2),
    (2, 256, 4, 2, 1),
    (2, 256, 4, 1, 4),
    (3, 256, 4, 1, 1),
]
SHAPES = [(1, 8, 576), (100, 200, 1040), (250, 392, 2048), (300, 1000, 4096)]
"""Rows, outputs and inputs."""


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float8 values and a scale per row ``[M, 1]``."""
    scales = x.abs().amax(1, keepdim=True) / torch.finfo(FLOAT8).max
    return (x / scales).to(FLOAT8), scales


class Case:
    """A GEMM's operands; of float8 they have scales."""

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, out_dtype: torch.dtype, activation: str
    ) -> None:
        num_rows, num_outputs, num_features = shape
        num_weights = num_outputs * (1 if activation == "none" else 2)
        self.activation = activation
        self.bias = random(2, num_weights).to(out_dtype)
        self.row_scales = self.scales = None
        # Rows of x may lie further apart than they are long.
        x = random(3, num_rows, num_features + 16)
        weight = random(1, num_weights, num_features) / num_features**0.5
        if dtype is FLOAT8:
            x, self.row_scales = rounded(x)
            weight, scales = rounded(weight)
            self.scales = scales[:, 0].contiguous()
        self.x, self.weight = x.to(dtype)[:, :num_features], weight.to(dtype)
        self.out = torch.full((num_rows, num_outputs), float("nan"), device="cuda", dtype=out_dtype)

    def gemm(self) -> ClusterGemm:
        return ClusterGemm(self.weight, self.scales, self.bias, num_sms=132)

    def multiply(self, tile: GemmTile) -> torch.Tensor:
        self.gemm().multiply(self.x, self.row_scales, self.out, self.activation, tile)
        return self.out

    def check(self, tile: GemmTile) -> None:
        expected = self.x.double() @ self.weight.double().T
        if self.row_scales is not None and self.scales is not None:
            expected *= self.row_scales.double() * self.scales.double()
        expected += self.bias.double()
        if self.activation != "none":
            expected = GATES[self.activation](expected)
        # The tensor cores' float8 sums have fewer bits than float32.
        tolerance = 4e-2 if self.scales is not None else 2e-2
        torch.testing.assert_close(self.multiply(tile).double(), expected, rtol=1e-2, atol=tolerance)


def tile_of(division: tuple[int, ...], num_weights: int, *, is_persistent: bool = False) -> GemmTile:
    tile = GemmTile(*division, num_clusters=1)
    num_clusters = tile.num_weight_tiles(num_weights)
    return GemmTile(*division, num_clusters=-(-num_clusters // 2) if is_persistent else num_clusters)


@pytest.mark.parametrize("division", DIVISIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [(FLOAT8, torch.bfloat16), (FLOAT8, torch.float16), (torch.bfloat16,) * 2, (torch.float16,) * 2],
    ids=str,
)
@pytest.mark.parametrize("activation", ["none", "silu", "gelu_tanh"])
def test_products(
    division: tuple[int, ...],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    activation: str,
) -> None:
    num_rows, num_parts = division[1], division[4]
    if activation != "none" and num_rows // num_parts % 32:
        pytest.skip("with a gate, 32 rows are written at once")
    if activation == "gelu_tanh" and out_dtype is torch.bfloat16:
        pytest.skip("one type of outputs is enough")
    case = Case(shape, dtype, out_dtype, activation)
    case.check(tile_of(division, len(case.weight)))


@pytest.mark.parametrize("dtype", [FLOAT8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("division", [each for each in DIVISIONS if each[4] == 1], ids=str)
def test_blocks_with_several_tiles(division: tuple[int, ...], dtype: torch.dtype) -> None:
    case = Case((200, 2000, 1024), dtype, torch.bfloat16, "silu")
    case.check(tile_of(division, len(case.weight), is_persistent=True))


@pytest.mark.parametrize("num_blocks", [1, 7, 132])
@pytest.mark.parametrize("slice_tiles", [1, 2, 3, 8])
@pytest.mark.parametrize("num_rows", [600, 1790, 4100])
def test_blocks_share_tiles_of_many_rows(num_rows: int, slice_tiles: int, num_blocks: int) -> None:
    case = Case((num_rows, 1000, 1024), torch.bfloat16, torch.bfloat16, "silu")
    case.check(SlicedTile(3, 256, 4, 1, 1, num_blocks, slice_tiles))


def test_a_result_does_not_depend_on_the_launch() -> None:
    case = Case((250, 1000, 4096), torch.bfloat16, torch.bfloat16, "none")
    tile = tile_of((2, 256, 4, 1, 4), len(case.weight))
    first = case.multiply(tile).clone()
    for _ in range(10):
        assert torch.equal(case.multiply(tile), first)
