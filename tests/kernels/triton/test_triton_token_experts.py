"""A single token's float8 experts, held against their twin."""

import pytest
import torch
from test_triton_packed_experts import SILU, assert_near, make, random

from octavo.kernels.deferred_choice import DeferredChoice
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.experts import ChoosingExperts, run_experts
from octavo.kernels.packed_experts import PackedExperts, PackedMatrices, PlainPackedExperts
from octavo.kernels.pair_sum import sum_of
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import token_experts as kernels
from octavo.kernels.triton.packed_experts import make_packed_experts
from octavo.kernels.triton.routing import make_router
from octavo.records.experts import ExpertSpec, Routing

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
    assert kernels.reads(weights) and kernels.can_multiply(x, num_chosen, weights)
    expected = PlainPackedExperts(weights, spec)(x.float(), chosen, shares)
    found = kernels.token_experts(x, (chosen, shares), weights, spec)
    assert_near(found, expected, 4e-3)  # of bfloat16 between the GEMMs and in the result
    assert torch.equal(kernels.token_experts(x, (chosen, shares), weights, spec), found)


@on_hopper
def test_nan_stays() -> None:
    device = torch.device("cuda")
    weights = experts(device, 6, 640, 176)
    x, chosen, shares = token(device, 6, 4, 640)
    x[0, 300] = float("nan")
    assert kernels.token_experts(x, (chosen, shares), weights, SILU).isnan().all()


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


def make_choice(
    device: torch.device, routing: Routing, hidden: int, *, has_bias: bool = False
) -> tuple[torch.Tensor, DeferredChoice]:
    """A normed token and what its router leaves of the choice."""
    num_experts = routing.num_experts
    weight = random(device, 11, num_experts, hidden) / hidden**0.5
    bias = random(device, 12, num_experts) / 4 if has_bias else None
    correction = random(device, 13, num_experts) / 4 if routing.is_corrected else None
    x, residual = random(device, 14, 2, 1, hidden).bfloat16()
    norm = DeferredNorm(x, residual, 1 + random(device, 15, hidden).bfloat16() / 4, 1e-6)
    choice = make_router(weight, bias, correction, routing)(norm)
    assert isinstance(choice, DeferredChoice)
    return norm.rows(), choice


@on_hopper
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("routing", "spec"),
    [
        (Routing(128, 8, "softmax", renormalises=True), SILU),
        (Routing(128, 8, "softmax", scale=2.5), WEIGHED),
        (Routing(100, 4, "softmax", renormalises=True, is_corrected=True), SILU),
        (Routing(40, 8, "sigmoid"), SILU),
        (Routing(160, 4, "sigmoid", renormalises=True, scale=1.5, is_corrected=True), WEIGHED),
        (Routing(12, 8, "uniform", renormalises=True), SILU),
    ],
    ids=lambda value: value.score if isinstance(value, Routing) else "",
)
def test_it_chooses_as_the_routers_launch_does(routing: Routing, spec: ExpertSpec, has_bias: bool) -> None:
    device = torch.device("cuda")
    weights = experts(device, routing.num_experts, 640, 176)
    x, choice = make_choice(device, routing, 640, has_bias=has_bias)
    assert kernels.can_choose(choice)
    found = kernels.token_experts(x, choice, weights, spec)
    chosen, shares = choice
    assert torch.equal(choice.places, chosen[0].int())
    assert torch.equal(kernels.token_experts(x, (chosen, shares), weights, spec), found)


@on_hopper
def test_the_experts_choose_in_a_graph_as_often_as_it_runs() -> None:
    device = torch.device("cuda")
    routing = Routing(16, 4, "softmax", renormalises=True)
    weights = experts(device, 16, 640, 176)
    route = make_router(random(device, 11, 16, 640) / 640**0.5, None, None, routing)
    op = make_packed_experts(weights.gate_up.codes, weights, SILU)
    scale, x = torch.ones(640, device=device).bfloat16(), random(device, 1, 1, 640).bfloat16()

    def run() -> torch.Tensor:
        norm = DeferredNorm(x, None, scale, 1e-6)
        choice = route(norm)
        return sum_of(run_experts(op, norm.rows(), choice))

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run()
    for seed in range(2, 6):
        x.copy_(random(device, seed, 1, 640))
        graph.replay()
        assert torch.equal(y, run())


def test_what_it_chooses_by(device: torch.device) -> None:
    for routing, expected in (
        (Routing(16, 4, "softmax", renormalises=True), True),
        (Routing(16, 4, "sigmoid", is_corrected=True), True),
        (Routing(16, 4, "uniform"), True),
        (Routing(16, 4, "softmax", num_groups=4, num_open_groups=2), False),
        (Routing(16, 4, "sigmoid", num_groups=4, num_open_groups=4), True),
        (Routing(400, 4, "softmax"), True),
        (Routing(1030, 4, "softmax"), False),  # more logits than registers hold
    ):
        _, choice = make_choice(device, routing, 384)
        assert kernels.can_choose(choice) == expected


def test_other_choices_are_made_by_their_launch(device: torch.device) -> None:
    weights = experts(device, 16, 512, 128)
    op = make_packed_experts(weights.gate_up.codes, weights, SILU)
    assert isinstance(op, ChoosingExperts)
    routing = Routing(16, 4, "softmax", renormalises=True, num_groups=4, num_open_groups=2)
    x, choice = make_choice(device, routing, 512)
    found = sum_of(run_experts(op, x, choice))
    assert torch.equal(found, sum_of(op(x, *choice)))


def test_which_experts_it_reads(device: torch.device) -> None:
    assert kernels.reads(experts(device, 2, 512, 128))
    assert not kernels.reads(experts(device, 2, 576, 128))  # rows of no multiple of a block
    assert not kernels.reads(make(device, "float8", bias=True))
    for name in ("int8", "float8-blocks", "mxfp4"):
        assert not kernels.reads(make(device, name, bias=False))
