"""Small-M GEMMs with INT8 codes and float8 values in groups, held against the plain product in float64.

The kernel is written for tensor cores thread by thread, which Triton's interpreter does not know: a GPU runs it.
"""

from dataclasses import replace

import pytest
import torch
from product_case import check_normed_row, random

from octavo.errors import UnsupportedModelError
from octavo.kernels import grouped
from octavo.kernels.grouped import GroupedTensors, pack_codes
from octavo.kernels.linear import GATES
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import grouped as triton_grouped
from octavo.kernels.triton import grouped_bytes, linear
from octavo.kernels.triton.grouped import GroupedLinear
from octavo.kernels.triton.grouped_bytes import BytesTile, bytes_grouped, count_sharing
from octavo.kernels.triton.grouped_hopper_tiles import HopperTile
from octavo.kernels.triton.grouped_terms import kind_of, make_terms
from octavo.kernels.triton.grouped_unpack import UNIT_SCALE

needs_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="run on an NVIDIA H100 or H200"
)
MANY = 1 << 20
FEW = BytesTile(16, 4, 4, MANY)
WIDE = BytesTile(32, 8, 4, MANY)


def make(device: torch.device, num_outputs: int, num_inputs: int, form: str, *, group: int = 128) -> GroupedTensors:
    """A random weight of "int8" codes, "float8" values, or float8 values in "blocks" that share a scale."""
    generator = torch.Generator().manual_seed(0)
    if form == "int8":
        codes = torch.randint(256, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8)
        size = 74.0
    else:
        # All values but NaNs, subnormal ones included.
        codes = torch.randint(127, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8)
        signs = torch.randint(2, codes.shape, generator=generator, dtype=torch.uint8) << 7
        codes = (codes | signs).view(FLOAT8)
        size = 130.0
    scales = (0.5 + torch.rand(num_outputs, num_inputs // group, generator=generator)) / size / num_inputs**0.5
    if form == "blocks":
        scales = scales[::128].repeat_interleave(128, 0)[:num_outputs]
    return GroupedTensors(codes.to(device), scales.to(device), None, 8)


def multiply(x: torch.Tensor, weight: GroupedTensors, activation: str, tile: BytesTile) -> torch.Tensor:
    num_channels = len(weight.codes) // (1 if activation == "none" else 2)
    y = x.new_full((len(x), num_channels), float("nan"))
    bytes_grouped(x, weight, count_sharing(weight), None, y, activation, tile)
    return y


def use_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_grouped, "IS_INTERPRETED", False)
    monkeypatch.setattr(linear, "is_supported", lambda device: True)
    monkeypatch.setattr(triton_grouped, "num_multiprocessors", lambda device: 132)


def test_few_rows_of_bytes_go_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hopper(monkeypatch)
    cpu = torch.device("cpu")
    for form in ("int8", "float8", "blocks"):
        weight = make(cpu, 64, 256, form)
        op = GroupedLinear(weight, None, deterministic=False)
        assert all(isinstance(op.choose(rows), BytesTile) for rows in range(1, grouped_bytes.MAX_ROWS + 1))
        assert not isinstance(op.choose(grouped_bytes.MAX_ROWS + 1), BytesTile)
        assert GroupedLinear(weight, None, deterministic=True).choose(1) is None
    zeros = torch.zeros_like(weight.scales, dtype=torch.uint8)
    op = GroupedLinear(make(cpu, 64, 256, "int8")._replace(zeros=zeros), None, deterministic=False)
    assert isinstance(op.choose(1), HopperTile), "codes with zeros of their own go to the kernel that subtracts them"


def test_blocks_share_scales() -> None:
    cpu = torch.device("cpu")
    assert count_sharing(make(cpu, 300, 256, "blocks")) == 128
    assert count_sharing(make(cpu, 300, 256, "float8")) == 1
    assert count_sharing(make(cpu, 300, 256, "int8")) == 1


def test_new_weights_in_blocks_stay_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured graphs have a kernel that reads one scale of each block."""
    use_hopper(monkeypatch)
    weight = make(torch.device("cpu"), 300, 256, "blocks")
    op = GroupedLinear(weight, None, deterministic=False)
    weight.scales.mul_(2)
    op.refresh()
    weight.scales[3] *= 2
    with pytest.raises(UnsupportedModelError, match="within a block"):
        op.refresh()


# Weight rows and inputs of Qwen3 0.6B, 8B, 14B and 32B and heads, and sizes that are no multiple of a tile.
SHAPES = [
    (6144, 4096),
    (4096, 4096),
    (24576, 4096),
    (4096, 12288),
    (4096, 1024),
    (1024, 2048),
    (7168, 5120),
    (5120, 17408),
    (5120, 25600),
    (151936, 4096),
    (1000, 1408),
    (8, 128),
]


@pytest.mark.parametrize(("num_channels", "num_inputs"), SHAPES)
def test_chosen_tiles_fit(num_channels: int, num_inputs: int) -> None:
    empty = torch.empty(num_channels, num_inputs, dtype=torch.uint8, device="meta")
    weight = GroupedTensors(empty, empty[:, ::128].float(), None, 8)
    for num_rows in range(1, grouped_bytes.MAX_ROWS + 1):
        tile = grouped_bytes.choose_tile(weight, num_rows, 132)
        assert tile is not None and tile.num_programs > 0 and tile.num_stages > 1
        assert tile.num_weights % (tile.num_warps * 4) == 0
        assert grouped_bytes.shared_bytes(num_rows, weight, tile) <= 227 << 10
        assert num_rows > 1 or grouped_bytes.norms(weight, tile)


@needs_kernel
@pytest.mark.parametrize(
    ("tile", "shape", "group", "activation", "dtype"),
    [
        (FEW, (5, 104, 384), 128, "silu", torch.bfloat16),  # fewer units than a round
        (FEW, (1, 40, 4096), 128, "none", torch.float16),
        (replace(FEW, num_programs=2), (8, 200, 4096), 128, "none", torch.bfloat16),  # one tile after another
        (replace(FEW, num_stages=3, num_programs=3), (2, 200, 9600), 384, "silu", torch.bfloat16),
        (replace(FEW, num_stages=8, num_programs=3), (7, 72, 9600), 384, "none", torch.float16),  # not all of x stays
        (replace(WIDE, num_programs=1), (16, 104, 2048), 128, "silu", torch.bfloat16),
        (WIDE, (1, 72, 384), 384, "none", torch.float16),
        (replace(WIDE, num_stages=2), (12, 104, 1408), 128, "none", torch.bfloat16),
        (BytesTile(64, 8, 3, 1), (16, 200, 1408), 128, "silu", torch.bfloat16),
        (replace(FEW, num_weights=32, num_programs=1), (6, 104, 1408), 64, "silu", torch.bfloat16),
        (FEW, (3, 40, 736), 32, "gelu_tanh", torch.bfloat16),
        (replace(FEW, num_programs=2), (1, 88, 1408), 32, "silu", torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["int8", "float8", "blocks"])
def test_gemms(
    device: torch.device,
    form: str,
    tile: BytesTile,
    shape: tuple[int, int, int],
    group: int,
    activation: str,
    dtype: torch.dtype,
) -> None:
    num_rows, num_outputs, num_inputs = shape
    weight = make(device, num_outputs, num_inputs, form, group=group)
    x, bias = random(device, 1, num_rows, num_inputs, dtype=dtype), random(device, 2, num_outputs, dtype=dtype)
    exact = x.double() @ grouped.dequantize(weight, torch.float64).T + bias.double()
    exact = exact if activation == "none" else GATES[activation](exact)
    y = x.new_full(exact.shape, float("nan"))
    bytes_grouped(x, weight, count_sharing(weight), bias, y, activation, tile)
    torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=3e-2)


@needs_kernel
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("form", ["int8", "blocks"])
@pytest.mark.parametrize(
    ("shape", "group", "activation"),
    [((56, 4096), 128, "none"), ((104, 1408), 128, "silu"), ((6400, 384), 384, "none"), ((48, 9600), 64, "silu")],
)
def test_gemms_of_a_normed_row(
    device: torch.device, shape: tuple[int, int], group: int, activation: str, form: str, has_residual: bool
) -> None:
    op = GroupedLinear(make(device, *shape, form, group=group), None, deterministic=False)
    check_normed_row(op, device, shape[1], activation, has_residual=has_residual)


def make_small(device: torch.device, shape: tuple[int, int], form: str) -> GroupedTensors:
    """A random weight in groups of 32 or 16: of "4-bits" or "8-bits", with "offsets" or of "16-inputs"."""
    generator = torch.Generator().manual_seed(0)
    bits, group = 4 if "4-bits" in form else 8, 16 if "16-inputs" in form else 32
    codes = torch.randint(1 << bits, shape, generator=generator, dtype=torch.uint8)
    scales = (0.5 + torch.rand(shape[0], shape[1] // group, generator=generator)) * 3.4 / (1 << bits) / shape[1] ** 0.5
    offsets = None
    if "offsets" in form:
        offsets = (scales * (1 << bits) / 4 * torch.randn(scales.shape, generator=generator)).half().to(device)
    codes = pack_codes(codes, 32) if bits == 4 else codes
    return GroupedTensors(codes.to(device), scales.to(device), None, bits, offsets)


SMALL_FORMS = ["4-bits", "4-bits-offsets", "8-bits-offsets", "8-bits-16-inputs"]


@pytest.mark.parametrize("form", SMALL_FORMS)
def test_small_groups_have_a_word_each(form: str) -> None:
    weight = make_small(torch.device("cpu"), (21, 512), form)
    assert kind_of(weight) == "small"
    pairs = make_terms(weight, "small").view(torch.float16).unflatten(-1, (-1, 2))  # [3, 4, 8, groups of a step, 2]
    scales, offsets = pairs.transpose(1, 2).flatten(0, 1).flatten(1, 2)[:21].float().unbind(-1)
    torch.testing.assert_close(scales / UNIT_SCALE, weight.scales, rtol=1e-3, atol=0)
    assert torch.equal(offsets, torch.zeros_like(scales) if weight.offsets is None else weight.offsets.float())
    assert kind_of(weight._replace(scales=weight.scales + 200)) is None, "as a factor, infinite"


def test_zeros_of_small_groups_become_offsets() -> None:
    weight = make_small(torch.device("cpu"), (16, 128), "4-bits")
    zeros = torch.arange(64, dtype=torch.uint8).view(16, 4)
    weight = weight._replace(zeros=zeros)
    offsets = make_terms(weight, "small").view(torch.float16).unflatten(-1, (-1, 2))[:, 0, :, :, 1].flatten(0, 1)
    expected = weight.scales * (8 - zeros / 8)
    torch.testing.assert_close(offsets.float(), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("form", SMALL_FORMS)
def test_a_kernel_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    use_hopper(monkeypatch)
    weight = make_small(torch.device("cpu"), (64, 256), form)
    op = GroupedLinear(weight, None, deterministic=False)
    found = {rows: type(op.choose(rows)) for rows in (1, 8, 9, 16, 1024, 1025)}
    assert found == {1: BytesTile, 8: BytesTile, 9: HopperTile, 16: HopperTile, 1024: HopperTile, 1025: type(None)}
    assert GroupedLinear(weight, None, deterministic=True).choose(1) is None
    terms = op._terms
    weight.scales.mul_(2)
    op.refresh()
    assert terms is op._terms and terms is not None and torch.equal(terms, make_terms(weight, "small"))
    weight.scales[3, 2] = 200
    with pytest.raises(UnsupportedModelError, match="larger than 127"):
        op.refresh()


@pytest.mark.parametrize("form", SMALL_FORMS)
@pytest.mark.parametrize(("num_channels", "num_inputs"), SHAPES)
def test_chosen_tiles_of_small_groups_fit(num_channels: int, num_inputs: int, form: str) -> None:
    bits, group = 4 if "4-bits" in form else 8, 16 if "16-inputs" in form else 32
    codes = torch.empty(num_channels, num_inputs * bits // 8, dtype=torch.uint8, device="meta")
    weight = GroupedTensors(codes, torch.empty(num_channels, num_inputs // group, device="meta"), None, bits)
    for num_rows in range(1, grouped_bytes.MAX_SMALL_ROWS + 1):
        tile = grouped_bytes.choose_small_tile(weight, num_rows, 132)
        assert tile is not None and tile.num_programs > 0 and tile.num_stages > 1
        assert grouped_bytes.shared_bytes(num_rows, weight, tile) <= 227 << 10
    assert grouped_bytes.choose_small_tile(weight, grouped_bytes.MAX_SMALL_ROWS + 1, 132) is None


@needs_kernel
@pytest.mark.parametrize(
    ("tile", "shape", "activation", "dtype"),
    [
        (FEW, (1, 104, 1408), "silu", torch.bfloat16),
        (replace(FEW, num_stages=3, num_programs=2), (5, 200, 1408), "none", torch.bfloat16),
        (replace(WIDE, num_programs=1), (16, 104, 2048), "silu", torch.bfloat16),
        (BytesTile(32, 4, 2, MANY), (7, 72, 640), "none", torch.float16),
        (replace(FEW, num_programs=2), (1, 88, 1408), "gelu_tanh", torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", SMALL_FORMS)
def test_gemms_of_small_groups(
    device: torch.device,
    form: str,
    tile: BytesTile,
    shape: tuple[int, int, int],
    activation: str,
    dtype: torch.dtype,
) -> None:
    num_rows, num_outputs, num_inputs = shape
    weight = make_small(device, (num_outputs, num_inputs), form)
    x, bias = random(device, 1, num_rows, num_inputs, dtype=dtype), random(device, 2, num_outputs, dtype=dtype)
    exact = x.double() @ grouped.dequantize(weight, torch.float64).T + bias.double()
    exact = exact if activation == "none" else GATES[activation](exact)
    y = x.new_full(exact.shape, float("nan"))
    bytes_grouped(x, weight, 1, bias, y, activation, tile, terms=make_terms(weight, "small"))
    torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=1e-2)
    assert (y - exact).norm() < 3e-3 * exact.norm(), "little more than the rounding of outputs"


@needs_kernel
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("form", ["4-bits-offsets", "8-bits-16-inputs"])
@pytest.mark.parametrize(("shape", "activation"), [((56, 4096), "none"), ((104, 1408), "silu"), ((48, 9600), "silu")])
def test_small_groups_of_a_normed_row(
    device: torch.device, shape: tuple[int, int], activation: str, form: str, has_residual: bool
) -> None:
    op = GroupedLinear(make_small(device, shape, form), None, deterministic=False)
    check_normed_row(op, device, shape[1], activation, has_residual=has_residual)


@needs_kernel
def test_bits_of_a_row_do_not_depend_on_its_neighbours(device: torch.device) -> None:
    weight, x = make(device, 256, 4096, "blocks"), random(device, 2, 8, 4096, dtype=torch.bfloat16)
    together = multiply(x, weight, "none", FEW)
    for tile in (FEW, replace(FEW, num_stages=8), replace(WIDE, num_programs=3)):
        for first, num_rows in ((0, 1), (5, 1), (2, 2), (3, 3), (0, 4), (1, 6)):
            rows = slice(first, first + num_rows)
            assert torch.equal(multiply(x[rows], weight, "none", tile), together[rows])
