"""Norms in Triton against their plain twins."""

import pytest
import torch

from octavo.kernels import basic
from octavo.kernels.triton import norm

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def random(seed: int, *shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("shape", [(1, 256), (7, 96), (3, 1), (5, 1000), (0, 8), (64,), (2, 3, 4, 40)])
def test_rms_norm(shape: tuple[int, ...], is_wide: bool, dtype: torch.dtype, device: torch.device) -> None:
    x = random(0, *shape, dtype=dtype, device=device)
    weight = random(1, shape[-1], dtype=torch.float32 if is_wide else dtype, device=device)
    before = x.clone()
    close(norm.rms_norm(x, weight, 1e-5), basic.rms_norm.reference(x, weight, 1e-5))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("shape", [(1, 256), (7, 96), (300, 8), (3, 2, 40)])
def test_add_rms_norm(shape: tuple[int, ...], is_wide: bool, dtype: torch.dtype, device: torch.device) -> None:
    x = random(0, *shape, dtype=dtype, device=device)
    residual = random(1, *shape, dtype=dtype, device=device)
    weight = random(2, shape[-1], dtype=torch.float32 if is_wide else dtype, device=device)
    expected, expected_sum = basic.add_rms_norm.reference(x, residual, weight, 1e-6)
    normed, total = norm.add_rms_norm(x, residual, weight, 1e-6)
    close(normed, expected)
    close(total, expected_sum)
    assert normed.shape == total.shape == x.shape
    assert torch.equal(total, residual), "the sum takes the residual's memory"


def test_rows_may_be_heads_of_a_wider_product(device: torch.device) -> None:
    merged = random(0, 5, 7, 24, dtype=torch.float32, device=device)
    weight = random(1, 24, dtype=torch.float32, device=device)
    for heads in (merged[:, :4], merged[:, 4:6], merged[:, 6], merged[::2, 1:3], merged.transpose(0, 2)[:, :, :5]):
        own_weight = weight[: heads.shape[-1]]
        close(norm.rms_norm(heads, own_weight, 1e-6), basic.rms_norm.reference(heads, own_weight, 1e-6))
    x, residual = merged[:, 1:3], merged[:, 4:6]
    expected, expected_sum = basic.add_rms_norm.reference(x, residual, weight, 1e-6)
    untouched = merged[:, [0, 1, 2, 3, 6]].clone()
    normed, total = norm.add_rms_norm(x, residual, weight, 1e-6)
    close(normed, expected)
    close(total, expected_sum)
    assert torch.equal(merged[:, [0, 1, 2, 3, 6]], untouched)


@pytest.mark.parametrize("tile", [norm.NormTile(1, 1), norm.NormTile(4, 2), norm.NormTile(8, 4)])
def test_every_tile_gives_the_same(tile: norm.NormTile, device: torch.device) -> None:
    x = random(0, 13, 1, 80, dtype=torch.float32, device=device)
    residual = random(1, 13, 1, 80, dtype=torch.float32, device=device)
    weight = random(2, 80, dtype=torch.float32, device=device)
    normed = torch.full_like(x, float("nan"))
    expected, expected_sum = basic.add_rms_norm.reference(x, residual, weight, 1e-6)
    norm.launch(x, residual, weight, None, normed, 1e-6, tile, centred=False)
    close(normed, expected)
    close(residual, expected_sum)


@pytest.mark.parametrize("size", [1, 64, 2560, 4096, 16_384])
def test_tiles_are_legal(size: int) -> None:
    tile = norm.choose_tile(size)
    assert tile.num_rows & (tile.num_rows - 1) == 0 < tile.num_rows
    assert tile.num_warps in (1, 2, 4, 8, 16)


def test_a_bad_row_stays_alone(device: torch.device) -> None:
    x = random(0, 6, 64, dtype=torch.float32, device=device)
    weight = random(1, 64, dtype=torch.float32, device=device)
    expected = basic.rms_norm.reference(x, weight, 1e-6)
    x[3, 5] = float("nan")
    result = norm.rms_norm(x, weight, 1e-6)
    assert result[3].isnan().all()
    good = [0, 1, 2, 4, 5]
    close(result[good], expected[good])
