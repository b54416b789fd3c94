"""Experts of a few tokens, each pair by itself, held against their twins."""

import pytest
import torch
from test_triton_experts import CLAMPED, choose, make_experts
from test_triton_experts import in_type as plain_in_type
from test_triton_packed_experts import ALL_FORMS, SILU, in_type, make, random, tokens

from octavo.kernels.experts import PlainExperts
from octavo.kernels.packed_experts import PlainPackedExperts
from octavo.kernels.pair_sum import sum_of
from octavo.kernels.triton.experts import make_experts as make_plain_experts
from octavo.kernels.triton.few_experts import FewTile, choose_down_tile, choose_up_tile, few_experts, takes
from octavo.kernels.triton.packed_experts import make_packed_experts
from octavo.records.experts import ExpertSpec


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ALL_FORMS)
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_packed_experts_are_what_the_twin_computes(device: torch.device, name: str, num_tokens: int) -> None:
    weights, (x, chosen, shares) = make(device, name), tokens(device, num_tokens)
    expected = PlainPackedExperts(weights, SILU)(x, chosen, shares)
    found = few_experts(x.half(), chosen, shares, in_type(weights, torch.float16), SILU)
    torch.testing.assert_close(found.float(), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    "spec", [SILU, CLAMPED, ExpertSpec("gelu_tanh"), ExpertSpec("silu", weighs_inputs=True)], ids=str
)
@pytest.mark.parametrize("num_chosen", [2, 3])
def test_experts_are_what_the_reference_computes(device: torch.device, spec: ExpertSpec, num_chosen: int) -> None:
    weights = make_experts(device, 5, 72, 40, bias=True)
    x, (chosen, shares) = random(device, 6, 2, 72), choose(device, 2, 5, num_chosen)
    expected = PlainExperts(weights, spec)(x, chosen, shares)
    found = few_experts(x.half(), chosen, shares, plain_in_type(weights, torch.float16), spec)
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("name", ["float8-blocks", "int4-zeros", "mxfp4", "nvfp4", "int4-offsets", "int8-halves"])
def test_rows_and_experts_in_several_loads(device: torch.device, name: str) -> None:
    weights, (x, chosen, shares) = in_type(make(device, name), torch.float16), tokens(device, 2)
    whole = few_experts(x.half(), chosen, shares, weights, SILU)
    parts = few_experts(x.half(), chosen, shares, weights, SILU, FewTile(32, 2, 1, 4), FewTile(64, 2, 1, 4))
    torch.testing.assert_close(parts, whole, rtol=2e-3, atol=2e-3)


def test_bits_of_a_token_do_not_depend_on_the_others(device: torch.device) -> None:
    weights, (x, chosen, shares) = in_type(make(device, "float8"), torch.float16), tokens(device, 2)
    both = few_experts(x.half(), chosen, shares, weights, SILU)
    assert torch.equal(few_experts(x[1:].half(), chosen[1:], shares[1:], weights, SILU), both[1:])


@pytest.mark.parametrize("deterministic", [False, True])
def test_who_computes(device: torch.device, monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    calls: list[int] = []

    def record(x: torch.Tensor, *others: object) -> torch.Tensor:
        calls.append(len(x))
        return x

    monkeypatch.setattr("octavo.kernels.triton.few_experts.few_experts", record)
    packed, plain = (
        in_type(make(device, "int8"), torch.float16),
        plain_in_type(make_experts(device, 4, 192, 64, bias=False), torch.float16),
    )
    for op in (
        make_packed_experts(packed.gate_up.codes, packed, SILU, deterministic=deterministic),
        make_plain_experts(plain.gate_up, plain, SILU, deterministic=deterministic),
    ):
        for num_tokens in (0, 1, 2, 3):
            x, chosen, shares = tokens(device, num_tokens)
            assert sum_of(op(x.half(), chosen, shares)).shape == x.shape
    assert calls == ([] if deterministic else [1, 2, 1, 2])


def test_rows_of_other_sizes_are_left_to_grouped_gemms(device: torch.device) -> None:
    plain = make_experts(device, 2, 64, 48, bias=False)
    assert takes(make(device, "int4-groups")) and takes(plain_in_type(plain, torch.float16))
    assert not takes(plain)  # of float32
    assert not takes(plain_in_type(make_experts(device, 2, 60, 48, bias=False), torch.float16))
    packed = make(device, "int8-groups")
    assert not takes(packed._replace(down=packed.down._replace(codes=packed.down.codes[..., :40])))


@pytest.mark.parametrize(
    ("row_bytes", "form", "num_chosen"), [(384, "int4", 8), (5760, "plain", 4), (768, "float8", 6)]
)
def test_tiles_hold_no_more_than_registers(row_bytes: int, form: str, num_chosen: int) -> None:
    up, down = choose_up_tile(row_bytes, form), choose_down_tile(row_bytes, form, num_chosen)
    assert 2 * up.rows * up.units <= 32 * 128 and down.rows * down.units * down.num_experts <= 16 * 128
    assert down.num_experts <= num_chosen
