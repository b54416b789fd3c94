"""GEMMs by thread-block clusters against PyTorch's, on a GPU."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from gemm_shapes import MODEL_SHAPES

from octavo.kernels.basic import rms_norm
from octavo.kernels.cuda.gemm import ClusterGemm
from octavo.kernels.cuda.library import library
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.scaled import quantize_rows
from octavo.kernels.triton.launch import is_hopper, num_multiprocessors
from octavo.kernels.triton.linear import SmallBatchLinear
from octavo.kernels.triton.scaled import Float8Linear
from octavo.platforms import runtime_of

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not is_hopper(torch.device("cuda")), reason="needs Hopper; run on an NVIDIA H100"
)
GATES = {"silu": F.silu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
ROWS = (17, 40, 64, 100, 200, 256, 300, 512)
SHAPES = [*MODEL_SHAPES["Qwen3-0.6B"], (4096, 12288, "none"), (1200, 592, "gelu_tanh")]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    """``[M, N]`` or ``[M, N / 2]`` in float64."""
    y = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    if activation == "none":
        return y
    gate, up = y.chunk(2, dim=-1)
    return GATES[activation](gate) * up


def check(y: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare each row, by its norm."""
    assert y.shape == expected.shape
    errors = (y.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.max() < tolerance, errors


def for_all_rows(device: torch.device, check_rows: Callable[[int], None]) -> None:
    """Compile the kernels for all numbers of rows together, then run them."""
    with library.compile_ahead(runtime_of(device).make_current), library.compile_only():
        for num_rows in ROWS:
            with suppress(AssertionError):
                check_rows(num_rows)
    for num_rows in ROWS:
        check_rows(num_rows)


@pytest.mark.parametrize(("dtype", "has_bias"), [(torch.bfloat16, False), (torch.float16, True)])
@pytest.mark.parametrize(("num_weights", "num_features", "activation"), SHAPES)
def test_float8(
    num_weights: int, num_features: int, activation: str, dtype: torch.dtype, has_bias: bool, device: torch.device
) -> None:
    weight, scales = quantize_rows.reference(torch.randn(num_weights, num_features, device=device))
    bias = torch.randn(num_weights, dtype=dtype, device=device) if has_bias else None
    gemm = ClusterGemm(weight, scales[:, 0].contiguous(), bias, num_sms=num_multiprocessors(device))

    def check_rows(num_rows: int) -> None:
        tile = gemm.choose(num_rows, dtype, is_gated=activation != "none")
        if tile is None:
            return
        x, row_scales = quantize_rows.reference(torch.randn(num_rows, num_features, device=device))
        y = x.new_empty(num_rows, num_weights // (1 if activation == "none" else 2), dtype=dtype)
        gemm.multiply(x, row_scales, y, activation, tile)
        # The tensor cores add float8 products with fewer bits than float32 has.
        check(y, by_torch(x.double() * row_scales, weight.double() * scales, bias, activation), 1e-2)

    for_all_rows(device, check_rows)


@pytest.mark.parametrize(("dtype", "has_bias"), [(torch.bfloat16, False), (torch.float16, True)])
@pytest.mark.parametrize(("num_weights", "num_features", "activation"), SHAPES)
def test_16_bits(
    num_weights: int, num_features: int, activation: str, dtype: torch.dtype, has_bias: bool, device: torch.device
) -> None:
    weight = torch.randn(num_weights, num_features, device=device).to(dtype)
    bias = torch.randn(num_weights, device=device).to(dtype) if has_bias else None
    gemm = SmallBatchLinear(weight, bias)

    def check_rows(num_rows: int) -> None:
        # Rows may lie apart.
        x = torch.randn(num_rows, num_features + 8, device=device).to(dtype)[:, :num_features] / num_features**0.5
        y = gemm(x) if activation == "none" else gemm.gated(x, activation)
        check(y, by_torch(x, weight, bias, activation), 4e-3)

    for_all_rows(device, check_rows)


@pytest.mark.parametrize("num_rows", [96, 256])
def test_gemms_wait_for_their_rows(num_rows: int, device: torch.device) -> None:
    """A chain of GEMMs, each of which starts early, has the same bits as launches one by one."""
    layers = []
    for _ in range(8):
        weight, scales = quantize_rows.reference(torch.randn(4096, 4096, device=device))
        layers.append(Float8Linear(weight, scales[:, 0].contiguous(), None, deterministic=False))
    x = torch.randn(num_rows, 4096, device=device).to(torch.bfloat16)

    def run(pause: Callable[[], object]) -> tuple[torch.Tensor]:
        y = x
        for layer in layers:
            y = layer(y) / 64
            pause()
        return (y,)

    (expected,) = run(runtime_of(device).synchronize)
    with runtime_of(device).graph_capture() as capture:
        graph, (y,) = capture.capture(lambda: run(lambda: None))
    for _ in range(20):
        y.zero_()
        graph.replay()
        assert torch.equal(y, expected)


@pytest.mark.parametrize("num_rows", [17, 64, 100, 256])
def test_the_norm_between_two_gemms(num_rows: int, device: torch.device) -> None:
    """The one adds to the residual stream, the other norms its own sums."""
    (_, (num_features, num_inputs, _), (num_weights, _, activation), _) = MODEL_SHAPES["Qwen3-0.6B"]
    weights = [
        (torch.randn(size, device=device) / size[1] ** 0.5).to(torch.bfloat16)
        for size in ((num_features, num_inputs), (num_weights, num_features))
    ]
    first, second = (SmallBatchLinear(weight, None) for weight in weights)
    x = torch.randn(num_rows, num_inputs, device=device).to(torch.bfloat16)
    residual = torch.randn(num_rows, num_features, device=device).to(torch.bfloat16)
    scale = (1 + torch.randn(num_features, device=device) / 4).to(torch.bfloat16)
    total = by_torch(x, weights[0], None, "none") + residual.double()
    weighted = first.added(x, residual, scale)
    assert weighted is not None
    check(residual, total, 4e-3)
    check(weighted.values, residual.double() * scale.double(), 4e-3)
    torch.testing.assert_close(weighted.squares.double().sum(-1), residual.double().square().sum(-1), rtol=1e-5, atol=0)
    norm = DeferredNorm(residual, None, scale, 1e-6, weighted)
    y = second.normed(norm, activation)
    assert y is not None
    normed = rms_norm.reference(residual.double(), scale.double(), 1e-6)
    check(y, by_torch(normed, weights[1], None, activation), 1e-2)
