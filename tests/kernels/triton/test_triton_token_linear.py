"""GEMMs of a single row by float8 weights, held against products in float32."""

import pytest
import torch
from test_triton_packed_experts import assert_near, random

from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import GATES
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import token_linear as kernels
from octavo.kernels.triton.scaled import float8_linear

is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(
    not is_hopper, reason="Gluon kernels for Hopper; runs on a GPU of compute capability 9.0"
)

EPS = 1e-6


def weight(num_outputs: int, num_inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    device = torch.device("cuda")
    scales = (1 + random(device, 2, num_outputs).abs()) / num_inputs**0.5
    return random(device, 1, num_outputs, num_inputs).to(FLOAT8), scales


@on_hopper
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "activation", "has_bias"),
    [
        (5120, 2048, "none", False),
        (200, 640, "none", True),  # slices have one block or two, the last tile is not full
        (176, 4096, "silu", False),
        (72, 3072, "gelu_tanh", True),  # the last tile is not full
    ],
)
@pytest.mark.parametrize("norm", ["none", "plain", "residual"])
def test_it_is_the_product(num_outputs: int, num_inputs: int, activation: str, has_bias: bool, norm: str) -> None:
    codes, scales = weight(num_outputs, num_inputs)
    device = codes.device
    bias = random(device, 3, num_outputs).bfloat16() if has_bias else None
    x = random(device, 4, 1, num_inputs).bfloat16()
    residual = random(device, 5, 1, num_inputs).bfloat16() if norm == "residual" else None
    factors = (1 + 0.1 * random(device, 6, num_inputs)).bfloat16()
    deferred = None if norm == "none" else DeferredNorm(x, residual, factors, EPS)
    op, _ = float8_linear(codes, scales, bias, deterministic=False)
    if deferred is None:
        found = op(x) if activation == "none" else op.gated(x, activation)
    else:
        found = op.normed(deferred, activation)
    rows = x
    if deferred is not None:
        rows = x if residual is None else (x.float() + residual.float()).bfloat16()
        assert torch.equal(deferred.total, rows)
        rows = torch.nn.functional.rms_norm(rows.float(), (num_inputs,), eps=EPS).bfloat16() * factors
    expected = rows.float() @ (codes.float() * scales[:, None]).T
    expected = expected if bias is None else expected + bias.float()
    expected = expected if activation == "none" else GATES[activation](expected)
    assert_near(found, expected, 4e-3)  # of bfloat16 in the result


@on_hopper
def test_nan_stays() -> None:
    codes, scales = weight(64, 512)
    x = random(codes.device, 4, 1, 512).bfloat16()
    x[0, 300] = float("nan")
    op, _ = float8_linear(codes, scales, None, deterministic=False)
    assert op(x).isnan().all()


@on_hopper
def test_single_rows_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scales = weight(64, 512)
    calls: list[int] = []
    monkeypatch.setattr(kernels, "token_linear", lambda x, *others: calls.append(len(x)))
    for deterministic in (False, True):
        op, _ = float8_linear(codes, scales, None, deterministic=deterministic)
        for x in (random(codes.device, 7, 1, 512), random(codes.device, 7, 2, 512)):
            op(x.bfloat16())
            op(x.half())
    assert calls == [1]


def test_which_weights_suit() -> None:
    shapes = {
        (5120, 2048): True,
        (2048, 4096): True,
        (4096, 4096): True,
        (6144, 4096): False,  # more programs than fit
        (24576, 4096): False,
        (4096, 12288): False,
        (64, 576): False,  # no whole blocks
    }
    assert {shape: kernels.suits(*shape, num_sms=132) for shape in shapes} == shapes
