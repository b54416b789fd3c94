"""Small-M GEMMs with INT4 codes, and how a kernel is chosen for weights of 4 bits.

The kernel is written for tensor cores thread by thread, which Triton's interpreter does not know: a GPU runs it. Packed
codes, and words of a scale and a zero, are held against the plain twin without one.
"""

from dataclasses import replace

import pytest
import torch
from product_case import WEIGHT_SHAPES, check_normed_row, random

from octavo.kernels import grouped
from octavo.kernels.cuda.grouped_gemm_tiles import GroupedTile
from octavo.kernels.cuda.library import KernelLibrary
from octavo.kernels.grouped import ZERO_STEP, GroupedTensors, ReorderedLinear, byte_order, pack_codes, unpack_codes
from octavo.kernels.linear import GATES
from octavo.kernels.triton import grouped as triton_grouped
from octavo.kernels.triton import grouped_direct, linear
from octavo.kernels.triton.grouped import GroupedLinear
from octavo.kernels.triton.grouped_bytes import BytesTile
from octavo.kernels.triton.grouped_direct import DirectTile, direct_grouped, place_inputs
from octavo.kernels.triton.grouped_hopper_tiles import MAX_ROWS, HopperTile
from octavo.kernels.triton.grouped_stream import StreamTile
from octavo.kernels.triton.grouped_terms import make_terms
from octavo.kernels.triton.grouped_unpack import UNIT_SCALE

needs_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="run on an NVIDIA H100 or H200"
)
MANY = 1 << 20
FEW = DirectTile(16, 4, 4, MANY)
DEEP = DirectTile(16, 4, 8, MANY)
WIDE = DirectTile(32, 8, 4, MANY)


def make(
    device: torch.device, num_outputs: int, num_inputs: int, *, group: int = 128, has_zeros: bool = True
) -> GroupedTensors:
    """A random weight."""
    generator = torch.Generator().manual_seed(0)
    groups = num_outputs, num_inputs // group
    codes = torch.randint(16, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8)
    scales = ((0.5 + torch.rand(groups, generator=generator)) / 16 / num_inputs**0.5).half().float()
    zeros = torch.randint(129, groups, generator=generator, dtype=torch.uint8).to(device) if has_zeros else None
    packed = pack_codes(codes, grouped.pack_unit(group))
    return GroupedTensors(packed.to(device), scales.to(device), zeros, 4)


@pytest.mark.parametrize("unit", [32, 64, 128])
def test_a_mask_leaves_two_neighbours(unit: int) -> None:
    """What kernels rely on: of a word of codes, bits 0 and 16 begin neighbours, and 4, 8 and 12 on do likewise."""
    codes = torch.randint(16, (3, 2 * unit), dtype=torch.uint8)
    packed = pack_codes(codes, unit)
    assert torch.equal(unpack_codes(packed, unit), codes)
    words = packed.view(torch.int32).unflatten(1, (2, -1))
    halves = codes.unflatten(1, (2, 2, unit // 2))
    order = torch.tensor(byte_order(unit)).unflatten(0, (-1, 4))
    for shift, half, byte in ((0, 0, 0), (4, 1, 0), (8, 0, 1), (12, 1, 1)):
        first = order[:, byte]
        assert torch.equal(words >> shift & 15, halves[:, :, half, first].int())
        assert torch.equal(words >> (16 + shift) & 15, halves[:, :, half, first + 1].int())


@pytest.mark.parametrize("has_zeros", [False, True])
def test_words_have_scales_and_zeros(has_zeros: bool) -> None:
    weight = make(torch.device("cpu"), 21, 512, has_zeros=has_zeros)
    terms = make_terms(weight, "wide")
    assert terms.shape == (3, 4, 8, 1) and terms.dtype is torch.int32
    rows = terms.transpose(1, 2).flatten(0, 1)[:21, :, 0]
    scales = (rows & -0x100).view(torch.float32) / UNIT_SCALE
    assert torch.equal(scales, weight.scales), "scales of 16 bits are exact"
    zeros = (rows & 0xFF) * ZERO_STEP
    codes = unpack_codes(weight.codes, 128).float().unflatten(1, (4, 128))
    values = ((codes - zeros[..., None]) * scales[..., None]).flatten(1)
    assert torch.equal(values, grouped.dequantize(weight, torch.float32))


def test_words_round_longer_scales() -> None:
    weight = make(torch.device("cpu"), 8, 256)
    weight = weight._replace(scales=weight.scales * 1.2345678)
    scales = (make_terms(weight, "wide").transpose(1, 2).flatten(0, 1)[..., 0] & -0x100).view(
        torch.float32
    ) / UNIT_SCALE
    torch.testing.assert_close(scales, weight.scales, rtol=2**-16, atol=0)


def test_words_follow_new_weights(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update writes the same tensors; captured graphs keep the address of the words."""
    monkeypatch.setattr(triton_grouped, "IS_INTERPRETED", False)
    monkeypatch.setattr(linear, "is_supported", lambda device: True)
    weight, new = make(device, 16, 256), make(device, 16, 256, has_zeros=False)
    op = GroupedLinear(weight, None, deterministic=False)
    terms = op._terms
    assert terms is not None
    weight.scales.mul_(2)
    assert weight.zeros is not None
    weight.zeros.fill_(64)
    ReorderedLinear(op, torch.arange(256, device=device)).refresh()
    assert op._terms is terms
    assert torch.equal(terms, make_terms(new._replace(scales=2 * new.scales), "wide"))


def kinds_of(op: GroupedLinear) -> dict[int, type]:
    return {rows: type(op.choose(rows)) for rows in (1, 8, 9, 16, 17, 32, 33, 128, 129, MAX_ROWS, MAX_ROWS + 1)}


def test_a_kernel_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_grouped, "IS_INTERPRETED", False)
    monkeypatch.setattr(linear, "is_supported", lambda device: True)
    monkeypatch.setattr(triton_grouped, "num_multiprocessors", lambda device: 132)
    cpu = torch.device("cpu")
    monkeypatch.setattr(KernelLibrary, "has", lambda library, source: True)
    with_clusters = kinds_of(GroupedLinear(make(cpu, 64, 256), None, deterministic=False))
    assert [rows for rows, kind in with_clusters.items() if kind is GroupedTile] == [17, 32, 33, 128, 129]
    monkeypatch.setattr(KernelLibrary, "has", lambda library, source: False)
    found = kinds_of(GroupedLinear(make(cpu, 64, 256), None, deterministic=False))
    assert found == {rows: DirectTile if rows <= 16 else HopperTile for rows in found if rows <= MAX_ROWS} | {
        MAX_ROWS + 1: type(None)
    }
    wide = GroupedTensors(torch.zeros(64, 256, dtype=torch.uint8), torch.ones(64, 2), None, 8)
    int8 = kinds_of(GroupedLinear(wide, None, deterministic=False))
    assert int8 == {rows: BytesTile if kind is DirectTile else kind for rows, kind in found.items()}
    small_groups = kinds_of(GroupedLinear(make(cpu, 64, 256, group=64), None, deterministic=False))
    assert {rows for rows, kind in small_groups.items() if kind is StreamTile} == {1, 8}
    one_class = kinds_of(GroupedLinear(make(cpu, 64, 256), None, deterministic=True))
    assert set(one_class.values()) == {type(None)}, "a row's bits must not depend on the number of rows"


@pytest.mark.parametrize(("num_channels", "num_inputs"), WEIGHT_SHAPES)
def test_chosen_tiles_fit(num_channels: int, num_inputs: int) -> None:
    empty = torch.empty(num_channels, num_inputs // 2, dtype=torch.uint8, device="meta")
    weight = GroupedTensors(empty, empty[:, ::64].float(), None, 4)
    for num_rows in range(1, grouped_direct.MAX_ROWS + 1):
        tile = grouped_direct.choose_tile(weight, num_rows, 132)
        assert tile is not None
        rows, shared, is_resident = place_inputs(num_rows, num_inputs, tile.num_stages)
        num_turns = -(-num_inputs // (512 * tile.num_stages))
        slots = num_turns * tile.num_stages // shared if is_resident else tile.num_stages
        ring = tile.num_stages * tile.num_weights * (256 + 16)
        assert tile.num_stages in (4, 8) and tile.num_programs > 0
        assert tile.num_weights % (tile.num_warps * 4) == 0
        assert ring + slots * rows * 1024 <= 224 << 10, "what remains is for sums of warps"
    assert grouped_direct.choose_tile(weight, grouped_direct.MAX_ROWS + 1, 132) is None


def test_rounds_share_the_rows_of_an_mma() -> None:
    assert place_inputs(1, 4096, 8) == (8, 4, True)
    assert place_inputs(2, 12288, 8) == (8, 4, True)
    assert place_inputs(3, 4096, 4) == (8, 2, True)
    assert place_inputs(3, 12288, 4) == (8, 1, False), "two rows more would need 96 KiB"
    assert place_inputs(8, 4096, 4) == (8, 1, True)
    assert place_inputs(9, 4096, 4) == (16, 1, False)
    assert place_inputs(16, 2048, 4) == (16, 1, True)


@needs_kernel
@pytest.mark.parametrize(
    ("tile", "shape", "group", "activation", "dtype"),
    [
        (FEW, (5, 104, 384), 128, "silu", torch.bfloat16),  # fewer units than a round
        (FEW, (1, 40, 4096), 128, "none", torch.float16),  # four rounds share a slot of x
        (DEEP, (3, 56, 4096), 128, "silu", torch.float16),  # two rounds do
        (replace(FEW, num_programs=2), (8, 200, 4096), 128, "none", torch.bfloat16),  # one tile after another
        (replace(DEEP, num_programs=3), (2, 200, 9600), 384, "silu", torch.bfloat16),  # rounds past the end
        (replace(FEW, num_programs=3), (7, 72, 9600), 384, "none", torch.float16),  # not all of x stays
        (replace(WIDE, num_programs=1), (16, 104, 2048), 128, "silu", torch.bfloat16),
        (WIDE, (1, 72, 384), 384, "none", torch.float16),
        (replace(WIDE, num_stages=8), (12, 104, 1408), 128, "none", torch.bfloat16),
        (DirectTile(64, 8, 4, 1), (16, 200, 1408), 128, "silu", torch.bfloat16),
        (DirectTile(32, 4, 4, 1), (6, 104, 1408), 128, "silu", torch.bfloat16),  # two blocks of rows per warp
    ],
    ids=str,
)
def test_gemms(
    device: torch.device,
    tile: DirectTile,
    shape: tuple[int, int, int],
    group: int,
    activation: str,
    dtype: torch.dtype,
) -> None:
    num_rows, num_outputs, num_inputs = shape
    weight = make(device, num_outputs, num_inputs, group=group, has_zeros=group == 128)
    x, bias = random(device, 1, num_rows, num_inputs, dtype=dtype), random(device, 2, num_outputs, dtype=dtype)
    exact = x.double() @ grouped.dequantize(weight, torch.float64).T + bias.double()
    exact = exact if activation == "none" else GATES[activation](exact)
    y = x.new_full(exact.shape, float("nan"))
    direct_grouped(x, weight, make_terms(weight, "wide"), bias, y, activation, tile)
    torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=3e-2)


@needs_kernel
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(
    ("shape", "group", "activation"),
    [((56, 4096), 128, "none"), ((104, 1408), 128, "silu"), ((6400, 384), 384, "none"), ((48, 9600), 384, "silu")],
)
def test_gemms_of_a_normed_row(
    device: torch.device, shape: tuple[int, int], group: int, activation: str, has_residual: bool
) -> None:
    weight = make(device, *shape, group=group)
    op = GroupedLinear(weight, None, deterministic=False)
    check_normed_row(op, device, shape[1], activation, has_residual=has_residual)


@needs_kernel
def test_bits_of_a_row_do_not_depend_on_its_neighbours(device: torch.device) -> None:
    weight = make(device, 256, 4096)
    terms, x = make_terms(weight, "wide"), random(device, 2, 8, 4096, dtype=torch.bfloat16)

    def multiply(rows: torch.Tensor, tile: DirectTile) -> torch.Tensor:
        y = rows.new_empty(len(rows), 256)
        direct_grouped(rows, weight, terms, None, y, "none", tile)
        return y

    together = multiply(x, FEW)
    for tile in (FEW, DEEP, replace(WIDE, num_programs=3)):
        for first, num_rows in ((0, 1), (5, 1), (2, 2), (3, 3), (0, 4), (1, 6)):
            rows = slice(first, first + num_rows)
            assert torch.equal(multiply(x[rows], tile), together[rows])
