"""GEMMs of more rows with packed INT4 and INT8 codes, unpacked by specialised warps for the tensor cores of Hopper.

Triton's interpreter does not know these kernels: a GPU runs them. Tiles and terms are checked without one.
"""

from dataclasses import replace

import pytest
import torch
from product_case import WEIGHT_SHAPES, random

from octavo.kernels import grouped
from octavo.kernels.grouped import GroupedTensors, pack_codes, round_weight
from octavo.kernels.linear import GATES
from octavo.kernels.triton.grouped_hopper import hopper_grouped
from octavo.kernels.triton.grouped_hopper_tiles import MAX_ROWS, HopperTile, choose_tile, workspace_size
from octavo.kernels.triton.grouped_terms import kind_of, make_terms
from octavo.kernels.triton.grouped_unpack import UNIT_SCALE
from octavo.kernels.triton.linear_workspace import reserve_workspace
from octavo.kernels.triton.unit_gemm import LARGEST_EXPONENT

needs_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="run on an NVIDIA H100 or H200"
)


def make(
    device: torch.device, num_outputs: int, num_inputs: int, bits: int, *, group: int = 128, has_zeros: bool = False
) -> GroupedTensors:
    """A random weight."""
    generator = torch.Generator().manual_seed(0)
    groups, largest = (num_outputs, num_inputs // group), 1 << bits
    codes = torch.randint(largest, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8)
    scales = ((0.5 + torch.rand(groups, generator=generator)) / largest / num_inputs**0.5).half().float()
    # Those of 4 bits count eighths.
    most = 129 if bits == 4 else 256
    zeros = torch.randint(most, groups, generator=generator, dtype=torch.uint8).to(device) if has_zeros else None
    packed = pack_codes(codes, 128) if bits == 4 else codes
    return GroupedTensors(packed.to(device), scales.to(device), zeros, bits)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_words_have_scales_and_zeros_of_bytes(has_zeros: bool) -> None:
    weight = make(torch.device("cpu"), 21, 512, 8, has_zeros=has_zeros)
    assert kind_of(weight) == "wide"
    rows = make_terms(weight, "wide").transpose(1, 2).flatten(0, 1)[:21, :, 0]
    scales, zeros = (rows & -0x100).view(torch.float32) / UNIT_SCALE, rows & 0xFF
    values = (weight.codes.float().unflatten(1, (4, 128)) - zeros[..., None]) * scales[..., None]
    assert torch.equal(values.flatten(1), grouped.dequantize(weight, torch.float32))


def test_values_of_8_bits_have_no_words() -> None:
    weight = make(torch.device("cpu"), 16, 256, 8)
    assert kind_of(weight._replace(codes=weight.codes.view(torch.float8_e4m3fn))) is None
    assert kind_of(weight._replace(offsets=weight.scales.half())) is None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("num_channels", "num_inputs"), [*WEIGHT_SHAPES, (151936, 4096)])
def test_chosen_tiles_fit(num_channels: int, num_inputs: int, bits: int) -> None:
    codes = torch.empty(num_channels, num_inputs * bits // 8, dtype=torch.uint8, device="meta")
    scales = torch.empty(num_channels, num_inputs // 128, device="meta")
    weight = GroupedTensors(codes, scales, None, bits)
    for num_rows in range(1, MAX_ROWS + 1):
        tile = choose_tile(weight, num_rows, 132)
        assert tile is not None
        num_steps = num_inputs // 128
        num_tiles = -(-num_channels // tile.num_weights) * -(-num_rows // tile.num_rows)
        assert 1 <= tile.num_programs * min(num_steps, 4) <= num_tiles * num_steps, "a program has four steps, or all"
        num_resident = 2 if tile.num_groups == 1 else 1
        assert tile.num_programs <= 132 * num_resident
        stage = tile.num_weights * (16 * bits + 4) + tile.num_rows * 256
        assert num_resident * tile.num_stages * stage <= 226 << 10
        num_partials, num_counters = workspace_size(num_rows, num_channels, tile)
        shares = num_tiles % tile.num_programs != 0
        assert (num_partials > 0) == (num_counters > 0) == shares, "only parts of tiles meet in the workspace"
    assert choose_tile(weight, MAX_ROWS + 1, 132) is None


NARROW, WIDE = HopperTile(1, 32, 6, 5, False), HopperTile(2, 64, 5, 3, False)
SCALED = HopperTile(3, 128, 3, 2, True)


@needs_kernel
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("tile", "shape", "group", "activation", "dtype"),
    [
        (NARROW, (20, 200, 1408), 128, "none", torch.bfloat16),  # programs share tiles
        (NARROW, (32, 208, 4096), 384, "silu", torch.float16),
        (WIDE, (70, 336, 1152), 384, "gelu_tanh", torch.bfloat16),  # two tiles of rows
        (replace(WIDE, num_groups=3, num_programs=1), (64, 272, 640), 128, "none", torch.float16),
        (SCALED, (200, 400, 1408), 128, "silu", torch.bfloat16),
        (SCALED, (128, 216, 1152), 384, "none", torch.float16),
    ],
    ids=str,
)
def test_gemms(
    device: torch.device,
    tile: HopperTile,
    shape: tuple[int, int, int],
    group: int,
    activation: str,
    dtype: torch.dtype,
    bits: int,
) -> None:
    num_rows, num_outputs, num_inputs = shape
    num_inputs = -(-num_inputs // group) * group
    weight = make(device, num_outputs, num_inputs, bits, group=group, has_zeros=group == 128)
    x, bias = random(device, 1, num_rows, num_inputs, dtype=dtype), random(device, 2, num_outputs, dtype=dtype)
    exact = x.double() @ grouped.dequantize(weight, torch.float64).T + bias.double()
    exact = exact if activation == "none" else GATES[activation](exact)
    space = reserve_workspace(device, *workspace_size(num_rows, num_outputs, tile))
    for _ in range(2):
        # The second launch finds the counters as the first one leaves them.
        y = x.new_full(exact.shape, float("nan"))
        hopper_grouped(x, weight, make_terms(weight, "wide"), "wide", bias, y, activation, tile, space)
        torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=3e-2)


def make_small(device: torch.device, shape: tuple[int, int], form: str) -> GroupedTensors:
    """A random weight of "mxfp4", or in groups of 32 inputs with offsets, or of 16 without: "q4", "q5" and "q6"."""
    generator = torch.Generator().manual_seed(0)
    if form == "mxfp4":
        codes, scales, _, bits, *_ = round_weight(
            torch.randn(shape, generator=generator) / shape[1] ** 0.5, "mxfp4", 32
        )
        return GroupedTensors(codes.to(device), scales.to(device), None, bits)
    bits, group = 4 if form == "q4" else 8, 16 if form == "q6" else 32
    codes = torch.randint(1 << bits, shape, generator=generator, dtype=torch.uint8)
    scales = (0.5 + torch.rand(shape[0], shape[1] // group, generator=generator)) * 3.4 / (1 << bits) / shape[1] ** 0.5
    offsets = None if form == "q6" else (scales * torch.randn(scales.shape, generator=generator)).half().to(device)
    codes = pack_codes(codes, 32) if bits == 4 else codes
    return GroupedTensors(codes.to(device), scales.to(device), None, bits, offsets)


def test_steps_of_floats_have_four_exponents() -> None:
    weight = make_small(torch.device("cpu"), (21, 512), "mxfp4")
    assert kind_of(weight) == "powers"
    exponents = make_terms(weight, "powers").view(torch.uint8).transpose(1, 2).flatten(0, 1).flatten(1)
    assert torch.equal(exponents[:21], weight.scales)
    weight.scales[3, 2] = LARGEST_EXPONENT + 1
    assert kind_of(weight) is None, "as a factor, infinite"


@pytest.mark.parametrize("form", ["mxfp4", "q4", "q5", "q6"])
@pytest.mark.parametrize(("num_channels", "num_inputs"), WEIGHT_SHAPES)
def test_chosen_tiles_of_small_groups_fit(num_channels: int, num_inputs: int, form: str) -> None:
    bits, group = 4 if form in ("mxfp4", "q4") else 8, 16 if form == "q6" else 32
    codes = torch.empty(num_channels, num_inputs * bits // 8, dtype=torch.uint8, device="meta")
    scales = torch.empty(num_channels, num_inputs // group, device="meta")
    for num_rows in (1, 17, 33, 65, 129, MAX_ROWS):
        tile = choose_tile(GroupedTensors(codes, scales, None, bits), num_rows, 132)
        assert tile is not None and tile.num_stages >= 2
        stage = tile.num_weights * (16 * bits + 4 * (128 // group)) + tile.num_rows * 256
        assert (2 if tile.num_groups == 1 else 1) * tile.num_stages * stage <= 226 << 10


@needs_kernel
@pytest.mark.parametrize("form", ["mxfp4", "q4", "q5", "q6"])
@pytest.mark.parametrize(
    ("tile", "shape", "activation", "dtype"),
    [
        (NARROW, (20, 200, 1408), "none", torch.bfloat16),
        (WIDE, (70, 336, 1152), "silu", torch.float16),
        (SCALED, (200, 400, 1408), "silu", torch.bfloat16),
        (SCALED, (128, 216, 1152), "none", torch.bfloat16),
    ],
    ids=str,
)
def test_gemms_of_small_groups(
    device: torch.device,
    tile: HopperTile,
    shape: tuple[int, int, int],
    activation: str,
    dtype: torch.dtype,
    form: str,
) -> None:
    num_rows, num_outputs, num_inputs = shape
    dtype = torch.bfloat16 if form == "mxfp4" else dtype
    weight = make_small(device, (num_outputs, num_inputs), form)
    kind = kind_of(weight)
    assert kind is not None
    x, bias = random(device, 1, num_rows, num_inputs, dtype=dtype), random(device, 2, num_outputs, dtype=dtype)
    exact = x.double() @ grouped.dequantize(weight, torch.float64).T + bias.double()
    exact = exact if activation == "none" else GATES[activation](exact)
    space = reserve_workspace(device, *workspace_size(num_rows, num_outputs, tile))
    for _ in range(2):
        y = x.new_full(exact.shape, float("nan"))
        hopper_grouped(x, weight, make_terms(weight, kind), kind, bias, y, activation, tile, space)
        torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=3e-2)
        assert (y - exact).norm() < 4e-3 * exact.norm(), "little more than the rounding of weights and outputs"
