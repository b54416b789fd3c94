"""GEMMs with packed weights by thread-block clusters, divided in all ways; a Hopper GPU (H100 or H200) runs them."""

from dataclasses import replace

import pytest
import torch

from octavo.kernels.basic import rms_norm
from octavo.kernels.cuda.gemm import GemmForm
from octavo.kernels.cuda.grouped_gemm import GroupedGemm, grouped_gemm_kernel
from octavo.kernels.cuda.grouped_gemm_tiles import GroupedTile
from octavo.kernels.cuda.library import library
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.grouped import GroupedTensors, dequantize, pack_codes
from octavo.kernels.linear import GATES
from octavo.kernels.triton.grouped import GroupedLinear
from octavo.kernels.triton.grouped_terms import make_terms
from octavo.platforms import runtime_of

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)

# Warpgroups, rows, blocks that share W, parts of K.
DIVISIONS = [
    (1, 32, 2, 2),
    (1, 32, 1, 4),
    (2, 64, 2, 1),
    (3, 64, 1, 4),
    (1, 128, 2, 1),
    (2, 128, 2, 2),
    (3, 128, 1, 1),
    (1, 192, 1, 2),
    (3, 192, 1, 1),
    (1, 256, 1, 2),
    (2, 256, 1, 1),
    (3, 256, 1, 1),
]
SHAPES = [(1, 16, 640), (100, 200, 1152), (250, 400, 2048), (300, 1000, 4224)]
"""Rows, outputs and inputs."""


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def random_weight(num_outputs: int, num_inputs: int, group: int, *, has_zeros: bool) -> GroupedTensors:
    generator = torch.Generator().manual_seed(0)
    groups = (num_outputs, num_inputs // group)
    codes = torch.randint(16, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8)
    scales = ((0.5 + torch.rand(groups, generator=generator)) / 8 / num_inputs**0.5).half().float()
    zeros = torch.randint(129, groups, generator=generator, dtype=torch.uint8).cuda() if has_zeros else None
    return GroupedTensors(pack_codes(codes, 128).cuda(), scales.cuda(), zeros, 4)


def tile_of(division: tuple[int, int, int, int], num_weights: int, *, is_persistent: bool = False) -> GroupedTile:
    tile = GroupedTile.deepest(*division)
    assert tile is not None
    num_tiles = tile.num_weight_tiles(num_weights)
    return replace(tile, num_clusters=-(-num_tiles // 2) if is_persistent else num_tiles)


def check(y: torch.Tensor, expected: torch.Tensor) -> None:
    """No more than weights and outputs that are rounded."""
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=3e-2)
    assert (y - expected).norm() < 4e-3 * expected.norm()


FORMS = [
    ("none", torch.bfloat16, 128, True),
    ("silu", torch.bfloat16, 128, False),
    ("gelu_tanh", torch.float16, 128, True),
    ("none", torch.float16, 384, False),
]
"""Activation, type of rows and outputs, inputs of a group, and whether it has a zero of its own."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_together() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    with library.compile_ahead(runtime_of(device).make_current), library.compile_only():
        for division in DIVISIONS:
            for activation, dtype, _, _ in FORMS:
                if can_write(division, activation):
                    form = GemmForm(activation, dtype, dtype)
                    library.submit(grouped_gemm_kernel(tile_of(division, 64), form), device)


def can_write(division: tuple[int, int, int, int], activation: str) -> bool:
    """Whether a block's own rows are as many as are written at once."""
    return activation == "none" or division[1] // division[3] % 32 == 0


@pytest.mark.parametrize("division", DIVISIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("activation", "dtype", "group", "has_zeros"), FORMS, ids=str)
@pytest.mark.parametrize("is_persistent", [False, True])
def test_products(
    division: tuple[int, int, int, int],
    shape: tuple[int, int, int],
    activation: str,
    dtype: torch.dtype,
    group: int,
    has_zeros: bool,
    is_persistent: bool,
) -> None:
    if not can_write(division, activation):
        pytest.skip("with a gate, 32 rows are written at once")
    if is_persistent and division[3] > 1:
        pytest.skip("blocks with a part of K have a single tile")
    num_rows, num_outputs, num_inputs = shape
    num_inputs = -(-num_inputs // group) * group
    num_weights = num_outputs * (1 if activation == "none" else 2)
    weight = random_weight(num_weights, num_inputs, group, has_zeros=has_zeros)
    bias = random(2, num_weights).to(dtype)
    # Rows of x may lie further apart than they are long.
    x = random(3, num_rows, num_inputs + 16).to(dtype)[:, :num_inputs]
    expected = x.double() @ dequantize(weight, torch.float64).T + bias.double()
    if activation != "none":
        expected = GATES[activation](expected)
    out = torch.full((num_rows, num_outputs), float("nan"), device="cuda", dtype=dtype)
    gemm = GroupedGemm(weight, make_terms(weight, "wide"), bias, num_sms=132)
    gemm.multiply(x, out, activation, tile_of(division, num_weights, is_persistent=is_persistent))
    check(out, expected)


@pytest.mark.parametrize("num_rows", [17, 100, 256])
def test_the_norm_between_two_gemms(num_rows: int) -> None:
    """The one adds to the residual stream, the other norms its own sums."""
    num_inputs, num_features, num_weights = 2048, 1024, 6144
    first, second = (
        GroupedLinear(random_weight(outputs, inputs, 128, has_zeros=True), None, deterministic=False)
        for outputs, inputs in ((num_features, num_inputs), (num_weights, num_features))
    )
    x, residual = (random(i, num_rows, n).to(torch.bfloat16) for i, n in ((4, num_inputs), (5, num_features)))
    norm_weight = random(6, num_features).to(torch.bfloat16)
    stream = residual.clone()
    weighted = first.added(x, stream, norm_weight)
    assert weighted is not None
    torch.testing.assert_close(stream, residual + first(x))
    y = second.normed(DeferredNorm(stream, None, norm_weight, 1e-6, weighted), "silu")
    assert y is not None
    expected = second.gated(rms_norm(stream, norm_weight, 1e-6), "silu")
    assert (y - expected).norm() < 1e-2 * expected.norm()
