"""Small-batch matrix products, held against the plain product in float64."""

import dataclasses

import pytest
import torch

from octavo.kernels.linear import GATES
from octavo.kernels.triton.linear import SmallBatchLinear
from octavo.kernels.triton.linear_plan import MAX_ROWS, SMALL_ROWS, WIDE_CHANNELS, WIDE_ROWS, LinearPlan, choose_plan
from octavo.kernels.triton.linear_workspace import reserve_workspace

# Triton's interpreter multiplies no bfloat16.
DTYPES = [torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]

ONE = LinearPlan(16, 64, 128, 1, "one", 3, 4, use_descriptors=False, prefetch_bytes=4096)
PLANS = [
    ONE,
    dataclasses.replace(ONE, num_parts=3, mode="split"),
    dataclasses.replace(ONE, num_parts=3, mode="whole"),
    dataclasses.replace(ONE, block_k=64, num_parts=2, mode="split", use_descriptors=True),
]


def random(device: torch.device, seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def make_linear(
    device: torch.device, dtype: torch.dtype, num_channels: int, num_features: int, with_bias: bool, **options: bool
) -> SmallBatchLinear:
    weight = random(device, 2, num_channels, num_features, dtype=dtype) / num_features**0.5
    return SmallBatchLinear(weight, random(device, 3, num_channels, dtype=dtype) if with_bias else None, **options)


def expected_product(x: torch.Tensor, linear: SmallBatchLinear) -> torch.Tensor:
    product = x.double() @ linear.weight.double().T
    return product if linear.bias is None else product + linear.bias.double()


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.mode}-{plan.block_k}")
@pytest.mark.parametrize(("num_rows", "num_channels", "num_features"), [(1, 64, 384), (19, 100, 392)])
def test_every_way_to_cut_a_product(
    device: torch.device,
    dtype: torch.dtype,
    with_bias: bool,
    plan: LinearPlan,
    num_rows: int,
    num_channels: int,
    num_features: int,
) -> None:
    linear = make_linear(device, dtype, num_channels, num_features, with_bias)
    x = random(device, 1, num_rows, num_features, dtype=dtype)
    out = torch.full((num_rows, num_channels), float("nan"), dtype=dtype, device=device)
    for _ in range(2):  # the second launch finds the counters as the first left them
        assert linear.launch(x, plan, "none", out.fill_(float("nan"))) is out
        close(out, expected_product(x, linear))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.mode}-{plan.block_k}")
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_every_way_to_cut_a_gated_product(
    device: torch.device, dtype: torch.dtype, with_bias: bool, plan: LinearPlan, activation: str
) -> None:
    linear = make_linear(device, dtype, 2 * 72, 392, with_bias)
    x = random(device, 1, 5, 392, dtype=dtype)
    close(linear.launch(x, plan, activation), GATES[activation](expected_product(x, linear)))


@pytest.mark.parametrize("num_rows", [1, 16, 17, 64, 65, MAX_ROWS + 1])
def test_call_and_gated(device: torch.device, num_rows: int) -> None:
    linear = make_linear(device, DTYPES[0], 128, 256, with_bias=True)
    x = random(device, 1, num_rows, 256, dtype=DTYPES[0])
    expected = expected_product(x, linear)
    close(linear(x), expected)
    close(linear.gated(x, "silu"), GATES["silu"](expected))
    out = torch.full_like(linear(x), float("nan"))
    assert linear(x, out).data_ptr() == out.data_ptr()
    close(out, expected)


def test_rows_may_lie_apart_and_in_more_dimensions(device: torch.device) -> None:
    linear = make_linear(device, DTYPES[0], 64, 128, with_bias=False)
    wide = random(device, 1, 6, 300, dtype=DTYPES[0])
    for x in (wide[:, 16:144], wide[:, 3:131], wide[:1, 8:136], wide.T[:128].T, wide[::2, :128]):
        for plan in (ONE, PLANS[-1]):
            close(linear.launch(x, plan, "none"), expected_product(x, linear))
    x = wide[:, :128].unflatten(0, (2, 3))
    close(linear(x), expected_product(x, linear))
    close(linear.gated(x, "silu"), GATES["silu"](expected_product(x, linear)))


def test_no_rows(device: torch.device) -> None:
    linear = make_linear(device, DTYPES[0], 64, 128, with_bias=False)
    x = torch.empty(0, 128, dtype=DTYPES[0], device=device)
    assert linear(x).shape == (0, 64)
    assert linear.gated(x, "silu").shape == (0, 32)


@pytest.mark.parametrize(
    ("dtype", "num_features"), [(torch.float32, 64), (DTYPES[0], 60)], ids=["float32", "rows of odd bytes"]
)
def test_what_the_kernel_does_not_do_goes_to_the_library(
    device: torch.device, dtype: torch.dtype, num_features: int
) -> None:
    linear = make_linear(device, dtype, 48, num_features, with_bias=True)
    x = random(device, 1, 3, num_features, dtype=dtype)
    assert linear.choose(3, is_gated=False) is None
    close(linear(x), expected_product(x, linear))
    close(linear.gated(x, "gelu_tanh"), GATES["gelu_tanh"](expected_product(x, linear)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter has NumPy's order; run on an NVIDIA H200")
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("num_channels", "num_features"), [(1024, 2048), (4096, 1024), (640, 5760), (6144, 4096)])
def test_bits_of_a_row_do_not_depend_on_the_others(
    device: torch.device, is_gated: bool, num_channels: int, num_features: int
) -> None:
    linear = make_linear(device, torch.bfloat16, num_channels, num_features, True, deterministic=True)
    x = random(device, 1, 400, num_features, dtype=torch.bfloat16)

    def product(rows: torch.Tensor) -> torch.Tensor:
        return linear.gated(rows, "silu") if is_gated else linear(rows)

    alone = product(x[:1])
    for num_rows in (2, 16, 33, SMALL_ROWS, 65, 128, 200, MAX_ROWS, 400):
        assert torch.equal(product(x[:num_rows])[:1], alone)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("num_channels", "num_features"), [(6144, 4096), (4096, 12288), (1024, 3072), (151936, 1024), (64, 64)]
)
def test_plans_cut_the_sums_of_deterministic_products_alike(
    num_channels: int, num_features: int, is_gated: bool
) -> None:
    plans = [
        choose_plan(num_rows, num_channels, num_features, is_gated=is_gated, is_deterministic=True, num_sms=132)
        for num_rows in (1, 16, 17, 33, SMALL_ROWS, 65, MAX_ROWS, MAX_ROWS + 1, 5000)
    ]
    assert len({plan.num_parts for plan in plans if plan is not None}) == 1
    assert None not in plans
    for plan in plans:
        assert plan is not None
        assert (plan.mode == "one") == (plan.num_parts == 1)


def test_wide_products_of_few_rows_are_ours(device: torch.device) -> None:
    linear = make_linear(device, DTYPES[0], WIDE_CHANNELS, 16, with_bias=False)
    assert isinstance(linear.choose(1, is_gated=False), LinearPlan)
    assert isinstance(linear.choose(WIDE_ROWS, is_gated=False), LinearPlan)
    assert linear.choose(WIDE_ROWS + 1, is_gated=False) is None


def test_workspace_grows_and_old_ones_stay_with_their_holders(device: torch.device) -> None:
    small = reserve_workspace(device, 10, 10)
    large = reserve_workspace(device, small.partials.numel() + 1, small.arrivals.numel() + 1)
    assert large is not small
    assert reserve_workspace(device, 1, 1) is large
    assert reserve_workspace(device, 1, 1, at_hand=small) is small
    assert reserve_workspace(device, large.partials.numel(), 1, at_hand=small) is large
