"""What the build for AMX computes, bit by bit: on processors that have it, and emulated."""

import pytest
import torch
from native_builds import EMULATED, built, load

from octavo.kernels.blocks import FORMATS
from octavo.kernels.cpu.native_blocks import NativeBlocks
from octavo.kernels.cpu.native_linear import NativeLinear
from octavo.platforms.native import BLOCK_NUMBERS, NativeKernels

STEP = 32
"""Inputs of a tile."""
ROWS = (1, 4, 5, 16, 17, 31, 32, 33, 70)


@pytest.fixture(params=["amx", *EMULATED])
def tiles(request: pytest.FixtureRequest) -> NativeKernels:
    """The build for AMX, or its emulation."""
    if request.param not in built():
        pytest.skip(
            f"{request.param} was not built, or does not run here; run on an AMD EPYC, emulated, and an Intel Xeon"
        )
    return load(request.param)


def in_order(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x Wᵀ`` in float32: even and odd terms of each 32 inputs apart, then both, then all so far."""
    padding = (0, -x.shape[1] % STEP)
    x, weight = (torch.nn.functional.pad(each.float(), padding) for each in (x, weight))
    sums = torch.zeros(len(x), len(weight))
    for first in range(0, x.shape[1], STEP):
        even, odd = torch.zeros_like(sums), torch.zeros_like(sums)
        for k in range(first, first + STEP, 2):
            even += x[:, k, None] * weight[:, k]  # products of two bfloat16 values are exact
            odd += x[:, k + 1, None] * weight[:, k + 1]
        sums += even + odd
    return sums


@pytest.mark.parametrize("shape", [(16, 32), (40, 576), (33, 77), (5, 3), (96, 1536)])
def test_sums_of_bfloat16_have_the_order_of_tiles(tiles: NativeKernels, shape: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=random).bfloat16()
    gemm = NativeLinear(tiles, weight.clone(), None)
    for num_rows in ROWS:
        x = torch.randn(num_rows, shape[1], generator=random).bfloat16()
        y = torch.empty(num_rows, shape[0])
        gemm.run(x, y, 0)
        assert torch.equal(y, in_order(x, weight))


@pytest.mark.parametrize("name", FORMATS)
def test_integers_in_groups_have_the_bits_of_other_builds(tiles: NativeKernels, name: str) -> None:
    """Sums of integers are exact, and groups are added up in the same order."""
    random = torch.Generator().manual_seed(0)
    results = []
    x = torch.randn(70, 512, generator=random)
    x[::3, 40] *= 30  # rows with second codes
    x[1::4, 300] *= 30
    packed = torch.randint(0, 256, (3, FORMATS[name].panel_bytes(512)), generator=random, dtype=torch.uint8)
    packed &= 0xBB  # scales in float16 are finite
    assert tiles.packed_bytes(BLOCK_NUMBERS[name], 48, 512) == packed.nbytes
    for native in (tiles, load("avx512_bf16"), load("avx512_vnni")):
        gemm = NativeBlocks(native).linear(packed, name, (48, 512), None, torch.float32)
        results.append([gemm(x[:num_rows]) for num_rows in ROWS])
    assert results[0][-1].isfinite().all()
    for tiled, *others in zip(*results, strict=True):
        assert all(torch.equal(tiled, other) for other in others)
