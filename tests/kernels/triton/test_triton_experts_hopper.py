"""Grouped GEMMs by specialised warps, held against the kernel that every device runs: their bits are the same.

Triton's interpreter does not know such warps: an H100 or H200 runs this.
"""

from dataclasses import replace

import pytest
import torch

from octavo.kernels.packed_experts import PackedMatrices
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import packed_experts
from octavo.kernels.triton.experts import choose_tile, grouped_gemm, order_pairs
from octavo.kernels.triton.experts_hopper import can_multiply
from octavo.kernels.triton.packed_experts import packed_gemm, round_inputs
from octavo.records.experts import ExpertSpec

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)

SPECS = [ExpertSpec("silu"), ExpertSpec("clamped_swiglu", 1.7, 0.8), ExpertSpec("silu", weighs_inputs=True)]


def random(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda", dtype=dtype)


def choose(num_tokens: int, num_experts: int, num_chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens' experts and shares: some experts have many pairs, some few, the second none."""
    chosen = (random(4, num_tokens, num_chosen, dtype=torch.float32).abs() * num_experts / 2).long() % num_experts
    chosen[chosen == 1] = 0
    return chosen, random(5, num_tokens, num_chosen, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", [*SPECS, None], ids=["silu", "clamped", "weighs inputs", "down"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "num_features", "num_outputs"),
    [(1, 3, 2, 64, 8), (300, 4, 3, 128, 136), (777, 5, 2, 448, 256), (4000, 40, 4, 576, 328)],
    ids=str,
)
def test_its_bits_are_those_of_the_other_kernel(
    dtype: torch.dtype,
    spec: ExpertSpec | None,
    bias: bool,
    num_tokens: int,
    num_experts: int,
    num_chosen: int,
    num_features: int,
    num_outputs: int,
) -> None:
    rows = num_outputs if spec is None else 2 * num_outputs
    weight = random(1, num_experts, rows, num_features, dtype=dtype) / num_features**0.5
    own_bias = random(2, num_experts, rows, dtype=dtype) if bias else None
    x = random(3, num_tokens * (num_chosen if spec is None else 1), num_features, dtype=dtype)
    chosen, shares = choose(num_tokens, num_experts, num_chosen)
    tile = choose_tile(num_experts * 600, num_experts, 2, is_gated=spec is not None)
    order = order_pairs(chosen, num_experts, tile.block_m)
    found = x.new_full((chosen.numel(), num_outputs), float("nan"))
    assert tile.is_specialised and can_multiply(x, weight, found)
    grouped_gemm(x, weight, own_bias, shares, found, order, tile, spec)
    expected = torch.full_like(found, float("nan"))
    grouped_gemm(x, weight, own_bias, shares, expected, order, tile._replace(is_specialised=False), spec)
    assert expected.isfinite().all()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("spec", [*SPECS, None], ids=["silu", "clamped", "weighs inputs", "down"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "num_features", "num_outputs"),
    [(1, 3, 2, 128, 8), (300, 4, 3, 256, 136), (777, 5, 2, 896, 256), (4000, 40, 4, 640, 328)],
    ids=str,
)
def test_float8(
    spec: ExpertSpec | None,
    bias: bool,
    num_tokens: int,
    num_experts: int,
    num_chosen: int,
    num_features: int,
    num_outputs: int,
) -> None:
    rows = num_outputs if spec is None else 2 * num_outputs
    codes = (random(1, num_experts, rows, num_features, dtype=torch.bfloat16) * 64).to(FLOAT8)
    scales = random(6, num_experts, 1, rows, dtype=torch.float32).abs() / 64 / num_features**0.5
    weight = PackedMatrices(codes, scales, None, 8)
    own_bias = random(2, num_experts, rows, dtype=torch.bfloat16) if bias else None
    x = random(3, num_tokens * (num_chosen if spec is None else 1), num_features, dtype=torch.bfloat16)
    chosen, shares = choose(num_tokens, num_experts, num_chosen)
    values, x_scales = round_inputs(x, weight.group)
    tile = packed_experts.choose_tile(weight, num_experts * 600, is_gated=spec is not None, is_rounded=True)
    order = order_pairs(chosen, num_experts, tile.block_m)
    found = x.new_full((chosen.numel(), num_outputs), float("nan"))
    assert tile.is_specialised and can_multiply(values, codes, found)
    packed_gemm(values, x_scales, weight, own_bias, shares, found, order, tile, spec)
    expected = torch.full_like(found, float("nan"))
    packed_gemm(values, x_scales, weight, own_bias, shares, expected, order, replace(tile, is_specialised=False), spec)
    assert expected.isfinite().all()
    assert torch.equal(found, expected)


def test_it_refuses_what_it_cannot_load() -> None:
    x, weight, y = (random(1, *shape, dtype=torch.bfloat16) for shape in ((256, 128), (4, 64, 128), (256, 32)))
    assert can_multiply(x, weight, y)
    assert not can_multiply(x.float(), weight.float(), y.float())
    assert not can_multiply(x, weight[..., :96].contiguous(), y)  # no multiple of a step
    assert not can_multiply(random(1, 256 * 128 + 1, dtype=torch.bfloat16)[1:].view(256, 128), weight, y)
