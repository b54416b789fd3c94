"""Gates in Triton against their plain twins."""

from collections.abc import Callable

import pytest
import torch

from octavo.kernels import basic
from octavo.kernels.triton import activation

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
Gate = Callable[[torch.Tensor], torch.Tensor]
GATES: list[tuple[Gate, Gate]] = [
    (activation.silu_and_mul, basic.silu_and_mul.reference),
    (activation.gelu_tanh_and_mul, basic.gelu_tanh_and_mul.reference),
]


def random(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("shape", [(1, 512), (5, 2 * 33), (3, 2), (0, 16), (32,), (2, 3, 24)])
def test_gates(shape: tuple[int, ...], gates: tuple[Gate, Gate], dtype: torch.dtype, device: torch.device) -> None:
    ours, plain = gates
    x = random(*shape, dtype=dtype, device=device)
    before = x.clone()
    close(ours(x), plain(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("gates", GATES)
def test_rows_may_be_strided(gates: tuple[Gate, Gate], device: torch.device) -> None:
    ours, plain = gates
    wide = random(6, 100, dtype=torch.float32, device=device)
    for x in (wide[:, 10:42], wide[::2, :64], wide.T[:, :4]):
        close(ours(x), plain(x))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("gates", GATES)
def test_large_values_saturate(gates: tuple[Gate, Gate], device: torch.device) -> None:
    ours, plain = gates
    gate = torch.tensor([-1e30, -3e4, -100.0, -0.0, 0.0, 100.0, 3e4, 1e30, float("inf"), float("nan")], device=device)
    x = torch.cat((gate, torch.ones_like(gate)))
    close(ours(x), plain(x))


@pytest.mark.parametrize(
    "tile", [activation.ActivationTile(16, 1), activation.ActivationTile(32, 2), activation.ActivationTile(128, 4)]
)
def test_every_tile_gives_the_same(tile: activation.ActivationTile, device: torch.device) -> None:
    x = random(5, 2 * 72, dtype=torch.float32, device=device)
    y = torch.full((5, 72), float("nan"), device=device)
    activation.launch(x, y, False, tile)
    close(y, basic.silu_and_mul.reference(x))


@pytest.mark.parametrize("num_rows", [1, 100, 20_000])
@pytest.mark.parametrize("size", [1, 60, 3072, 12_288])
def test_tiles_are_legal(num_rows: int, size: int) -> None:
    tile = activation.choose_tile(num_rows, size, 132)
    assert tile.num_columns & (tile.num_columns - 1) == 0 < tile.num_columns
    assert tile.num_warps in (1, 2, 4, 8, 16)
