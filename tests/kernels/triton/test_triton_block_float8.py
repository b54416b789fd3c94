"""Float8 weights with a scale per block of 128 × 128, beside activations that are rounded by token and 128 inputs."""

import pytest
import torch

from octavo.errors import UnsupportedModelError
from octavo.kernels import DeferredNorm, grouped, rms_norm
from octavo.kernels.grouped import GroupedTensors
from octavo.kernels.linear import GATES
from octavo.kernels.scaled import FLOAT8, quantize_rows
from octavo.kernels.triton.block_float8 import BLOCK, block_scales, multiplies_blocks
from octavo.kernels.triton.grouped import GroupedLinear
from octavo.kernels.triton.quantize import quantize_groups

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)


def random(device: torch.device, seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def make(device: torch.device, num_outputs: int, num_inputs: int) -> GroupedTensors:
    codes = (random(device, 1, num_outputs, num_inputs) * 64).to(FLOAT8)
    scales = (random(device, 2, -(-num_outputs // BLOCK), num_inputs // BLOCK).abs() + 0.1) / 64 / num_inputs**0.5
    return GroupedTensors(codes, scales.repeat_interleave(BLOCK, 0)[:num_outputs].contiguous(), None, 8)


def test_rows_are_rounded_by_groups(device: torch.device) -> None:
    x = random(device, 1, 5, 384)
    x[2, 130] = float("nan")
    expected, expected_scales = quantize_rows.reference(x.view(-1, 128))
    for by_group in (False, True):
        values, scales = quantize_groups(x, 128, by_group=by_group)
        assert scales.stride() == ((1, 8) if by_group else (3, 1))
        values, scales = values[:5], scales[:5]
        torch.testing.assert_close(scales, expected_scales.view(5, 3), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(values.float(), expected.view(5, 384).float(), rtol=0, atol=0, equal_nan=True)


def test_scales_by_block(device: torch.device) -> None:
    weight = make(device, 400, 512)
    scales = block_scales(weight)
    assert scales is not None
    assert torch.equal(scales.repeat_interleave(BLOCK, 0)[:400], weight.scales)
    weight.scales[130, 1] *= 2
    assert block_scales(weight) is None, "outputs of a block differ"
    other = torch.ones(400, 4, device=device)
    assert block_scales(weight._replace(codes=weight.codes.view(torch.uint8), scales=other)) is None, "integers"
    assert block_scales(weight._replace(scales=torch.ones(400, 8, device=device))) is None, "smaller groups"
    assert block_scales(make(device, 256, 384)) is None, "groups are no whole units"


@needs_hopper
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [17, 33, 100, 250, 1001])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(256, 1024), (400, 1536), (768, 512)])
def test_many_rows_are_rounded(
    device: torch.device, num_outputs: int, num_inputs: int, num_rows: int, bias: bool
) -> None:
    weight = make(device, num_outputs, num_inputs)
    own_bias = random(device, 3, num_outputs).bfloat16() if bias else None
    x = random(device, 4, num_rows, num_inputs).bfloat16()
    values, scales = quantize_groups(x, BLOCK)
    rounded = values.double().unflatten(1, (-1, BLOCK)) * scales.double()[..., None]
    exact = grouped.dequantize(weight, torch.float32).double()
    expected = rounded.flatten(1) @ exact.T + (0 if own_bias is None else own_bias.double())
    assert multiplies_blocks(device)
    y = GroupedLinear(weight, own_bias, deterministic=False, rounds_inputs=True)(x)
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)
    gated = GroupedLinear(weight, own_bias, deterministic=False, rounds_inputs=True).gated(x, "silu")
    torch.testing.assert_close(gated.double(), GATES["silu"](expected), rtol=2e-2, atol=3e-2)
    plain = GroupedLinear(weight, own_bias, deterministic=False)(x)
    assert not torch.equal(plain, y), "others keep their activations"
    torch.testing.assert_close(
        plain.double(), x.double() @ exact.T + (expected - rounded.flatten(1) @ exact.T), rtol=1e-2, atol=2e-2
    )


@needs_hopper
@pytest.mark.parametrize("num_rows", [17, 200, 600])
def test_normed_rows_are_rounded(device: torch.device, num_rows: int) -> None:
    op = GroupedLinear(make(device, 512, 1024), None, deterministic=False, rounds_inputs=True)
    x, residual = (random(device, seed, num_rows, 1024).bfloat16() for seed in (3, 4))
    norm_weight = 1 + random(device, 5, 1024).bfloat16() / 4
    for activation in ("none", "silu"):
        norm = DeferredNorm(x, residual.clone(), norm_weight, 1e-6)
        y = op.normed(norm, activation)
        assert y is not None
        total = x + residual
        assert torch.equal(norm.total, total)
        rows = rms_norm.reference(total, norm_weight, 1e-6)
        expected = op(rows) if activation == "none" else op.gated(rows, activation)
        torch.testing.assert_close(y, expected, rtol=2e-2, atol=5e-2)


@needs_hopper
def test_new_weights(device: torch.device) -> None:
    weight, new = make(device, 256, 512), make(device, 256, 512)
    op = GroupedLinear(weight, None, deterministic=False, rounds_inputs=True)
    x = random(device, 4, 64, 512).bfloat16()
    before = op(x)
    weight.scales.copy_(new.scales * 2)
    op.refresh()
    assert torch.equal(op(x), 2 * before)
    weight.scales[3] *= 2
    with pytest.raises(UnsupportedModelError, match="differ within a block"):
        op.refresh()
