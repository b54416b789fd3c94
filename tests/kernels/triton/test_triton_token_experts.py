"""A single token's float8 experts, held against their twin."""

import pytest
import torch
from test_triton_packed_experts import SILU, assert_near, make, random

from octavo.kernels.packed_experts import PackedExperts, PackedMatrices, PlainPackedExperts
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import token_experts as kernels
from octavo.kernels.triton.packed_experts import make_packed_experts
from octavo.records.experts import ExpertSpec

is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(
    not is_hopper, reason="Gluon kernels for Hopper; runs on a GPU of compute capability 9.0"
)


def experts(device: torch.device, num_experts: int, hidden: int, size: int) -> PackedExperts:
    def matrices(num_outputs: int, num_inputs: int, seed: int) -> PackedMatrices:
        codes = random(device, seed, num_experts, num_outputs, num_inputs).to(FLOAT8)
        scales = (1 + random(device, seed + 1, num_experts, 1, num_outputs).abs()) / num_inputs**0.5
        return PackedMatrices(codes, scales, None, 8)

    return PackedExperts(matrices(2 * size, hidden, 1), matrices(hidden, size, 3))


def token(device: torch.device, num_experts: int, num_chosen: int, hidden: int) -> tuple[torch.Tensor, ...]:
    shares, chosen = random(device, 5, 1, num_experts).softmax(-1).topk(num_chosen)
    return random(device, 6, 1, hidden).bfloat16(), chosen, shares


SWIGLU, WEIGHED = ExpertSpec("clamped_swiglu", 1.7, 0.8), ExpertSpec("silu", weighs_inputs=True)


@on_hopper
@pytest.mark.parametrize(
    ("num_experts", "num_chosen", "hidden", "size", "spec"),
    [
        (12, 8, 2048, 768, SILU),
        (6, 4, 640, 176, SILU),
        (9, 4, 2816, 1024, SWIGLU),
        (6, 4, 640, 176, WEIGHED),
    ],
)
def test_it_is_what_the_twin_computes(
    num_experts: int, num_chosen: int, hidden: int, size: int, spec: ExpertSpec
) -> None:
    device = torch.device("cuda")
    weights = experts(device, num_experts, hidden, size)
    x, chosen, shares = token(device, num_experts, num_chosen, hidden)
    assert kernels.reads(weights) and kernels.can_multiply(x, chosen, weights)
    expected = PlainPackedExperts(weights, spec)(x.float(), chosen, shares)
    found = kernels.token_experts(x, chosen, shares, weights, spec)
    assert_near(found, expected, 4e-3)  # of bfloat16 between the GEMMs and in the result
    assert torch.equal(kernels.token_experts(x, chosen, shares, weights, spec), found)


@on_hopper
def test_nan_stays() -> None:
    device = torch.device("cuda")
    weights = experts(device, 6, 640, 176)
    x, chosen, shares = token(device, 6, 4, 640)
    x[0, 300] = float("nan")
    assert kernels.token_experts(x, chosen, shares, weights, SILU).isnan().all()


@on_hopper
def test_a_single_token_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    weights = experts(device, 8, 512, 128)
    calls: list[int] = []
    monkeypatch.setattr(kernels, "token_experts", lambda x, *others: (calls.append(len(x)), x)[1])
    for deterministic in (False, True):
        op = make_packed_experts(weights.gate_up.codes, weights, SILU, deterministic=deterministic)
        for num_tokens in (1, 2):
            x, chosen, shares = (t.expand(num_tokens, -1).contiguous() for t in token(device, 8, 4, 512))
            op(x, chosen, shares)
    assert calls == [1]


def test_which_experts_it_reads(device: torch.device) -> None:
    assert kernels.reads(experts(device, 2, 512, 128))
    assert not kernels.reads(experts(device, 2, 576, 128))  # rows of no multiple of a block
    assert not kernels.reads(make(device, "float8", bias=True))
    for name in ("int8", "float8-blocks", "mxfp4"):
        assert not kernels.reads(make(device, name, bias=False))
