"""Layer norms in Triton against their plain twins."""

import pytest
import torch
from test_triton_norm import close, random

from octavo.kernels import basic
from octavo.kernels.triton import norm

PARAMETERS = pytest.mark.parametrize(("has_weight", "has_bias"), [(True, True), (True, False), (False, False)])


def _parameters(
    size: int, has_weight: bool, has_bias: bool, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    weight = random(1, size, dtype=dtype, device=device) if has_weight else None
    return weight, random(2, size, dtype=dtype, device=device) if has_bias else None


@PARAMETERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 256), (7, 96), (5, 1000), (0, 8), (64,), (2, 3, 4, 40)])
def test_layer_norm(
    shape: tuple[int, ...], dtype: torch.dtype, has_weight: bool, has_bias: bool, device: torch.device
) -> None:
    x = 3 + random(0, *shape, dtype=dtype, device=device)
    weight, bias = _parameters(shape[-1], has_weight, has_bias, dtype, device)
    before = x.clone()
    close(norm.layer_norm(x, weight, bias, 1e-5), basic.layer_norm.reference(x, weight, bias, 1e-5))
    assert torch.equal(x, before)


@PARAMETERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 256), (7, 96), (300, 8), (3, 2, 40)])
def test_add_layer_norm(
    shape: tuple[int, ...], dtype: torch.dtype, has_weight: bool, has_bias: bool, device: torch.device
) -> None:
    x = random(0, *shape, dtype=dtype, device=device)
    residual = random(3, *shape, dtype=dtype, device=device)
    weight, bias = _parameters(shape[-1], has_weight, has_bias, dtype, device)
    expected, expected_sum = basic.add_layer_norm.reference(x, residual, weight, bias, 1e-6)
    normed, total = norm.add_layer_norm(x, residual, weight, bias, 1e-6)
    close(normed, expected)
    close(total, expected_sum)
    assert torch.equal(total, residual), "the sum takes the residual's memory"


def test_rows_may_be_heads_of_a_wider_product(device: torch.device) -> None:
    merged = random(0, 5, 7, 24, dtype=torch.float32, device=device)
    for heads in (merged[:, :4], merged[:, 6], merged[::2, 1:3]):
        expected = basic.layer_norm.reference(heads, None, None, 1e-6)
        close(norm.layer_norm(heads, None, None, 1e-6), expected)


def test_a_large_mean_hides_nothing(device: torch.device) -> None:
    x = 1e4 + random(0, 3, 64, dtype=torch.float32, device=device)
    expected = torch.nn.functional.layer_norm(x.double(), (64,)).float()
    torch.testing.assert_close(norm.layer_norm(x, None, None, 1e-5), expected, rtol=1e-2, atol=1e-2)
