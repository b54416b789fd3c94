"""Grouped GEMMs over packed experts, held against their twin."""

import pytest
import torch

from octavo.errors import UnsupportedModelError
from octavo.kernels.packed_experts import PackedExperts, PackedMatrices, PlainPackedExperts, round_inputs
from octavo.kernels.pair_sum import sum_of
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import packed_experts as packed
from octavo.kernels.triton.experts import order_pairs
from octavo.kernels.triton.packed_experts import PackedTile, choose_tile, packed_gemm
from octavo.kernels.triton.pair_sum import sum_pairs
from octavo.records.experts import ExpertSpec

SILU = ExpertSpec("silu")
FORMS = {
    "float8": ("float8", 0),
    "float8-blocks": ("float8", 32),
    "int8": ("int8", 0),
    "int8-groups": ("int8", 32),
    "int4": ("int4", 0),
    "int4-groups": ("int4", 32),
    "int4-zeros": ("int4-zeros", 64),
    "mxfp4": ("mxfp4", 32),
    "nvfp4": ("nvfp4", 16),
}
SCALED = {
    "int4-offsets": ("int4-offsets", 32),
    "int8-offsets": ("int8-offsets", 32),
    "int8-halves": ("int8", 16),
}
"""Forms whose codes are scaled before they are multiplied."""
ALL_FORMS = FORMS | SCALED


def random(device: torch.device, seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def draw(
    device: torch.device, name: str, num_experts: int, num_outputs: int, num_inputs: int, seed: int
) -> PackedMatrices:
    """Random weights in a form, which preserve the scale of their input."""
    form, group = ALL_FORMS[name]
    generator = torch.Generator().manual_seed(seed)
    shape, groups = (num_experts, num_outputs, num_inputs), num_inputs // (group or num_inputs)
    scales = (0.5 + torch.rand(num_experts, groups, num_outputs, generator=generator)) / num_inputs**0.5
    if form == "float8":
        return PackedMatrices(torch.randn(shape, generator=generator).to(FLOAT8).to(device), scales.to(device), None, 8)
    width = num_inputs if form.startswith("int8") else num_inputs // 2
    codes = torch.randint(256, (*shape[:2], width), generator=generator, dtype=torch.uint8).to(device)
    if form.endswith("-offsets"):
        bits = int(form[3])
        offsets = (torch.rand(scales.shape, generator=generator) - 0.2) / num_inputs**0.5
        return PackedMatrices(codes, (scales * 1.1 / 2**bits).to(device), None, bits, offsets.half().to(device))
    if form == "int8":
        return PackedMatrices(codes, (scales / 70).to(device), None, 8)
    if form == "mxfp4":
        exponents = torch.randint(119, 125, scales.shape, generator=generator, dtype=torch.uint8)
        return PackedMatrices(codes, exponents.to(device), None, 4)
    if form == "nvfp4":
        stored = torch.randint(256, scales.shape, generator=generator, dtype=torch.uint8)  # negative ones, too
        stored = torch.where(stored % 128 == 127, 1, stored).to(torch.uint8).view(FLOAT8)
        factors = (0.5 + torch.rand(num_experts, num_outputs, generator=generator)) / 300 / num_inputs**0.5
        return PackedMatrices(codes, stored.to(device), None, 4, factors=factors.to(device))
    zeros = torch.randint(121, scales.shape, generator=generator, dtype=torch.uint8).to(device)
    return PackedMatrices(codes, (scales / 4).to(device), zeros if form == "int4-zeros" else None, 4)


def make(device: torch.device, name: str, *, bias: bool = True) -> PackedExperts:
    """Four experts whose numbers of inputs are no multiples of a step."""
    num_experts, hidden, size = 4, 192, 64
    return PackedExperts(
        draw(device, name, num_experts, 2 * size, hidden, 1),
        draw(device, name, num_experts, hidden, size, 2),
        random(device, 3, num_experts, 2 * size) if bias else None,
        random(device, 4, num_experts, hidden) if bias else None,
    )


def in_type(weights: PackedExperts, dtype: torch.dtype) -> PackedExperts:
    biases = [None if bias is None else bias.to(dtype) for bias in (weights.gate_up_bias, weights.down_bias)]
    return weights._replace(gate_up_bias=biases[0], down_bias=biases[1])


def tokens(device: torch.device, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shares, chosen = random(device, 5, num_tokens, 4).softmax(-1).topk(2)
    return random(device, 6, num_tokens, 192), chosen, shares


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert float((found.float() - expected).norm() / expected.norm()) < tolerance


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", ALL_FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 7, 40])
def test_it_is_what_the_twin_computes(device: torch.device, name: str, dtype: torch.dtype, num_tokens: int) -> None:
    weights = make(device, name)
    x, chosen, shares = tokens(device, num_tokens)
    expected = PlainPackedExperts(weights, SILU)(x, chosen, shares)
    found = packed.packed_experts(x.to(dtype), chosen, shares, in_type(weights, dtype), SILU).rows()
    is_exact = dtype is torch.float32 and device.type == "cpu"
    assert_near(found, expected, 1e-5 if is_exact else 1e-3)


@pytest.mark.parametrize("num_tokens", [2, 7])
def test_the_two_weights_may_have_other_forms(device: torch.device, num_tokens: int) -> None:
    weights = make(device, "int4-offsets")._replace(down=make(device, "int8-halves").down)
    x, chosen, shares = tokens(device, num_tokens)
    expected = PlainPackedExperts(weights, SILU)(x, chosen, shares)
    experts = packed.make_packed_experts(weights.gate_up.codes, in_type(weights, torch.float16), SILU)
    assert_near(sum_of(experts(x.half(), chosen, shares)), expected, 1e-3)


@pytest.mark.parametrize(
    "spec",
    [
        ExpertSpec("gelu_tanh"),
        ExpertSpec("clamped_swiglu", alpha=1.7, limit=0.8),
        ExpertSpec("clamped_silu", limit=0.8),
        ExpertSpec("swiglu_step", limit=0.4),
        ExpertSpec("silu", weighs_inputs=True),
    ],
    ids=["gelu", "clamped", "clamped silu", "swiglu step", "weighs inputs"],
)
def test_activations(device: torch.device, spec: ExpertSpec) -> None:
    weights = make(device, "int8-groups", bias=spec.activation != "silu")
    x, chosen, shares = tokens(device, 7)
    expected = PlainPackedExperts(weights, spec)(x, chosen, shares)
    found = packed.packed_experts(x.half(), chosen, shares, in_type(weights, torch.float16), spec).rows()
    assert_near(found, expected, 1e-3)


@pytest.mark.parametrize("name", ["float8", "float8-blocks"])
@pytest.mark.parametrize("num_tokens", [1, 40])
def test_many_pairs_are_rounded(
    device: torch.device, name: str, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "ROUNDED_PAIRS", 0)
    weights = make(device, name)._replace(rounds_inputs=True)
    x, chosen, shares = tokens(device, num_tokens)
    expected = PlainPackedExperts(weights, SILU, rounds=True)(x, chosen, shares)
    plain = PlainPackedExperts(weights, SILU)(x, chosen, shares)
    found = packed.packed_experts(x.half(), chosen, shares, in_type(weights, torch.float16), SILU).rows()
    assert_near(found, expected, 1e-2)  # a few values between the GEMMs are rounded the other way
    assert float((found.float() - plain).norm()) > float((found.float() - expected).norm())


@pytest.mark.parametrize("num_tokens", [1, 7, 20, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_few_pairs_are_multiplied_in_parts(device: torch.device, num_tokens: int, bias: bool) -> None:
    weights = make(device, "float8", bias=bias)
    x, chosen, shares = tokens(device, num_tokens)
    x = x.bfloat16()
    expected = PlainPackedExperts(weights, SILU)(x.float(), chosen, shares)
    given = in_type(weights, torch.bfloat16)
    assert packed.splits_inputs(given, chosen.numel(), x) or device.type == "cuda"
    found = packed.packed_experts(x, chosen, shares, given, SILU, may_split=True).rows()
    assert_near(found, expected, 4e-3)  # of bfloat16 between the GEMMs and in the result


def test_who_is_multiplied_in_parts(device: torch.device) -> None:
    x = torch.empty(1, 192, device=device)
    for name, dtype, num_pairs, splits in (
        ("float8", torch.bfloat16, 4, True),
        ("float8", torch.bfloat16, 400, False),
        ("float8", torch.float16, 4, False),
        ("float8-blocks", torch.bfloat16, 4, False),
        ("int8", torch.bfloat16, 4, False),
    ):
        has_cores = device.type == "cpu" or torch.cuda.get_device_capability(device) == (9, 0)
        assert packed.splits_inputs(make(device, name), num_pairs, x.to(dtype)) == (splits and has_cores)


def test_groups_are_rounded_as_the_twin_rounds_them(device: torch.device) -> None:
    x = random(device, 7, 33, 192).half()
    x[3, 40] = float("nan")
    x[5, 100] = float("inf")
    x[7] = 0
    for group in (64, 192):
        found, expected = packed.round_inputs(x, group), round_inputs(x, group)
        for own, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(own.float(), wanted.float(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["float8", "int4-zeros", "mxfp4", "nvfp4", *SCALED])
@pytest.mark.parametrize("block_m", [32, 64, 128])
def test_other_tiles_compute_the_same(device: torch.device, name: str, block_m: int) -> None:
    weights = make(device, name)
    x, chosen, shares = tokens(device, 20)
    expected = PlainPackedExperts(weights, SILU)(x, chosen, shares)
    weights, x = in_type(weights, torch.float16), x.half()
    order = order_pairs(chosen, 4, block_m)
    inner, results = x.new_empty(40, 64), x.new_empty(40, 192)
    tile = PackedTile(block_m, 64, 64, 2, 4)
    packed_gemm(x, None, weights.gate_up, weights.gate_up_bias, shares, inner, order, tile, SILU)
    packed_gemm(inner, None, weights.down, weights.down_bias, shares, results, order, tile, None)
    assert_near(sum_pairs(results, shares, 2), expected, 1e-3)


def test_large_scales(device: torch.device) -> None:
    weights = make(device, "mxfp4", bias=False)
    weights.gate_up.scales[1, 2] = 160
    x, chosen, shares = tokens(device, 7)
    x *= 1e-9
    expected = PlainPackedExperts(weights, SILU)(x, chosen, shares)
    experts = packed.make_packed_experts(weights.gate_up.codes, weights, SILU)
    assert_near(sum_of(experts(x, chosen, shares)), expected, 1e-3)
    weights.down.scales[0, 1] = 161
    with pytest.raises(UnsupportedModelError, match=r"2\*\*34"):
        packed.make_packed_experts(weights.gate_up.codes, weights, SILU)


def test_no_tokens(device: torch.device) -> None:
    x, chosen, shares = tokens(device, 0)
    assert packed.packed_experts(x, chosen, shares, make(device, "float8"), SILU).rows().shape == (0, 192)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the interpreter adds up in NumPy's order; run on an NVIDIA H200"
)
@pytest.mark.parametrize("name", ALL_FORMS)
def test_bits_of_a_token_do_not_depend_on_the_others(device: torch.device, name: str) -> None:
    weights = in_type(make(device, name), torch.bfloat16)
    x, chosen, shares = tokens(device, 1000)
    x = x.bfloat16()
    experts = packed.make_packed_experts(weights.gate_up.codes, weights, SILU, deterministic=True)
    alone = sum_of(experts(x[:1], chosen[:1], shares[:1]))
    for count in (2, 20, 60, 300, 1000):
        assert torch.equal(sum_of(experts(x[:count], chosen[:count], shares[:count]))[:1], alone)


@pytest.mark.parametrize("name", ALL_FORMS)
@pytest.mark.parametrize("is_gated", [True, False])
def test_tiles_have_the_tensor_cores_rows(name: str, is_gated: bool) -> None:
    weight = draw(torch.device("cpu"), name, 4, 64, 64, 1)
    for num_pairs in (1, 64, 100, 1000):
        tile = choose_tile(weight, num_pairs, is_gated=is_gated, is_rounded=False)
        assert tile.block_n * (2 if is_gated else 1) % 64 == 0
