"""Codes of 4 bits that go from memory to the tensor cores: dense weights of few rows, and experts of few tokens.

The kernel is written for tensor cores thread by thread, which Triton's interpreter does not know: a GPU runs it.
"""

from typing import Any

import pytest
import torch
from test_triton_packed_experts import draw, in_type, make, tokens
from test_triton_packed_experts import random as draw_values

from octavo.errors import UnsupportedModelError
from octavo.kernels import grouped
from octavo.kernels.grouped import GroupedTensors, round_weight
from octavo.kernels.linear import GATES
from octavo.kernels.packed_experts import PackedExperts, PlainPackedExperts
from octavo.kernels.triton import grouped as triton_grouped
from octavo.kernels.triton import linear, unit_gemm
from octavo.kernels.triton.grouped import GroupedLinear
from octavo.kernels.triton.grouped_hopper_tiles import HopperTile
from octavo.kernels.triton.packed_experts import make_packed_experts
from octavo.kernels.triton.unit_gemm import UnitTile, choose_tile, unit_experts, unit_linear
from octavo.records.experts import ExpertSpec

needs_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="run on an NVIDIA H100 or H200"
)
SILU = ExpertSpec("silu")
CLAMPED = ExpertSpec("clamped_swiglu", alpha=1.7, limit=0.8)


def make_weight(device: torch.device, num_outputs: int, num_inputs: int, group: int = 32) -> GroupedTensors:
    """A random weight of 4-bit floats."""
    codes, scales, _, bits, *_ = round_weight(
        draw_values(torch.device("cpu"), 0, num_outputs, num_inputs), "mxfp4", group
    )
    return GroupedTensors(codes.to(device), scales.to(device), None, bits)


def test_which_weights_it_reads() -> None:
    cpu = torch.device("cpu")
    weight = make_weight(cpu, 16, 128)
    assert unit_gemm.reads(weight)
    assert not unit_gemm.reads(make_weight(cpu, 16, 128, group=64)), "packed in larger units"
    assert not unit_gemm.reads(round_weight(torch.ones(16, 128), "int4", 32))
    for name, is_read in {
        "mxfp4": True,
        "int4": False,
        "int4-groups": False,
        "int8": False,
        "int4-offsets": False,
    }.items():
        assert unit_gemm.reads_experts(make(cpu, name)) == is_read, name
    wide = PackedExperts(draw(cpu, "int4", 2, 64, 256, 0), draw(cpu, "int4", 2, 256, 128, 0))
    assert unit_gemm.reads_experts(wide), "groups of whole rows, of multiples of 128 inputs"


def test_few_rows_of_floats_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_grouped, "IS_INTERPRETED", False)
    monkeypatch.setattr(linear, "is_supported", lambda device: True)
    monkeypatch.setattr(triton_grouped, "num_multiprocessors", lambda device: 132)
    weight = make_weight(torch.device("cpu"), 64, 256)
    op = GroupedLinear(weight, None, deterministic=False)
    assert {rows for rows in (1, 8, 9, 64) if isinstance(op.choose(rows), UnitTile)} == {1, 8}
    assert all(isinstance(op.choose(rows), HopperTile) for rows in (9, 64, 1024))
    uneven = GroupedLinear(make_weight(torch.device("cpu"), 64, 96), None, deterministic=False)
    assert isinstance(uneven.choose(64), UnitTile), "no whole steps of 128 inputs"
    assert not isinstance(op.choose(1, torch.float16), UnitTile), "scales of floats need bfloat16's range"
    assert GroupedLinear(weight, None, deterministic=True).choose(1) is None
    op.refresh()
    weight.scales[3, 2] = unit_gemm.LARGEST_EXPONENT + 1
    with pytest.raises(UnsupportedModelError, match=r"larger than 2\*\*33"):
        op.refresh()
    assert not isinstance(GroupedLinear(weight, None, deterministic=False).choose(1), UnitTile), "as a factor, infinite"


@pytest.mark.parametrize("name", ["mxfp4", "int4-zeros"])
def test_few_tokens_take_it(device: torch.device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls: list[int] = []

    def record(x: torch.Tensor, *others: Any) -> torch.Tensor:
        calls.append(len(x))
        return x

    monkeypatch.setattr(unit_gemm, "IS_INTERPRETED", False)
    monkeypatch.setattr(unit_gemm, "unit_experts", record)
    weights = in_type(make(device, name), torch.float16)
    for deterministic in (False, True):
        op = make_packed_experts(weights.gate_up.codes, weights, SILU, deterministic=deterministic)
        for num_tokens in (0, 2, 4, 5):
            x, chosen, shares = tokens(device, num_tokens)
            op(x.to(torch.bfloat16), chosen, shares)
    assert calls == ([2, 4] if name == "mxfp4" else [])


@pytest.mark.parametrize("num_channels", [64, 2880, 5120, 24576])
def test_tiles(num_channels: int) -> None:
    for num_rows in range(1, unit_gemm.MAX_ROWS + 1):
        tile = choose_tile(num_rows, num_channels, 132)
        assert tile.num_weights in (16, 32) and tile.num_columns in (8, 16)
        assert tile.num_columns == 8 or num_rows > 8


@needs_kernel
@pytest.mark.parametrize(
    ("tile", "shape", "activation"),
    [
        (UnitTile(16, 4, 4), (1, 72, 96), "none"),  # fewer units than warps take
        (UnitTile(16, 8, 8), (5, 104, 2880), "silu"),
        (UnitTile(32, 4, 4), (8, 72, 4096), "gelu_tanh"),
        (UnitTile(32, 3, 2), (7, 40, 1184), "none"),  # a ring that does not divide the rounds
        (UnitTile(32, 2, 4, 16), (27, 104, 1408), "silu"),
        (UnitTile(16, 4, 4, 16), (16, 72, 2880), "none"),
    ],
    ids=str,
)
def test_dense_weights(device: torch.device, tile: UnitTile, shape: tuple[int, int, int], activation: str) -> None:
    num_rows, num_outputs, num_inputs = shape
    weight = make_weight(device, num_outputs, num_inputs)
    x = draw_values(device, 1, num_rows, num_inputs).bfloat16() / num_inputs**0.5
    bias = draw_values(device, 2, num_outputs).bfloat16()
    exact = x.double() @ grouped.dequantize(weight, torch.float64).T + bias.double()
    exact = exact if activation == "none" else GATES[activation](exact)
    y = x.new_full(exact.shape, float("nan"))
    unit_linear(x, weight, bias, y, activation, tile)
    torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=1e-2)


@needs_kernel
def test_bits_of_a_row_do_not_depend_on_its_neighbours(device: torch.device) -> None:
    op = GroupedLinear(make_weight(device, 256, 2048), None, deterministic=False)
    x = draw_values(device, 1, 8, 2048).bfloat16()
    together = op(x[:4])
    for row in range(4):
        assert torch.equal(op(x[row : row + 1])[0], together[row])


@needs_kernel
@pytest.mark.parametrize("spec", [SILU, CLAMPED, ExpertSpec("gelu_tanh", weighs_inputs=True)], ids=str)
@pytest.mark.parametrize("name", ["mxfp4", "int4", "int4-zeros"])
@pytest.mark.parametrize(("num_chosen", "sizes"), [(1, (128, 256)), (3, (2880, 384)), (4, (384, 128)), (8, (256, 640))])
@pytest.mark.parametrize("tiles", [(None, None), (UnitTile(32, 3, 2), UnitTile(32, 2, 8))], ids=["chosen", "others"])
def test_experts(
    device: torch.device,
    spec: ExpertSpec,
    name: str,
    num_chosen: int,
    sizes: tuple[int, int],
    tiles: tuple[UnitTile | None, UnitTile | None],
) -> None:
    hidden, size = sizes
    if name.startswith("int4"):
        hidden, size = -(-hidden // 128) * 128, -(-size // 128) * 128
    weights = PackedExperts(
        draw(device, name, 9, 2 * size, hidden, 1),
        draw(device, name, 9, hidden, size, 2),
        draw_values(device, 3, 9, 2 * size).bfloat16(),
        draw_values(device, 4, 9, hidden).bfloat16(),
    )
    if name == "int4-zeros":
        weights = weights._replace(gate_up=_in_wide_groups(weights.gate_up), down=_in_wide_groups(weights.down))
    assert unit_gemm.reads_experts(weights)
    x = draw_values(device, 6, 3, hidden).bfloat16()
    shares, chosen = draw_values(device, 5, 3, 9).softmax(-1).topk(num_chosen)
    exact = PlainPackedExperts(_wide(weights), spec)(x.float(), chosen, shares)
    found = unit_experts(x, chosen.int(), shares, weights, spec, *tiles).float()
    assert float((found - exact).norm() / exact.norm()) < 1e-2


def _in_wide_groups(weight: Any) -> Any:
    """Groups of 64 inputs joined in twos."""
    return weight._replace(scales=weight.scales[:, ::2].contiguous(), zeros=weight.zeros[:, ::2].contiguous())


def _wide(weights: PackedExperts) -> PackedExperts:
    assert weights.gate_up_bias is not None and weights.down_bias is not None
    return weights._replace(gate_up_bias=weights.gate_up_bias.float(), down_bias=weights.down_bias.float())
