"""Grouped GEMMs over experts, and the choice of experts, held against their references."""

import pytest
import torch

from octavo.kernels.experts import ExpertWeights, PlainExperts
from octavo.kernels.routing import choose_experts as choose_reference
from octavo.kernels.triton.experts import choose_tile, experts_mlp, grouped_gemm, order_pairs
from octavo.kernels.triton.pair_sum import sum_pairs
from octavo.kernels.triton.routing import (
    MAX_SPLIT_TOKENS,
    choose_experts,
    make_logits,
    make_router,
    router_logits,
    router_weights,
)
from octavo.records.experts import ExpertSpec, Routing, Score

SILU = ExpertSpec("silu")
CLAMPED = ExpertSpec("clamped_swiglu", alpha=1.7, limit=0.8)


def random(device: torch.device, seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def make_experts(device: torch.device, num_experts: int, hidden: int, size: int, *, bias: bool) -> ExpertWeights:
    return ExpertWeights(
        random(device, 1, num_experts, 2 * size, hidden) / hidden**0.5,
        random(device, 2, num_experts, hidden, size) / size**0.5,
        random(device, 3, num_experts, 2 * size) if bias else None,
        random(device, 4, num_experts, hidden) if bias else None,
    )


def in_type(weights: ExpertWeights, dtype: torch.dtype) -> ExpertWeights:
    return ExpertWeights(*(None if weight is None else weight.to(dtype) for weight in weights))  # type: ignore[arg-type]


def choose(
    device: torch.device, num_tokens: int, num_experts: int, num_chosen: int
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = random(device, 5, num_tokens, num_experts).softmax(-1)
    weights, chosen = scores.topk(num_chosen)
    return chosen, weights


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("spec", "bias"),
    [
        (SILU, False),
        (ExpertSpec("gelu_tanh"), True),
        (CLAMPED, True),
        (ExpertSpec("clamped_silu", limit=0.8), False),
        (ExpertSpec("swiglu_step", limit=0.4), False),
        (ExpertSpec("silu", weighs_inputs=True), False),
    ],
    ids=["silu", "gelu", "clamped", "clamped silu", "swiglu step", "weighs inputs"],
)
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "hidden", "size"),
    [(1, 6, 2, 64, 48), (7, 5, 3, 40, 24), (40, 3, 2, 128, 72)],
    ids=str,
)
def test_it_is_what_the_reference_computes(
    device: torch.device,
    dtype: torch.dtype,
    spec: ExpertSpec,
    bias: bool,
    num_tokens: int,
    num_experts: int,
    num_chosen: int,
    hidden: int,
    size: int,
) -> None:
    weights = make_experts(device, num_experts, hidden, size, bias=bias)
    chosen, shares = choose(device, num_tokens, num_experts, num_chosen)
    x = random(device, 6, num_tokens, hidden)
    expected = PlainExperts(weights, spec)(x, chosen, shares)
    found = experts_mlp(x.to(dtype), chosen, shares, in_type(weights, dtype), spec).rows()
    tolerance = 1e-5 if dtype is torch.float32 and device.type == "cpu" else 2e-2
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("per_expert", [1, 8, 24, 40, 200, 600])
def test_tiles_of_larger_batches_compute_the_same(device: torch.device, per_expert: int) -> None:
    up, down = (choose_tile(3 * per_expert, 3, 2, is_gated=is_gated) for is_gated in (True, False))
    weights = make_experts(device, 3, 72, 40, bias=True)
    chosen, shares = choose(device, 20, 3, 2)
    x = random(device, 6, 20, 72)
    expected = PlainExperts(weights, SILU)(x, chosen, shares)
    weights, x = in_type(weights, torch.float16), x.half()
    order = order_pairs(chosen, 3, up.block_m)
    inner, results = x.new_empty(40, 40), x.new_empty(40, 72)
    grouped_gemm(x, weights.gate_up, weights.gate_up_bias, shares, inner, order, up, SILU)
    grouped_gemm(inner, weights.down, weights.down_bias, shares, results, order, down, None)
    found = sum_pairs(results, shares, 2)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)


def test_no_tokens(device: torch.device) -> None:
    weights = make_experts(device, 4, 32, 16, bias=False)
    chosen, shares = choose(device, 0, 4, 2)
    assert experts_mlp(random(device, 6, 0, 32), chosen, shares, weights, SILU).rows().shape == (0, 32)


def test_a_token_may_choose_an_expert_twice(device: torch.device) -> None:
    weights = make_experts(device, 3, 32, 16, bias=True)
    chosen = torch.arange(120, device=device).view(40, 3) % 7 // 6  # most of them the first
    shares = random(device, 5, 40, 3).softmax(-1)
    x = random(device, 6, 40, 32)
    expected = PlainExperts(weights, SILU)(x, chosen, shares)
    found = experts_mlp(x, chosen, shares, weights, SILU).rows()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("num_tokens", "num_experts"), [(1, 5), (2, 5), (17, 5), (400, 5), (1500, 5), (1200, 130), (50_000, 5)]
)
def test_pairs_are_ordered_by_expert(device: torch.device, num_tokens: int, num_experts: int) -> None:
    block_m = 16
    chosen, _ = choose(device, num_tokens, num_experts, 3)
    chosen[chosen == 2] = 4  # an expert without tokens
    order = order_pairs(chosen, num_experts, block_m)
    flat = chosen.flatten()
    assert order.pairs.tolist() == flat.argsort(stable=True).tolist()
    covered = []
    for expert, start, end in order.tiles[: int(order.num_tiles)].tolist():
        assert 0 < end - start <= block_m
        assert flat[order.pairs[start:end].long()].unique().tolist() == [expert]
        covered += range(start, end)
    assert covered == list(range(3 * num_tokens))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter adds up in NumPy's order")
@pytest.mark.parametrize("spec", [SILU, CLAMPED], ids=["silu", "clamped"])
def test_bits_of_a_token_do_not_depend_on_the_others(device: torch.device, spec: ExpertSpec) -> None:
    weights = in_type(make_experts(device, 16, 512, 320, bias=True), torch.bfloat16)
    chosen, shares = choose(device, 2200, 16, 4)
    x = random(device, 6, 2200, 512).to(torch.bfloat16)
    alone = experts_mlp(x[:1], chosen[:1], shares[:1], weights, spec).rows()
    for count in (2, 8, 16, 60, 130, 300, 2200):  # all tiles
        found = experts_mlp(x[:count], chosen[:count], shares[:count], weights, spec).rows()
        assert torch.equal(found[:1], alone)


@pytest.mark.parametrize("is_gated", [True, False])
def test_tiles_grow_with_the_rows_of_an_expert(is_gated: bool) -> None:
    blocks = [choose_tile(num_pairs, 128, 2, is_gated=is_gated).block_m for num_pairs in (8, 1024, 4096, 8192, 65536)]
    assert blocks == [16, 16, 64, 128, 128]
    for num_pairs in (8, 1024, 8192, 65536):
        tile = choose_tile(num_pairs, 128, 2, is_gated=is_gated)
        assert tile.block_n * (2 if tile.is_joined else 1) >= 64, "tensor cores take weights' rows in units of 64"
        assert tile.is_specialised == (num_pairs == 65536)
    tile = choose_tile(65536, 128, 2, is_gated=is_gated, has_tma=False)
    assert not tile.uses_descriptors and not tile.is_specialised


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("num_tokens", "num_experts", "hidden"), [(1, 1, 24), (5, 6, 40), (33, 20, 256)])
@pytest.mark.parametrize("bias", [False, True])
def test_logits(
    device: torch.device, dtype: torch.dtype, num_tokens: int, num_experts: int, hidden: int, bias: bool
) -> None:
    x = random(device, 1, num_tokens, hidden).to(dtype)
    weight = random(device, 2, num_experts, hidden)
    own_bias = random(device, 3, num_experts) if bias else None
    expected = x.double() @ weight.double().T + (0 if own_bias is None else own_bias.double())
    torch.testing.assert_close(router_logits(x, weight, own_bias).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_that_a_type_holds_are_multiplied_in_it(device: torch.device, dtype: torch.dtype) -> None:
    """As in float32; one value that the type does not hold keeps all of them in float32."""
    x = random(device, 1, 33, 256).to(dtype)
    weight = random(device, 2, 20, 256).to(dtype).float()
    assert router_weights(weight)[dtype].dtype is dtype
    found, expected = make_logits(weight, None)(x), x.double() @ weight.double().T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)

    weight[3, 5] = 1 + 2.0**-12
    assert router_weights(weight)[dtype] is weight
    found, expected = make_logits(weight, None)(x), x.double() @ weight.double().T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_of_a_token_do_not_depend_on_the_others(device: torch.device, dtype: torch.dtype) -> None:
    num_experts = 40 if device.type == "cuda" else 20  # the interpreter's sums depend on a tile's shape
    x, weight = random(device, 1, 2050, 520).to(dtype), random(device, 2, num_experts, 520).to(dtype)
    alone = router_logits(x[:1], weight, weight[:, 0].contiguous())
    for count in (3, 64, MAX_SPLIT_TOKENS + 1, len(x)):  # in parts up to so many, whole above
        assert torch.equal(router_logits(x[:count], weight, weight[:, 0].contiguous())[:1], alone)


@pytest.mark.parametrize(
    "routing",
    [
        Routing(6, 2),
        Routing(64, 6, renormalises=True, scale=1.5),
        Routing(20, 3, "sigmoid", renormalises=True, is_corrected=True),
        Routing(12, 3, "sigmoid", True, 2.5, True, num_groups=4, num_open_groups=2, num_ranked=2),
        Routing(15, 4, scale=16.0, num_groups=5, num_open_groups=3),
        Routing(8, 2, "sparsemixer", jitter=0.05),
        Routing(48, 8, "uniform", renormalises=True),
        Routing(512, 22, "sigmoid", renormalises=True, scale=5.0, is_corrected=True),
        Routing(384, 22, "sigmoid", True, 2.5, True, num_groups=8, num_open_groups=4, num_ranked=2),
    ],
    ids=lambda routing: f"{routing.score}-{routing.num_experts}",
)
@pytest.mark.parametrize("num_tokens", [0, 1, 9])
def test_choice(device: torch.device, routing: Routing, num_tokens: int) -> None:
    logits = random(device, 1, num_tokens, routing.num_experts)
    correction = random(device, 2, routing.num_experts) if routing.is_corrected else None
    chosen, weights = choose_experts(logits, correction, routing)
    expected, expected_weights = choose_reference.reference(logits, correction, routing)
    assert chosen.tolist() == expected.tolist()
    torch.testing.assert_close(weights, expected_weights)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "routing",
    [Routing(20, 3, renormalises=True), Routing(24, 4, "sigmoid", True, 2.5, True, 4, 2, 2), Routing(20, 2, "uniform")],
    ids=lambda routing: routing.score,
)
def test_a_tokens_route_does_not_depend_on_the_others(device: torch.device, routing: Routing) -> None:
    x, weight = random(device, 1, MAX_SPLIT_TOKENS + 1, 300), random(device, 2, routing.num_experts, 300) / 16
    bias, correction = weight[:, 0].contiguous(), weight[:, 1].contiguous() if routing.is_corrected else None
    router = make_router(weight, bias, correction, routing)
    expected = choose_reference.reference(router_logits(x, weight, bias), correction, routing)
    chosen, shares = router(x)
    assert chosen.tolist() == expected[0].tolist()
    torch.testing.assert_close(shares, expected[1])
    for count in (0, 1, 9, 16, 40):
        few_chosen, few_shares = router(x[:count])
        assert torch.equal(few_chosen, chosen[:count])
        assert torch.equal(few_shares, shares[:count])


@pytest.mark.parametrize(
    ("routing", "best"),
    [
        (Routing(512, 22, renormalises=True), [509, 510, 511, *range(19)]),
        (Routing(6, 2, "sigmoid"), [3, 4]),
        (Routing(16, 4, "sigmoid", True, 2.5, True, num_groups=4, num_open_groups=2, num_ranked=2), [13, 14, 15, 0]),
    ],
    ids=lambda value: f"{value.num_chosen} of {value.num_experts}" if isinstance(value, Routing) else "",
)
def test_of_equal_experts_the_first_are_chosen(device: torch.device, routing: Routing, best: list[int]) -> None:
    logits = torch.zeros(3, routing.num_experts, device=device)
    logits[1, 1::2] = -0.0
    logits[2, -3:] = 1.5
    correction = torch.full_like(logits[0], -1.0) if routing.is_corrected else None
    first = list(range(routing.num_chosen))
    for choose_by in (choose_experts, choose_reference.reference):
        chosen, _ = choose_by(logits, correction, routing)
        assert chosen.tolist() == [first, first, best]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_a_token_that_is_no_number_chooses_experts_that_exist(device: torch.device, score: Score) -> None:
    logits = random(device, 1, 5, 6)
    logits[2] = torch.nan
    logits[3, 1] = torch.nan
    chosen, weights = choose_experts(logits, None, Routing(6, 3, score))
    assert ((chosen >= 0) & (chosen < 6)).all()
    assert weights[2].isnan().all() and weights[[0, 1, 4]].isfinite().all()


def test_uniform_routing_is_even(device: torch.device) -> None:
    logits = random(device, 1, 2000, 16) * 0.01 + torch.arange(16, device=device)
    chosen, _ = choose_reference.reference(logits, None, Routing(16, 4, "uniform"))
    counts = chosen.flatten().bincount(minlength=16)
    assert counts.min() > 400, "of 500, within five standard deviations"
    assert counts.max() < 600
